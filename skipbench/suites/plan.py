"""Checkpoints × data sets × evaluations: the cells of a suite, in the order they are run, and a
ledger of those that are done and those that have failed."""

import hashlib
import json
import logging
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench import __version__
from skipbench.errors import SkipbenchError, UsageError, did_you_mean, some_of
from skipbench.evaluations import Evaluation, find_evaluation
from skipbench.files import cache_folder, read_json, user_path, write_whole
from skipbench.record_store import find_result
from skipbench.records import RESULT_SCHEMA, Result
from skipbench.settings import Settings, shown
from skipbench.settings.parsers import InvalidError, require_packages
from skipbench.sources import source_of
from skipbench.suites.problems import Problems
from skipbench.suites.read import SUITE_KEYS, CheckpointEntry, EvaluationEntry, Suite, read_suite

if TYPE_CHECKING:
    from skipbench.datasets import Dataset

log = logging.getLogger("skipbench")


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
        """A file name, the same whatever the settings of the evaluation."""
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
    log: tuple[str, ...] = ()
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

    only: names of checkpoints, or patterns; given: out, data_root, device, cache, log, which take
    precedence over the suite.
    """
    given = {key: value for key, value in given.items() if value is not None}
    for name in given.keys() & {"device", "log"}:
        try:
            given[name] = SUITE_KEYS[name](given[name])
        except InvalidError as error:
            raise UsageError(f"--{name} {shown(given[name])}: {error}") from None
    suite = read_suite(path)
    settings = {"out": "results", **suite.settings, **given}
    places = Places(out=user_path(settings.pop("out")), force=force, **settings)
    require_packages(places.log)
    cells = tuple(_cells(_chosen(suite.checkpoints, only), suite.evaluations))
    return Plan(suite, places, cells, _open_data(suite, places, cells))


def settings_of(places: Places, cell: Cell) -> Settings:
    given = {
        **vars(places), **cell.checkpoint.reading(), **cell.evaluation.options,
        **cell.kind.fixed_in_suites, **cell.kind.target([cell.checkpoint.path], cell.dataset),
    }  # fmt: skip
    known = cell.kind.settings.options()
    return cell.kind.settings.make({name: value for name, value in given.items() if name in known})


def _chosen(entries: Sequence[CheckpointEntry], only: Sequence[str]) -> list[CheckpointEntry]:
    if not only:
        return list(entries)
    for pattern in only:
        if not any(_matches(entry, pattern) for entry in entries):
            names = dict.fromkeys(name for entry in entries for name in (entry.group, entry.name))
            near = did_you_mean(pattern, names)
            known = some_of(list(names))
            raise UsageError(f"--only {pattern!r}: no such checkpoint.{near} Known: {known}")
    return [entry for entry in entries if any(_matches(entry, pattern) for pattern in only)]


def _matches(entry: CheckpointEntry, pattern: str) -> bool:
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
            if str(error) not in reported:  # long: it lists where it was searched for
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


class Ledger:
    """Which cells are done, known without opening a checkpoint, and which have failed.

        <cache>/cells/<key>.json       the records of a finished cell; the key is the hash of all
                                       that determines them; weights count by path, size and time
        <out>/failures/<cell>.json     the error; removed once the cell is done

    The ledger saves opening and examining weights. Deleting it costs only time: records that it
    does not know are found by their ids.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.out = plan, plan.places.out
        self._fingerprints: dict[tuple[str, str], list[str]] = {}

    def find(self, cell: Cell) -> list[Result] | None:
        """Its records, if all of them exist and are intact."""
        path = self._path(cell)
        noted = read_json(path) if path and not self.plan.places.force else None
        ids = noted.get("records") if noted else None
        if not isinstance(ids, list) or not ids:
            return None
        found = [find_result(self.out, str(record)) for record in ids]
        return [result for result in found if result] if all(found) else None

    def note(self, cell: Cell, results: Sequence[Result]) -> None:
        if path := self._path(cell):
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {"cell": cell.facts(), "records": [result.id for result in results]}
            write_whole(path, json.dumps(content, indent=1).encode())

    def _path(self, cell: Cell) -> Path | None:
        weights = _file_states(cell.checkpoint.path)
        if weights is None:
            return None
        determines = {
            "version": [__version__, RESULT_SCHEMA, dict(cell.kind.versions())],
            "weights": weights,
            "checkpoint": asdict(cell.checkpoint),
            "kind": cell.evaluation.kind,
            "options": dict(cell.evaluation.options),
            "data": [cell.dataset, self._data(cell)],
            "device": self._device,
        }
        content = json.dumps(determines, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:24]
        return cache_folder(self.plan.places.cache) / "cells" / f"{digest}.json"

    @cached_property
    def _device(self) -> str:
        """Its type: `auto` precision depends on it."""
        from skipbench.engine.device import choose_device

        return choose_device(self.plan.places.device).type

    def _data(self, cell: Cell) -> list[str]:
        key = (cell.evaluation.name, cell.dataset)
        if key not in self._fingerprints:
            splits = self.plan.data_of(cell)
            self._fingerprints[key] = [split.fingerprint() for split in splits]
        return self._fingerprints[key]

    def _failure(self, cell: Cell) -> Path:
        return self.out / "failures" / f"{cell.slug}.json"

    def clear_failure(self, cell: Cell) -> None:
        self._failure(cell).unlink(missing_ok=True)

    def note_failure(self, cell: Cell, error: Exception) -> None:
        facts, now = error_facts(error), datetime.now(UTC).isoformat(timespec="seconds")
        content = {**cell.facts(), "error": facts.pop("type"), **facts, "time": now}
        if not isinstance(error, SkipbenchError):
            content["traceback"] = "".join(traceback.format_exception(error))
        path = self._failure(cell)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = json.dumps(content, indent=1, ensure_ascii=False)
            write_whole(path, data.encode("utf-8", "surrogateescape"))
        except (OSError, SkipbenchError) as problem:  # a full disk must not stop the rest
            log.warning("%s: the failure cannot be recorded: %s", cell.title, problem)


def error_facts(error: Exception) -> dict[str, Any]:
    code = error.exit_code if isinstance(error, SkipbenchError) else 1
    return {"type": type(error).__name__, "message": str(error), "exit_code": code}


def _file_states(path: str) -> list[Any] | None:
    """Changes with the files; None if that cannot be seen, as for a model on the hub."""
    if (place := source_of(path).path) is None:
        return None
    try:
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        states = [(str(file), file.stat()) for file in files]
    except OSError:
        return None
    return [[name, state.st_size, state.st_mtime_ns] for name, state in states]
