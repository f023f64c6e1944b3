"""The page's summary: the best of skip and of skipless side by side, in numbers and one sentence;
and class by class."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.results.entries import Entry, differing_words, grouped
from skipbench.results.paired import Paired, paired
from skipbench.results.report.charts import Axis, number
from skipbench.results.scores import CHOSEN
from skipbench.results.words import (
    DASH,
    VARIANTS,
    dataset_name,
    features_name,
    in_order,
    natural,
    p_text,
    signed,
)  # fmt: skip

MANY_CLASSES, MANY_PARTS = 30, 6  # more are folded away
MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
SAME = ("evaluation", "method", "dataset", "split", "features")  # in one comparison


@dataclass(frozen=True)
class Comparison:
    """The best of skip and of skipless, with the same protocol on the same images."""

    facts: Mapping[str, Any]  # evaluation, dataset, split, features
    how: str  # settings, if there are records with others
    best: Mapping[str, Entry]  # by variant
    candidates: Mapping[str, int]  # number of entries, by variant

    @property
    def any_entry(self) -> Entry:
        return next(iter(self.best.values()))

    @property
    def both(self) -> tuple[Entry, Entry] | None:
        """skip, skipless"""
        return (self.best["skip"], self.best["skipless"]) if len(self.best) == 2 else None

    @cached_property
    def tested(self) -> Paired | None:
        """Paired over the images, if all records have their counts."""
        if not self.both:
            return None
        try:
            return paired(*(entry.stored for entry in self.both))
        except (SkipbenchError, *MISSHAPEN):
            return None

    @property
    def title(self) -> str:
        return f"{dataset_name(self.facts['dataset'])}, {features_name(self.facts['features'])}"

    @property
    def about(self) -> str:
        first = self.any_entry.first
        return f"{first.title}, {first.metric_name}, {self.facts['split']}"


def comparisons(found: Sequence[Entry]) -> list[Comparison]:
    known = [entry for entry in found if entry.facts["residual"] in VARIANTS]
    made = []
    for peers in grouped(known, lambda e: tuple(e.facts[name] for name in SAME)).values():
        ways = grouped(peers, _protocol_and_images).values()
        firsts = [group[0] for group in ways]
        made += [_comparison(group, differing_words(group[0], firsts)) for group in ways]
    return sorted(made, key=lambda one: [*in_order(one.facts, SAME), natural(one.how)])


def _protocol_and_images(entry: Entry) -> str:
    return json.dumps([entry.first.settings, entry.first.images], sort_keys=True)


def _comparison(group: Sequence[Entry], how: str) -> Comparison:
    sides = {v: [entry for entry in group if entry.facts["residual"] == v] for v in VARIANTS}
    return Comparison(
        {name: group[0].facts[name] for name in SAME},
        how,
        {v: max(side, key=lambda entry: entry.value) for v, side in sides.items() if side},
        {v: len(side) for v, side in sides.items()},
    )


# -- the summary


def summary(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """A row for each; those of one evaluation and data set share a scale."""
    return [
        {
            "comparison": one,
            "block": str(one.facts["features"]).startswith("block "),
            "sides": [_side(one, variant) for variant in VARIANTS],
            "scale": _scale(one, found),
            "sentence": sentence(one),
        }
        for one in found
    ]


def _side(one: Comparison, variant: str) -> dict[str, Any]:
    entry = one.best.get(variant)
    several = one.candidates.get(variant, 0)
    notes = [f"best of {several}"] if several > 1 else []
    if entry and (block := entry.first.result.metrics.get("block")) is not None:
        blocks = len(entry.first.blocks)
        notes += [f"block {block} of {blocks}"] if blocks > 1 else []
    return {"variant": variant, "entry": entry, "note": ", ".join(notes)}


def _scale(one: Comparison, found: Sequence[Comparison]) -> Axis:
    def shared(other: Comparison) -> list[Any]:
        metric = other.any_entry.first.metric
        return [other.facts["evaluation"], other.facts["dataset"], metric]

    ends = [
        end
        for other in found
        if shared(other) == shared(one)
        for entry in other.best.values()
        for end in (entry.value, *(entry.interval or ()))
    ]
    air = 0.05 * (max(ends) - min(ends)) or 1.0
    return Axis("", min(ends) - air, max(ends) + air, (), start=6, end=194)


# -- the sentence


def sentence(one: Comparison) -> str:
    """No more than can be said. Overlapping intervals prove nothing, and it says so."""
    if not one.both:
        (variant,) = one.best
        return f"Only {variant} here: nothing to compare it with."
    skip, skipless = one.both
    if one.tested:
        chosen = any(count > 1 for count in one.candidates.values())
        chosen = chosen or any(map(_chosen_on_the_answer, one.both))
        more = " The best were chosen first, for which p makes no allowance." if chosen else ""
        return _tested(one.tested) + more
    return f"{_above(skipless.value - skip.value)}; {_intervals(skip, skipless)}."


def _chosen_on_the_answer(entry: Entry) -> bool:
    """A block that is the best of several on the very images of its score."""
    return len(entry.first.blocks) > 1 and entry.first.settings[CHOSEN] == "val"


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


def _tested(tested: Paired) -> str:
    low, high = tested.interval
    return (
        f"skipless − skip: {signed(tested.difference)} [{signed(low)}, {signed(high)}], "
        f"{p_text(tested.p_value)}, paired over {tested.images:,} images."
    )


# -- by class


def by_class(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Largest gain of skipless first; classes that neither has, last."""
    made: list[dict[str, Any]] = []
    for one in found:
        scores = {variant: _per_class(entry) for variant, entry in one.best.items()}
        classes = list(dict.fromkeys(name for score in scores.values() for name in score))
        if not classes:
            continue
        ends = {move.name: move.interval for move in one.tested.classes} if one.tested else {}
        rows = [_class_row(name, scores, ends.get(name)) for name in classes]
        rows.sort(key=lambda row: (row["difference"] is None, -(row["difference"] or 0)))
        made.append(
            {
                "comparison": one,
                "sides": [(v, one.best.get(v)) for v in VARIANTS if scores.get(v)],
                "rows": rows,
                "folded": len(rows) > MANY_CLASSES or len(made) >= MANY_PARTS,
            }
        )
    return made


def _per_class(entry: Entry) -> dict[str, float | None]:
    """The mean over the seeds that have the class."""
    known: dict[str, list[float]] = {}
    for score in entry.scores:
        given = score.result.metrics.get("per_class")
        for name, value in given.items() if isinstance(given, Mapping) else ():
            one = number(value)
            known.setdefault(str(name), []).extend([] if one is None else [one])
    return {name: fmean(values) if values else None for name, values in known.items()}


def _class_row(
    name: str, scores: Mapping[str, Mapping[str, float | None]], ends: tuple[float, float] | None
) -> dict[str, Any]:
    values = [(v, scores[v].get(name)) for v in VARIANTS if scores.get(v)]
    known = [value for _, value in values if value is not None]
    difference = known[1] - known[0] if len(known) == 2 else None
    return {
        "name": name,
        "bars": values,
        "difference": difference,
        "shown": DASH if difference is None else signed(difference),
        "interval": f"[{signed(ends[0])}, {signed(ends[1])}]" if ends else "",
    }
