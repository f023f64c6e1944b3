"""Which pixels a step of training looks at.

The loss of a batch is the mean cross-entropy over its labelled pixels, of logits that are resized
to the masks; where masks differ in size, as if all had the same. A resized logit mixes those of the
four tokens around the pixel (its cell). Pixels from anywhere would need every token in every step;
so a step takes every n-th cell in both directions, from a random start, and random labelled pixels
in each. Weighted by how many pixels each of them stands for, loss and gradient are on average those
of all labelled pixels.
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
    """Some pixels of one image, by cell, ready for the loss."""

    shares: Tensor  # (cells, pixels, 4) float32: how much of each corner
    labels: Tensor  # (cells, pixels) int64
    weights: Tensor  # (cells, pixels) float32: how many of the mask's pixels each one stands for

    def to(self, device: torch.device) -> "Sample":
        return Sample(self.shares.to(device), self.labels.to(device), self.weights.to(device))


@dataclass(frozen=True)
class Drawn:
    """What samples are made of, in few bytes: a run keeps those of many epochs."""

    grid: "Grid"
    size_hw: tuple[int, int]  # of the mask
    labelled: float  # share of the mask's pixels: what the image weighs in a batch
    cells: np.ndarray  # (cells,) int32
    places: np.ndarray  # (cells, pixels) int32, in the flattened mask
    labels: np.ndarray  # (cells, pixels) uint8
    weights: np.ndarray  # (cells,) float32: of each pixel; `labelled` in all, on average
    counts: np.ndarray  # (cells,) int32: how many of the pixels count, the first ones

    def corners(self) -> np.ndarray:
        """(cells × 4,) int64: the tokens around each cell, as indices into the flattened grid."""
        grid_hw = self.grid.size_hw
        row, column = np.divmod(self.cells.astype(np.int64), grid_hw[1])
        below, beside = (
            np.minimum(i + 1, n - 1) for i, n in zip((row, column), grid_hw, strict=True)
        )
        four = [(row, column), (row, beside), (below, column), (below, beside)]
        return np.stack([i * grid_hw[1] + j for i, j in four], axis=1).ravel()

    def samples(self, most: int) -> Iterator[Sample]:
        """Of at most so many pixels each (or one cell), in the order of the cells."""
        step = max(1, most // max(self.places.shape[1], 1))
        for start in range(0, len(self.cells), step):
            yield self._sample(slice(start, start + step))

    def _sample(self, part: slice) -> Sample:
        places, labels = self.places[part], self.labels[part]
        y, x = np.divmod(places, self.size_hw[1])
        rows, columns = self.grid.shares(self.size_hw)
        down, right = rows[y], columns[x]
        shares = [(1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right]
        counted = np.arange(places.shape[1]) < self.counts[part, None]
        return Sample(
            torch.from_numpy(np.stack(shares, axis=2)),
            torch.from_numpy(labels.astype(np.int64)),
            torch.from_numpy(counted * self.weights[part, None]),
        )


class LabelledPixels:
    """The labelled pixels of one mask, sorted by the cell they lie in."""

    def __init__(self, mask: np.ndarray, grid: "Grid") -> None:
        """mask: HW uint8, 255 = ignored."""
        self.grid, self.size_hw = grid, mask.shape
        height, width = grid.size_hw
        rows, columns = grid.cells(mask.shape)
        cells = (rows[:, None] * width + columns).ravel()
        labelled = np.flatnonzero(mask.ravel() != IGNORED)
        small = height * width <= 2**16  # of 16 bits: sorted by radix
        order = np.argsort(cells[labelled].astype(np.uint16 if small else np.int64), kind="stable")
        self.places = labelled[order].astype(np.int32)  # of pixels, in the flattened mask
        self.labels = mask.ravel()[self.places]
        self.counts = np.bincount(cells[labelled], minlength=height * width)
        self.starts = np.cumsum(self.counts) - self.counts

    def draw(self, pixels: int, rng: np.random.Generator, stride: int | None = None) -> Drawn:
        """About so many pixels, as many (one at least) in each of the cells that are looked at."""
        height, width = self.grid.size_hw
        stride = stride or max(1, round((height * width / CELLS) ** 0.5))
        down, right = min(stride, height), min(stride, width)
        rows = np.arange(rng.integers(down), height, down)
        columns = np.arange(rng.integers(right), width, right)
        cells = (rows[:, None] * width + columns).ravel()
        cells = cells[self.counts[cells] > 0]
        each = max(1, round(pixels * down * right / (height * width)))
        counts = self.counts[cells]
        chosen = (rng.random((len(cells), each)) * counts[:, None]).astype(np.int64)
        stands_for = down * right * counts / each  # pixels
        return self._drawn(cells, chosen, stands_for, np.full(len(cells), each))

    def every(self) -> Drawn:
        """All of them: each cell padded to the fullest with pixels that do not count."""
        cells = np.flatnonzero(self.counts)
        counts = self.counts[cells]
        chosen = np.minimum(np.arange(counts.max(initial=0)), counts[:, None] - 1)
        return self._drawn(cells, chosen, np.ones(len(cells)), counts)

    def _drawn(
        self, cells: np.ndarray, chosen: np.ndarray, stands_for: np.ndarray, counts: np.ndarray
    ) -> Drawn:
        """chosen: (cells, pixels), which of the cell's pixels."""
        chosen = self.starts[cells, None] + chosen
        size = self.size_hw[0] * self.size_hw[1]
        return Drawn(
            grid=self.grid,
            size_hw=self.size_hw,
            labelled=len(self.places) / size,
            cells=cells.astype(np.int32),
            places=self.places[chosen],
            labels=self.labels[chosen],
            weights=(stands_for / size).astype(np.float32),
            counts=counts.astype(np.int32),
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
