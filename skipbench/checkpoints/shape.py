"""A backbone's shape, read from its tensors; no tensor may be missing or left over.

The resulting state dict is canonical, whatever the layout of the file: float32, the class token
with its position already added, `pos_embed` with the grid alone.
"""

import math
import re
from dataclasses import dataclass

import torch

from skipbench.errors import CheckpointError, NumbersError, some_of

State = dict[str, torch.Tensor]
SPECIAL = ("cls_token", "reg_token", "dist_token", "pos_embed")


@dataclass(frozen=True)
class Shape:
    width: int
    depth: int
    patch: int
    mlp_width: int
    gated_mlp: bool
    registers: int
    layer_scale: bool
    grid_hw: tuple[int, int]


def canonical(state: State, grid_hw: tuple[int, int] | None, name: str) -> tuple[State, Shape]:
    shape = _read_shape(state, grid_hw, name)
    state = _fold_positions(state, shape, name)
    wanted = _expected_shapes(shape, qkv_bias=any(k.endswith("attn.qkv.bias") for k in state))
    _match(state, wanted, name)
    plain = {key: state[key].detach().float().contiguous().clone() for key in wanted}
    refuse_non_finite(plain, name)
    return plain, shape


def _expected_shapes(shape: Shape, qkv_bias: bool = True) -> dict[str, tuple[int, ...]]:
    """Every tensor of the backbone, in the order data flows through them."""
    d, hidden = shape.width, shape.mlp_width
    inner = hidden // 2 if shape.gated_mlp else hidden
    wanted: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, d),
        "pos_embed": (1, shape.grid_hw[0] * shape.grid_hw[1], d),
        "patch_embed.proj.weight": (d, 3, shape.patch, shape.patch),
        "patch_embed.proj.bias": (d,),
    }
    if shape.registers:
        wanted["reg_token"] = (1, shape.registers, d)
    block: dict[str, tuple[int, ...]] = {
        "norm1.weight": (d,), "norm1.bias": (d,),
        "attn.qkv.weight": (3 * d, d), "attn.qkv.bias": (3 * d,),
        "attn.proj.weight": (d, d), "attn.proj.bias": (d,),
        "ls1.gamma": (d,),
        "norm2.weight": (d,), "norm2.bias": (d,),
        "mlp.fc1.weight": (hidden, d), "mlp.fc1.bias": (hidden,),
        "mlp.fc2.weight": (d, inner), "mlp.fc2.bias": (d,),
        "ls2.gamma": (d,),
    }  # fmt: skip
    if not shape.layer_scale:
        del block["ls1.gamma"], block["ls2.gamma"]
    if not qkv_bias:
        del block["attn.qkv.bias"]
    for index in range(shape.depth):
        wanted.update({f"blocks.{index}.{key}": size for key, size in block.items()})
    return wanted | {"norm.weight": (d,), "norm.bias": (d,)}


def _read_shape(state: State, grid_hw: tuple[int, int] | None, name: str) -> Shape:
    kernel = state["patch_embed.proj.weight"]
    if kernel.ndim != 4 or kernel.shape[1] != 3 or not kernel.shape[2] == kernel.shape[3] > 0:
        raise CheckpointError(
            f"{name}: the patch embedding has the shape {tuple(kernel.shape)}; "
            "expected (width, 3, patch, patch)"
        )
    for key, value in state.items():
        if key in SPECIAL and (value.ndim != 3 or value.shape[2] != kernel.shape[0]):
            raise CheckpointError(
                f"{name}: {key} has the shape {tuple(value.shape)}; expected 3 dimensions, "
                f"{kernel.shape[0]} wide"
            )
    indices = {int(m[1]) for key in state if (m := re.match(r"blocks\.(\d{1,4})\.", key))}
    hidden, inner = (
        [state[key].shape[axis] for key in state if _is_matrix(state, key, name)]
        for axis, name in enumerate(("mlp.fc1.weight", "mlp.fc2.weight"))
    )
    if not indices or not hidden or not inner:
        raise CheckpointError(
            f"{name}: no transformer blocks found; keys: {some_of(sorted(state))}"
        )
    return Shape(
        width=kernel.shape[0],
        depth=max(indices) + 1,
        patch=kernel.shape[2],
        mlp_width=hidden[0],
        gated_mlp=hidden[0] == 2 * inner[0],
        registers=sum(state[t].shape[1] for t in ("reg_token", "dist_token") if t in state),
        layer_scale=any(key.endswith("ls1.gamma") for key in state),
        grid_hw=grid_hw or _square_grid(state, name),
    )


def _is_matrix(state: State, key: str, name: str) -> bool:
    """Whether this is the tensor of this name in a block."""
    return key.startswith("blocks.") and key.endswith(name) and state[key].ndim == 2


def _square_grid(state: State, name: str) -> tuple[int, int]:
    if "pos_embed" not in state:
        raise CheckpointError(f"{name}: pos_embed is missing, as in models with rotary positions")
    entries = state["pos_embed"].shape[1]
    for prefix in (1, 0, 2):  # with the class token, without it, with a distillation token too
        side = math.isqrt(max(entries - prefix, 0))
        if side > 0 and side * side + prefix == entries:
            return side, side
    raise CheckpointError(
        f"{name}: its position embedding, {tuple(state['pos_embed'].shape)}, is not a square grid\n"
        "and its metadata has no img_size that explains it"
    )


def _fold_positions(state: State, shape: Shape, name: str) -> State:
    """Add the class token's position to the class token, and keep only the grid in `pos_embed`.

    DeiT's distillation token becomes a register: for the patches it works like one.
    """
    state = dict(state)
    if "pos_embed" not in state or "cls_token" not in state:
        return state  # reported as missing by the match that follows
    grid = shape.grid_hw[0] * shape.grid_hw[1]
    positions = state["pos_embed"].float()
    extra = positions.shape[1] - grid
    special = 1 + ("dist_token" in state)
    if extra not in (0, special):
        raise CheckpointError(
            f"{name}: {positions.shape[1]} positions for a grid of {shape.grid_hw} and "
            f"{special} class tokens"
        )
    if extra:
        state["cls_token"] = state["cls_token"].float() + positions[:, :1]
    if "dist_token" in state:
        state["reg_token"] = state.pop("dist_token").float() + positions[:, 1:extra].sum(1, True)
    state["pos_embed"] = positions[:, extra:]
    return state


def _match(state: State, wanted: dict[str, tuple[int, ...]], name: str) -> None:
    missing = [key for key in wanted if key not in state]
    extra = [key for key in state if key not in wanted]
    if missing or extra:
        lines = [f"{name} does not match a vision transformer; nothing was loaded."]
        if missing:
            lines.append(f"missing: {some_of(missing)}")
        if extra:
            lines.append(f"unexpected: {some_of(extra)}")
        raise CheckpointError("\n".join(lines))
    wrong = [
        f"{key} is {tuple(state[key].shape)}, not {size}"
        for key, size in wanted.items()
        if tuple(state[key].shape) != size
    ]
    if wrong:
        raise CheckpointError(f"{name}: tensors of a wrong shape:\n{some_of(wrong, 3)}")
    if odd := [key for key in wanted if not _has_numbers(state[key])]:
        kinds = ", ".join(sorted({str(state[key].dtype) for key in odd}))
        raise CheckpointError(f"{name}: not plain floating-point tensors ({kinds}): {some_of(odd)}")


def _has_numbers(value: torch.Tensor) -> bool:
    plain = value.layout == torch.strided and value.device.type == "cpu"
    return plain and value.is_floating_point()


def refuse_non_finite(state: State, name: str) -> None:
    for key, value in state.items():
        if not torch.isfinite(value).all():
            kind = "NaN" if torch.isnan(value).any() else "Inf"
            where = "the norm" if key.startswith("norm") else "the embedding"
            if block := re.match(r"blocks\.(\d+)\.", key):
                where = f"block {block[1]}"
            raise NumbersError(
                f"{name}: {kind} in the weights, first in {where} ({key}). Training diverged,\n"
                "or the file is damaged."
            )
