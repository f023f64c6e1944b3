"""The models of a page: names that tell them apart, and how each is drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from skipbench.results.entries import grouped
from skipbench.results.read import Stored
from skipbench.results.scores import Score
from skipbench.results.words import in_order

COLOURS = 8  # c0 to c7 in page.css
SHAPES = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",  # circle, square, triangle, diamond
    "M-3.2 -3.2h6.4v6.4h-6.4z",
    "M0 -4.2L4 3H-4z",
    "M0 -4.6L4.6 0L0 4.6L-4.6 0z",
)
DASHES = {"skip": "", "skipless": "6 3"}


@dataclass(frozen=True)
class Look:
    """Colour and shape are the model's own, dashes its variant's."""

    number: int = 0
    variant: str = ""

    @property
    def colour(self) -> str:
        return f"c{self.number % COLOURS}"

    @property
    def shape(self) -> str:
        return SHAPES[(self.number + self.number // COLOURS) % len(SHAPES)]

    @property
    def dashes(self) -> str:
        return DASHES.get(self.variant, "2 3")


Model = tuple[str, str]  # name, residual


def model_of(facts: Mapping[str, Any]) -> Model:
    return str(facts["checkpoint"]), str(facts["residual"])


def looks_of(records: Iterable[Stored]) -> dict[Model, Look]:
    """Of every model, skip before skipless."""
    facts = [Score(stored).facts for stored in records]
    facts.sort(key=lambda one: in_order(one, ("residual", "depth", "checkpoint")))
    models = dict.fromkeys(map(model_of, facts))
    return {model: Look(i, model[1]) for i, model in enumerate(models)}


# -- names


def told_apart(records: Sequence[Stored]) -> list[Stored]:
    """The records, with more than its name for each checkpoint whose name others have too."""
    names: dict[tuple[Any, str], str] = {}
    for name, group in grouped(records, lambda one: one.result.checkpoint["name"]).items():
        by_hash = grouped(group, lambda one: str(one.result.checkpoint["sha256"]))
        names |= {(name, h): label for h, label in _labels(str(name), by_hash).items()}
    renamed = []
    for one in records:
        given = one.result.checkpoint
        checkpoint = {**given, "name": names[given["name"], str(given["sha256"])]}
        renamed.append(replace(one, result=replace(one.result, checkpoint=checkpoint)))
    return renamed


def _labels(name: str, by_hash: Mapping[str, Sequence[Stored]]) -> dict[str, str]:
    """By hash: the name; else as much of the path's end as tells them apart, or of the hash."""
    if len(by_hash) < 2:
        return dict.fromkeys(by_hash, name)
    paths = {sha256: _path(name, group) for sha256, group in by_hash.items()}
    for length in range(2, max(len(path.parts) for path in paths.values()) + 1):
        found = {h: PurePath(*path.parts[-length:]).as_posix() for h, path in paths.items()}
        if len(set(found.values())) == len(found):
            return found
    return {sha256: f"{name} ({sha256[:7]})" for sha256 in by_hash}


def _path(name: str, group: Sequence[Stored]) -> PurePath:
    """Where the weights were, if a record says so."""
    calls = [one.result.environment.get("call") for one in group]
    given = [call.get("ckpt") for call in calls if isinstance(call, Mapping)]
    paths = [PurePath(path) for path in given if isinstance(path, str)]
    return next((path for path in paths if path.name == name), PurePath(name))
