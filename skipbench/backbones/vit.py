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


def interpolate_positions(
    positions: torch.Tensor,  # (1, old height × old width, channels)
    old_hw: tuple[int, int],
    new_hw: tuple[int, int],
    rule: PositionRule,
) -> torch.Tensor:  # (1, new height × new width, channels)
    """Position embeddings resampled to another grid, by the rule of the code that trained them.

    The rules differ by a few per cent of the embedding's norm, which is enough to change benchmark
    results; `skipbench.records.PositionRule` lists which project uses which.
    """
    if old_hw == new_hw:
        return positions
    grid = positions.unflatten(1, old_hw).permute(0, 3, 1, 2)
    if rule == "offset":
        # DINO adds 0.1 so that rounding cannot lose a row; this also shifts every sample.
        factor = ((new_hw[0] + 0.1) / old_hw[0], (new_hw[1] + 0.1) / old_hw[1])
        grid = F.interpolate(grid, scale_factor=factor, mode="bicubic")
    else:
        grid = F.interpolate(grid, size=new_hw, mode="bicubic", antialias=rule == "antialias")
    assert tuple(grid.shape[-2:]) == new_hw
    return grid.permute(0, 2, 3, 1).flatten(1, 2)


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
        """Runs up to the last block that is needed."""
        outputs: dict[Column, torch.Tensor] = {}
        x = self.embed(images)
        for index, block in enumerate(self.vit.blocks[: blocks[-1] + 1]):
            if index not in blocks:
                x = block(x)
                continue
            taps: Taps = {}
            if index == blocks[-1] and set(tensors) <= set(PROJECTIONS):
                project(block.attn, block.norm1(x), taps)  # the rest of the block is not needed
            else:
                taps["tokens"] = x = block(x, taps)
            if "tokens_norm" in tensors:
                taps["tokens_norm"] = self.vit.norm(x)
            outputs |= {(index, tensor): taps[tensor] for tensor in tensors}
        grid_hw, first = self.grid_hw((images.shape[2], images.shape[3])), self._first_patch
        return BlockOutputs(
            {column: x[:, first:].unflatten(1, grid_hw) for column, x in outputs.items()},
            {column: x[:, 0] for column, x in outputs.items()},
            {column: x[:, 1:first] for column, x in outputs.items()},
        )

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Class, register and patch tokens before the first block."""
        tokens: torch.Tensor = self.vit._pos_embed(self.vit.patch_embed(images))
        return tokens

    @property
    def _first_patch(self) -> int:
        return 1 + (self.facts.registers or 0)

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

    def first_failure(self, images: torch.Tensor, outputs: BlockOutputs) -> str:
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

    parameters = sum(tensor.numel() for tensor in checkpoint.state.values())
    return Model(checkpoint.facts, parameters, build, ("skip", "skipless"))
