"""Vision models of transformers, from safetensors and without remote code."""

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from skipbench.backbones.base import BlockOutputs, Column, Model
from skipbench.backbones.wrapped import Wrapped, by_kind, require, wrapped_model
from skipbench.checkpoints import Expected
from skipbench.checkpoints.facts import NOT_STATED, Metadata, preprocessing_of
from skipbench.checkpoints.files import RawFile, read_config
from skipbench.checkpoints.hub import quick_answer, why_not
from skipbench.checkpoints.read import require_hash
from skipbench.errors import CheckpointError, first_line, some_of
from skipbench.files import INDEX, sha256_of, weights_file
from skipbench.records import CheckpointFacts, RopeKeys

FINAL_NORMS = ("layernorm", "norm", "post_layernorm", "rms_norm")
# Towers and heads that image features do not pass through.
NOT_FEATURES = (
    r"(text_model|text_projection|visual_projection|logit_|decoder|classifier|head|pooler|"
    r"predictor|lm_head|cls_classifier|distillation_classifier)"
)


class TransformersBackbone(Wrapped):
    def __init__(self, module: Any, facts: CheckpointFacts) -> None:
        self.module = module.eval().requires_grad_(False)
        self.facts = facts
        self.residual, self.device, self.precision = "skip", torch.device("cpu"), "fp32"
        self.layers = self.attending = _layers(module, facts.depth)
        self.norm = _final_norm(module)
        known = inspect.signature(module.forward).parameters
        resized = "interpolate_pos_encoding" in known
        self._more = {"interpolate_pos_encoding": True} if resized else {}
        self._takes_patches = "spatial_shapes" in known  # SigLIP 2 with native aspect ratios

    def tokens(
        self, images: torch.Tensor, blocks: Sequence[int], names: Sequence[str]
    ) -> BlockOutputs:
        grid_hw = (images.shape[2] // self.patch, images.shape[3] // self.patch)
        found: dict[int, torch.Tensor] = {}
        with ExitStack() as stack:
            for block in blocks:
                hook = self.layers[block].register_forward_hook(partial(_keep, found, block))
                stack.callback(hook.remove)
            if self._takes_patches:
                self.module(**_in_patches(images, self.patch, grid_hw))
            else:
                self.module(pixel_values=images, **self._more)
        patches, prefix = dict[Column, torch.Tensor](), dict[Column, torch.Tensor]()
        for name in names:
            for block, x in found.items():
                x = self.norm(x) if self.norm and name == "tokens_norm" else x
                first = x.shape[1] - grid_hw[0] * grid_hw[1]
                patches[block, name] = x[:, first:].unflatten(1, grid_hw)
                prefix[block, name] = x[:, :first]
        return by_kind(patches, prefix, has_class=True)


def _keep(
    found: dict[int, torch.Tensor], block: int, module: object, given: object, output: Any
) -> None:
    found[block] = output[0] if isinstance(output, tuple) else output


def _in_patches(
    images: torch.Tensor, patch: int, grid_hw: tuple[int, int]
) -> dict[str, torch.Tensor]:
    """Each patch with its channels last."""
    cut = images.unflatten(2, (grid_hw[0], patch)).unflatten(4, (grid_hw[1], patch))
    values = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    return {
        "pixel_values": values,
        "pixel_attention_mask": values.new_ones(values.shape[:2], dtype=torch.int32),
        "spatial_shapes": torch.tensor([grid_hw] * len(images), device=images.device),
    }


def _layers(module: torch.nn.Module, depth: int) -> torch.nn.ModuleList:
    """The blocks: the one list of this length."""
    lists = [m for m in module.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == depth]
    if len(lists) != 1:
        raise CheckpointError(
            f"{type(module).__name__}: {len(lists)} lists of {depth} blocks; expected one"
        )
    return lists[0]


def _final_norm(module: Any) -> Any | None:
    tower = getattr(module, "vision_model", module)
    children = {**dict(module.named_children()), **dict(tower.named_children())}
    return next((children[name] for name in FINAL_NORMS if name in children), None)


def _is_rotary(module: torch.nn.Module) -> bool:
    kinds = {type(one).__name__.lower() for one in module.modules()}
    return any(word in kind for kind in kinds for word in ("rope", "rotary"))


# -- loading


def transformers_model(
    folder: Path,
    name: str,
    expected: Expected,
    rope_keys: RopeKeys,
) -> Model:
    weights, config = weights_file(folder), read_config(folder)
    _require_safetensors(weights, folder)
    _require_package(name, str(config.get("model_type")))
    raw = RawFile(
        weights, {}, {**read_config(folder, "preprocessor_config.json"), **config}, "config.json",
        sha256_of(weights), "names and hashes of its parts" if weights.name.endswith(INDEX)
        else "the whole file",
    )  # fmt: skip
    require_hash(raw, expected, name)
    module = _load(folder, name)
    vision = module.config
    needed = ("num_hidden_layers", "hidden_size", "patch_size")
    if hasattr(vision, "depths") or not all(hasattr(vision, fact) for fact in needed):
        raise CheckpointError(
            f"{name}: {type(module).__name__} is not a plain vision transformer. Hierarchical "
            "models run\nthrough timm: `--ckpt timm:NAME`, or timm:NAME@FILE with the same weights "
            "in timm's layout."
        )
    depth, width, patch = (getattr(vision, fact) for fact in needed)
    patch = patch if isinstance(patch, int) else patch[0]
    how, source = preprocessing_of(Metadata(raw), name)
    stated = source != NOT_STATED
    side = getattr(vision, "image_size", None) or 16 * patch
    native_hw = (side, side) if isinstance(side, int) else tuple(side)
    facts = CheckpointFacts(
        name=name,
        sha256=raw.sha256,
        layout=f"transformers {type(module).__name__}",
        weights=None,
        width=width,
        depth=depth,
        patch=patch,
        heads=getattr(vision, "num_attention_heads", None),
        rope_keys=rope_keys if _is_rotary(module) else None,
        residual="skip",
        preprocessing=how,
        native_hw=native_hw,
        sources={
            "sha256": raw.sha256_source, "layout": "config.json", "width": "config.json",
            "depth": "config.json", "patch": "config.json", "heads": "config.json",
            "residual": "its architecture", "native_hw": "config.json",
            "preprocessing": source if stated else "ImageNet's, as nothing is stated",
        },
        doubts=() if stated else (
            "the folder has no preprocessor_config.json: pixels are normalised with ImageNet's "
            "mean and deviation",
        ),
    )  # fmt: skip
    require(expected, facts)
    backbone = TransformersBackbone(module, facts)
    backbone.measure(native_hw)
    return wrapped_model(backbone)


def _require_safetensors(weights: Path, folder: Path) -> None:
    if not weights.is_file() or ".safetensors" not in weights.name:
        there = some_of(sorted(p.name for p in folder.iterdir()))
        raise CheckpointError(
            f"{folder}: no safetensors weights (it contains: {there}). Other architectures than "
            "plain\nvision transformers are loaded from safetensors only: "
            "model.save_pretrained(…) writes them."
        )


def _require_package(name: str, kind: str) -> None:
    if find_spec("transformers") is None:
        raise CheckpointError(
            f"{name} is a {kind} of transformers, which is not installed: "
            "pip install 'skipbench[hf]'"
        )


def _load(folder: Path, name: str) -> Any:
    """The vision tower. Every tensor of it is in the files."""
    from transformers import AutoConfig, AutoModel

    with _quiet():
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            module, info = AutoModel.from_pretrained(
                folder, config=getattr(config, "vision_config", config), local_files_only=True,
                use_safetensors=True, trust_remote_code=False, dtype=torch.float32,
                output_loading_info=True,
            )  # fmt: skip
        except Exception as error:  # of many kinds
            raise CheckpointError(
                f"{name}: transformers cannot load it: {first_line(error)}"
            ) from None
    missing = [key for key in info["missing_keys"] if not re.match(NOT_FEATURES, key)]
    extra = [key for key in info["unexpected_keys"] if not re.match(NOT_FEATURES, key)]
    wrong = [str(key) for key in info["mismatched_keys"]]
    if missing or extra or wrong:
        lists = {"missing": missing, "unexpected": extra, "of a wrong shape": wrong}
        lines = [f"{what}: {some_of(sorted(keys))}" for what, keys in lists.items() if keys]
        raise CheckpointError(
            f"{name}: its weights are not those of a {type(module).__name__} of this config.json; "
            "it was not used.\n" + "\n".join(lines)
        )
    for key, value in module.state_dict().items():
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{name}: NaN or Inf in the weights, first in {key}")
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports: what matters is checked here."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def fetch(name: str) -> Path:
    """The folder of a model on the hub, in the hub's cache."""
    from huggingface_hub import snapshot_download

    files = ["*config.json", "model*.safetensors", f"model.safetensors{INDEX}"]
    with quick_answer() as reachable:
        try:
            return Path(snapshot_download(name, allow_patterns=files))
        except Exception as error:  # the hub's client raises exceptions of many kinds
            raise CheckpointError(why_not(f"hf:{name}", error, reachable)) from None
