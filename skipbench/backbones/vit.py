"""The vision transformer of DINO and its kin: timm's, frozen, with or without residuals.

`ViTBackbone` runs it once over a batch and returns the requested tensors of each block. There are
no hooks: a block writes its queries, keys and values into a dictionary that the caller passes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Mlp, SwiGLUPacked
from timm.models.vision_transformer import Block, VisionTransformer

from skipbench.backbones.base import PROJECTIONS, Backbone, BlockOutputs, Column, Model
from skipbench.backbones.positions import interpolate_positions
from skipbench.checkpoints import Checkpoint
from skipbench.records import CheckpointFacts, PositionRule, Residual

Taps = dict[str, torch.Tensor]


class SkipBlock(Block):
    def forward(self, x: torch.Tensor, taps: Taps | None = None) -> torch.Tensor:
        x = x + self.ls1(attend(self.attn, self.norm1(x), taps))
        return x + self.ls2(self.mlp(self.norm2(x)))


class SkiplessBlock(Block):
    def forward(self, x: torch.Tensor, taps: Taps | None = None) -> torch.Tensor:
        x = self.ls1(attend(self.attn, self.norm1(x), taps))
        return self.ls2(self.mlp(self.norm2(x)))


BLOCKS: dict[Residual, type[Block]] = {"skip": SkipBlock, "skipless": SkiplessBlock}


def project(attn: Any, x: torch.Tensor, taps: Taps | None) -> torch.Tensor:
    """(images, tokens, 3 · width): queries, keys and values; also stored in `taps`, if given."""
    qkv: torch.Tensor = attn.qkv(x)
    if taps is not None:
        taps.update(zip(PROJECTIONS, qkv.chunk(3, dim=-1), strict=True))
    return qkv


def attend(attn: Any, x: torch.Tensor, taps: Taps | None) -> torch.Tensor:
    """timm's attention (fused, no attention matrix), with its projections in `taps`."""
    qkv = project(attn, x, taps).unflatten(-1, (3, attn.num_heads, -1))
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (images, heads, tokens, head width) each
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    out: torch.Tensor = attn.proj(mixed)
    return out


class ViT(VisionTransformer):
    """timm's VisionTransformer for any image size, with the position rule of the weights.

    The class token already includes its position, so `pos_embed` is the grid alone.
    """

    position_rule: PositionRule
    position_grid_hw: tuple[int, int]

    def _pos_embed(self, x: torch.Tensor) -> torch.Tensor:  # (images, height, width, channels)
        grid_hw = (x.shape[1], x.shape[2])
        positions = interpolate_positions(
            self.pos_embed, self.position_grid_hw, grid_hw, self.position_rule
        )
        special = [self.cls_token] if self.reg_token is None else [self.cls_token, self.reg_token]
        first = [token.expand(len(x), -1, -1) for token in special]
        return torch.cat([*first, x.flatten(1, 2) + positions], dim=1)


def make_vit(
    facts: CheckpointFacts, residual: Residual, qkv_bias: bool = True, initialise: bool = True
) -> ViT:
    """The architecture described by these facts, with timm's default initialisation or none."""
    grid_hw, mlp_width, rule, eps = (
        facts.grid_hw, facts.mlp_width, facts.position_rule, facts.norm_eps
    )  # fmt: skip
    assert grid_hw and mlp_width and rule and eps, "facts of a vision transformer"
    vit = ViT(
        img_size=(grid_hw[0] * facts.patch, grid_hw[1] * facts.patch),
        patch_size=facts.patch,
        num_classes=0,
        embed_dim=facts.width,
        depth=facts.depth,
        num_heads=facts.heads,
        mlp_ratio=mlp_width / facts.width,
        qkv_bias=qkv_bias,
        init_values=1.0 if facts.layer_scale else None,
        no_embed_class=True,
        reg_tokens=facts.registers,
        dynamic_img_size=True,
        norm_layer=partial(torch.nn.LayerNorm, eps=eps),
        mlp_layer=SwiGLUPacked if facts.gated_mlp else Mlp,
        act_layer=torch.nn.SiLU if facts.gated_mlp else torch.nn.GELU,
        block_fn=BLOCKS[residual],
        weight_init="" if initialise else "skip",
    )
    vit.position_rule = rule
    vit.position_grid_hw = grid_hw
    return vit


class ViTBackbone(Backbone):
    """A checkpoint's weights in the architecture of one variant."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        residual: Residual,
        device: torch.device | str = "cpu",
        precision: str = "fp32",
    ) -> None:
        self.facts = checkpoint.facts
        self.residual = residual
        self.device = torch.device(device)
        self.precision = precision
        bias = "blocks.0.attn.qkv.bias" in checkpoint.state
        with torch.device("meta"):  # neither memory nor time for random weights
            vit = make_vit(checkpoint.facts, residual, qkv_bias=bias, initialise=False)
        vit.load_state_dict(checkpoint.state, strict=True, assign=True)
        self.vit = vit.to(self.device).eval().requires_grad_(False)

    def grid_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        return size_hw[0] // self.patch, size_hw[1] // self.patch

    def forward(
        self, images: torch.Tensor, blocks: Sequence[int], tensors: Sequence[str]
    ) -> BlockOutputs:
        """Up to the last block that is needed."""
        taken: dict[Column, torch.Tensor] = {}
        x = self.embed(images)
        for index, block in enumerate(self.vit.blocks[: blocks[-1] + 1]):
            taps: Taps | None = {} if index in blocks else None
            if index == blocks[-1] and set(tensors) <= set(PROJECTIONS):
                project(block.attn, block.norm1(x), taps)  # the rest of the block is not needed
            else:
                x = block(x, taps)
            if taps is not None:
                taken |= self._take(index, x, taps, tensors)
        return self._sort(taken, self.grid_hw((images.shape[2], images.shape[3])))

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Class, register and patch tokens before the first block."""
        tokens: torch.Tensor = self.vit._pos_embed(self.vit.patch_embed(images))
        return tokens

    def _take(
        self, index: int, x: torch.Tensor, taps: Taps, tensors: Sequence[str]
    ) -> dict[Column, torch.Tensor]:
        given = {"tokens": lambda: x, "tokens_norm": lambda: self.vit.norm(x)}
        return {(index, t): given[t]() if t in given else taps[t] for t in tensors}

    @property
    def _first_patch(self) -> int:
        return 1 + (self.facts.registers or 0)

    def _sort(self, taken: dict[Column, torch.Tensor], grid_hw: tuple[int, int]) -> BlockOutputs:
        first = self._first_patch
        return BlockOutputs(
            {c: x[:, first:].unflatten(1, grid_hw) for c, x in taken.items()},
            {c: x[:, 0] for c, x in taken.items()},
            {c: x[:, 1:first] for c, x in taken.items()},
        )

    def embedding(self, images: torch.Tensor) -> torch.Tensor:
        return self.embed(images)[:, self._first_patch :]

    def block_by_block(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
        x = self.embed(images)
        for block in self.vit.blocks:
            x = block(x)
            yield x[:, self._first_patch :]

    def adaptation(self, size_hw: tuple[int, int] | None) -> str:
        grid = self.facts.grid_hw
        if grid is None or (size_hw is not None and self.grid_hw(size_hw) == grid):
            return ""
        new = "{}×{}".format(*self.grid_hw(size_hw)) if size_hw else "each image's grid"
        rule = self.facts.position_rule
        return f"positions of {grid[0]}×{grid[1]} patches interpolated to {new} ({rule})"

    def first_failure(self, images: torch.Tensor, found: BlockOutputs) -> str:
        """Run again and check every block, to name the first one with NaN or Inf."""
        with self.autocast():
            x = self.embed(images)
            if not torch.isfinite(x).all():
                return f"{self.where}: NaN or Inf in the patch embedding"
            for index, block in enumerate(self.vit.blocks):
                taps: Taps = {}
                x = block(x, taps)
                for name, value in (*taps.items(), ("output", x)):
                    if not torch.isfinite(value).all():
                        kind = "NaN" if torch.isnan(value).any() else "Inf"
                        return f"{self.where}: {kind} arises in block {index} ({name})"
        return f"{self.where}: NaN or Inf arises in the final norm"


def vit_model(checkpoint: Checkpoint) -> Model:
    def build(
        facts: CheckpointFacts, residual: Residual, device: torch.device, precision: str
    ) -> ViTBackbone:
        return ViTBackbone(replace(checkpoint, facts=facts), residual, device, precision)

    return Model(checkpoint.facts, checkpoint.parameters, build, ("skip", "skipless"))
