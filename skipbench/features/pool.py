"""One vector for each image instead of its tokens: the class token, or the mean of its patches."""

from collections.abc import Sequence

import torch

from skipbench.backbones.base import Backbone, BlockOutputs
from skipbench.errors import UsageError
from skipbench.records import FeatureSpec


def pooled(
    outputs: BlockOutputs,
    spec: FeatureSpec,
    sizes_hw: Sequence[tuple[int, int]],
    backbone: Backbone,
) -> dict[str, torch.Tensor]:
    """By column, (images, 1, 1, channels). sizes_hw: of the images, before padding."""
    found = {}
    for block in spec.blocks:
        for tensor in spec.tensors:
            for pool in spec.pools:
                if pool == "cls":
                    vectors = class_token(outputs, block, tensor, backbone)
                else:
                    patches = outputs.patches[block, tensor]
                    vectors = mean_of_patches(patches, sizes_hw, backbone.stride(block))
                found[f"{tensor}-{pool}.{block}"] = vectors[:, None, None]
    return found


def class_token(outputs: BlockOutputs, block: int, tensor: str, backbone: Backbone) -> torch.Tensor:
    """(images, channels)"""
    if (block, tensor) not in outputs.class_token:
        name = backbone.facts.name
        raise UsageError(f"{name} has no class token: use the mean of the patches")
    return outputs.class_token[block, tensor]


def mean_of_patches(
    patches: torch.Tensor, sizes_hw: Sequence[tuple[int, int]], stride: int
) -> torch.Tensor:
    """(images, channels) float32, without patches of padding alone."""
    means = []
    for grid, (height, width) in zip(patches, sizes_hw, strict=True):
        seen = grid[: -(-height // stride), : -(-width // stride)]
        means.append(seen.float().mean((0, 1)))
    return torch.stack(means)


def has_class_token(backbone: Backbone, size_hw: tuple[int, int], tensor: str) -> bool:
    """From a forward pass of one grey image. size_hw: in whole patches."""
    grey = torch.zeros(1, 3, *size_hw)
    return bool(backbone(grey, (-1,), (tensor,)).class_token)
