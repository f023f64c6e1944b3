"""Fetch one archive: through pooch for its checksum, with a transfer that goes on where it stopped.

What has arrived is `<file>.partial`, and beside it, in JSON, which version of the file it is of
(the server's ETag or date), so that two versions are never joined. Only a whole file with the right
checksum ever carries its own name.
"""

import json
import logging
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from skipbench.engine.progress import MB, megabytes
from skipbench.errors import DataError, ResourceError, UsageError
from skipbench.files import DISK_FULL, ensure_space, is_folder, read_json, size_text, write_whole
from skipbench.records import Archive

log = logging.getLogger("skipbench")

WAITS = (1.0, 2.0, 4.0)  # seconds before another try, as long as nothing more arrives
TIMEOUT = (15.0, 30.0)  # seconds to connect, and without a byte
CHUNK = 1 << 16
AGAIN = (408, 429, 500, 502, 503, 504)  # HTTP answers that may be another the next time
PLAIN = {"Accept-Encoding": "identity"}


def fetch(archive: Archive, folder: Path, mirror: str | None = None) -> Path:
    """The archive's path, once it is whole and right; with no transfer if it lies there already."""
    import pooch  # type: ignore[import-untyped]

    pooch.get_logger().setLevel(logging.CRITICAL)  # what it tells is told here
    for leftover in folder.glob("tmp????????"):  # pooch's own, of a run that was killed
        leftover.unlink()
    if archive.checksum is None:
        log.warning("%s: no checksum is published; only its length is checked", archive.file)
    transfer = _Transfer(archive, folder, address(archive, mirror))
    try:
        pooch.retrieve(
            transfer.url, archive.checksum, archive.file, folder, downloader=transfer.bring
        )
    except ValueError:
        raise transfer.wrong_checksum() from None
    except OSError as error:
        raise transfer.os_error(error) from None
    transfer.forget()
    return transfer.target


def put_aside(path: Path) -> Path:
    """Kept for who wants to see what it is, under a name that nothing reads."""
    return path.replace(path.with_name(f"{path.name.removesuffix('.partial')}.wrong"))


def announced_bytes(archive: Archive, mirror: str | None) -> int:
    """The archive's size as the server tells it; 0 if it does not."""
    import requests

    url = address(archive, mirror)
    if url.startswith("file:"):
        return _size(_local(url))
    try:
        head = requests.head(url, headers=PLAIN, allow_redirects=True, timeout=TIMEOUT)
    except (requests.RequestException, ValueError):
        return 0  # what is wrong will be said when the file itself is asked for
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
    """The connection broke or did not come about: worth another try."""


class _Transfer:
    def __init__(self, archive: Archive, folder: Path, url: str) -> None:
        self.archive, self.folder, self.url = archive, folder, url
        self.target = folder / archive.file
        self.partial = folder / f"{archive.file}.partial"
        self.notes = folder / f"{archive.file}.partial.json"

    def bring(self, url: str, output: str, _: Any) -> None:
        """What pooch calls; if the file is there by now, pooch has found its checksum wrong."""
        if self.target.exists():
            aside = put_aside(self.target)
            log.warning("%s is not the published file; kept as %s", self.target, aside)
        if url.startswith("file:"):
            self.copy(_local(url))
        else:
            self.insist()
        # Pooch deletes what it is given, whatever stops it; the partial file outlives that.
        Path(output).unlink()
        try:
            Path(output).hardlink_to(self.partial)
        except OSError:  # a file system without links
            shutil.copyfile(self.partial, output)

    def copy(self, source: Path) -> None:
        if not source.is_file():
            raise DataError(f"there is no {source}.\n{self.advice()}")
        with source.open("rb") as file:
            self.save(iter(lambda: file.read(CHUNK), b""), 0, _size(source), None)

    def insist(self) -> None:
        """Until all of it is there, over as many connections as it takes while they bring more."""
        failures, reached = 0, _size(self.partial)
        while True:
            try:
                return self.attempt()
            except _Dropped as dropped:
                failures = 1 if _size(self.partial) >= reached + MB else failures + 1
                reached = max(reached, _size(self.partial))
                if failures > len(WAITS):
                    raise self.cut_off(dropped) from None
                wait = WAITS[failures - 1]
                log.info("%s: %s; trying again in %g s", self.archive.file, dropped, wait)
            time.sleep(wait)

    def attempt(self) -> None:
        version = (read_json(self.notes) or {}).get("version")
        # With neither a version nor a checksum, nothing would tell whether the rest belongs to it.
        have = _size(self.partial) if version or self.archive.checksum else 0
        ask = {"Range": f"bytes={have}-"} if have else {}
        if have and version:
            ask["If-Range"] = version
        with self.get(ask) as response:
            if response.status_code == 416 and _total(response, 0) == have:
                return  # it was whole
            start = _start(response)
            changed = start and version and _version(response) not in (None, version)
            if start not in (0, have) or changed:
                self.forget()
                raise _Dropped("the server has another file than the one begun")
            total = _total(response, start)
            self.save(_chunks(response), start, total, _version(response))
        if total and _size(self.partial) != total:
            raise _Dropped("the connection ended early")

    def get(self, ask: dict[str, str]) -> Any:
        import requests

        try:
            response = requests.get(self.url, headers=PLAIN | ask, stream=True, timeout=TIMEOUT)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise _Dropped(_cause(error)) from None
        except (requests.RequestException, ValueError) as error:
            raise DataError(f"cannot fetch {self.url}: {error}.\n{self.advice()}") from None
        if response.status_code in (200, 206, 416):
            return response
        response.close()
        problem = f"HTTP {response.status_code} ({response.reason})"
        if response.status_code in AGAIN:
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
            if not start:  # with the file empty: notes never lie beside bytes of another version
                notes = json.dumps({"version": version, "total": total})
                write_whole(self.notes, notes.encode())
            for chunk in chunks:
                file.write(chunk)
                reach(file.tell())

    def forget(self) -> None:
        self.partial.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)

    def advice(self) -> str:
        by_hand = f"download it by hand and put it at {self.target}"
        return f"Take another source with --mirror URL, or {by_hand}"

    def cut_off(self, dropped: _Dropped) -> DataError:
        have, notes = _size(self.partial), read_json(self.notes) or {}
        if not have:
            return DataError(f"cannot fetch {self.url}: {dropped}.\n{self.advice()}")
        total = notes.get("total") or self.archive.bytes
        of = f" of {size_text(total)}" if total else ""
        return DataError(
            f"{self.url} was cut off ({dropped}); {size_text(have)}{of} arrived.\n"
            "The same command goes on from there; --mirror URL takes another source."
        )

    def wrong_checksum(self) -> DataError:
        import pooch

        kind, _, expected = str(self.archive.checksum).partition(":")
        found = pooch.file_hash(str(self.partial), alg=kind)
        came, due = _size(self.partial), self.archive.bytes
        sizes = f" ({size_text(came)} instead of {size_text(due)})" if due not in (0, came) else ""
        aside = put_aside(self.partial)
        self.forget()
        return DataError(
            f"{self.url} is not the published file{sizes}: its {kind} is {found}, "
            f"it should be {expected}.\nIt is kept as {aside} and not used.\n"
            "Run the command again, or take another source with --mirror URL."
        )

    def os_error(self, error: OSError) -> ResourceError:
        if error.errno in DISK_FULL:
            return ResourceError(
                f"disk full while fetching {self.archive.file} into {self.folder}.\nWhat has "
                "arrived is kept: free some space and run the same command; it goes on from there."
            )
        return ResourceError(f"cannot write {self.target}: {error.strerror or error}")


def _chunks(response: Any) -> Iterator[bytes]:
    """As they were sent: a `.tar.gz` stays one, also where the server calls it an encoding."""
    from urllib3.exceptions import HTTPError

    try:
        yield from response.raw.stream(CHUNK, decode_content=False)
    except HTTPError as error:
        raise _Dropped(_cause(error)) from None


def _start(response: Any) -> int:
    """Which byte the answer begins with; -1: none that can be used."""
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return 0 if response.status_code == 200 else int(found[1]) if found else -1


def _total(response: Any, start: int) -> int:
    """Bytes of the whole file; 0: not told."""
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
