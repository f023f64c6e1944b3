"""Images as a classifier sees them: resized to cover a little more than the input, then cropped at
the centre."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from skipbench.images import Picture
from skipbench.records import Interpolation, Size


def covering_hw(
    image_hw: tuple[int, int], crop_hw: tuple[int, int], share: float
) -> tuple[int, int]:
    """Size of the resized image: the smallest that covers crop / share. With a square crop that is
    its short side; the long one is rounded down, as by torchvision."""
    wanted = [math.floor(side / share + 1e-9) for side in crop_hw]
    scale = max(want / side for want, side in zip(wanted, image_hw, strict=True))
    height, width = (
        max(crop, math.floor(side * scale + 1e-6))
        for side, crop in zip(image_hw, crop_hw, strict=True)
    )
    return height, width


@dataclass(frozen=True)
class Cropped:
    item: Picture
    hw: tuple[int, int]
    share: float

    @property
    def name(self) -> str:
        return self.item.name

    def read(self, size: Size = None, how: Interpolation = "bilinear") -> np.ndarray:
        """size: that of the crop, or None, which is the same."""
        height, width = self.hw
        pixels = self.item.read(covering_hw(self.item.size_hw(), self.hw, self.share), how)
        top, left = (round((pixels.shape[i] - self.hw[i]) / 2) for i in (0, 1))
        return pixels[top : top + height, left : left + width]

    def size_hw(self) -> tuple[int, int]:
        return self.hw

    def mark(self) -> str:
        return f"{self.item.mark()} cropped {self.hw[0]}x{self.hw[1]} of {self.share:g}"


@dataclass(frozen=True)
class Crops(Sequence[Picture]):
    """Made on access: there may be a million."""

    items: Sequence[Picture]
    hw: tuple[int, int]
    share: float

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Picture: ...
    @overload
    def __getitem__(self, index: slice) -> list[Picture]: ...
    def __getitem__(self, index: int | slice) -> Picture | list[Picture]:
        if isinstance(index, slice):
            return [Cropped(item, self.hw, self.share) for item in self.items[index]]
        return Cropped(self.items[index], self.hw, self.share)
