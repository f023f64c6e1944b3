"""Position embeddings resampled to another grid, by the rule of the code that trained the weights.

The rules differ by a few per cent of the embedding's norm, which is enough to change benchmark
results; `skipbench.records.PositionRule` lists which project uses which.
"""

import torch
import torch.nn.functional as F

from skipbench.records import PositionRule


def interpolate_positions(
    positions: torch.Tensor,  # (1, old height × old width, channels)
    old_hw: tuple[int, int],
    new_hw: tuple[int, int],
    rule: PositionRule,
) -> torch.Tensor:  # (1, new height × new width, channels)
    if old_hw == new_hw:
        return positions
    grid = positions.unflatten(1, old_hw).permute(0, 3, 1, 2)
    if rule == "offset":
        # DINO adds 0.1 so that rounding cannot lose a row; this also shifts every sample.
        factor = ((new_hw[0] + 0.1) / old_hw[0], (new_hw[1] + 0.1) / old_hw[1])
        grid = F.interpolate(grid, scale_factor=factor, mode="bicubic")
    else:
        grid = F.interpolate(grid, size=new_hw, mode="bicubic", antialias=rule == "antialias")
    if tuple(grid.shape[-2:]) != new_hw:
        raise AssertionError(f"positions came out as {tuple(grid.shape[-2:])}, not {new_hw}")
    return grid.permute(0, 2, 3, 1).flatten(1, 2)
