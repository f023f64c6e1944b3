"""The page's charts: lines, axes and their ticks. charts.html draws them as SVG with tooltips and
in the colours of either theme, which a plotting library does not."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from skipbench.results.report.models import Look
from skipbench.results.words import short

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

STRIP = 190  # width of dots on one line, in pixels
WIDTH, HEIGHT = 380, 236
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 42  # margins around the plot
MOST_TICKS = 7

Interval = tuple[float, float]


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
    look: Look
    points: tuple[Point, ...]

    @property
    def bands(self) -> list[list[Point]]:
        """Neighbouring points with an interval."""
        runs = groupby(self.points, key=lambda point: point.interval is not None)
        return [list(run) for has_interval, run in runs if has_interval]


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False
    start: float = LEFT  # in pixels
    end: float = WIDTH - RIGHT

    def at(self, value: float) -> float:
        bend = log10 if self.log else float
        low, high = bend(self.low), bend(self.high)
        return round(self.start + (bend(value) - low) / (high - low) * (self.end - self.start), 2)


# -- axes


def ticks(low: float, high: float, most: int = MOST_TICKS) -> tuple[float, ...]:
    """At most so many round numbers in the range, in steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))


def _range(values: Iterable[float], margin: float) -> tuple[float, float]:
    values = list(values)
    air = margin * (max(values) - min(values)) or 1.0
    return min(values) - air, max(values) + air


def y_axis(label: str, lines: Iterable[Line]) -> Axis:
    """Every point and interval fits, with a margin."""
    points = [point for line in lines for point in line.points]
    low, high = _range((v for p in points for v in (p.y, *(p.interval or ()))), 0.06)
    return Axis(label, low, high, ticks(low, high, 6))


def x_axis(label: str, lines: Iterable[Line]) -> Axis:
    """The ticks are the points' own places, if they are few and their labels do not meet."""
    places = sorted({point.x for line in lines for point in line.points})
    nearest = min((b - a for a, b in pairwise(places)), default=0)
    few = len(places) <= MOST_TICKS and nearest >= (places[-1] - places[0]) / 10
    marks = tuple(places) if few else ticks(places[0], places[-1])
    return Axis(label, *_range(places, 0.04), marks)


def strip_axis(values: Sequence[float]) -> Axis:
    """For dots on one line."""
    low, high = _range(values, 0.03)
    return Axis("", low, high, ticks(low, high, 5), start=12, end=STRIP - 12)


def log_axis(label: str, lines: Iterable[Line]) -> Axis:
    places = [point.x for line in lines for point in line.points]
    low, high = min(places) / 1.3, max(places) * 1.3
    marks = tuple(10.0**n for n in range(ceil(log10(low)), floor(log10(high)) + 1))
    return Axis(label, low, high, marks or (min(places),), log=True)


# -- drawn


@cache
def environment() -> "Environment":
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("skipbench.results.report", "page"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    made.filters |= {"clip": clip, "breakable": breakable, "short": short}
    frame = {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM}
    made.globals |= frame | {"width": WIDTH, "height": HEIGHT, "strip_width": STRIP}
    return made


def clip(text: object, most: int) -> str:
    """Shortened between two words."""
    words = " ".join(short(word, most) for word in str(text).split())
    return words if len(words) <= most else f"{words[:most].rpartition(' ')[0]} …"


def breakable(text: object) -> "Markup":
    """A long name may break after a separator or before ".safetensors", and nowhere else."""
    from markupsafe import Markup, escape

    places = r"(?<=[^\w\s&;#<>.])(?=\w)|(?<=_)(?=\w)|(?=\.[a-z]{6,}$)"
    return Markup(re.sub(places, "<wbr>", str(escape(short(text)))))


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, alt: str) -> "Markup":
    """alt: in words, for screen readers."""
    macros: Any = environment().get_template("charts.html").module
    return macros.line_chart(lines, x, replace(y, start=HEIGHT - BOTTOM, end=TOP), alt)
