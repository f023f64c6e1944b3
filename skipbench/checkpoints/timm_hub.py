"""Models of timm: made by name, with pretrained weights or those of a file."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from skipbench.checkpoints.facts import TIMM_SOURCE
from skipbench.checkpoints.files import RawFile, digest_of_tensors, read_file
from skipbench.checkpoints.hub import quick_answer, why_not
from skipbench.checkpoints.layouts import PREFIX_WORDS, Branch, choose, head_of, tensors_of
from skipbench.checkpoints.shape import canonical, refuse_non_finite
from skipbench.errors import CheckpointError, did_you_mean, some_of
from skipbench.records import Preprocessing
from skipbench.sources import ModelSource

# How a model is made so that it takes images of any size, if its class can: the first that works.
ANY_SIZE: tuple[dict[str, Any], ...] = (
    {"dynamic_img_size": True}, {"strict_img_size": False}, {},
)  # fmt: skip
# Parts of a model that features do not pass through, so a file may lack them.
POOLING = ("head", "head_drop", "fc_norm", "attn_pool", "pool")


@dataclass(frozen=True)
class TimmModel:
    """Of a file, the weights are not in the module yet."""

    name: str  # as timm calls it
    of_file: bool
    module: Any
    options: Mapping[str, Any]  # that it was made with
    raw: RawFile


def open_timm(source: ModelSource) -> TimmModel:
    name = source.name
    _require_known(name)
    if source.path:
        source.ensure_exists()
        raw = read_file(source.path)
        module, options = make(name)
        metadata = {**_metadata(module), **raw.metadata}
        return TimmModel(name, True, module, options, replace(
            raw, metadata=metadata, metadata_source=TIMM_SOURCE, path=Path(name)
        ))  # fmt: skip
    with quick_answer() as reachable:
        try:
            module, options = make(name, pretrained=True)
        except Exception as error:  # the hub's client raises exceptions of many kinds
            raise CheckpointError(why_not(source, error, reachable)) from None
    state = dict(module.state_dict())
    metadata = {**_metadata(module), "residual": "skip"}
    digest = digest_of_tensors(state)
    raw = RawFile(Path(name), state, metadata, TIMM_SOURCE, digest, "hash of the tensors")
    return TimmModel(name, False, module, options, raw)


def timm_of_folder(path: Path, config: Mapping[str, Any]) -> TimmModel:
    """A folder as timm pushes it to the hub. config: its config.json."""
    name = str(config["architecture"])
    _require_known(name)
    own = {key: config[key] for key in ("pretrained_cfg",) if isinstance(config.get(key), Mapping)}
    stated = config.get("model_args")
    decided = {"num_classes", *(key for options in ANY_SIZE for key in options)}  # by `make`
    if isinstance(stated, Mapping):
        own |= {key: value for key, value in stated.items() if key not in decided}
    module, options = make(name, **own)
    return TimmModel(name, True, module, options, read_file(path))


def _require_known(name: str) -> None:
    import timm

    known = [*timm.list_models(), *timm.list_models(pretrained=True)]
    if name not in known:
        raise CheckpointError(f"timm has no model {name!r}.{did_you_mean(name, known)}")


def make(name: str, **more: Any) -> tuple[Any, dict[str, Any]]:
    """The module without a classifier, and the options that it was made with."""
    import timm

    for options in ANY_SIZE:
        try:
            return timm.create_model(name, num_classes=0, **options, **more), options
        except TypeError:  # its class has no such option
            if not options:
                raise
    raise AssertionError("the last ones are empty")


def preprocessing_of(module: Any) -> tuple[Preprocessing, tuple[int, int]]:
    """Its own, and the size that it was made for."""
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(module)
    how = Preprocessing(
        tuple(config["mean"]), tuple(config["std"]),
        "bilinear" if config["interpolation"] == "bilinear" else "bicubic",
    )  # fmt: skip
    made_for = getattr(getattr(module, "patch_embed", None), "img_size", None)
    return how, tuple(made_for or config["input_size"][-2:])


def _metadata(module: Any) -> dict[str, Any]:
    metadata = vars(preprocessing_of(module)[0])
    if _is_vit(module):
        metadata |= {
            "num_heads": module.blocks[0].attn.num_heads,
            "img_size": tuple(module.patch_embed.img_size),
            "layer_norm_eps": module.norm.eps if hasattr(module.norm, "eps") else 1e-6,
        }
    return metadata


def _is_vit(module: Any) -> bool:
    """timm's VisionTransformer with nothing but standard blocks."""
    from timm.layers import Attention, Mlp, SwiGLUPacked
    from timm.models.vision_transformer import Block, VisionTransformer

    if not isinstance(module, VisionTransformer):
        return False
    block = module.blocks[0]
    if type(block) is not Block or type(block.attn) is not Attention:
        return False
    kind, act = type(block.mlp), getattr(block.mlp, "act", None)
    if kind is SwiGLUPacked:
        return isinstance(act, torch.nn.SiLU)
    return kind is Mlp and type(act) is torch.nn.GELU and act.approximate == "none"


def is_plain(module: Any) -> bool:
    """Whether skipbench's own vision transformer computes what this module does."""
    if not _is_vit(module):
        return False
    with torch.no_grad():
        state = {key: value for key, value in module.state_dict().items() if not head_of(key)}
    eps = {norm.eps for norm in module.modules() if isinstance(norm, torch.nn.LayerNorm)}
    try:
        canonical(state, tuple(module.patch_embed.grid_size), "")
    except CheckpointError:
        return False
    return len(eps) == 1


# -- the weights of a file, in a module


@dataclass(frozen=True)
class Fit:
    """One dictionary of a file, without one prefix, under the names of a module."""

    branch: Branch
    state: dict[str, torch.Tensor]
    missing: list[str]  # but for poolings
    unexpected: list[str]  # but for heads and computed buffers

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.unexpected


def load_into(
    module: Any, raw: RawFile, weights: str | None, name: str
) -> tuple[Branch, list[Branch]]:
    """Strict: every tensor that features need is in the file, and nothing else but heads. Returns
    the one that was loaded, and the others that fit."""
    found = list(fits(module, raw.tree))
    whole = [fit for fit in found if fit.is_whole]
    if not whole:
        raise CheckpointError(_misfit(name, type(module).__name__, found))
    branch = choose([fit.branch for fit in whole], weights, name, raw.tree)
    state = next(fit.state for fit in whole if fit.branch is branch)
    own = module.state_dict()
    wrong = [
        f"{key} is {tuple(value.shape)}, not {tuple(own[key].shape)}"
        for key, value in state.items()
        if key in own and value.shape != own[key].shape
    ]
    if wrong:
        raise CheckpointError(f"{name}: tensors of a wrong shape:\n{some_of(wrong, 3)}")
    floats = {key: value.float() for key, value in state.items() if value.is_floating_point()}
    refuse_non_finite(floats, name)
    module.load_state_dict({**state, **floats}, strict=False)
    return branch, [fit.branch for fit in whole if fit.branch is not branch]


def fits(module: Any, tree: Any) -> Iterator[Fit]:
    """How each dictionary of tensors fits, with each prefix that may lead to a model."""
    own = module.state_dict()
    translate = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    for branch in _candidates(tree):
        state = {
            key.removeprefix(branch.prefix): value
            for key, value in branch.state.items()
            if isinstance(value, torch.Tensor) and key.startswith(branch.prefix)
        }
        try:
            state = dict(translate(dict(state), module)) if translate else state
        except Exception:  # written for the files that it knows
            continue
        needed = {key for key in own if key.split(".")[0] not in POOLING}
        more = [key for key in state.keys() - own.keys() if not _may_be_left_out(key)]
        yield Fit(branch, state, sorted(needed - state.keys()), sorted(more))


def _may_be_left_out(key: str) -> bool:
    """Heads, and buffers that once were stored."""
    last = key.rpartition(".")[2]
    return bool(head_of(key)) or last in ("relative_position_index", "attn_mask", "k_bias")


def _candidates(tree: Any) -> Iterator[Branch]:
    seen = set()
    for path, key, state in tensors_of(tree):
        words = key.split(".")[:-1]
        for count in range(len(words) + 1):
            prefix = "".join(f"{word}." for word in words[:count])
            if not PREFIX_WORDS.issuperset(words[:count]):
                break
            if (path, prefix) not in seen:
                seen.add((path, prefix))
                yield Branch(path, prefix, state)


def _misfit(name: str, kind: str, found: list[Fit]) -> str:
    if not found:
        return f"{name}: contains no weights of a {kind}"
    best = min(found, key=lambda fit: len(fit.missing) + len(fit.unexpected))
    lines = [f"{name}: its weights are not those of this model ({kind}); nothing was loaded."]
    lines += [f"missing: {some_of(best.missing)}"] if best.missing else []
    lines += [f"unexpected: {some_of(best.unexpected)}"] if best.unexpected else []
    return "\n".join(lines)
