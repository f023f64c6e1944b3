"""Charts as SVG with tooltips, in the colours of either theme: a plotting library draws neither.

The classes skip, skipless and other get their colours from the page's style sheet; lines of one
variant differ in their dashes and in the shape of their points.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, log10

from markupsafe import Markup, escape

from skipbench.results.report.values import VARIANTS

WIDTH, HEIGHT = 380, 236
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 42  # margins around the plot

Interval = tuple[float, float]
Place = Callable[[float], float]  # where a number lies, in pixels

MOST_TICKS = 7
DASHES = ("", "6 3", "2 3", "9 3 2 3")
SHAPES = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",  # circle, square, triangle, diamond
    "M-3.2 -3.2h6.4v6.4h-6.4z",
    "M0 -4.2L4 3H-4z",
    "M0 -4.6L4.6 0L0 4.6L-4.6 0z",
)


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    interval: Interval | None = None
    tooltip: str = ""
    chosen: bool = False  # gets a ring


@dataclass(frozen=True)
class Line:
    label: str
    variant: str  # skip, skipless, or anything else
    points: tuple[Point, ...]
    style: int = 0  # which dashes and shape


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def scale(self, start: float, end: float) -> Place:
        bend = log10 if self.log else float
        low, high = bend(self.low), bend(self.high)
        return lambda value: round(start + (bend(value) - low) / (high - low) * (end - start), 2)


def known(variant: object) -> str:
    """The class of a variant: never text from a file, but one of three words."""
    return str(variant) if variant in VARIANTS else "other"


# -- axes


def ticks(low: float, high: float, most: int = MOST_TICKS) -> tuple[float, ...]:
    """At most so many round numbers in the range, in steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))


def y_axis(label: str, lines: Iterable[Line]) -> Axis:
    """Every point and interval fits, with a margin."""
    points = [point for line in lines for point in line.points]
    ends = [value for point in points for value in (point.y, *(point.interval or ()))]
    low, high = min(ends), max(ends)
    air = 0.06 * (high - low) or 1.0
    low, high = low - air, high + air
    return Axis(label, low, high, ticks(low, high, 6))


def x_axis(label: str, lines: Iterable[Line]) -> Axis:
    """The ticks are the points' own places, if they are few."""
    places = sorted({point.x for line in lines for point in line.points})
    low, high = places[0], places[-1]
    air = 0.04 * (high - low) or 1.0
    marks = tuple(places) if len(places) <= MOST_TICKS else ticks(low, high)
    return Axis(label, low - air, high + air, marks)


def log_axis(label: str, lines: Iterable[Line]) -> Axis:
    places = [point.x for line in lines for point in line.points]
    low, high = min(places) / 1.3, max(places) * 1.3
    marks = tuple(10.0**n for n in range(ceil(log10(low)), floor(log10(high)) + 1))
    return Axis(label, low, high, marks or (min(places),), log=True)


# -- the chart


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, alt: str) -> Markup:
    """alt: in words, for screen readers."""
    to_x = x.scale(LEFT, WIDTH - RIGHT)
    to_y = y.scale(HEIGHT - BOTTOM, TOP)
    parts = [_axes(x, y, to_x, to_y)]
    parts += [_band(line, to_x, to_y) for line in lines]
    parts += [_line(line, to_x, to_y) for line in lines]
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, alt, _join(parts))


def _axes(x: Axis, y: Axis, to_x: Place, to_y: Place) -> Markup:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y.ticks:
        at = to_y(tick)
        parts.append(
            Markup(
                '<path class="grid" d="M{} {}H{}"/><text x="{}" y="{}" text-anchor="end">{}</text>'
            ).format(LEFT, at, right, LEFT - 6, at + 4, f"{tick:g}")
        )
    for tick in x.ticks:
        at = to_x(tick)
        parts.append(
            Markup(
                '<path class="axis" d="M{} {}v4"/><text x="{}" y="{}" text-anchor="middle">{}'
                "</text>"
            ).format(at, bottom, at, bottom + 17, f"{tick:g}")
        )
    middle_x, middle_y = (LEFT + right) / 2, (TOP + bottom) / 2
    parts.append(
        Markup(
            '<path class="axis" d="M{} {}H{}"/>'
            '<text class="name" x="{}" y="{}" text-anchor="middle">{}</text>'
            '<text class="name" transform="translate(11 {}) rotate(-90)" text-anchor="middle">{}'
            "</text>"
        ).format(LEFT, bottom, right, middle_x, HEIGHT - 5, x.label, middle_y, y.label)
    )
    return _join(parts)


def _band(line: Line, to_x: Place, to_y: Place) -> Markup:
    """Neighbours with intervals make a band; one alone has a bar."""
    parts = []
    for has_interval, run in groupby(line.points, key=lambda point: point.interval is not None):
        if not has_interval:
            continue
        ends = [(to_x(p.x), *map(to_y, p.interval)) for p in run if p.interval]
        if len(ends) == 1:
            at, low, high = ends[0]
            parts.append(Markup('<path class="bar" d="M{} {}V{}"/>').format(at, low, high))
            continue
        around = [f"{at} {high}" for at, _, high in ends]
        around += [f"{at} {low}" for at, low, _ in reversed(ends)]
        parts.append(Markup('<path class="band" d="M{}z"/>').format("L".join(around)))
    return Markup('<g class="{}">{}</g>').format(known(line.variant), _join(parts))


def _line(line: Line, to_x: Place, to_y: Place) -> Markup:
    way = "L".join(f"{to_x(point.x)} {to_y(point.y)}" for point in line.points)
    points = [_point(point, line.style, to_x(point.x), to_y(point.y)) for point in line.points]
    return Markup('<g class="{}"><path class="line" d="M{}" stroke-dasharray="{}"/>{}</g>').format(
        known(line.variant), way, DASHES[line.style % len(DASHES)], _join(points)
    )


def _point(point: Point, style: int, x: float, y: float) -> Markup:
    """With an invisible circle that is easier to hit with a finger or a mouse."""
    ring = Markup('<circle class="ring" r="7"/>') if point.chosen else ""
    return Markup(
        '<g class="point" transform="translate({} {})"><title>{}</title>'
        '<circle class="reach" r="10"/>{}<path d="{}"/></g>'
    ).format(x, y, point.tooltip, ring, SHAPES[style % len(SHAPES)])


def sample(line: Line) -> Markup:
    """A piece of the line, for the legend."""
    return Markup(
        '<svg class="sample {}" viewBox="0 0 34 12" aria-hidden="true">'
        '<path class="line" d="M1 6H33" stroke-dasharray="{}"/>'
        '<g class="point" transform="translate(17 6)"><path d="{}"/></g></svg>'
    ).format(
        known(line.variant), DASHES[line.style % len(DASHES)], SHAPES[line.style % len(SHAPES)]
    )


# -- small charts


def forest(
    rows: Sequence[tuple[str, float | None, Interval | None]], low: float, high: float
) -> Markup:
    """A dot and an interval for each variant, one below the other. low, high: of the scale."""
    to_x = Axis("", low, high, ()).scale(6, 194)
    parts = []
    for i, (variant, value, interval) in enumerate(rows):
        y = 12 + 25 * i
        if value is None:
            continue
        whisker = Markup("")
        if interval:
            whisker = Markup('<path class="whisker" d="M{} {}H{}"/>').format(
                to_x(interval[0]), y, to_x(interval[1])
            )
        parts.append(
            Markup('<g class="{}">{}<circle class="dot" cx="{}" cy="{}" r="4"/></g>').format(
                known(variant), whisker, to_x(value), y
            )
        )
    return Markup('<svg class="forest" viewBox="0 0 200 {}" aria-hidden="true">{}</svg>').format(
        25 * len(rows), _join(parts)
    )


def bars(values: Sequence[tuple[str, float | None]]) -> Markup:
    """One thin bar per variant, from 0 to 100 percent."""
    parts = [
        Markup('<rect class="{}" y="{}" width="{}" height="7"/>').format(
            known(variant), 8 * i, round(min(max(value, 0.0), 100.0), 2)
        )
        for i, (variant, value) in enumerate(values)
        if value is not None
    ]
    return Markup(
        '<svg class="bars" viewBox="0 0 100 {}" preserveAspectRatio="none" aria-hidden="true">'
        "{}</svg>"
    ).format(8 * len(values) - 1, _join(parts))


def _join(parts: Iterable[Markup | str]) -> Markup:
    return Markup("").join(map(escape, parts))
