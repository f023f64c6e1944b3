"""Fetch one archive, resumably, and check that it is the published file.

What has arrived is `<file>.partial`; `<file>.partial.json` says which version of the file it is of
(the server's ETag or date), so that two versions are never joined. Only a complete file with the
right checksum ever gets its own name. (Libraries for this, pooch among them, start again from the
beginning after an interruption: twenty gigabytes, for COCO.)
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from skipbench.engine.progress import MB, megabytes
from skipbench.errors import DataError, ResourceError, UsageError
from skipbench.files import DISK_FULL, ensure_space, is_folder, read_json, size_text, write_whole
from skipbench.records import Archive

log = logging.getLogger("skipbench")

WAITS = (1.0, 2.0, 4.0)  # seconds before each retry, as long as nothing more arrives
TIMEOUT = (15.0, 30.0)  # seconds to connect, and without a byte
CHUNK = 1 << 16
RETRY_ON = (408, 429, 500, 502, 503, 504)  # HTTP status codes that may pass
PLAIN = {"Accept-Encoding": "identity"}


def fetch(
    archive: Archive, folder: Path, mirror: str | None = None, waits: Sequence[float] = WAITS
) -> Path:
    """The archive's path, once it is complete and verified; no transfer if it is there already."""
    if archive.checksum is None:
        log.warning("%s: no checksum is published; only its length is checked", archive.file)
    target = folder / archive.file
    if target.exists():
        if archive.checksum in (None, checksum_of(target, archive.checksum)):
            return target
        log.warning("%s is not the published file; kept as %s", target, put_aside(target))
    transfer = _Transfer(archive, folder, address(archive, mirror), waits)
    try:
        transfer.run()
        transfer.verify()
        transfer.partial.replace(target)
    except OSError as error:
        raise transfer.os_error(error) from None
    transfer.forget()
    return target


def checksum_of(path: Path, like: str | None) -> str:
    """As "sha256:…", by the same algorithm as `like`."""
    kind = str(like).partition(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def put_aside(path: Path) -> Path:
    """Kept for inspection, under a name that nothing reads."""
    return path.replace(path.with_name(f"{path.name.removesuffix('.partial')}.wrong"))


def announced_bytes(archive: Archive, mirror: str | None) -> int:
    """The archive's size according to the server; 0: unknown."""
    import requests

    url = address(archive, mirror)
    if url.startswith("file:"):
        return _size(_local(url))
    try:
        head = requests.head(url, headers=PLAIN, allow_redirects=True, timeout=TIMEOUT)
    except (requests.RequestException, ValueError):
        return 0  # the request for the file itself will say what is wrong
    return _total(head, 0) if head.ok else 0


def address(archive: Archive, mirror: str | None) -> str:
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
    def __init__(
        self, archive: Archive, folder: Path, url: str, waits: Sequence[float] = WAITS
    ) -> None:
        self.archive, self.folder, self.url, self.waits = archive, folder, url, waits
        self.partial = folder / f"{archive.file}.partial"
        self.notes = folder / f"{archive.file}.partial.json"

    def run(self) -> None:
        if self.url.startswith("file:"):
            self.copy(_local(self.url))
        else:
            self.insist()

    def copy(self, source: Path) -> None:
        if not source.is_file():
            raise DataError(f"there is no {source}.\n{self.advice()}")
        with source.open("rb") as file:
            self.save(iter(lambda: file.read(CHUNK), b""), 0, _size(source), None)

    def insist(self) -> None:
        """Until all of it has arrived, over as many connections as it takes, as long as each
        brings more."""
        failures, reached = 0, _size(self.partial)
        while True:
            try:
                return self.attempt()
            except _Dropped as dropped:
                failures = 1 if _size(self.partial) >= reached + MB else failures + 1
                reached = max(reached, _size(self.partial))
                if failures > len(self.waits):
                    raise self.cut_off(dropped) from None
                wait = self.waits[failures - 1]
                log.info("%s: %s; retrying in %g s", self.archive.file, dropped, wait)
            time.sleep(wait)

    def attempt(self) -> None:
        version = (read_json(self.notes) or {}).get("version")
        # With neither a version nor a checksum, nothing would tell whether the rest belongs to it.
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
                self.forget()
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

    def forget(self) -> None:
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
        """The published file, by its checksum; another one is put aside."""
        expected = self.archive.checksum
        found = checksum_of(self.partial, expected) if expected else None
        if found == expected:
            return
        came, due = _size(self.partial), self.archive.bytes
        sizes = f" ({size_text(came)} instead of {size_text(due)})" if due not in (0, came) else ""
        aside = put_aside(self.partial)
        self.forget()
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
    """As sent: a `.tar.gz` stays one, even if the server calls it an encoding."""
    from urllib3.exceptions import HTTPError

    try:
        yield from response.raw.stream(CHUNK, decode_content=False)
    except HTTPError as error:
        raise _Dropped(_cause(error)) from None


def _start(response: Any) -> int:
    """The byte that the answer begins with; -1: none that can be used."""
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
    # A weak tag stands for files that mean the same, not for files of the same bytes.
    return response.headers.get("Last-Modified") if tag.startswith("W/") else tag


def _local(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _cause(error: BaseException) -> str:
    """Of the innermost error: those around it name classes, not causes."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "the connection ended early"
