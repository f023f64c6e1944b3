"""The page's first answer: skip against skipless, each at its best, in figures and one sentence.

And the same by class.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from skipbench.results.report.charts import bars, forest
from skipbench.results.report.variants import (
    DASH,
    Rivals,
    chosen_on_the_answer,
    kind_name,
    number,
)
from skipbench.results.scores import Entry
from skipbench.results.tables.render import chance, signed

if TYPE_CHECKING:
    from skipbench.results.compare import Paired

MANY_CLASSES, MANY_PARTS = 30, 6  # more are folded away
VARIANTS = ("skip", "skipless")


def summary(found: Sequence[Rivals]) -> list[dict[str, Any]]:
    """A row for each; those of one evaluation and data set are drawn to one scale."""
    return [
        {
            "title": rivals.title,
            "about": _about(rivals),
            "how": rivals.how,
            "block": str(rivals.facts["features"]).startswith("block "),
            "sides": [_side(rivals, variant) for variant in VARIANTS],
            "forest": _forest(rivals, found),
            "sentence": sentence(rivals),
        }
        for rivals in found
    ]


def _about(rivals: Rivals) -> str:
    return f"{kind_name(rivals.facts)}, {rivals.metric}, {rivals.facts['split']}"


def _side(rivals: Rivals, variant: str) -> dict[str, Any]:
    entry = rivals.best.get(variant)
    several = rivals.of.get(variant, 0)
    notes = [f"best of {several}"] if several > 1 else []
    if entry and (block := entry.first.result.metrics.get("block")) is not None:
        blocks = len(entry.first.blocks)
        notes += [f"block {block} of {blocks}"] if blocks > 1 else []
    return {"variant": variant, "entry": entry, "note": ", ".join(notes)}


def _forest(rivals: Rivals, found: Sequence[Rivals]) -> str:
    def scale(one: Rivals) -> list[Any]:
        return [one.facts["evaluation"], one.facts["dataset"], one.metric]

    peers = [one for one in found if scale(one) == scale(rivals)]
    ends = [
        end
        for one in peers
        for entry in one.best.values()
        for end in (entry.value, *(entry.interval or ()))
    ]
    air = 0.05 * (max(ends) - min(ends)) or 1.0
    sides = [(variant, rivals.best.get(variant)) for variant in VARIANTS]
    rows = [(v, e.value if e else None, e.interval if e else None) for v, e in sides]
    return forest(rows, min(ends) - air, max(ends) + air)


# -- the sentence


def sentence(rivals: Rivals) -> str:
    """What can be said, and no more. Overlapping intervals prove nothing, and it says so."""
    if not rivals.both:
        (variant,) = rivals.best
        return f"Only {variant} here: nothing to compare it with."
    skip, skipless = rivals.both
    if rivals.tested:
        chosen = any(number > 1 for number in rivals.of.values())
        chosen = chosen or any(map(chosen_on_the_answer, rivals.both))
        more = " The best were chosen first, for which p makes no allowance." if chosen else ""
        return _tested(rivals.tested) + more
    return f"{_above(skipless.value - skip.value)}; {_intervals(skip, skipless)}."


def _above(difference: float) -> str:
    shown = signed(abs(difference))
    if float(shown) == 0:
        return "skipless and skip are equal to the last digit shown"
    return f"skipless is {shown.lstrip('+')} {'above' if difference > 0 else 'below'} skip"


def _intervals(skip: Entry, skipless: Entry) -> str:
    a, b = skip.interval, skipless.interval
    if not a or not b:
        return "without intervals there is no telling whether that is more than chance"
    if a[1] < b[0] or b[1] < a[0]:
        return "the intervals do not overlap"
    return "the intervals overlap, which by itself settles nothing"


def _tested(tested: "Paired") -> str:
    low, high = tested.interval
    return (
        f"skipless − skip: {signed(tested.difference)} [{signed(low)}, {signed(high)}], "
        f"{chance(tested.p_value)}, paired over {tested.images:,} images."
    )


# -- by class


def by_class(found: Sequence[Rivals]) -> list[dict[str, Any]]:
    """Where skipless gains most stands first; classes that neither has, last."""
    made: list[dict[str, Any]] = []
    for rivals in found:
        scores = {variant: _per_class(entry) for variant, entry in rivals.best.items()}
        classes = list(dict.fromkeys(name for score in scores.values() for name in score))
        if not classes:
            continue
        ends = {move.name: move.interval for move in rivals.tested.classes} if rivals.tested else {}
        rows = [_class_row(name, scores, ends.get(name)) for name in classes]
        rows.sort(key=lambda row: (row["difference"] is None, -(row["difference"] or 0)))
        made.append(
            {
                "title": rivals.title,
                "about": _about(rivals),
                "how": rivals.how,
                "sides": [(v, rivals.best.get(v)) for v in VARIANTS if scores.get(v)],
                "rows": rows,
                "folded": len(rows) > MANY_CLASSES or len(made) >= MANY_PARTS,
            }
        )
    return made


def _per_class(entry: Entry) -> dict[str, float | None]:
    """The mean over the seeds that have the class."""
    known: dict[str, list[float]] = {}
    for figure in entry.figures:
        given = figure.result.metrics.get("per_class")
        for name, value in given.items() if isinstance(given, Mapping) else ():
            one = number(value)
            known.setdefault(str(name), []).extend([] if one is None else [one])
    return {name: fmean(values) if values else None for name, values in known.items()}


def _class_row(
    name: str, scores: Mapping[str, Mapping[str, float | None]], ends: tuple[float, float] | None
) -> dict[str, Any]:
    values = [(v, scores[v].get(name)) for v in VARIANTS if scores.get(v)]
    there = [value for _, value in values if value is not None]
    difference = there[1] - there[0] if len(there) == 2 else None
    return {
        "name": name,
        "bars": bars(values),
        "values": [value for _, value in values],
        "difference": difference,
        "shown": DASH if difference is None else signed(difference),
        "interval": f"[{signed(ends[0])}, {signed(ends[1])}]" if ends else "",
    }
