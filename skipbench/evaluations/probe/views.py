"""Views of images: random crops for training, sliding windows for testing.

A view depends only on (seed, epoch, name of the item). Two things differ from the original code, in
all protocols: images are resized with antialiasing, as everywhere in this package (mmsegmentation:
without), and a resized mask takes the label at the centre of each pixel.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np
from PIL import Image

from skipbench.datasets import Item
from skipbench.errors import UsageError
from skipbench.evaluations.segmentation.run import StoredSplit
from skipbench.evaluations.segmentation.tokens import ImageTokens, TokenMap
from skipbench.features import cache as feature_cache
from skipbench.features.store import FeatureStore
from skipbench.images import IGNORED, resize, target_hw
from skipbench.records import IMAGENET, Interpolation, Size

# Part of every mark: raise it when the pixels of a view change.
VERSION = 1

FILL = tuple(round(255 * share) for share in IMAGENET.mean)  # about zero after normalisation

LONG_LIMIT = 4  # the long side is at most 4 times the size: 2048 for 512
RATIOS = (0.5, 2.0)  # scale factors of DINOv2's protocol
MOST_OF_ONE = 0.75  # share of one class in a crop
TRIES = 10

AREAS = (0.8, 1.0)  # shares of the image area in Leopart's protocol
ASPECTS = (3 / 4, 4 / 3)  # width / height

Box = tuple[int, int, int, int]  # top, left, height, width


@dataclass(frozen=True)
class View:
    """A part of an image, used like an image: it satisfies images.Picture and has a mask.

    Outside the image are the mean colour and ignored labels. As in mmsegmentation a part is flipped
    before it is padded, so padding is always on the right and at the bottom.
    """

    item: Item
    resized_hw: tuple[int, int]  # the whole image is resized to this first
    box: Box  # in the resized image; it may extend beyond the right and the bottom edge
    flip: bool = False  # left and right exchanged

    def __post_init__(self) -> None:
        top, left, height, width = self.box
        starts_inside = 0 <= top < self.resized_hw[0] and 0 <= left < self.resized_hw[1]
        if not (starts_inside and height > 0 and width > 0):
            raise ValueError(f"box {self.box} in an image of {self.resized_hw}")

    @property
    def name(self) -> str:
        return f"{self.item.name}@{self._part()}"

    def read(self, size: Size = None, how: Interpolation = "bilinear") -> np.ndarray:
        """HWC uint8 RGB; resized again if the size is not that of the box."""
        part = _resized_part(self.item.read(), self.resized_hw, self._inside(), how)
        return resize(self._finished(part, FILL), target_hw(self.size_hw(), size), how)

    def size_hw(self) -> tuple[int, int]:
        return self.box[2:]

    def mark(self) -> str:
        return f"{self.item.mark()} view {VERSION} {self._part()}"

    def mask(self, whole: np.ndarray | None = None) -> np.ndarray:
        """HW uint8. whole: the item's mask, if it is decoded already."""
        whole = self.item.mask() if whole is None else whole
        part = _resized_mask_part(whole, self.resized_hw, self._inside())
        return self._finished(part, IGNORED)

    def _part(self) -> str:
        top, left, height, width = self.box
        whole_height, whole_width = self.resized_hw
        where = f"{whole_height}x{whole_width}+{top}+{left}+{height}x{width}"
        return f"{where}-flipped" if self.flip else where

    def _inside(self) -> Box:
        """The part of the box inside the image."""
        top, left, height, width = self.box
        whole_height, whole_width = self.resized_hw
        return top, left, min(height, whole_height - top), min(width, whole_width - left)

    def _finished(self, part: np.ndarray, fill: int | tuple[int, ...]) -> np.ndarray:
        """HW or HWC, flipped and padded to the size of the box."""
        height, width = part.shape[:2]
        whole = np.full((*self.size_hw(), *part.shape[2:]), fill, np.uint8)
        whole[:height, :width] = part[:, ::-1] if self.flip else part
        return whole


def _resized_part(
    pixels: np.ndarray, resized_hw: tuple[int, int], box: Box, how: Interpolation
) -> np.ndarray:
    """HWC uint8; this part of the resized image, as `resize` makes it, up to rounding (1 of 255).

    Pillow's filter uses the pixels around the box too, so the part has no border artefacts.
    """
    top, left, height, width = box
    (old_height, old_width), (new_height, new_width) = pixels.shape[:2], resized_hw
    source = (
        left * old_width / new_width,
        top * old_height / new_height,
        (left + width) * old_width / new_width,
        (top + height) * old_height / new_height,
    )
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((width, height), Image.Resampling[how.upper()], box=source))


def _resized_mask_part(mask: np.ndarray, resized_hw: tuple[int, int], box: Box) -> np.ndarray:
    """HW; this part of the mask resized by `resize_mask`."""
    rows, columns = (
        (2 * np.arange(start, start + count) + 1) * old // (2 * new)
        for start, count, old, new in zip(box[:2], box[2:], mask.shape, resized_hw, strict=True)
    )
    return mask[rows[:, None], columns]


def crop_dinov2(item: Item, size: int, seed: int, epoch: int) -> View:
    """A training view of DINOv2's segmentation protocol (mmsegmentation), size × size.

    The image, resized by a random ratio; a random crop of it, drawn again (at most ten times) while
    one class has 75 % of its labels or more; flipped with probability 0.5. Without the photometric
    distortion of the original.
    """
    rng, mask = view_randomness(item, seed, epoch), item.mask()
    ratio = rng.uniform(*RATIOS)
    resized_hw = _fitted(mask.shape, int(LONG_LIMIT * size * ratio), int(size * ratio))
    view = View(item, resized_hw, _random_box(resized_hw, size, rng))
    for _ in range(TRIES):
        if _is_mixed(view.mask(mask)):
            break
        view = replace(view, box=_random_box(resized_hw, size, rng))
    return replace(view, flip=bool(rng.random() < 0.5))


def _random_box(resized_hw: tuple[int, int], size: int, rng: np.random.Generator) -> Box:
    """Anywhere in the image; at its edge where it is smaller than the box."""
    top, left = (int(rng.integers(max(side - size, 0) + 1)) for side in resized_hw)
    return top, left, size, size


def _is_mixed(mask: np.ndarray) -> bool:
    """Whether no class has MOST_OF_ONE of the labelled pixels."""
    counts = np.bincount(mask.ravel(), minlength=IGNORED + 1)[:IGNORED]
    return bool(counts.max() < MOST_OF_ONE * counts.sum())


def crop_leopart(item: Item, size: int, seed: int, epoch: int) -> View:
    """A training view of Leopart's linear protocol: torchvision's RandomResizedCrop, then a flip.

    The original crops h × w of H × W pixels and resizes them to size × size. Here H × W are resized
    to H·size/h × W·size/w and size × size are cropped from that; the new size and the corner are
    rounded to whole pixels, which moves no edge by more than one pixel of the view.
    """
    rng, size_hw = view_randomness(item, seed, epoch), item.size_hw()
    crop = resized_crop_box(size_hw, rng)
    lengths = list(zip(size_hw, crop[:2], crop[2:], strict=True))  # whole, start, part
    height, width = (round(whole * size / part) for whole, _, part in lengths)
    top, left = (
        min(round(start * new / whole), new - size)
        for (whole, start, _), new in zip(lengths, (height, width), strict=True)
    )
    return View(item, (height, width), (top, left, size, size), bool(rng.random() < 0.5))


def resized_crop_box(size_hw: tuple[int, int], rng: np.random.Generator) -> Box:
    """In pixels of the image, drawn as RandomResizedCrop does."""
    height, width = size_hw
    low, high = map(math.log, ASPECTS)
    for _ in range(TRIES):
        area = height * width * rng.uniform(*AREAS)
        aspect = math.exp(rng.uniform(low, high))
        part_hw = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < part_hw[0] <= height and 0 < part_hw[1] <= width:
            top, left = (
                int(rng.integers(whole - part + 1))
                for whole, part in zip(size_hw, part_hw, strict=True)
            )
            return top, left, *part_hw
    return central_crop_box(size_hw)


def central_crop_box(size_hw: tuple[int, int]) -> Box:
    """The largest with an allowed aspect ratio, for images too elongated for any random crop."""
    height, width = size_hw
    part_height = max(1, min(height, round(width / ASPECTS[0])))
    part_width = max(1, min(width, round(height * ASPECTS[1])))
    return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width


def view_randomness(item: Item, seed: int, epoch: int) -> np.random.Generator:
    """Seeded by name, so that neither the order of files nor other images matter."""
    digest = hashlib.sha256(os.fsencode(f"{seed}:{epoch}:{item.name}")).digest()
    return np.random.default_rng(int.from_bytes(digest))


def windows(item: Item, size: int, stride: int) -> list[View]:
    """mmsegmentation's sliding windows, row by row; the last of each row and column moved inside.

    All are size × size, padded where the image is smaller; mmsegmentation uses smaller windows
    there.
    """
    if not 0 < stride <= size:
        raise UsageError(f"stride {stride}: expected 1 to {size}, the size of the window")
    resized_hw = resized_to(item.size_hw(), size)
    tops, lefts = (_starts(side, size, stride) for side in resized_hw)
    return [View(item, resized_hw, (top, left, size, size)) for top in tops for left in lefts]


def _starts(side: int, size: int, stride: int) -> list[int]:
    """Of the windows along one side."""
    beyond = max(side - size, 0)  # not covered by the first window
    return [min(i * stride, beyond) for i in range(-(-beyond // stride) + 1)]


def resized_to(size_hw: tuple[int, int], size: int) -> tuple[int, int]:
    """Of the image that windows are cut from: its short side is `size`, unless the long one would
    exceed its limit."""
    return _fitted(size_hw, LONG_LIMIT * size, size)


def _fitted(size_hw: tuple[int, int], long: int, short: int) -> tuple[int, int]:
    """As large as fits, with the same aspect ratio; rounded as mmcv does."""
    scale = min(long / max(size_hw), short / min(size_hw))
    height, width = (max(1, int(side * scale + 0.5)) for side in size_hw)
    return height, width


# -- images of a run: scored through windows, trained on as crops


@dataclass(frozen=True)
class WindowedSplit(StoredSplit):
    """Images seen through overlapping windows; the features are those of the windows."""

    windows: Sequence[View] = ()
    first: Sequence[int] = ()  # window of each picture, and the end

    def image_tokens(self, image: int) -> ImageTokens:
        numbers = range(self.first[image], self.first[image + 1])
        parts = [TokenMap(self.grid(i), self.tokens(i), self.windows[i].box) for i in numbers]
        return ImageTokens(parts, self.windows[numbers[0]].resized_hw)


def cut_windows(data: Sequence[Item], size: int, stride: int) -> tuple[list[View], list[int]]:
    """All windows, and the first one of each picture, and the end."""
    views = [windows(item, size, stride) for item in data]
    return list(chain.from_iterable(views)), [0, *accumulate(map(len, views))]


@contextmanager
def epoch_crops(
    extract: Callable[[int], StoredSplit], different: int | None
) -> Iterator[Callable[[int], StoredSplit]]:
    """The crops of each epoch: new ones in every epoch, or `different` ones in turn.

    The features of an epoch that will not recur are removed once it is over; those of an
    interrupted one are kept for the next run.
    """
    current: dict[int, StoredSplit] = {}

    def close(remove: bool) -> None:
        for split in current.values():
            split.features.close()
            if remove and different is None and isinstance(split.features, FeatureStore):
                feature_cache.remove(split.features.folder)
        current.clear()

    def at(epoch: int) -> StoredSplit:
        number = epoch % different if different else epoch
        if number not in current:
            close(remove=True)
            current[number] = extract(number)
        return current[number]

    try:
        yield at
    except BaseException:
        close(remove=False)
        raise
    close(remove=True)
