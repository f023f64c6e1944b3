"""The feature cache as a whole: its entries, and their eviction, least recently used first."""

import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipbench.engine.locks import FileLock
from skipbench.files import read_json, size_text

log = logging.getLogger("skipbench")

DEFAULT_LIMIT = 50 * 10**9


@dataclass(frozen=True)
class Entry:
    key: str
    folder: Path
    bytes: int
    last_used: float
    about: Mapping[str, Any]
    columns: tuple[str, ...]
    complete: bool


def entries(root: Path) -> list[Entry]:
    """Least recently used first. Another process may remove some of them meanwhile."""
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        with suppress(FileNotFoundError):
            if folder.is_dir() and not folder.name.startswith("."):
                found.append(_entry(folder))
    return sorted(found, key=lambda entry: entry.last_used)


def _entry(folder: Path) -> Entry:
    files = [f for f in folder.rglob("*") if f.is_file()]
    about = folder / "about.json"
    columns = sorted(f.name for f in folder.iterdir() if f.is_dir())
    complete = all((folder / c / "manifest.json").exists() for c in columns) and bool(columns)
    return Entry(
        key=folder.name,
        folder=folder,
        bytes=sum(f.stat().st_size for f in files),
        last_used=about.stat().st_mtime if about.exists() else 0.0,
        about=read_json(about) or {},
        columns=tuple(columns),
        complete=complete,
    )


def remove(folder: Path) -> bool:
    """Delete an entry, unless a process uses it. Returns whether it was deleted."""
    with FileLock(folder.with_name(f"{folder.name}.use.lock")) as lock:
        if not lock.try_acquire(exclusive=True):
            return False
        # Renamed first: a partly deleted entry must not be found by its key.
        doomed = folder.with_name(f".{folder.name}.{time.time_ns()}.removed")
        try:
            folder.rename(doomed)
        except FileNotFoundError:
            return False  # another process has deleted it
        shutil.rmtree(doomed, ignore_errors=True)
        folder.with_name(f"{folder.name}.build.lock").unlink(missing_ok=True)
        lock.path.unlink(missing_ok=True)
        return True


def evict(root: Path, limit_bytes: int, keep: str) -> None:
    present = entries(root)
    total = sum(entry.bytes for entry in present)
    for entry in present:
        if total <= limit_bytes:
            return
        if entry.key != keep and remove(entry.folder):
            total -= entry.bytes
            log.info("cache: evicted %s, the least recently used", size_text(entry.bytes))
