"""Textured shapes, drawn by the package without any files, for the demo and for tests.

Each is filled with one of six textures, on a background without texture.

The texture is the class. Everything else (colours, contrast, scale, direction, outline, position,
light) is random and independent of the class, so only features that encode texture separate the
classes: neither the mean of a patch nor a linear function of its pixels does.

The class of a whole image is that of most of its shapes' pixels.

An image depends on nothing but (VERSION, seed, split, index).
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from skipbench.datasets.common.types import Boxes, Item, Kind, Labels, Listing, Source, Split
from skipbench.images import IGNORED, resize, target_hw
from skipbench.records import Interpolation, Size

SEED = 0
# Stored features and published numbers carry this number: raise it whenever a pixel changes.
VERSION = 1

CLASSES = ("background", "stripes", "zigzag", "checks", "dots", "rings", "grain")
# Okabe and Ito's palette, which is safe for colour-blind readers.
COLOURS = (
    (0, 0, 0), (0, 114, 178), (230, 159, 0), (0, 158, 115),
    (204, 121, 167), (240, 228, 66), (213, 94, 0),
)  # fmt: skip
SIZES_HW = ((128, 176), (144, 192), (150, 200), (176, 128), (192, 144), (200, 150))
MOST_SHAPES = 4
FOREGROUND = (0.5, 0.85)  # share of the image; less once shapes overlap
LEAST_VISIBLE = 0.5  # share of a shape that is not covered by others
PERIOD = (7.0, 15.0)  # of a texture, in pixels
CONTRAST = (0.08, 0.25)  # from a texture's mean to its extremes; black to white is 1

Array: TypeAlias = np.ndarray
Random: TypeAlias = np.random.Generator
Pattern: TypeAlias = Callable[[Array, Array, Random], Array]  # a value for every x and y


@dataclass(frozen=True)
class Drawing:
    """One image with its labels."""

    image: Array  # HWC uint8 RGB
    mask: Array  # HW uint8, numbers of CLASSES; 255 = the rim of a shape, ignored
    # (n, 4) int64, half-open, around the visible part of each shape, rim included
    boxes_xyxy: Array
    labels: Array  # (n,) int64, numbers of CLASSES


def size_of(seed: int, split: str, index: int) -> tuple[int, int]:
    """Height and width, without drawing."""
    return _start(seed, split, index)[1]


def draw(seed: int, split: str, index: int) -> Drawing:
    """The image with this index, the same in every process and in any order."""
    rng, size_hw = _start(seed, split, index)
    image = _background(size_hw, rng)
    owner, centres = _arrange(size_hw, rng)
    # One class follows from the index, so that any six consecutive images contain every class.
    first = index % len(TEXTURES)
    others = rng.permutation([t for t in range(len(TEXTURES)) if t != first])
    labels = np.array([first, *others], np.int64)[: len(centres)] + 1
    shapes = [owner == number for number in range(1, len(centres) + 1)]
    for shape, centre, label in zip(shapes, centres, labels, strict=True):
        _fill(image, shape, centre, TEXTURES[label - 1], rng)
    mask = np.array([0, *labels], np.uint8)[owner]
    mask[_rim(owner)] = IGNORED
    boxes = np.array([_box(shape) for shape in shapes], np.int64)
    return Drawing(_photograph(image, rng), mask, boxes, labels)


def _start(seed: int, split: str, index: int) -> tuple[Random, tuple[int, int]]:
    rng = np.random.default_rng([VERSION, seed, zlib.crc32(split.encode()), index])
    return rng, SIZES_HW[rng.integers(len(SIZES_HW))]


def _plane(
    size_hw: tuple[int, ...], centre_yx: Array, unit: float, rng: Random
) -> tuple[Array, Array]:
    """Coordinates x and y of every pixel relative to a centre, in units of `unit` pixels, in a
    randomly rotated frame."""
    angle = rng.uniform(0, 2 * math.pi)
    down, right = (np.arange(n, dtype=np.float32) for n in size_hw)
    down, right = (down - float(centre_yx[0]))[:, None], right - float(centre_yx[1])
    sine, cosine = math.sin(angle) / unit, math.cos(angle) / unit
    return cosine * right - sine * down, sine * right + cosine * down


def _radius(x: Array, y: Array) -> Array:
    return np.sqrt(x * x + y * y)  # np.hypot guards against overflow and is ten times slower


def _wave(phase: Array) -> Array:
    return np.sin(2 * math.pi * phase)


def _noise(x: Array, y: Array, rng: Random) -> Array:
    """Normal random values at integer positions, with period 32; smooth between them."""
    knots = rng.standard_normal(32 * 32, dtype=np.float32)
    column, row = np.floor(x), np.floor(y)
    across, down = (t * t * (3 - 2 * t) for t in (x - column, y - row))
    first = (row * 32 + column).astype(np.int32)
    a, b, c, d = (knots.take(first + step, mode="wrap") for step in (0, 1, 32, 33))
    above = a + across * (b - a)
    return above + down * (c + across * (d - c) - above)


# Textures: a wave from about -1 to 1. One unit is the texture's period.


def _stripes(x: Array, y: Array, rng: Random) -> Array:
    return _wave(x + rng.random())


def _zigzag(x: Array, y: Array, rng: Random) -> Array:
    y = y / 2 + rng.random()
    return _wave(x + 2 * np.abs(y - np.floor(y) - 0.5) + rng.random())


def _checks(x: Array, y: Array, rng: Random) -> Array:
    return _wave(0.6 * x + rng.random()) * _wave(0.6 * y + rng.random())


def _dots(x: Array, y: Array, rng: Random) -> Array:
    y = y + rng.random()
    x = x + rng.random() + np.floor(y) / 2  # each row is offset by half a period
    return 1 - _radius(x - np.floor(x) - 0.5, y - np.floor(y) - 0.5) / 0.29


def _rings(x: Array, y: Array, rng: Random) -> Array:
    return _wave(_radius(x + rng.uniform(-1, 1), y + rng.uniform(-1, 1)) + rng.random())


def _grain(x: Array, y: Array, rng: Random) -> Array:
    # Two lattices at an angle mask each other's rows.
    return _noise(1.6 * x, 1.6 * y, rng) + _noise(1.3 * (x + y), 1.3 * (x - y), rng)


TEXTURES: tuple[Pattern, ...] = (_stripes, _zigzag, _checks, _dots, _rings, _grain)


# Outlines: a height map, lowest inside. One unit is the side of a square of the shape's area.


def _ellipse(x: Array, y: Array, rng: Random) -> Array:
    return _radius(rng.uniform(1, 1.8) * x, y)


def _rectangle(x: Array, y: Array, rng: Random) -> Array:
    return np.maximum(rng.uniform(1, 1.8) * np.abs(x), np.abs(y))


def _polygon(x: Array, y: Array, rng: Random) -> Array:
    return _beyond_sides(x, y, int(rng.integers(3, 7)))[0]


def _star(x: Array, y: Array, rng: Random) -> Array:
    # Its points are beyond one side of the central polygon, never beyond two.
    return _beyond_sides(x, y, int(rng.integers(5, 8)))[1]


def _beyond_sides(x: Array, y: Array, sides: int) -> tuple[Array, Array]:
    """The largest and the second largest distance of a point towards the sides of a polygon."""
    most = second = np.full_like(x, -np.inf)
    for side in range(sides):
        angle = 2 * math.pi * side / sides
        beyond = math.cos(angle) * x + math.sin(angle) * y
        most, second = np.maximum(most, beyond), np.maximum(second, np.minimum(most, beyond))
    return most, second


def _blob(x: Array, y: Array, rng: Random) -> Array:
    hills = rng.uniform(-0.45, 0.45, (4, 2)).tolist()
    return -sum(np.exp(-8 * ((x - across) ** 2 + (y - down) ** 2)) for across, down in hills)


def _ring(x: Array, y: Array, rng: Random) -> Array:
    return np.abs(_radius(x, y) - 0.5)


OUTLINES: tuple[Pattern, ...] = (_ellipse, _rectangle, _polygon, _star, _blob, _ring)


def _shape(size_hw: tuple[int, int], centre: Array, share: float, rng: Random) -> Array:
    """HW bool: a random outline around the centre, over exactly this share of the image."""
    outline = OUTLINES[rng.integers(len(OUTLINES))]
    height = outline(*_plane(size_hw, centre, math.sqrt(share * math.prod(size_hw)), rng), rng)
    rank = int(share * height.size)
    return height < np.partition(height, rank, axis=None)[rank]


def _arrange(size_hw: tuple[int, int], rng: Random) -> tuple[Array, list[Array]]:
    """Which shape each pixel shows (HW, 0 = none), the last on top, and the shapes' centres."""
    owner = np.zeros(size_hw, np.uint8)
    wanted = int(rng.integers(1, MOST_SHAPES + 1))
    share = rng.uniform(*FOREGROUND) / (wanted + 0.6)  # a single shape does not fill the image
    centres: list[Array] = []
    areas: list[int] = []
    for _ in range(3 * wanted):
        centre = rng.uniform(0.15, 0.85, 2) * size_hw
        shape = _shape(size_hw, centre, share * rng.uniform(0.7, 1.3), rng)
        tried = np.where(shape, np.uint8(len(centres) + 1), owner)
        whole = [*areas, int(shape.sum())]
        if np.all(np.bincount(tried.ravel())[1:] >= LEAST_VISIBLE * np.array(whole)):
            owner, centres, areas = tried, [*centres, centre], whole
        if len(centres) == wanted:
            break
    return owner, centres


def _rim(owner: Array) -> Array:
    """HW bool: the outermost pixels of every shape."""
    rim = np.zeros(owner.shape, bool)
    down, right = owner[1:] != owner[:-1], owner[:, 1:] != owner[:, :-1]
    rim[1:] |= down
    rim[:-1] |= down
    rim[:, 1:] |= right
    rim[:, :-1] |= right
    return rim & (owner > 0)


def _box(shape: Array) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(shape.any(1)), np.flatnonzero(shape.any(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def _colour(rng: Random) -> Array:
    """(3, 1) float32 RGB: any hue, neither very dark nor very bright."""
    hue = _wave(rng.random() + np.array([[0], [1 / 3], [2 / 3]], np.float32))
    return rng.uniform(0.3, 0.7) + rng.uniform(0, 0.25) * hue


def _tint(rng: Random) -> Array:
    return 0.35 * (_colour(rng) - 0.5)


def _fill(image: Array, shape: Array, centre: Array, texture: Pattern, rng: Random) -> None:
    """Paint the shape with the texture, in two colours on either side of a third."""
    period = math.exp(rng.uniform(*np.log(PERIOD)))
    x, y = _plane(shape.shape, centre, period, rng)
    sharpness = rng.uniform(1, 4)
    wave = np.tanh(sharpness * texture(x[shape], y[shape], rng)) / math.tanh(sharpness)
    # Either colour may be the lighter one; otherwise the mean of a patch would reveal dots.
    contrast = math.copysign(rng.uniform(*CONTRAST), rng.random() - 0.5)
    image[:, shape] = _colour(rng) + (contrast + _tint(rng)) * wave


def _background(size_hw: tuple[int, int], rng: Random) -> Array:
    """CHW float32: a slowly varying colour with faint flat shapes, so an edge reveals no class."""
    drift = _noise(*_plane(size_hw, rng.uniform(0, size_hw), 60.0, rng), rng)
    image = _colour(rng) + _tint(rng) * drift.ravel()
    for _ in range(rng.integers(2, 4)):
        shape = _shape(size_hw, rng.uniform(0, size_hw), rng.uniform(0.02, 0.15), rng)
        image += _tint(rng) * shape.ravel()
    return image.reshape(3, *size_hw)


def _photograph(image: Array, rng: Random) -> Array:
    """Directional light, slight blur, slight noise. CHW float32 → HWC uint8."""
    size_hw = image.shape[1:]
    slope, _ = _plane(size_hw, rng.uniform(0, size_hw), sum(size_hw), rng)
    image = _blurred(image * (1 + rng.uniform(0, 0.6) * slope), rng.uniform(0.05, 0.25))
    noise = rng.standard_normal(image.shape, dtype=np.float32)
    image = (255 * image + rng.uniform(2, 8) * noise).round().clip(0, 255)
    return np.ascontiguousarray(image.astype(np.uint8).transpose(1, 2, 0))


def _blurred(image: Array, weight: float) -> Array:
    """Each pixel mixed with its neighbours above and below, then left and right."""
    wide = np.pad(image, ((0, 0), (1, 1), (1, 1)), mode="edge")
    tall = wide[:, 1:-1] + weight * (wide[:, :-2] - 2 * wide[:, 1:-1] + wide[:, 2:])
    return tall[..., 1:-1] + weight * (tall[..., :-2] - 2 * tall[..., 1:-1] + tall[..., 2:])


@dataclass(frozen=True)
class DrawnItem(Item):
    """Drawn on access; its path is only a name, there is no file."""

    split: str = "train"
    index: int = 0
    has_boxes = has_segments = has_class = True

    def read(self, size: Size = None, how: Interpolation = "bilinear") -> np.ndarray:
        image = self._draw().image
        return resize(image, target_hw(image.shape[:2], size), how)

    def size_hw(self) -> tuple[int, int]:
        return size_of(SEED, self.split, self.index)

    def mark(self) -> str:
        return f"{VERSION} {SEED} {self.split} {self.index}"

    def mask(self) -> np.ndarray:
        return _mask(self.split, self.index).copy()

    def boxes(self) -> Boxes:
        drawing = self._draw()
        return Boxes(
            drawing.boxes_xyxy.astype(np.float64),
            tuple(CLASSES[i] for i in drawing.labels),
            np.zeros(len(drawing.labels), bool),
        )

    def image_class(self) -> str:
        pixels = np.bincount(_mask(self.split, self.index).ravel(), minlength=len(CLASSES))
        return CLASSES[1 + int(pixels[1 : len(CLASSES)].argmax())]

    def content(self, of: Kind) -> bytes:
        return self.mark().encode()

    def _draw(self) -> Drawing:
        return draw(SEED, self.split, self.index)


@lru_cache(maxsize=512)
def _mask(split: str, index: int) -> np.ndarray:
    """Cached, because training and scoring use it repeatedly; a few dozen kB each."""
    return draw(SEED, split, index).mask


class Shapes(Source):
    title, short = "textured shapes", "shapes"
    licence = "made by this package"
    places = ()
    tree = "  (no files)"
    splits = {"train": Split(200, "masks"), "val": Split(100, "masks")}
    on_disk = False

    def is_at(self, folder: Path) -> bool:
        return True

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        values = range(len(CLASSES))
        return Labels(CLASSES, COLOURS, {v: v for v in values})

    def image_classes(self, folder: Path) -> tuple[str, ...]:
        return CLASSES[1:]

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        count = self.splits[split].images or 0

        def make(name: str) -> Item:
            index = int(name.rpartition("_")[2])
            return DrawnItem(name, Path(f"shapes:{name}"), split=split, index=index)

        return Listing([f"{split}_{i:05d}" for i in range(count)], make)


SOURCE = Shapes()
