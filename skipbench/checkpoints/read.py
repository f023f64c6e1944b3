"""open_checkpoint: the one function that opens weights."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import torch

from skipbench.checkpoints.files import RawFile, read_file
from skipbench.checkpoints.layouts import BackboneTensors, find_backbone
from skipbench.checkpoints.metadata import Metadata, optimizer_of, residual_of
from skipbench.checkpoints.shape import Shape, canonical
from skipbench.checkpoints.timm_hub import TIMM_SOURCE, read_timm
from skipbench.errors import CheckpointError
from skipbench.records import CheckpointFacts, PositionRule

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


@dataclass(frozen=True)
class Expected:
    """What a user, a suite or a baseline expects of the checkpoint; None: anything."""

    depth: int | None = None
    width: int | None = None
    patch: int | None = None
    heads: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    state: dict[str, torch.Tensor]  # canonical names, float32, on the CPU
    facts: CheckpointFacts

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.state.values())


def open_checkpoint(
    source: str | Path,
    *,
    weights: str | None = None,
    expected: Expected | None = None,
    position_rule: PositionRule | None = None,
) -> Checkpoint:
    """Open a weights file, a Hugging Face style folder, or `timm:NAME`.

    weights: "teacher" or "student", if it contains both (default: the teacher).
    expected: anything else is a CheckpointError with both values.
    """
    expected = expected or Expected()
    name = str(source)
    if name.startswith("timm:"):
        raw = read_timm(name)
    else:
        raw = read_file(Path(source).expanduser())
        name = Path(source).name or name
    # The hash first: nothing else matters about the wrong file.
    if expected.sha256 and expected.sha256.lower() != raw.sha256:
        raise CheckpointError(
            f"{source} is not the expected file:\nsha256 {raw.sha256}\nexpected {expected.sha256}"
        )
    found = find_backbone(raw.tree, weights, name)
    metadata = Metadata(raw.tree, raw.metadata, raw.metadata_source)
    state, shape = canonical(found.state, _stated_grid(metadata, found), name)
    facts = _gather(raw, found, metadata, shape, expected, name, position_rule)
    return Checkpoint(state, facts)


def _gather(
    raw: RawFile,
    found: BackboneTensors,
    metadata: Metadata,
    shape: Shape,
    expected: Expected,
    name: str,
    position_rule: PositionRule | None,
) -> CheckpointFacts:
    sources = {field.name: "shapes of the weights" for field in fields(Shape)}
    sources["sha256"] = raw.sha256_source
    layout, sources["layout"] = _layout(found, metadata, raw)
    _agree(metadata, shape, expected, name)
    heads, sources["heads"] = _heads(metadata, shape.width, layout, expected, name)
    rule, sources["position_rule"] = _position_rule(layout, shape, metadata, position_rule)
    eps = metadata.number("layer_norm_eps", "norm_eps")
    sources["norm_eps"] = eps[1] if eps else "as in DINO, DINOv2, MAE, DeiT and timm"
    sources["preprocessing"] = "as in DINO, DINOv2, MAE, DeiT"
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
        name=name,
        sha256=raw.sha256,
        layout=layout,
        weights=found.branch.role,
        **{field.name: getattr(shape, field.name) for field in fields(Shape)},
        heads=heads,
        position_rule=rule,
        norm_eps=eps[0] if eps else 1e-6,
        sources=sources,
        dropped=found.dropped,
        notes=_notes(found),
        **values,
    )


def _notes(found: BackboneTensors) -> tuple[str, ...]:
    notes = []
    if found.others:
        others = ", ".join(str(branch) for branch in found.others)
        notes.append(f"using {found.branch}; the file also contains {others} (--weights chooses)")
    if found.dropped:
        counts = ", ".join(f"{n} of {head}" for head, n in found.dropped.items())
        notes.append(f"ignored tensors that features do not need: {counts}")
    return tuple(notes)


def _layout(found: BackboneTensors, metadata: Metadata, raw: RawFile) -> tuple[str, str]:
    keys = found.original_keys | found.dropped.keys()
    arguments = {name for name, _, _ in metadata.entries}
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
    if "masked_embed" in found.dropped or "pred_ratio" in arguments:
        return "ibot", "its keys (masked_embed)" if "masked_embed" in found.dropped else "args"
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
        return ("deit", "a classifier, nested in `model`") if nested else ("timm", "a classifier")
    return "dino", f"{found.branch}" if found.branch.words else "a bare backbone without a head"


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


def _heads(
    metadata: Metadata, width: int, layout: str, expected: Expected, name: str
) -> tuple[int, str]:
    stated = metadata.integer("num_heads", "num_attention_heads", "heads", "n_heads")
    if expected.heads:
        heads, source = expected.heads, "set by the user"
    elif stated:
        heads, source = stated
    elif layout == "mocov3" and width == 384:
        heads, source = 12, "MoCo v3's own ViT-S has 12"
    elif width in WIDE_HEADS:
        heads, source = WIDE_HEADS[width], f"as every ViT of width {width}"
    elif width % 64 == 0:
        heads, source = width // 64, "64-wide heads, as DINO's"
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


def _agree(metadata: Metadata, shape: Shape, expected: Expected, name: str) -> None:
    """Compare what is expected, and what the file states, with the weights."""
    stated = {
        "depth": metadata.integer("num_hidden_layers", "depth"),
        "width": metadata.integer("hidden_size", "embed_dim", "width"),
        "patch": metadata.integer("patch_size", "patch"),
    }
    for fact, value in stated.items():
        actual = getattr(shape, fact)
        asked = getattr(expected, fact)
        if asked is not None and asked != actual:
            raise CheckpointError(f"{name}: expected {fact} {asked}, but its weights have {actual}")
        if value is not None and value[0] != actual:
            raise CheckpointError(
                f"{name}: {value[1]} states {fact} {value[0]}, but its weights have {actual}"
            )
    heads = metadata.integer("num_heads", "num_attention_heads", "heads", "n_heads")
    if heads and expected.heads and heads[0] != expected.heads:
        raise CheckpointError(
            f"{name}: expected {expected.heads} heads, but {heads[1]} states {heads[0]}"
        )


def _stated_grid(metadata: Metadata, found: BackboneTensors) -> tuple[int, int] | None:
    """The grid of position embeddings, if the file states a training size that is not square."""
    stated = metadata.find("img_size", "image_size", "input_size")
    if stated is None or not isinstance(stated[0], tuple | list) or "pos_embed" not in found.state:
        return None
    sizes = [int(side) for side in stated[0] if isinstance(side, int)][-2:]
    patch = found.state["patch_embed.proj.weight"].shape[-1]
    if len(sizes) != 2:
        return None
    height, width = sizes[0] // patch, sizes[1] // patch
    entries = found.state["pos_embed"].shape[1]
    return (height, width) if entries - height * width in (0, 1, 2) else None
