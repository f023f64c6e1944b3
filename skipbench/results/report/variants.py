"""What a page is about: the records it shows, and the best of either variant set side by side."""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.errors import SkipbenchError, UsageError
from skipbench.record_store import is_number
from skipbench.results.read import Source, Stored, listed, sift
from skipbench.results.scores import (
    CHOSEN,
    METRICS,
    Entry,
    Score,
    differing,
    entries,
    only,
    parse_where,
)
from skipbench.results.tables.layouts import DATASETS

if TYPE_CHECKING:
    from skipbench.results.compare import Paired

log = logging.getLogger("skipbench")

DASH = "–"
MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
EVALUATIONS = {
    "probe": "linear probe", "tokencut": "TokenCut", "knn": "nearest neighbours",
    "cluster": "k-means clusters", "pca": "PCA",
}  # fmt: skip
METHODS = {"tokencut": "TokenCut", "lost": "LOST"}  # of one evaluation
FEATURES = ("single", "multiscale")  # in the paper's order
SAME = ("evaluation", "method", "dataset", "split", "features")  # in which rivals agree


@dataclass(frozen=True)
class Shown:
    """The records of a page. Some have no figure: pictures alone, say."""

    records: tuple[Stored, ...]
    left_out: tuple[str, ...]  # what could not be read, one line each

    @cached_property
    def entries(self) -> list[Entry]:
        return entries(self.records)


def gather(results: Source | Iterable[Source], where: Iterable[str], strict: bool) -> Shown:
    """Every record that can be read; what cannot is named, or with `strict` an error."""
    wanted, given = parse_where(where), listed(results)
    found, wrong = sift(given)
    left_out = []
    for path, error in wrong.items():
        if strict:
            raise error
        # The page may be shown to others: what a folder is called is none of their business.
        left_out.append(str(error).replace(str(path), path.name))
        log.warning("left out: %s", error)
    records = only(found, wanted)
    if not records:
        raise UsageError(_nothing(given, left_out, bool(found)))
    return Shown(tuple(records), tuple(left_out))


def _nothing(given: Sequence[Source], left_out: Sequence[str], found: bool) -> str:
    if found:
        return "no record to show: none fits --where"
    places = ", ".join(str(source) for source in given if isinstance(source, str | Path))
    damaged = f" ({len(left_out)} could not be read)" if left_out else ""
    where = f"in {places}" if places else "to show"
    return f"no record {where}{damaged}: give a folder that an evaluation has written to"


# -- the best of either variant


@dataclass(frozen=True)
class Rivals:
    """The best figure with skips and the best without, made in the same way on the same images."""

    facts: Mapping[str, Any]  # evaluation, dataset, split, features
    how: str  # settings, where there are records with others
    best: Mapping[str, Entry]  # by variant
    of: Mapping[str, int]  # the best of how many

    @property
    def both(self) -> tuple[Entry, Entry] | None:
        """skip, skipless"""
        return (self.best["skip"], self.best["skipless"]) if len(self.best) == 2 else None

    @cached_property
    def tested(self) -> "Paired | None":
        """On the same resamples of the same images, where all records have counts of them."""
        from skipbench.results.compare import paired

        if not self.both:
            return None
        try:
            return paired(*([figure.stored for figure in entry.figures] for entry in self.both))
        except (SkipbenchError, *MISSHAPEN):
            return None

    @property
    def metric(self) -> str:
        return metric_name(next(iter(self.best.values())))

    @property
    def title(self) -> str:
        return f"{dataset_name(self.facts['dataset'])}, {features_name(self.facts['features'])}"


def rivals(found: Sequence[Entry]) -> list[Rivals]:
    places: dict[str, dict[str, list[Entry]]] = {}
    for entry in found:
        if entry.facts["residual"] in ("skip", "skipless"):
            place = json.dumps([entry.facts[name] for name in SAME], default=str)
            way = json.dumps([entry.first.settings, entry.first.images], sort_keys=True)
            places.setdefault(place, {}).setdefault(way, []).append(entry)
    made = []
    for ways in places.values():
        firsts = [group[0] for group in ways.values()]
        made += [_rivals(group, differing_words(group[0], firsts)) for group in ways.values()]
    return sorted(
        made,
        key=lambda one: [*(in_order(one.facts[name], name) for name in SAME), natural(one.how)],
    )


def _rivals(group: Sequence[Entry], how: str) -> Rivals:
    sides = {
        variant: [entry for entry in group if entry.facts["residual"] == variant]
        for variant in ("skip", "skipless")
    }
    return Rivals(
        {name: group[0].facts[name] for name in SAME},
        how,
        {v: max(side, key=lambda entry: entry.value) for v, side in sides.items() if side},
        {v: len(side) for v, side in sides.items()},
    )


def differing_words(entry: Entry, group: Sequence[Entry], but_for: Sequence[str] = ()) -> str:
    """How it was made, as far as others of the group were made otherwise."""
    way = _way(entry)
    names = [name for name in differing([_way(e) for e in group]) if name not in but_for]
    return ", ".join(f"{name} {words(way.get(name))}" for name in names)


def _way(entry: Entry) -> dict[str, Any]:
    images = {name: count for name, (count, _) in entry.first.images.items()}
    return {**entry.first.settings, **images}


def chosen_on_the_answer(entry: Entry) -> bool:
    """A block that is the best of several on the very images of its figure."""
    return len(entry.first.blocks) > 1 and entry.first.settings[CHOSEN] == "val"


def in_order(value: Any, fact: str) -> tuple[int, str]:
    """Known ones first, as the paper has them; then by name, block 2 before block 10."""
    known = {
        "dataset": tuple(DATASETS), "features": FEATURES, "evaluation": tuple(EVALUATIONS),
        "method": tuple(METHODS),
    }  # fmt: skip
    order = known.get(fact, ())
    return (order.index(value) if value in order else len(order)), natural(value)


def natural(value: Any) -> str:
    """Sorts numbers in words by their value: 0.02 before 0.1, 2 before 10."""
    whole = re.compile(r"(?<![.\d])\d+")
    return whole.sub(lambda digits: digits.group().zfill(9), str(value))


def order_of(stored: Stored) -> list[Any]:
    """skip directly before the skipless that it is to be compared with."""
    facts = Score(stored).facts
    names = (
        "evaluation",
        "method",
        "dataset",
        "features",
        "residual",
        "checkpoint",
        "epoch",
        "seed",
    )
    return [in_order(facts[name], name) for name in names]


# -- in words


def dataset_name(name: Any) -> str:
    return DATASETS.get(str(name), str(name))


def kind_name(facts: Mapping[str, Any]) -> str:
    """The evaluation, or the one of its methods."""
    evaluation = str(facts["evaluation"])
    return METHODS.get(str(facts["method"])) or EVALUATIONS.get(evaluation, evaluation)


def features_name(features: Any) -> str:
    return "all blocks" if features == "all" else str(features)


def metric_name(entry: Entry) -> str:
    return METRICS.get(entry.first.metric, entry.first.metric)


def words(value: Any) -> str:
    """Any setting in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {words(part)}" for key, part in value.items()) or DASH
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value)) or DASH
    if value is None or isinstance(value, bool):
        return {None: DASH, True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def number(value: object) -> float | None:
    """One that can be drawn, or nothing."""
    return float(value) if is_number(value) else None


def ends(value: object) -> tuple[float, float] | None:
    """An interval, or nothing."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else (low, high)
