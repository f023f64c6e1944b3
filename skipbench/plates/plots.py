"""Curves as a picture: panels in a grid, one legend below them.

Drawn larger and scaled down, so that lines are smooth. Lengths are in the pixels of the larger one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, zip_longest
from math import isfinite
from typing import NamedTuple

from PIL import Image, ImageDraw

from skipbench.plates.axes import Axis, x_axis, y_axis
from skipbench.plates.lettering import (
    FAINT,
    INK,
    PAPER,
    font,
    in_two,
    length,
    plain,
    shortened,
    wrapped,
)
from skipbench.plates.marks import LINE, Colour, Spot, Style, draw_line, draw_mark, styles_of

SCALE = 3
WIDTH, HEIGHT = 550 * SCALE, 400 * SCALE  # of a panel
PAD, RIGHT, BOTTOM = 8 * SCALE, WIDTH - 24 * SCALE, HEIGHT - 68 * SCALE
SMALL, NORMAL, LARGE = 16 * SCALE, 18 * SCALE, 22 * SCALE  # type
ROW = 26 * SCALE  # a line of it
SAMPLE = 56 * SCALE  # of a line, in the legend

GRID = (230, 230, 230)
BAND = 50  # of 255: how much of its colour a band has


@dataclass(frozen=True)
class Curve:
    label: str
    variant: str  # skip, skipless or anything else: decides the colour
    points: Sequence[tuple[float, float]]  # x, y; NaN leaves a gap
    bands: Sequence[tuple[float, float] | None] = ()  # 95 % interval of each point, or none


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]


class _Point(NamedTuple):
    x: float
    y: float
    band: tuple[float, float] | None


Styles = dict[tuple[str, str], Style]  # by variant and label


def chart(panels: Sequence[Panel], *, title: str = "", columns: int = 2) -> Image.Image:
    """550 pixels a panel. Curves of one variant differ in their dashes and marks."""
    columns = max(1, min(columns, len(panels)))
    styles = styles_of((curve.variant, curve.label) for p in panels for curve in p.curves)
    strips = [_title(title, columns * WIDTH)]
    drawn = _panels(panels, styles)
    for start in range(0, len(panels), columns):
        strips.append(_blank(columns * WIDTH, HEIGHT))
        for i, panel in enumerate(drawn[start : start + columns]):
            strips[-1].paste(panel, (i * WIDTH, 0))
    strips.append(_legend(styles, columns * WIDTH))
    page = _blank(columns * WIDTH, sum(strip.height for strip in strips))
    for strip, end in zip(strips, accumulate(strip.height for strip in strips), strict=True):
        page.paste(strip, (0, end - strip.height))
    return page.resize((page.width // SCALE, page.height // SCALE), Image.Resampling.LANCZOS)


def _blank(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), PAPER)


def _title(title: str, width: int) -> Image.Image:
    lines = wrapped(plain(title), width - 4 * PAD, LARGE)
    strip = _blank(width, (PAD + len(lines) * ROW) if lines else 0)
    for i, line in enumerate(lines):
        _text(strip, line, (width / 2, PAD + (i + 0.5) * ROW), LARGE)
    return strip


def _legend(styles: Styles, width: int) -> Image.Image:
    """In columns of one width, in as few rows as can be."""
    names = [shortened(plain(label), width - SAMPLE - 6 * PAD, NORMAL) for _, label in styles]
    wide = SAMPLE + 4 * PAD + max((length(name, NORMAL) for name in names), default=0)
    rows = -(-len(names) // max(1, int((width - 2 * PAD) // wide)))
    columns = -(-len(names) // max(1, rows))
    strip = _blank(width, rows * ROW + 2 * PAD)
    draw = ImageDraw.Draw(strip)
    for i, (name, style) in enumerate(zip(names, styles.values(), strict=True)):
        row, column = divmod(i, columns)
        x = (width - columns * wide) / 2 + column * wide + 2 * PAD
        y = PAD + (row + 0.5) * ROW
        draw_line(draw, [(x, y), (x + SAMPLE, y)], style)
        draw_mark(draw, (x + SAMPLE / 2, y), style)
        _text(strip, name, (x + SAMPLE + PAD, y), NORMAL, anchor="lm")
    return strip


def _text(
    canvas: Image.Image,
    text: str,
    at: Spot,
    size: int,
    colour: Colour = INK,
    anchor: str = "mm",
) -> None:
    ImageDraw.Draw(canvas).text(at, text, colour, font(size), anchor)


# -- a panel


def _shown(value: float | None) -> bool:
    return value is not None and isfinite(value) and abs(value) < 1e100


def _runs(curve: Curve) -> list[list[_Point]]:
    """The points that there are; what is missing parts them."""
    points = [
        _Point(x, y, band if band and all(map(_shown, band)) else None)
        for (x, y), band in zip_longest(curve.points, curve.bands[: len(curve.points)])
    ]
    runs = groupby(points, key=lambda point: _shown(point.x) and _shown(point.y))
    return [list(run) for there, run in runs if there]


@dataclass(frozen=True)
class _Frame:
    x: Axis
    y: Axis
    left: int
    top: int

    def spot(self, x: float, y: float) -> Spot:
        return self.x.at(x, self.left, RIGHT), self.y.at(y, BOTTOM, self.top)


def _panels(panels: Sequence[Panel], styles: Styles) -> list[Image.Image]:
    """All with the same margins, so that their axes are in line."""
    points = [[p for c in panel.curves for run in _runs(c) for p in run] for panel in panels]
    heights = [[y for p in some for y in (p.y, *(p.band or ()))] for some in points]
    ys = [y_axis(values or [0.0]) for values in heights]
    names = max((length(name, SMALL) for y in ys for name in y.names), default=0)
    left = round(names) + ROW + 3 * PAD
    titles = [in_two(plain(panel.title), RIGHT - left, NORMAL) for panel in panels]
    top = 2 * PAD + ROW * max(map(len, titles), default=0)
    drawn = []
    for panel, title, some, y in zip(panels, titles, points, ys, strict=True):
        x = x_axis([p.x for p in some] or [0.0], RIGHT - left, SMALL)
        drawn.append(_panel(panel, title, _Frame(x, y, left, top), styles, bool(some)))
    return drawn


def _panel(
    panel: Panel, title: Sequence[str], frame: _Frame, styles: Styles, filled: bool
) -> Image.Image:
    canvas = _blank(WIDTH, HEIGHT)
    _write_labels(canvas, panel, title, frame)
    if filled:
        _draw_axes(canvas, frame)
        for curve in panel.curves:
            _draw_bands(canvas, curve, frame, styles[curve.variant, curve.label].colour)
        for curve in panel.curves:
            _draw_curve(canvas, curve, frame, styles[curve.variant, curve.label])
    else:
        draw = ImageDraw.Draw(canvas)
        draw.rectangle((frame.left, frame.top, RIGHT, BOTTOM), outline=GRID, width=SCALE)
        middle = (frame.left + RIGHT) / 2, (frame.top + BOTTOM) / 2
        _text(canvas, "no data", middle, NORMAL, FAINT)
    return canvas


def _write_labels(canvas: Image.Image, panel: Panel, title: Sequence[str], frame: _Frame) -> None:
    wide, tall = RIGHT - frame.left, BOTTOM - frame.top
    middle = (frame.left + RIGHT) / 2
    for i, line in enumerate(title):
        _text(canvas, line, (middle, frame.top - PAD - (len(title) - i - 0.5) * ROW), NORMAL)
    x_label = shortened(plain(panel.x_label), wide, SMALL)
    _text(canvas, x_label, (middle, HEIGHT - PAD - ROW / 2), SMALL)
    mask = Image.new("L", (tall, ROW))
    y_label = shortened(plain(panel.y_label), tall, SMALL)
    ImageDraw.Draw(mask).text((tall / 2, ROW / 2), y_label, 255, font(SMALL), "mm")
    canvas.paste(INK, (PAD, frame.top), mask.rotate(90, expand=True))


def _draw_axes(canvas: Image.Image, frame: _Frame) -> None:
    draw = ImageDraw.Draw(canvas)
    for tick, name in zip(frame.y.ticks, frame.y.names, strict=True):
        y = frame.y.at(tick, BOTTOM, frame.top)
        draw.line((frame.left, y, RIGHT, y), GRID, SCALE)
        _text(canvas, name, (frame.left - PAD, y), SMALL, anchor="rm")
    for tick, name in zip(frame.x.ticks, frame.x.names, strict=True):
        x = frame.x.at(tick, frame.left, RIGHT)
        draw.line((x, frame.top, x, BOTTOM), GRID, SCALE)
        half = length(name, SMALL) / 2
        _text(canvas, name, (min(x, WIDTH - PAD - half), BOTTOM + PAD + ROW / 2), SMALL)
    corner = (frame.left, frame.top), (frame.left, BOTTOM), (RIGHT, BOTTOM)
    draw.line(corner, FAINT, SCALE + 1)


def _draw_bands(canvas: Image.Image, curve: Curve, frame: _Frame, colour: Colour) -> None:
    """Neighbours with intervals make a band; one alone has a bar."""
    mask = Image.new("L", canvas.size)
    draw = ImageDraw.Draw(mask)
    for run in _runs(curve):
        for there, group in groupby(run, key=lambda point: point.band is not None):
            points = [(p.x, *p.band) for p in group if p.band]
            lows = [frame.spot(x, low) for x, low, _ in points]
            highs = [frame.spot(x, high) for x, _, high in points]
            if len(points) == 1:
                draw.line([*lows, *highs], 2 * BAND, 2 * LINE)
            elif there:
                draw.polygon([*lows, *reversed(highs)], BAND)
    canvas.paste(colour, (0, 0), mask)


def _draw_curve(canvas: Image.Image, curve: Curve, frame: _Frame, style: Style) -> None:
    draw = ImageDraw.Draw(canvas)
    runs = [[frame.spot(point.x, point.y) for point in run] for run in _runs(curve)]
    for run in runs:
        draw_line(draw, run, style)
    for run in runs:
        for spot in run:
            draw_mark(draw, spot, style)
