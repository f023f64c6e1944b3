"""Download data sets from their official archives: fetch, verify, unpack, each archive once.

root/.downloads/
    lock                      one process at a time
    <file>.partial            what has arrived
    <file>.partial.json       of which version of the file (the server's ETag or date), so that two
                              versions are never joined
    <file>                    complete and verified; deleted once it is unpacked
    <file>.wrong              not the published file
    <file>.unpacked.json      the receipt: this archive need not be fetched again

(Libraries for this, pooch among them, start again from the beginning after an interruption: twenty
gigabytes, for COCO.)
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from skipbench.datasets.download.unpack import scratch, unpack
from skipbench.engine.locks import FileLock
from skipbench.engine.progress import MB, megabytes
from skipbench.errors import DataError, ResourceError, UsageError
from skipbench.files import (
    DISK_FULL,
    ensure_space,
    ensure_writable,
    is_folder,
    read_json,
    size_text,
    write_whole,
)
from skipbench.records import Archive

log = logging.getLogger("skipbench")

WAITS = (1.0, 2.0, 4.0)  # seconds before each retry, as long as nothing more arrives
TIMEOUT = (15.0, 30.0)  # seconds to connect, and without a byte
CHUNK = 1 << 16
RETRY_ON = (408, 429, 500, 502, 503, 504)  # HTTP status codes that may pass
PLAIN = {"Accept-Encoding": "identity"}


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
        _address(archive, mirror)  # an unusable mirror is an error before anything is written
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
            path = fetch(archive, folder, mirror, waits)
            _unpack(archive, path, root)
            if not keep:
                path.unlink()


def _unpack(archive: Archive, path: Path, root: Path) -> None:
    try:
        files = unpack(path, root / archive.into)
    except DataError:
        if archive.checksum is None:
            _put_aside(path)  # or the next run would use it
        raise
    receipt = json.dumps(_receipt(archive, files), indent=1)
    write_whole(_receipt_path(archive, root), receipt.encode())


def _is_done(archive: Archive, root: Path) -> bool:
    receipt = read_json(_receipt_path(archive, root)) or {}
    files = receipt.get("files")
    if not isinstance(files, dict) or receipt != _receipt(archive, files):
        return False
    place = root / archive.into
    lacking = [name for name, count in files.items() if _files_in(place / name) < count]
    if lacking:
        where = place / lacking[0]
        log.info("%s was unpacked before, but %s lacks files; repeating", archive.file, where)
    else:
        log.info("%s: already downloaded and unpacked", archive.file)
    return not lacking


def _files_in(folder: Path) -> int:
    return sum(entry.is_file() for entry in os.scandir(folder)) if folder.is_dir() else 0


def _receipt_path(archive: Archive, root: Path) -> Path:
    return root / ".downloads" / f"{archive.file}.unpacked.json"


def _receipt(archive: Archive, files: dict[str, int]) -> dict[str, Any]:
    """files: how many were unpacked into each folder."""
    return {"identity": archive.checksum or archive.url, "into": archive.into, "files": files}


def _ensure_room(todo: Sequence[Archive], root: Path, mirror: str | None) -> None:
    """For all of them, before the first is fetched."""
    folder, need = root / ".downloads", 0
    for archive in todo:
        size = archive.bytes or _announced_bytes(archive, mirror)
        have = max(_size(folder / archive.file), _size(folder / f"{archive.file}.partial"))
        need += max(size - have, 0) + (archive.unpacked_bytes or size)
    ensure_space(need, root, ", ".join(archive.file for archive in todo))


def fetch(
    archive: Archive, folder: Path, mirror: str | None = None, waits: Sequence[float] = WAITS
) -> Path:
    """The archive's path, once it is complete and verified; not transferred if it already is."""
    if archive.checksum is None:
        log.warning("%s: no checksum is published; only its length is checked", archive.file)
    target = folder / archive.file
    if target.exists():
        if _checksum(target, archive) == archive.checksum:
            return target
        log.warning("%s is not the published file; kept as %s", target, _put_aside(target))
    transfer = _Transfer(archive, folder, _address(archive, mirror))
    try:
        transfer.run(waits)
        transfer.verify()
        transfer.partial.replace(target)
    except OSError as error:
        raise transfer.os_error(error) from None
    transfer.discard()
    return target


def _checksum(path: Path, archive: Archive) -> str | None:
    """As "sha256:…", by the algorithm of the published checksum; None: none is published."""
    if archive.checksum is None:
        return None
    kind = archive.checksum.partition(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def _put_aside(path: Path) -> Path:
    """Renamed, for inspection, to a name that nothing reads."""
    return path.replace(path.with_name(f"{path.name.removesuffix('.partial')}.wrong"))


def _announced_bytes(archive: Archive, mirror: str | None) -> int:
    """The archive's size according to the server; 0: unknown."""
    import requests

    url = _address(archive, mirror)
    if url.startswith("file:"):
        return _size(_local(url))
    try:
        head = requests.head(url, headers=PLAIN, allow_redirects=True, timeout=TIMEOUT)
    except (requests.RequestException, ValueError):
        return 0  # the request for the file itself will say what is wrong
    return _total(head, 0) if head.ok else 0


def _address(archive: Archive, mirror: str | None) -> str:
    if mirror is None:
        return archive.url
    if is_folder(mirror):
        mirror = Path(mirror).resolve().as_uri()
    if not mirror.startswith(("http://", "https://", "file://")):
        raise UsageError(f"--mirror {mirror} is neither a URL (https://…) nor a folder.")
    return f"{mirror.rstrip('/')}/{archive.file}"


class _Dropped(Exception):  # noqa: N818
    """The connection broke or could not be made: worth a retry."""


class _Transfer:
    def __init__(self, archive: Archive, folder: Path, url: str) -> None:
        self.archive, self.folder, self.url = archive, folder, url
        self.partial = folder / f"{archive.file}.partial"
        self.notes = folder / f"{archive.file}.partial.json"

    def run(self, waits: Sequence[float]) -> None:
        """Retry until the file is complete; progress resets the count of failures."""
        failures, reached = 0, _size(self.partial)
        while True:
            try:
                return self.copy() if self.url.startswith("file:") else self.attempt()
            except _Dropped as dropped:
                failures = 1 if _size(self.partial) >= reached + MB else failures + 1
                reached = max(reached, _size(self.partial))
                if failures > len(waits):
                    raise self.cut_off(dropped) from None
                wait = waits[failures - 1]
                log.info("%s: %s; retrying in %g s", self.archive.file, dropped, wait)
            time.sleep(wait)

    def copy(self) -> None:
        source = _local(self.url)
        if not source.is_file():
            raise DataError(f"there is no {source}.\n{self.advice()}")
        with source.open("rb") as file:
            self.save(iter(lambda: file.read(CHUNK), b""), 0, _size(source), None)

    def attempt(self) -> None:
        version = (read_json(self.notes) or {}).get("version")
        # Without a version and a checksum, joining two versions of the file would go unnoticed.
        have = _size(self.partial) if version or self.archive.checksum else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        if have and version:
            headers["If-Range"] = version
        with self.get(headers) as response:
            if response.status_code == 416 and _total(response, 0) == have:
                return  # it was complete
            start = _start(response)
            changed = start and version and _version(response) not in (None, version)
            if start not in (0, have) or changed:
                self.discard()
                raise _Dropped("the file on the server has changed")
            total = _total(response, start)
            self.save(_chunks(response), start, total, _version(response))
        if total and _size(self.partial) != total:
            raise _Dropped("the connection ended early")

    def get(self, headers: dict[str, str]) -> Any:
        import requests

        try:
            response = requests.get(self.url, headers=PLAIN | headers, stream=True, timeout=TIMEOUT)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise _Dropped(_cause(error)) from None
        except (requests.RequestException, ValueError) as error:
            raise DataError(f"cannot fetch {self.url}: {error}.\n{self.advice()}") from None
        if response.status_code in (200, 206, 416):
            return response
        response.close()
        problem = f"HTTP {response.status_code} ({response.reason})"
        if response.status_code in RETRY_ON:
            raise _Dropped(problem)
        raise DataError(f"{self.url}: {problem}.\n{self.advice()}")

    def save(self, chunks: Iterable[bytes], start: int, total: int, version: str | None) -> None:
        size = total or self.archive.bytes
        need = max(size - start, 0) + (self.archive.unpacked_bytes or size)
        ensure_space(need, self.folder, self.archive.file)
        with (
            self.partial.open("ab" if start else "wb") as file,
            megabytes(self.archive.file, total, start) as reach,
        ):
            if not start:  # the file is empty: notes never describe bytes of another version
                notes = json.dumps({"version": version, "total": total})
                write_whole(self.notes, notes.encode())
            for chunk in chunks:
                file.write(chunk)
                reach(file.tell())

    def discard(self) -> None:
        self.partial.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)

    def advice(self) -> str:
        by_hand = f"download it by hand and put it at {self.folder / self.archive.file}"
        return f"Use another source with --mirror URL, or {by_hand}"

    def cut_off(self, dropped: _Dropped) -> DataError:
        have, notes = _size(self.partial), read_json(self.notes) or {}
        if not have:
            return DataError(f"cannot fetch {self.url}: {dropped}.\n{self.advice()}")
        total = notes.get("total") or self.archive.bytes
        of = f" of {size_text(total)}" if total else ""
        return DataError(
            f"{self.url} was cut off ({dropped}) after {size_text(have)}{of}.\n"
            "Run the same command again to resume, or use another source with --mirror URL."
        )

    def verify(self) -> None:
        """The published file, by its checksum; any other is renamed."""
        expected, found = self.archive.checksum, _checksum(self.partial, self.archive)
        if found == expected:
            return
        have, want = _size(self.partial), self.archive.bytes
        sizes = "" if want in (0, have) else f" ({size_text(have)} instead of {size_text(want)})"
        aside = _put_aside(self.partial)
        self.discard()
        raise DataError(
            f"{self.url} is not the published file{sizes}: {found}, expected {expected}.\n"
            f"It is kept as {aside} and not used.\n"
            "Run the command again, or use another source with --mirror URL."
        )

    def os_error(self, error: OSError) -> ResourceError:
        if error.errno in DISK_FULL:
            return ResourceError(
                f"disk full while fetching {self.archive.file} into {self.folder}.\n"
                "Free some space and run the same command; it resumes."
            )
        path = self.folder / self.archive.file
        return ResourceError(f"cannot write {path}: {error.strerror or error}")


def _chunks(response: Any) -> Iterator[bytes]:
    """As sent: a `.tar.gz` stays compressed, even if the server declares gzip as an encoding."""
    from urllib3.exceptions import HTTPError

    try:
        yield from response.raw.stream(CHUNK, decode_content=False)
    except HTTPError as error:
        raise _Dropped(_cause(error)) from None


def _start(response: Any) -> int:
    """Offset of the first byte in the response; -1: unusable."""
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return 0 if response.status_code == 200 else int(found[1]) if found else -1


def _total(response: Any, start: int) -> int:
    """Bytes of the complete file; 0: unknown."""
    if found := re.search(r"/(\d+)$", response.headers.get("Content-Range", "")):
        return int(found[1])
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else 0


def _version(response: Any) -> str | None:
    tag = response.headers.get("ETag", "W/")
    # A weak tag does not guarantee identical bytes.
    return response.headers.get("Last-Modified") if tag.startswith("W/") else tag


def _local(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _cause(error: BaseException) -> str:
    """The message of the innermost error: those that wrap it name classes, not causes."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "the connection ended early"
