"""The facts of a checkpoint: from what it states about itself, from its keys and its shapes.

A checkpoint states facts in its training arguments, config.json or safetensors header. Every fact
is returned with the place it was read from; contradictions about the architecture are an error.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from skipbench.checkpoints.files import RawFile
from skipbench.checkpoints.layouts import BackboneTensors, named_branch, notes_on
from skipbench.checkpoints.shape import Shape
from skipbench.errors import CheckpointError
from skipbench.records import IMAGENET, CheckpointFacts, PositionRule, Preprocessing, Residual

TIMM_SOURCE = "timm's model"
POSITION_RULES: dict[str, PositionRule] = {
    "dino": "offset",
    "ibot": "offset",
    "dinov2": "offset",
    "mae": "size",
    "mocov3": "size",
    "deit": "size",
    "timm": "antialias",
    "transformers": "offset",
}
# Widths whose heads are not 64 wide, which the weights alone do not show.
WIDE_HEADS = {1280: 16, 1408: 16, 1664: 16}  # ViT-H, ViT-g, ViT-G

ARGUMENT_KEYS = ("args", "config", "cfg", "hyper_parameters", "opt", "model_args")
PLAIN, LARGEST = (bool, int, float, str, np.generic), 10**18
ASSUMED_HEADS = "64-wide heads, as DINO's"  # the source
NOT_STATED = "not stated"
USED_IMAGENET = ("dino", "dinov2", "ibot", "mae", "mocov3", "deit")  # means and deviations
CLASSIFIER = "a classifier"
BARE = "a plain backbone"  # the source of its layout
NUMBER_OF_HEADS = ("num_heads", "num_attention_heads", "heads", "n_heads")

Stated = tuple[Any, str]  # a value, and where it was read from


@dataclass(frozen=True)
class Expected:
    """What a user, a suite or a baseline expects of the checkpoint; None: anything."""

    depth: int | None = None
    width: int | None = None
    patch: int | None = None
    heads: int | None = None
    sha256: str | None = None


class Metadata:
    """All (name, value, place) of a checkpoint, nearest to the weights first."""

    def __init__(self, raw: RawFile) -> None:
        self.entries: list[tuple[str, Any, str]] = []
        top = raw.tree if isinstance(raw.tree, Mapping) else {}
        for key in ARGUMENT_KEYS:
            self._add(top.get(key), key)
        self._add(top, "")
        self._add(raw.metadata, raw.metadata_source)
        for key in ("model_args", "pretrained_cfg"):  # of timm
            self._add(raw.metadata.get(key), f"{raw.metadata_source}: {key}")

    def _add(self, values: Any, place: str) -> None:
        if isinstance(values, argparse.Namespace):
            values = vars(values)
        if not isinstance(values, Mapping):
            return
        for name, value in values.items():
            if isinstance(name, str) and _is_plain(value):
                is_file = place == "" or ":" in place or "." in place
                where = f"{place} {name}".strip() if is_file else f"{place}.{name}"
                self.entries.append((name, value, where))

    def find(self, *names: str) -> Stated | None:
        """The value of the first of these names that has one."""
        for wanted in names:
            for name, value, place in self.entries:
                if name == wanted and value is not None and value != "":
                    return value, place
        return None

    def number(self, *names: str) -> tuple[float, str] | None:
        stated = self.find(*names)
        try:
            return None if stated is None else (float(stated[0]), stated[1])
        except (TypeError, ValueError):
            return None

    def integer(self, *names: str) -> tuple[int, str] | None:
        stated = self.number(*names)
        return None if stated is None or not stated[0].is_integer() else (int(stated[0]), stated[1])

    def text(self, *names: str) -> tuple[str, str] | None:
        stated = self.find(*names)
        return None if stated is None else (str(stated[0]), stated[1])


def _is_plain(value: Any) -> bool:
    """A value or a size with a short text. (A list may contain itself.)"""
    parts = value if isinstance(value, tuple | list) else [value]
    short = not any(isinstance(one, int) and abs(one) > LARGEST for one in parts)
    return len(parts) < 5 and short and all(isinstance(one, PLAIN) for one in parts)


# There is no standard name for it: these mean "with residual connections", or "without".
NAMES_OF_SKIP = (
    "residual residuals skip use_skip use_residual skip_connection skip_connections "
    "residual_connections".split()
)
NAMES_OF_SKIPLESS = "skipless no_skip no_residual residual_free remove_skip without_skip".split()


def residual_of(metadata: Metadata, name: str) -> tuple[Residual, str] | None:
    stated: list[tuple[Residual, str]] = []
    for key in (*NAMES_OF_SKIP, *NAMES_OF_SKIPLESS):
        found = metadata.find(key)
        variant = found and _variant(found[0], key in NAMES_OF_SKIPLESS)
        if found and variant:
            stated.append((variant, f"{found[1]}={found[0]}"))
    if len({variant for variant, _ in stated}) > 1:
        places = " but ".join(f"{place} ({variant})" for variant, place in stated)
        raise CheckpointError(f"{name} contradicts itself: {places}")
    return stated[0] if stated else None


def _variant(value: Any, negated: bool) -> Residual | None:
    """negated: the name of the value means "without"."""
    word = str(value).strip().lower()
    if word in ("true", "yes", "1", "1.0"):
        return "skipless" if negated else "skip"
    if word in ("false", "no", "0", "0.0"):
        return "skip" if negated else "skipless"
    if word in ("skip", "residual"):
        return "skip"
    return "skipless" if word in ("skipless", "none", "residual-free") else None


def optimizer_of(metadata: Metadata, tree: Any) -> tuple[str, str] | None:
    if stated := metadata.text("optimizer", "opt", "optim", "optimizer_name"):
        return stated[0].lower(), stated[1]
    for key in ("optimizer", "state"):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    slots = next(iter(tree.values()), None) if isinstance(tree, Mapping) else None
    if not isinstance(slots, Mapping):
        return None
    for slot, optimizer in (("GG", "soap"), ("exp_avg_sq", "adam(w)"), ("momentum_buffer", "sgd")):
        if slot in slots:
            return optimizer, f"optimizer: its state has {slot}"
    return None


def stated_grid(metadata: Metadata, found: BackboneTensors) -> tuple[int, int] | None:
    """The grid of position embeddings, if the file states a training size that is not square."""
    stated = metadata.find("img_size", "image_size", "input_size")
    positions, kernel = found.state.get("pos_embed"), found.state["patch_embed.proj.weight"]
    if stated is None or not isinstance(stated[0], tuple | list):
        return None
    sizes = [side for side in stated[0] if isinstance(side, int) and side > 0][-2:]
    if len(sizes) != 2 or positions is None or positions.ndim != 3:
        return None
    if kernel.ndim != 4 or not kernel.shape[-1]:
        return None
    height, width = (side // kernel.shape[-1] for side in sizes)
    entries = positions.shape[1]
    return (height, width) if entries - height * width in (0, 1, 2) else None


# -- from metadata, keys and shapes


def gather_facts(
    raw: RawFile,
    found: BackboneTensors,
    metadata: Metadata,
    shape: Shape,
    expected: Expected,
    name: str,
    position_rule: PositionRule | None,
) -> CheckpointFacts:
    sources = dict.fromkeys(vars(shape), "shapes of the weights")
    sources["sha256"] = raw.sha256_source
    layout, sources["layout"] = _layout(found, metadata, raw)
    _check_shape(metadata, shape, expected, name)
    is_bare = sources["layout"] in (BARE, CLASSIFIER)
    heads, sources["heads"] = _heads(metadata, shape.width, layout, is_bare, expected, name)
    rule, sources["position_rule"] = _position_rule(layout, shape, metadata, position_rule)
    eps, sources["norm_eps"] = _norm_eps(metadata, name)
    how, sources["preprocessing"] = preprocessing_of(metadata, name)
    own = (how.mean, how.std) != (IMAGENET.mean, IMAGENET.std)
    if not own or layout in USED_IMAGENET:
        how, sources["preprocessing"] = IMAGENET, "as in DINO, DINOv2, MAE, DeiT"
    sources["native_hw"] = "its position grid"
    sources["weights"] = f"from {found.branch}" if found.branch.words else "the only ones there"

    stated = {
        "epoch": metadata.integer("epoch", "epochs_trained"),
        "optimizer": optimizer_of(metadata, raw.tree),
        "residual": residual_of(metadata, name),
        "initialisation": metadata.text(
            "initialisation", "initialization", "init_method", "weight_init", "init"
        ),
    }
    sources |= {key: pair[1] if pair else "not in the file" for key, pair in stated.items()}
    values: dict[str, Any] = {key: pair[0] if pair else None for key, pair in stated.items()}
    return CheckpointFacts(
        name=named_branch(name, found.branch, found.others),
        sha256=raw.sha256,
        layout=layout,
        weights=found.label,
        **vars(shape),
        heads=heads,
        position_rule=rule,
        norm_eps=eps,
        preprocessing=how,
        native_hw=(shape.grid_hw[0] * shape.patch, shape.grid_hw[1] * shape.patch),
        sources=sources,
        dropped=found.dropped,
        notes=_notes(found),
        doubts=_doubts(heads, sources),
        **values,
    )


def _notes(found: BackboneTensors) -> tuple[str, ...]:
    notes = list(notes_on(found.branch, found.others))
    if found.dropped:
        counts = ", ".join(f"{head} ({n})" for head, n in found.dropped.items())
        notes.append(f"ignored {counts}: tensors that features do not need")
    return tuple(notes)


def _doubts(heads: int, sources: Mapping[str, str]) -> tuple[str, ...]:
    unsaid, flags = [], []
    if sources["heads"] == ASSUMED_HEADS:
        unsaid.append(f"its number of heads ({heads} assumed)")
        flags.append(f"--heads {heads}")
    if sources["layout"] == BARE and sources["position_rule"] == "dino's rule":
        unsaid.append("whose code trained it (DINO's position rule assumed, timm's is antialias)")
        flags.append("--position-rule offset")
    if not unsaid:
        return ()
    return (f"the file does not say {' or '.join(unsaid)}; {' '.join(flags)} confirms this",)


def preprocessing_of(metadata: Metadata, name: str) -> tuple[Preprocessing, str]:
    """What the file states, or ImageNet's."""
    mean, std = metadata.find("image_mean", "mean"), metadata.find("image_std", "std")
    if not mean or not std:
        return IMAGENET, NOT_STATED
    try:
        three = [tuple(float(channel) for channel in each[0]) for each in (mean, std)]
    except (TypeError, ValueError):
        three = []
    if [len(each) for each in three] != [3, 3] or not all(0 < s < 10 for s in three[1]):
        raise CheckpointError(
            f"{name}: {mean[1]} states mean {mean[0]} and deviation {std[0]}; expected three "
            "numbers each"
        )
    found = Preprocessing(three[0], three[1], _interpolation(metadata))  # type: ignore[arg-type]
    return found, mean[1].rpartition(" ")[0] or mean[1]


def _interpolation(metadata: Metadata) -> Literal["bilinear", "bicubic"]:
    """Pillow's number of it in transformers' files, its name in timm's."""
    stated = metadata.find("resample", "interpolation")
    return "bilinear" if stated and stated[0] in (2, "bilinear") else "bicubic"


def _layout(found: BackboneTensors, metadata: Metadata, raw: RawFile) -> tuple[str, str]:
    keys = found.original_keys | found.dropped.keys()
    stated = metadata.text("layout")
    if stated and stated[0] in POSITION_RULES:
        return stated
    if raw.metadata_source == TIMM_SOURCE:
        return _layout_of_timm(raw.path.name), f"{raw.metadata_source}: its name"
    if any(key.startswith("embeddings.") for key in keys):
        return "transformers", "its keys (embeddings.…)"
    if "decoder" in found.dropped:
        return "mae", "its keys (decoder_…)"
    if "base_encoder" in found.branch.words or "momentum_encoder" in found.branch.words:
        return "mocov3", f"its keys ({found.branch}.…)"
    if "masked_embed" in found.dropped:
        return "ibot", "its keys (masked_embed)"
    if any(name == "pred_ratio" for name, _, _ in metadata.entries):
        return "ibot", "args"
    for key in ("register_tokens", "mask_token"):
        if key in keys:
            return "dinov2", f"its keys ({key})"
    if any(key.endswith("ls1.gamma") for key in keys):
        return "dinov2", "its keys (ls1.gamma)"
    if "dist_token" in keys or any(".gamma_1" in key for key in keys):
        return "deit", "its keys (dist_token, gamma_1)"
    if architecture := metadata.text("architecture"):
        return _layout_of_timm(architecture[0]), architecture[1]
    if "head.weight" in keys and found.branch.role is None:  # DINO's heads are deeper
        nested = found.branch.path == ("model",)
        return ("deit", "a classifier, nested in `model`") if nested else ("timm", CLASSIFIER)
    if re.match(r"dino_(deit|vit)", raw.path.name):  # as released
        return "dino", "its file name"
    return "dino", f"{found.branch}" if found.branch.role else BARE


def _layout_of_timm(model_name: str) -> str:
    for mark, layout in (("dinov2", "dinov2"), ("dino", "dino"), ("mae", "mae")):
        if mark in model_name:
            return layout
    return "deit" if model_name.startswith("deit") else "timm"


def _position_rule(
    layout: str, shape: Shape, metadata: Metadata, asked: PositionRule | None
) -> tuple[PositionRule, str]:
    if asked:
        return asked, "set by the user"
    if stated := metadata.text("position_rule"):
        if stated[0] not in get_args(PositionRule):
            raise CheckpointError(f"{stated[1]}: unknown position rule {stated[0]!r}")
        return stated[0], stated[1]  # type: ignore[return-value]
    family = metadata.text("model_type")
    if layout in ("dinov2", "transformers") and shape.registers:
        return "antialias", "DINOv2's rule with registers"
    if layout == "transformers" and family and family[0] in ("deit", "vit_mae"):
        return "size", f"{family[0]}'s rule"
    return POSITION_RULES[layout], f"{layout}'s rule"


def _norm_eps(metadata: Metadata, name: str) -> tuple[float, str]:
    names = ("layer_norm_eps", "norm_eps")
    stated, eps = metadata.find(*names), metadata.number(*names)
    if stated is None:
        return 1e-6, "as in DINO, DINOv2, MAE, DeiT and timm"
    if eps is None or not 0 < eps[0] < 1:
        raise CheckpointError(f"{name}: {stated[1]} states an epsilon of {stated[0]!r}")
    return eps


def _heads(
    metadata: Metadata, width: int, layout: str, is_bare: bool, expected: Expected, name: str
) -> tuple[int, str]:
    stated = metadata.integer(*NUMBER_OF_HEADS)
    if stated and expected.heads and stated[0] != expected.heads:
        raise CheckpointError(
            f"{name}: expected {expected.heads} heads, but {stated[1]} states {stated[0]}"
        )
    if expected.heads:
        heads, source = expected.heads, "set by the user"
    elif stated:
        heads, source = stated
    elif layout == "mocov3" and width == 384:
        heads, source = 12, "MoCo v3's own ViT-S has 12"
    elif width in WIDE_HEADS:
        heads, source = WIDE_HEADS[width], f"as every ViT of width {width}"
    elif width % 64 == 0:
        heads, source = width // 64, ASSUMED_HEADS if is_bare else f"64-wide, as {layout}'s"
    else:
        raise CheckpointError(
            f"{name}: the file does not state the number of attention heads, and its width of\n"
            f"{width} is not a multiple of 64. Give the number with --heads."
        )
    if heads < 1 or width % heads:
        raise CheckpointError(
            f"{name}: {heads} heads ({source}) do not divide its width of {width}"
        )
    return heads, source


def _check_shape(metadata: Metadata, shape: Shape, expected: Expected, name: str) -> None:
    """Compare the weights with what is expected and with what the file states."""
    stated = {
        "depth": metadata.integer("num_hidden_layers", "depth"),
        "width": metadata.integer("hidden_size", "embed_dim", "width"),
        "patch": metadata.integer("patch_size", "patch"),
    }
    for fact, value in stated.items():
        actual, wanted = getattr(shape, fact), getattr(expected, fact)
        if wanted is not None and wanted != actual:
            raise CheckpointError(
                f"{name}: expected {fact} {wanted}, but its weights have {actual}"
            )
        if value is not None and value[0] != actual:
            raise CheckpointError(
                f"{name}: {value[1]} states {fact} {value[0]}, but its weights have {actual}"
            )
