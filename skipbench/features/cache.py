"""The cache folder as a whole: what lies in it, and what goes when space is short."""

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
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


def entries(root: Path) -> Iterator[Entry]:
    """What lies in the cache, least recently used first."""
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        if not folder.is_dir():
            continue
        files = [f for f in folder.rglob("*") if f.is_file()]
        about = folder / "about.json"
        used = about.stat().st_mtime if about.exists() else 0.0
        columns = sorted(f.name for f in folder.iterdir() if f.is_dir())
        complete = all((folder / c / "manifest.json").exists() for c in columns) and bool(columns)
        size = sum(f.stat().st_size for f in files if f.exists())
        described = read_json(about) or {}
        found.append(Entry(folder.name, folder, size, used, described, tuple(columns), complete))
    yield from sorted(found, key=lambda entry: entry.last_used)


def remove(folder: Path) -> bool:
    """Delete an entry, unless a process uses it."""
    with FileLock(folder.with_name(f"{folder.name}.use.lock")) as lock:
        if not lock.try_acquire(exclusive=True):
            return False
        # Renamed first: an entry that is half gone must not be found by its key.
        doomed = folder.with_name(f".{folder.name}.{time.time_ns()}.removed")
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        return True


def evict(root: Path, limit_bytes: int, keep: str) -> None:
    present = list(entries(root))
    total = sum(entry.bytes for entry in present)
    for entry in present:
        if total <= limit_bytes:
            return
        if entry.key != keep and remove(entry.folder):
            total -= entry.bytes
            log.info("cache: %s removed, not used for longest", size_text(entry.bytes))
