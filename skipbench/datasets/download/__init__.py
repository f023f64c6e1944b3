"""Download data sets from their official archives: fetch, verify, unpack, each archive once.

root/.downloads/
    lock                      one process at a time
    <file>.partial[.json]     what has arrived, and of which version of the file
    <file>                    complete and verified; deleted once it is unpacked
    <file>.wrong              not the published file
    <file>.unpacked.json      the receipt: this archive need not be fetched again
"""

import json
import logging
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from skipbench.datasets.download.fetch import WAITS, address, announced_bytes, put_aside
from skipbench.datasets.download.fetch import fetch as fetch_archive
from skipbench.datasets.download.unpack import scratch
from skipbench.datasets.download.unpack import unpack as unpack_archive
from skipbench.engine.locks import FileLock
from skipbench.errors import DataError
from skipbench.files import ensure_space, ensure_writable, read_json, write_whole
from skipbench.records import Archive

log = logging.getLogger("skipbench")


def download(
    archives: Sequence[Archive],
    root: Path,
    *,
    mirror: str | None = None,
    keep: bool = False,
    waits: Sequence[float] = WAITS,
) -> None:
    """Fetch and unpack those that were not unpacked before.

    mirror: a URL or a folder with the files; waits: seconds before each retry.
    """
    folder = root / ".downloads"
    for archive in archives:
        address(archive, mirror)  # an unusable mirror is an error before anything is written
    ensure_writable(root)
    ensure_writable(folder)
    with FileLock(folder / "lock") as lock:
        # Every wait of a download has a time limit, so a live holder will release the lock.
        lock.acquire(True, math.inf, lambda: log.info("waiting for another download to finish"))
        todo = [archive for archive in archives if not _is_done(archive, root)]
        for archive in todo:
            shutil.rmtree(scratch(root / archive.into, archive.file), ignore_errors=True)
        _ensure_room(todo, root, mirror)
        for archive in todo:
            path = fetch_archive(archive, folder, mirror, waits)
            _unpack(archive, path, root)
            if not keep:
                path.unlink()


def _unpack(archive: Archive, path: Path, root: Path) -> None:
    try:
        unpacked = unpack_archive(path, root / archive.into)
    except DataError:
        if archive.checksum is None:
            put_aside(path)  # or the next run would use it
        raise
    receipt = {"identity": _identity(archive), "into": archive.into, "some": unpacked}
    write_whole(_receipt(archive, root), json.dumps(receipt, indent=1).encode())


def _is_done(archive: Archive, root: Path) -> bool:
    receipt = read_json(_receipt(archive, root)) or {}
    known = (receipt.get("identity"), receipt.get("into")) == (_identity(archive), archive.into)
    if not known or not isinstance(receipt.get("some"), list):
        return False
    gone = [name for name in receipt["some"] if not (root / archive.into / name).exists()]
    if gone:
        log.info("%s was unpacked before, but %s is gone; repeating", archive.file, gone[0])
    else:
        log.info("%s: already downloaded and unpacked", archive.file)
    return not gone


def _receipt(archive: Archive, root: Path) -> Path:
    return root / ".downloads" / f"{archive.file}.unpacked.json"


def _identity(archive: Archive) -> str:
    return archive.checksum or archive.url


def _ensure_room(todo: Sequence[Archive], root: Path, mirror: str | None) -> None:
    """For all of them, before the first is fetched."""
    need = 0
    for archive in todo:
        size = archive.bytes or announced_bytes(archive, mirror)
        need += max(size - _present(archive, root / ".downloads"), 0)
        need += archive.unpacked_bytes or size
    ensure_space(need, root, ", ".join(archive.file for archive in todo))


def _present(archive: Archive, folder: Path) -> int:
    paths = (folder / archive.file, folder / f"{archive.file}.partial")
    return max((path.stat().st_size for path in paths if path.is_file()), default=0)
