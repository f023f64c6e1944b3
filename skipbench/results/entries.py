"""Scores that differ only in their seed: one entry of a table, a baseline or a comparison."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, TypeVar

from skipbench.results.read import Stored
from skipbench.results.scores import Score
from skipbench.results.words import natural, prose

log = logging.getLogger("skipbench")

Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Entry:
    """The mean over seeds."""

    scores: tuple[Score, ...]
    remark: str = ""  # of a table: "best of 12 blocks"

    @property
    def first(self) -> Score:
        return self.scores[0]

    @property
    def facts(self) -> dict[str, Any]:
        return self.first.facts

    @property
    def stored(self) -> list[Stored]:
        return [score.stored for score in self.scores]

    @property
    def value(self) -> float:
        return fmean(score.value for score in self.scores)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds."""
        return stdev(one.value for one in self.scores) if len(self.scores) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Over images: the mean of the seeds' intervals."""
        known = [score.interval for score in self.scores if score.interval]
        if len(known) < len(self.scores):
            return None
        return fmean(low for low, _ in known), fmean(high for _, high in known)

    @property
    def remarks(self) -> list[str]:
        several = [f"mean over {len(self.scores)} seeds"] if len(self.scores) > 1 else []
        return [*self.first.remarks, *([self.remark] if self.remark else []), *several]

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "interval": self.interval,
            "deviation": self.spread,
            "seeds": [score.facts["seed"] for score in self.scores],
            "records": [score.result.id for score in self.scores],
        }


def entries(stored: Iterable[Stored]) -> list[Entry]:
    """In the order of the records, without those that have no score."""
    groups: dict[str, dict[Any, Score]] = {}
    for one in stored:
        score = Score(one)
        if not score.known:
            continue
        seeds = groups.setdefault(_all_but_seed(score), {})
        first = seeds.setdefault(score.facts["seed"], score)
        if first is not score:
            log.warning("left out: %s repeats %s", one.path, first.stored.path)
    return [Entry(tuple(group[s] for s in sorted(group, key=natural))) for group in groups.values()]


def _all_but_seed(score: Score) -> str:
    facts = {name: value for name, value in score.facts.items() if name != "seed"}
    features = {k: v for k, v in score.result.features.items() if k not in ("degenerate", "layers")}
    same = [score.sha256, score.model, facts, features, score.settings, score.images]
    return json.dumps(same, sort_keys=True)


def grouped(found: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def differing(
    dicts: Sequence[Mapping[str, Any]], keys: Iterable[str] | None = None
) -> dict[str, list[Any]]:
    """The keys with more than one value, and these values."""
    found = {}
    for key in keys or dict.fromkeys(key for one in dicts for key in one):
        values: list[Any] = []
        for one in dicts:
            if (value := one.get(key)) not in values:
                values.append(value)
        if len(values) > 1:
            found[key] = values
    return found


def differing_words(entry: Entry, group: Sequence[Entry], but_for: Sequence[str] = ()) -> str:
    """The settings and numbers of images of an entry that differ within the group."""
    own = _settings_and_images(entry)
    names = differing([_settings_and_images(one) for one in group])
    return ", ".join(f"{name} {prose(own.get(name))}" for name in names if name not in but_for)


def _settings_and_images(entry: Entry) -> dict[str, Any]:
    images = {name: count for name, (count, _) in entry.first.images.items()}
    return {**entry.first.settings, **images}
