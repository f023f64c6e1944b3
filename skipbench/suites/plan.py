"""Checkpoints × data sets × evaluations: the cells of a suite, in the order they are done."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.errors import SkipbenchError, UsageError, did_you_mean, some_of
from skipbench.files import user_path
from skipbench.suites import _keys
from skipbench.suites._problems import Problems
from skipbench.suites.kinds import KINDS, Kind, Places
from skipbench.suites.read import CheckpointEntry, EvaluationEntry, Suite, read_suite

if TYPE_CHECKING:
    from skipbench.datasets import Dataset


@dataclass(frozen=True, eq=False)
class Cell:
    checkpoint: CheckpointEntry
    evaluation: EvaluationEntry
    dataset: str

    @property
    def kind(self) -> Kind:
        return KINDS[self.evaluation.kind]

    @property
    def data_name(self) -> str:
        """Short enough for a table."""
        word, colon, folder = self.dataset.partition(":")
        return f"{word}:{Path(folder).name}" if colon else word

    @property
    def title(self) -> str:
        return f"{self.checkpoint.name} · {self.evaluation.name} · {self.data_name}"

    @property
    def slug(self) -> str:
        """A file name: the same for this place in the matrix, whatever its settings."""
        words = (self.checkpoint.name, self.evaluation.name, self.dataset)
        digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]
        return re.sub(r"[^\w.]+", "-", self.title).strip("-.")[:80] + f"-{digest}"

    def facts(self) -> dict[str, str]:
        return {
            "checkpoint": self.checkpoint.name,
            "path": self.checkpoint.path,
            "evaluation": self.evaluation.name,
            "kind": self.evaluation.kind,
            "dataset": self.dataset,
        }


@dataclass(frozen=True)
class Plan:
    suite: Suite
    places: Places
    cells: tuple[Cell, ...]
    data: "Mapping[tuple[str, str], list[Dataset]]"  # by evaluation and data set

    def data_of(self, cell: Cell) -> "list[Dataset]":
        return self.data[cell.evaluation.name, cell.dataset]


def make_plan(
    path: str | Path, *, only: Sequence[str] = (), force: bool = False, **given: Any
) -> Plan:
    """The suite read, checked, and its data sets opened; no weights are read.

    only: names of checkpoints, or patterns; given: out, data_root, device, cache, which come
    before what the suite says.
    """
    given = {key: value for key, value in given.items() if value is not None}
    if "device" in given:
        _option("device", _keys.device, given["device"])
    suite = read_suite(path)
    settings = {"out": "results", **suite.settings, **given}
    places = Places(out=user_path(settings.pop("out")), force=force, **settings)
    chosen = _chosen(suite.checkpoints, only)
    data = _open_data(suite, places)
    cells = tuple(_cells(chosen, suite.evaluations))
    return Plan(suite, places, cells, data)


def _option(name: str, check: _keys.Check, value: Any) -> None:
    try:
        check(value)
    except UsageError as error:
        raise UsageError(f"--{name} {error}") from None


def _chosen(entries: Sequence[CheckpointEntry], only: Sequence[str]) -> list[CheckpointEntry]:
    if not only:
        return list(entries)
    for pattern in only:
        if not any(_is_meant(entry, pattern) for entry in entries):
            names = dict.fromkeys(name for entry in entries for name in (entry.group, entry.name))
            near = did_you_mean(pattern, names)
            known = some_of(list(names))
            raise UsageError(f"--only {pattern!r}: no such checkpoint.{near} Known: {known}")
    return [entry for entry in entries if any(_is_meant(entry, pattern) for pattern in only)]


def _is_meant(entry: CheckpointEntry, pattern: str) -> bool:
    return pattern in (entry.name, entry.group) or fnmatchcase(entry.name, pattern)


def _open_data(suite: Suite, places: Places) -> "dict[tuple[str, str], list[Dataset]]":
    problems = Problems(suite.path, suite.lines)
    opened, said = {}, set()
    for entry in suite.evaluations:
        for dataset in entry.datasets:
            try:
                found = KINDS[entry.kind].data(dataset, entry.options, places.data_root)
                opened[entry.name, dataset] = found
            except SkipbenchError as error:
                if str(error) not in said:  # it takes many lines to say where one was looked for
                    problems.add("evaluation", entry.index, "datasets", error)
                said.add(str(error))
    problems.raise_if_any()
    return opened


def _cells(
    checkpoints: Iterable[CheckpointEntry], evaluations: Sequence[EvaluationEntry]
) -> Iterator[Cell]:
    """Those that share features come one after another."""
    datasets = dict.fromkeys(name for entry in evaluations for name in entry.datasets)
    for checkpoint in checkpoints:
        for dataset in datasets:
            for evaluation in evaluations:
                if dataset in evaluation.datasets:
                    yield Cell(checkpoint, evaluation, dataset)
