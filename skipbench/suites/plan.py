"""Checkpoints × data sets × evaluations: the cells of a suite, in the order they are run."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.errors import SkipbenchError, UsageError, did_you_mean, some_of
from skipbench.evaluations import Evaluation, find_evaluation
from skipbench.files import user_path
from skipbench.settings import Settings
from skipbench.settings.parsers import InvalidError
from skipbench.suites.problems import Problems
from skipbench.suites.read import SUITE_KEYS, CheckpointEntry, EvaluationEntry, Suite, read_suite

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.pipeline import Reading


@dataclass(frozen=True, eq=False)
class Cell:
    checkpoint: CheckpointEntry
    evaluation: EvaluationEntry
    dataset: str

    @property
    def kind(self) -> Evaluation:
        return find_evaluation(self.evaluation.kind)

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
class Places:
    """Where and how, for all cells."""

    out: Path
    device: str = "auto"
    data_root: str | None = None
    cache: str | None = None
    cache_limit: int | None = None  # None: the default
    force: bool = False


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
    """The suite read and checked, and its data sets opened; no weights are read.

    only: names of checkpoints, or patterns; given: out, data_root, device, cache, which take
    precedence over the suite.
    """
    given = {key: value for key, value in given.items() if value is not None}
    if "device" in given:
        try:
            SUITE_KEYS["device"](given["device"])
        except InvalidError as error:
            raise UsageError(f"--device {given['device']}: {error}") from None
    suite = read_suite(path)
    settings = {"out": "results", **suite.settings, **given}
    places = Places(out=user_path(settings.pop("out")), force=force, **settings)
    cells = tuple(_cells(_chosen(suite.checkpoints, only), suite.evaluations))
    return Plan(suite, places, cells, _open_data(suite, places, cells))


def settings_of(places: Places, cell: Cell, reading: "Reading | None" = None) -> Settings:
    """The settings of one cell's evaluation. reading: how its checkpoint is read."""
    given = {
        **vars(places), **(reading or {}), **cell.evaluation.options, **cell.kind.fixed_in_suites,
        **cell.kind.target([cell.checkpoint.path], cell.dataset),
    }  # fmt: skip
    known = cell.kind.settings.options()
    return cell.kind.settings.make({name: value for name, value in given.items() if name in known})


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


def _open_data(
    suite: Suite, places: Places, cells: Iterable[Cell]
) -> "dict[tuple[str, str], list[Dataset]]":
    problems = Problems(suite.path)
    reported: set[str] = set()
    opened: dict[tuple[str, str], list[Dataset]] = {}
    for cell in cells:
        entry, key = cell.evaluation, (cell.evaluation.name, cell.dataset)
        if key in opened:
            continue
        try:
            opened[key] = cell.kind.open_data(settings_of(places, cell))
        except SkipbenchError as error:
            opened[key] = []
            if str(error) not in reported:  # long: it lists where the data set was looked for
                problems.add(f"{entry.table}.datasets", error)
            reported.add(str(error))
    problems.raise_if_any()
    return opened


def _cells(
    checkpoints: Iterable[CheckpointEntry], evaluations: Sequence[EvaluationEntry]
) -> Iterator[Cell]:
    """Those that share features follow one another."""
    datasets = dict.fromkeys(name for entry in evaluations for name in entry.datasets)
    for checkpoint in checkpoints:
        for dataset in datasets:
            for evaluation in evaluations:
                if dataset in evaluation.datasets:
                    yield Cell(checkpoint, evaluation, dataset)
