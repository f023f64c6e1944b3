"""The best score of either variant, side by side."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.results.entries import Entry, differing
from skipbench.results.paired import Paired, paired
from skipbench.results.report.values import VARIANTS, features_name, in_order, natural
from skipbench.results.scores import CHOSEN
from skipbench.results.words import dataset_name, prose

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
    places: dict[str, dict[str, list[Entry]]] = {}
    for entry in found:
        if entry.facts["residual"] in VARIANTS:
            place = json.dumps([entry.facts[name] for name in SAME], default=str)
            way = json.dumps([entry.first.settings, entry.first.images], sort_keys=True)
            places.setdefault(place, {}).setdefault(way, []).append(entry)
    made = []
    for ways in places.values():
        firsts = [group[0] for group in ways.values()]
        made += [_comparison(group, differing_words(group[0], firsts)) for group in ways.values()]
    return sorted(
        made,
        key=lambda one: [*(in_order(one.facts[name], name) for name in SAME), natural(one.how)],
    )


def _comparison(group: Sequence[Entry], how: str) -> Comparison:
    sides = {v: [entry for entry in group if entry.facts["residual"] == v] for v in VARIANTS}
    return Comparison(
        {name: group[0].facts[name] for name in SAME},
        how,
        {v: max(side, key=lambda entry: entry.value) for v, side in sides.items() if side},
        {v: len(side) for v, side in sides.items()},
    )


def differing_words(entry: Entry, group: Sequence[Entry], but_for: Sequence[str] = ()) -> str:
    """The settings and images of an entry, as far as others of the group have others."""
    way = _way(entry)
    names = [name for name in differing([_way(e) for e in group]) if name not in but_for]
    return ", ".join(f"{name} {prose(way.get(name))}" for name in names)


def _way(entry: Entry) -> dict[str, Any]:
    images = {name: count for name, (count, _) in entry.first.images.items()}
    return {**entry.first.settings, **images}


def chosen_on_the_answer(entry: Entry) -> bool:
    """A block that is the best of several on the very images of its score."""
    return len(entry.first.blocks) > 1 and entry.first.settings[CHOSEN] == "val"
