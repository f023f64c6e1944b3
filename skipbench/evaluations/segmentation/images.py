"""A data set together with its features, as evaluations see it: tokens and masks, by number."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from skipbench.evaluations.segmentation.pixels import Grid
from skipbench.evaluations.segmentation.tokens import ImageTokens, TokenMap
from skipbench.features.plan import Plan
from skipbench.features.reader import Features
from skipbench.images import Picture, resize_mask


class Masked(Picture, Protocol):
    def mask(self) -> np.ndarray: ...


def mask_of(picture: Masked, side: int | None) -> np.ndarray:
    """As it is, or resized to a square."""
    mask = picture.mask()
    return resize_mask(mask, (side, side)) if side else mask


def grid_of(plan: Plan, image: int) -> Grid:
    height, width = plan.sizes_hw[image]
    return Grid(plan.grid_hw(image), (height / plan.patch, width / plan.patch))


class Split:
    """Pictures seen whole."""

    def __init__(
        self,
        features: Features,
        pictures: Sequence[Masked],
        columns: Sequence[str],
        mask_size: int | None,
    ) -> None:
        self.features, self.pictures, self.columns = features, pictures, columns
        self.mask_size = mask_size

    def __len__(self) -> int:
        return len(self.pictures)

    def grid(self, image: int) -> Grid:
        return grid_of(self.features.plan, image)

    def tokens(self, image: int, rows: np.ndarray | None = None) -> np.ndarray:
        return self.features.tokens(image, self.columns, rows)

    def mask(self, image: int) -> np.ndarray:
        return mask_of(self.pictures[image], self.mask_size)

    def seen(self, image: int) -> ImageTokens:
        return ImageTokens([TokenMap(self.grid(image), self.tokens(image))])
