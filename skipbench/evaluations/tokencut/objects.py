"""What object discovery finds in an image, and the box around it."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from scipy import ndimage

# small: so few tokens that a dense solver is the usual one; none: there was nothing to solve
Solver = Literal["iterative", "dense", "small", "none"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)


@dataclass(frozen=True)
class Found:
    """One object, on the grid of tokens."""

    mask: np.ndarray = field(repr=False)  # (height, width) bool: the 4-connected part of the seed
    map: np.ndarray = field(repr=False)  # (height, width) float64: what was cut; high at the seed
    seed: int  # token, row by row
    solver: Solver = "none"
    degenerate: bool = False  # nothing stands out: the mask is the whole image
    tied: bool = False  # other tokens are as good a seed, or lie on the border: a rule decided

    @property
    def tokens(self) -> int:
        return int(self.mask.sum())

    def box(self, patch: int, size_hw: tuple[int, int]) -> tuple[int, int, int, int]:
        """x0, y0, x1, y1 in pixels, half-open; size_hw: of the image before it was padded."""
        rows, columns = (np.flatnonzero(self.mask.any(axis)) for axis in (1, 0))
        height, width = size_hw
        return (
            int(columns[0]) * patch,
            int(rows[0]) * patch,
            min((int(columns[-1]) + 1) * patch, width),
            min((int(rows[-1]) + 1) * patch, height),
        )

    def pixels(self, patch: int, size_hw: tuple[int, int]) -> np.ndarray:
        """The mask at the size of the image, (height, width) bool."""
        return enlarged(self.mask, patch, size_hw)


def enlarged(grid: np.ndarray, patch: int, size_hw: tuple[int, int]) -> np.ndarray:
    """Every token as a square of pixels, without those of the padding."""
    return grid.repeat(patch, 0).repeat(patch, 1)[: size_hw[0], : size_hw[1]]


def part_of(mask: np.ndarray, seed: int, rivals: np.ndarray) -> tuple[np.ndarray, bool]:
    """The 4-connected part of a mask that holds the seed, and whether some rival is outside of it.

    mask: (height, width) bool; rivals: tokens that could have been the seed.
    """
    parts = ndimage.label(mask)[0].ravel()
    mine = parts == parts[seed]
    return mine.reshape(mask.shape), not bool(mine[rivals].all())


def nothing_stands_out(grid_hw: tuple[int, int], solver: Solver = "none") -> Found:
    """The whole image."""
    whole = np.ones(grid_hw, bool)
    return Found(whole, np.zeros(grid_hw), seed=0, solver=solver, degenerate=True)
