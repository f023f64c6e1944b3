"""Many records at once: those of folders and files, and what was left out of them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.errors import DataError, UsageError, did_you_mean, some_of
from skipbench.record_store import read_arrays, read_result
from skipbench.records import Result

log = logging.getLogger("skipbench")


@dataclass(frozen=True)
class Stored:
    """A record and where it lies."""

    result: Result
    folder: Path
    stem: str | None = None  # of its files, where they are not called by its id
    counts_name: str = "counts"  # which of its arrays belongs to the figure

    @property
    def path(self) -> Path:
        return self.folder / f"{self.stem or self.result.id}.json"

    def arrays(self) -> dict[str, np.ndarray]:
        return read_arrays(self.path.with_suffix(".npz"))

    def counts(self) -> np.ndarray:
        """By image, in the order of the data set's names."""
        counts = self.arrays().get(self.counts_name)
        if counts is None or len(counts) != len(self.result.dataset["names"]):
            raise DataError(f"{self.path.with_suffix('.npz')}: no counts by image, or not of all")
        return counts


Source = str | Path | Result | Stored


def listed(sources: Source | Iterable[Source]) -> list[Source]:
    """One, or several."""
    return [sources] if isinstance(sources, str | Path | Result | Stored) else list(sources)


def read_results(
    sources: Source | Iterable[Source] = "results", *, strict: bool = False
) -> list[Stored]:
    """The records of folders and files, in the order of their ids; each id once.

    Damaged and newer ones are named and left out; with `strict` they are an error.
    """
    found, wrong = sift(sources)
    for error in wrong.values():
        if strict:
            raise error
        log.warning("left out: %s", error)
    return found


def sift(sources: Source | Iterable[Source]) -> tuple[list[Stored], dict[Path, DataError]]:
    """What can be read, in the order of ids, and what cannot, by file."""
    found: dict[str, Stored] = {}
    wrong: dict[Path, DataError] = {}
    for source in listed(sources):
        if isinstance(source, Stored | Result):
            stored = source if isinstance(source, Stored) else Stored(source, Path("results"))
            found.setdefault(stored.result.id, stored)
            continue
        for path in _files(Path(source).expanduser()):
            try:
                result = read_result(path)
            except DataError as error:
                wrong[path] = error
                continue
            first = found.setdefault(result.id, Stored(result, path.parent, path.stem))
            if first.result.metrics != result.metrics:
                log.warning("%s has other figures than %s: left out", path, first.path)
    return [found[key] for key in sorted(found)], wrong


def selected_on(stored: Iterable[Stored], where: str) -> list[Stored]:
    """The same records with the figure of the rate, or of the block, chosen on "val" or "holdout":
    a record of several has both. Those that have it not are named and left out."""
    found = []
    for one in stored:
        metrics = one.result.metrics
        choice = (metrics.get("chosen") or {}).get(where)
        if metrics.get("selected_on") in (None, where):  # one alone, or chosen there already
            found.append(one)
        elif choice:
            result = replace(one.result, metrics=_figure_of(metrics, choice, where))
            found.append(replace(one, result=result, counts_name=f"counts_{where}"))
        else:
            log.warning("left out: %s has no figure chosen on %s", one.path, where)
    return found


def _figure_of(metrics: Mapping[str, Any], choice: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The metrics with the figure of that choice, and without what is of the other's."""
    figure = {**choice, "selected_on": where}
    if "blocks" in metrics:  # a choice has some of its own: how often each was taken
        rows = {name: metrics.get(name) for name in ("headline", "chosen", "blocks")}
        return {"block": None, **figure, **rows}
    return {**metrics, **figure, "per_class": dict.fromkeys(metrics.get("per_class") or {})}


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        return sorted(source.glob("*.json"))
    if not source.exists():
        raise DataError(f"no results at {source}: give a folder that an evaluation has written to")
    return [source]


def pick(stored: Sequence[Stored], name: str) -> list[Stored]:
    """By id, by the beginning of one, or by the name of a checkpoint (all of its records)."""
    for found in (
        [one for one in stored if one.result.id == name],
        [one for one in stored if one.result.checkpoint["name"] == name],
        [one for one in stored if Path(one.result.checkpoint["name"]).stem == name],
    ):
        if found:
            return found
    begun = [one for one in stored if name and _begins(one.result.id, name)]
    if len(begun) > 1:
        ids = some_of([one.result.id for one in begun])
        raise UsageError(f"{name!r} is the beginning of {len(begun)} ids: {ids}")
    if begun:
        return begun
    names = list(dict.fromkeys(one.result.checkpoint["name"] for one in stored))
    known = [*names, *(one.result.id for one in stored)]
    raise UsageError(
        f"no record {name!r}: give an id (`skipbench results list`) or the name of a checkpoint."
        f"{did_you_mean(name, known)}\nCheckpoints here: {some_of(names) if names else 'none'}"
    )


def _begins(identity: str, name: str) -> bool:
    """ "probe-voc-3f2a" and "3f2a" both stand for probe-voc-3f2a9c01b7de."""
    return identity.startswith(name) or identity.rpartition("-")[2].startswith(name)
