"""Which pixels a step of training looks at.

The loss of an image is the mean cross-entropy over its labelled pixels, of logits that are resized
to the mask. A resized logit mixes those of the four tokens around the pixel (its cell). Pixels from
anywhere would need every token in every step; so a step takes every n-th cell in both directions,
from a random start, and random labelled pixels in each. Weighted by how many pixels each of them
stands for, loss and gradient are on average those of all labelled pixels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from skipbench.metrics.segmentation import IGNORED

CELLS = 32  # that a step looks at in an image, or so


@dataclass(frozen=True)
class Sample:
    """Some pixels of one image, by cell."""

    tokens: Tensor  # (cells, 4) int64: the corners, as indices into the flattened grid
    shares: Tensor  # (cells, pixels, 4) float32: how much of each corner
    labels: Tensor  # (cells, pixels) int64
    weights: Tensor  # (cells, pixels) float32: of each pixel in the image's loss; 1 in all, or so

    def to(self, device: torch.device) -> "Sample":
        parts = (self.tokens, self.shares, self.labels, self.weights)
        return Sample(*(part.to(device) for part in parts))


class LabelledPixels:
    """The labelled pixels of one mask, sorted by the cell they lie in."""

    def __init__(self, mask: np.ndarray, grid: "Grid") -> None:
        """mask: HW uint8, 255 = ignored."""
        self.grid_hw = grid.size_hw
        rows, columns = grid.cells(mask.shape)
        cells = (rows[:, None] * self.grid_hw[1] + columns).ravel()
        labelled = np.flatnonzero(mask.ravel() != IGNORED)
        small = self.grid_hw[0] * self.grid_hw[1] <= 2**16  # of 16 bits: sorted by radix
        order = np.argsort(cells[labelled].astype(np.uint16 if small else np.int64), kind="stable")
        self.places = labelled[order].astype(np.int32)  # of pixels, in the flattened mask
        self.labels = mask.ravel()[self.places]
        self.counts = np.bincount(cells[labelled], minlength=self.grid_hw[0] * self.grid_hw[1])
        self.starts = np.cumsum(self.counts) - self.counts

    def draw(self, pixels: int, rng: np.random.Generator, stride: int | None = None) -> "Drawn":
        """About so many pixels, as many in each of the cells that are looked at."""
        height, width = self.grid_hw
        stride = stride or max(1, round((height * width / CELLS) ** 0.5))
        top, left = rng.integers(stride, size=2)
        cells = (
            np.arange(top, height, stride)[:, None] * width + np.arange(left, width, stride)
        ).ravel()
        cells = cells[self.counts[cells] > 0]
        each = max(1, round(pixels * stride**2 / (height * width)))
        counts = self.counts[cells]
        chosen = self.starts[cells, None] + (
            rng.random((len(cells), each)) * counts[:, None]
        ).astype(int)
        return Drawn(
            cells.astype(np.int32),
            self.places[chosen],
            self.labels[chosen],
            (stride**2 * counts / (each * max(len(self.places), 1))).astype(np.float32),
        )

    def every(self) -> "Drawn":
        """All of them: each cell padded to the fullest with pixels of no weight."""
        cells = np.flatnonzero(self.counts)
        slot = np.arange(self.counts.max(initial=0))
        chosen = self.starts[cells, None] + np.minimum(slot, self.counts[cells, None] - 1)
        weights = (slot < self.counts[cells, None]) / max(len(self.places), 1)
        return Drawn(
            cells.astype(np.int32),
            self.places[chosen],
            self.labels[chosen],
            weights.astype(np.float32),
        )


@dataclass(frozen=True)
class Drawn:
    """What a sample is made of, in few bytes: a run keeps those of all its epochs."""

    cells: np.ndarray  # (cells,) int32
    places: np.ndarray  # (cells, pixels) int32, in the flattened mask
    labels: np.ndarray  # (cells, pixels) uint8
    weights: np.ndarray  # (cells,) or (cells, pixels) float32

    def sample(self, grid: "Grid", size_hw: tuple[int, int]) -> Sample:
        """size_hw: of the mask."""
        grid_hw = grid.size_hw
        row, column = np.divmod(self.cells.astype(np.int64), grid_hw[1])
        below, beside = (
            np.minimum(i + 1, n - 1) for i, n in zip((row, column), grid_hw, strict=True)
        )
        corners = [(row, column), (row, beside), (below, column), (below, beside)]
        y, x = np.divmod(self.places, size_hw[1])
        rows, columns = grid.shares(size_hw)
        down, right = rows[y], columns[x]
        shares = [(1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right]
        weights = self.weights if self.weights.ndim == 2 else self.weights[:, None]
        return Sample(
            torch.from_numpy(np.stack([i * grid_hw[1] + j for i, j in corners], axis=1)),
            torch.from_numpy(np.stack(shares, axis=2)),
            torch.from_numpy(self.labels.astype(np.int64)),
            torch.from_numpy(np.broadcast_to(weights, self.labels.shape).copy()),
        )


@dataclass(frozen=True)
class Grid:
    """The tokens of one image: how many there are, and how many of them the picture covers (fewer,
    where it was padded to whole patches)."""

    size_hw: tuple[int, int]
    extent_hw: tuple[float, float]

    def cells(self, pixels_hw: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """For each row and each column of pixels, its cell."""
        rows, columns = map(_axis, self.size_hw, self.extent_hw, pixels_hw)
        return rows[0], columns[0]

    def shares(self, pixels_hw: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """For each row and each column of pixels, its share of the cell's second token, float32."""
        rows, columns = map(_axis, self.size_hw, self.extent_hw, pixels_hw)
        return rows[1], columns[1]


@lru_cache(maxsize=4096)
def _axis(tokens: int, extent: float, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    source = np.maximum((np.arange(pixels) + 0.5) * extent / pixels - 0.5, 0)
    cell = np.minimum(source.astype(np.int64), tokens - 1)
    return cell, (source - cell).astype(np.float32)


def in_parts(sample: Sample, most: int) -> Iterator[Sample]:
    """Of at most so many pixels each (or one cell), where all at once would not fit in memory."""
    step = max(1, most // max(sample.labels.shape[1], 1))
    for i in range(0, len(sample.tokens), step):
        part = slice(i, i + step)
        yield Sample(
            sample.tokens[part], sample.shares[part], sample.labels[part], sample.weights[part]
        )
