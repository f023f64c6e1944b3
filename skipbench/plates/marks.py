"""Lines and marks of a chart, each style told from the others without its colour too."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise
from math import cos, dist, radians, sin

import numpy as np
from PIL import ImageDraw

from skipbench.plates.lettering import PAPER

Colour = tuple[int, int, int]
Spot = tuple[float, float]  # in pixels

COLOURS = {"skip": (213, 94, 0), "skipless": (0, 114, 178)}  # as on the report's page
OTHERS = ((0, 158, 115), (204, 121, 167), (86, 86, 86))
LINE, RIM = 7, 3  # pixels
DASHES = ((), (30, 18), (8, 14), (44, 14, 8, 14))
# Corners, degrees, radius: disc, square, triangle, diamond.
SHAPES = ((24, 0, 16), (4, 45, 19), (3, -90, 20), (4, 0, 20))


@dataclass(frozen=True)
class Style:
    colour: Colour
    dashes: tuple[int, ...]
    shape: tuple[int, int, int]


def styles_of(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Style]:
    """Of curves, given by variant and label."""
    colours: dict[str, Colour] = dict(COLOURS)
    counts: dict[str, int] = {}
    others, styles = cycle(OTHERS), {}
    for variant, label in dict.fromkeys(keys):
        if variant not in colours:
            colours[variant] = next(others)
        n = counts[variant] = counts.get(variant, -1) + 1
        dashes = DASHES[(n + n // len(SHAPES)) % len(DASHES)]
        styles[variant, label] = Style(colours[variant], dashes, SHAPES[n % len(SHAPES)])
    return styles


def draw_line(draw: ImageDraw.ImageDraw, spots: Sequence[Spot], style: Style) -> None:
    for piece in _dashed(spots, style.dashes) if style.dashes else [spots]:
        draw.line(list(piece), style.colour, LINE, "curve")


def _dashed(spots: Sequence[Spot], dashes: Sequence[int]) -> Iterator[list[Spot]]:
    """The drawn parts of a way: dashes and gaps in turn."""
    ends = [0.0, *accumulate(dist(a, b) for a, b in pairwise(spots))]
    xs, ys = zip(*spots, strict=True)

    def at(way: float) -> Spot:
        return float(np.interp(way, ends, xs)), float(np.interp(way, ends, ys))

    start = 0.0
    for i, size in enumerate(cycle(dashes)):
        if start >= ends[-1]:
            return
        if i % 2 == 0:
            between = [s for s, end in zip(spots, ends, strict=True) if start < end < start + size]
            yield [at(start), *between, at(start + size)]
        start += size


def draw_mark(draw: ImageDraw.ImageDraw, spot: Spot, style: Style) -> None:
    """With a rim of paper, so that marks on each other can be told apart."""
    corners, turn, size = style.shape
    angles = [radians(turn + 360 * i / corners) for i in range(corners)]
    for radius, colour in ((size + RIM, PAPER), (size, style.colour)):
        outline = [(spot[0] + radius * cos(a), spot[1] + radius * sin(a)) for a in angles]
        draw.polygon(outline, colour)
