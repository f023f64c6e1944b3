"""Axes of a chart: their range, round numbers along them, and the names of these."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10

from skipbench.plates.lettering import length

MOST_TICKS, MOST_X, MOST_Y = 7, 12, 8  # on the page, and along the axes of a picture


def ticks(
    low: float, high: float, most: int = MOST_TICKS, whole: bool = False
) -> tuple[float, ...]:
    """Round numbers in the range: steps of 1, 2 or 5, at most so many of them."""
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))


def tick_names(places: Sequence[float]) -> list[str]:
    """With the decimals that tell them apart; millions, and the very small, as 2.5e8."""
    if len(places) < 2:
        return [f"{place:g}" for place in places]
    size = floor(log10(max(map(abs, places))) + 1e-9)
    decimals = -floor(log10(places[1] - places[0]) + 1e-9)
    if -4 <= size < 6:
        return [f"{place:.{max(0, decimals)}f}" for place in places]
    parts = [f"{place:.{max(0, size + decimals)}e}".split("e") for place in places]
    return [f"{number}e{int(power)}" if float(number) else "0" for number, power in parts]


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]

    @property
    def names(self) -> list[str]:
        return tick_names(self.ticks)

    def at(self, value: float, start: float, end: float) -> float:
        return start + (value - self.low) / (self.high - self.low) * (end - start)


def _range(values: Sequence[float], air: float) -> tuple[float, float]:
    """Of the values, with some air. Those that are as good as one get it in the middle."""
    low, high = min(values), max(values)
    size = max(abs(low), abs(high))
    if size < 1e-100:
        return -1.0, 1.0
    air = 0.05 * size if high - low <= 1e-9 * size else air * (high - low)
    return low - air, high + air


def y_axis(values: Sequence[float]) -> Axis:
    low, high = _range(values, 0.06)
    return Axis(low, high, ticks(low, high, MOST_Y))


def x_axis(values: Sequence[float], room: float, size: int) -> Axis:
    """As many ticks as have room for their names; whole numbers where the values are.

    room: of the axis, in pixels; size: of the type.
    """
    low, high = _range(values, 0.04)
    if max(values) - min(values) <= 1e-9 * max(map(abs, values)):
        return Axis(low, high, (values[0],))
    whole = all(value == round(value) for value in values)
    for most in range(MOST_X, 1, -1):
        axis = Axis(low, high, ticks(min(values), max(values), most, whole))
        widest = max((length(name, size) for name in axis.names), default=0)
        steps = [b - a for a, b in pairwise(axis.at(tick, 0, room) for tick in axis.ticks)]
        if widest + 0.75 * size <= min(steps, default=room):
            break
    return axis
