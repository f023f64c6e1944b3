"""The records of folders and files."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.errors import DataError
from skipbench.record_store import read_arrays, read_result
from skipbench.records import Result

log = logging.getLogger("skipbench")


@dataclass(frozen=True)
class Stored:
    """A record and its place on disk."""

    result: Result
    folder: Path
    stem: str | None = None  # of its files, if it is not the id
    counts_name: str = "counts"  # the array that belongs to the score

    @property
    def path(self) -> Path:
        return self.folder / f"{self.stem or self.result.id}.json"

    @property
    def ckpt(self) -> str:
        """Path of the weights; empty if the record has none."""
        return str((self.result.environment.get("call") or {}).get("ckpt") or "")

    def arrays(self) -> dict[str, np.ndarray]:
        return read_arrays(self.path.with_suffix(".npz"))

    def counts(self) -> np.ndarray:
        """By image, in the order of `dataset.names`."""
        counts = self.arrays().get(self.counts_name)
        if counts is None or len(counts) != len(self.result.dataset["names"]):
            raise DataError(
                f"{self.path.with_suffix('.npz')}: no counts by image, or not of all images"
            )
        return counts


Source = str | Path | Result | Stored


def listed(sources: Source | Iterable[Source]) -> list[Source]:
    """One, or several."""
    return [sources] if isinstance(sources, str | Path | Result | Stored) else list(sources)


def read_results(
    sources: Source | Iterable[Source] = "results", *, strict: bool = False
) -> list[Stored]:
    """Each record once, sorted by id. Damaged and newer ones are logged and left out; with `strict`
    they are an error."""
    return sift(sources, strict=strict)[0]


def sift(
    sources: Source | Iterable[Source], *, strict: bool
) -> tuple[list[Stored], dict[Path, DataError]]:
    """As `read_results`, with the error of each file that was left out."""
    found: dict[str, Stored] = {}
    wrong: dict[Path, DataError] = {}
    undigested = 0
    for source in listed(sources):
        if isinstance(source, Stored | Result):
            stored = source if isinstance(source, Stored) else Stored(source, Path("results"))
            found.setdefault(stored.result.id, stored)
            continue
        for path in _files(Path(source).expanduser()):
            try:
                result = read_result(path)
            except DataError as error:
                if strict:
                    raise
                log.warning("left out: %s", error)
                wrong[path] = error
                continue
            undigested += result.determines is None
            first = found.setdefault(result.id, Stored(result, path.parent, path.stem))
            if first.result.metrics != result.metrics:
                log.warning("left out: %s has other scores than %s", path, first.path)
    if undigested:
        log.info("%d records of an earlier version have no digest: edits go unnoticed", undigested)
    return [found[key] for key in sorted(found)], wrong


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        return sorted(source.glob("*.json"))
    if not source.exists():
        raise DataError(f"no results at {source}: give a folder with results of an evaluation")
    return [source]


def selected_on(stored: Iterable[Stored], where: str) -> list[Stored]:
    """With the score of the rate or block that was chosen on `where`: "val" or "holdout". Records
    without that choice are logged and left out."""
    found = []
    for one in stored:
        metrics = one.result.metrics
        choice = (metrics.get("chosen") or {}).get(where)
        if metrics.get("selected_on") in (None, where):  # no choice, or this one already
            found.append(one)
        elif choice:
            chosen = _metrics_of(metrics, {**choice, "selected_on": where})
            result = replace(one.result, metrics=chosen)
            found.append(replace(one, result=result, counts_name=f"counts_{where}"))
        else:
            log.warning("left out: %s has no score chosen on %s", one.path, where)
    return found


def _metrics_of(metrics: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """Those of one choice, without what belongs to the other."""
    if "blocks" in metrics:
        shared = {name: metrics.get(name) for name in ("headline", "chosen", "blocks")}
        return {"block": None, **choice, **shared}
    return {**metrics, **choice, "per_class": dict.fromkeys(metrics.get("per_class") or {})}
