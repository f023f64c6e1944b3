"""Which cells are done, known without opening a checkpoint, and which have failed.

    <cache>/cells/<key>.json       the records of a cell that is done; the key is the hash of all
                                   that determines them; weights count by path, size and time
    <out>/failures/<cell>.json     the error; removed once the cell is done

The ledger saves opening and examining weights. Deleting it costs only time: records that it does
not know are found by their ids.
"""

import hashlib
import json
import logging
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from skipbench import __version__
from skipbench.errors import SkipbenchError
from skipbench.files import cache_folder, read_json, write_whole
from skipbench.record_store import find_result
from skipbench.records import RESULT_SCHEMA, Result
from skipbench.suites.plan import Cell, Plan

log = logging.getLogger("skipbench")


class Ledger:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.out = plan, plan.places.out
        self._fingerprints: dict[tuple[str, str], list[str]] = {}

    # -- done

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
        weights = _state_of(cell.checkpoint.path)
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

    # -- failed

    def _failure(self, cell: Cell) -> Path:
        return self.out / "failures" / f"{cell.slug}.json"

    def forgive(self, cell: Cell) -> None:
        self._failure(cell).unlink(missing_ok=True)

    def fail(self, cell: Cell, error: Exception) -> None:
        content: dict[str, Any] = {
            **cell.facts(),
            "error": type(error).__name__,
            "message": str(error),
            "exit_code": exit_code_of(error),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if not isinstance(error, SkipbenchError):
            content["traceback"] = "".join(traceback.format_exception(error))
        path = self._failure(cell)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = json.dumps(content, indent=1, ensure_ascii=False)
            write_whole(path, data.encode("utf-8", "surrogateescape"))
        except (OSError, SkipbenchError) as trouble:  # a full disk must not stop the rest
            log.warning("%s: the failure cannot be recorded: %s", cell.title, trouble)


def error_facts(error: Exception) -> dict[str, Any]:
    kind, code = type(error).__name__, exit_code_of(error)
    return {"type": kind, "message": str(error), "exit_code": code}


def exit_code_of(error: Exception) -> int:
    return error.exit_code if isinstance(error, SkipbenchError) else 1


def _state_of(path: str) -> list[Any] | None:
    """Changes with the files; None if that cannot be seen, as for a name on the hub."""
    if path.startswith("timm:"):
        return None
    try:
        files = sorted(Path(path).iterdir()) if Path(path).is_dir() else [Path(path)]
        states = [(str(file), file.stat()) for file in files]
    except OSError:
        return None
    return [[name, state.st_size, state.st_mtime_ns] for name, state in states]
