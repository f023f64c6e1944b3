"""Unpack a zip or tar archive: all of it or nothing, and only below its destination.

Everything goes into a scratch folder inside the destination, hence on the same file system, and is
moved to its place once it is complete. The archive is not trusted: only plain files and folders
are written, with default permissions.
"""

import errno
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import Self

from skipbench.engine.progress import megabytes
from skipbench.errors import DataError, ResourceError
from skipbench.files import DISK_FULL, ensure_space

CHUNK = 1 << 18
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, LZMAError, UnicodeError)
ENCRYPTED = 0x1  # bit of a zip member's flags


class _Refused(Exception):  # noqa: N818
    """A member that is not unpacked; args: its name and what is wrong with it."""


def unpack(archive: Path, into: Path) -> dict[str, int]:
    """Returns the number of files in each folder, by its path below `into`."""
    if not hasattr(tarfile, "data_filter"):
        raise ResourceError("this Python cannot unpack safely: use 3.11.4 or newer.")
    folder = scratch(into, archive.name)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    try:
        folder.mkdir(parents=True)
        (_unzip if archive.suffix == ".zip" else _untar)(archive, folder)
        walk = os.walk(folder)
        unpacked = {str(Path(f).relative_to(folder)): len(files) for f, _, files in walk if files}
        _merge(folder, into)
        return unpacked
    except _Refused as refused:
        name, reason = refused.args
        raise DataError(
            f"{archive}: the member {name!r} {reason}.\nNothing was unpacked. "
            "Download the archive from the data set's own site."
        ) from None
    except (*DAMAGED, NotImplementedError) as error:  # the latter: an unknown compression
        raise _damaged(archive, error) from None
    except OSError as error:
        raise _os_error(archive, into, error) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scratch(into: Path, archive_name: str) -> Path:
    return into / f".{archive_name}.unpacking"


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        wanted = [_is_wanted_of_zip(member) for member in members]
        total, done = sum(member.file_size for member in members), 0
        ensure_space(total, folder, f"the content of {archive.name}")
        with megabytes(f"unpacking {archive.name}", total) as reach:
            for member in compress(members, wanted):
                with _conflicts_refused(folder):
                    opened.extract(member, folder)
                done += member.file_size
                reach(done)


def _is_wanted_of_zip(member: zipfile.ZipInfo) -> bool:
    name = member.orig_filename  # the other name ends at a NUL
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _Refused(name, "is a link or a device")
    if member.flag_bits & ENCRYPTED:
        raise _Refused(name, "is encrypted")
    return _is_wanted(name)


class _Member(tarfile.TarInfo):
    """tarfile takes a damaged or missing header for the end of the archive, which is zeros."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf and not any(buf):
                raise
            raise tarfile.ReadError(str(error)) from None


def _untar(archive: Path, folder: Path) -> None:
    with (
        archive.open("rb") as raw,
        tarfile.open(fileobj=raw, mode="r:*", tarinfo=_Member) as opened,
        megabytes(f"unpacking {archive.name}", archive.stat().st_size) as reach,
    ):
        if archive.suffix == ".tar":  # in a compressed one, the sizes are known at its end only
            total = sum(member.size for member in opened.getmembers())
            ensure_space(total, folder, f"the content of {archive.name}")
        for member in opened:
            if _is_wanted_of_tar(member, folder):
                with _conflicts_refused(folder):
                    opened.extract(member, folder, set_attrs=False, filter="fully_trusted")
            reach(raw.tell())
        while opened.fileobj and opened.fileobj.read(CHUNK):
            pass  # a compressed archive has its checksum after the last member
        reach(raw.seek(0, os.SEEK_END))


def _is_wanted_of_tar(member: tarfile.TarInfo, folder: Path) -> bool:
    if not (member.isreg() or member.isdir()):
        raise _Refused(member.name, "is a link or a device")
    try:
        tarfile.data_filter(member, str(folder))
    except tarfile.FilterError as error:
        raise _Refused(member.name, f"is not safe ({error})") from None
    return _is_wanted(member.name)


def _is_wanted(name: str) -> bool:
    """Not what macOS adds to archives. A place outside the destination is an error."""
    place = PurePosixPath(name)
    if place.is_absolute() or re.match(r"[A-Za-z]:", name) or ".." in place.parts:
        raise _Refused(name, "points outside the folder")
    if "\\" in name or "\0" in name:
        raise _Refused(name, "has a name with a backslash or a NUL")
    return not any(part == "__MACOSX" or part.startswith("._") for part in place.parts)


@contextmanager
def _conflicts_refused(folder: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        path = Path(error.filename)
        path = path.parent if path.parent.is_file() else path
        raise _Refused(str(path.relative_to(folder)), "is both a file and a folder") from None


def _merge(source: Path, destination: Path) -> None:
    """Files replace existing ones."""
    for entry in sorted(source.rglob("*")):
        target = destination / entry.relative_to(source)
        if target.exists() and entry.is_dir() != target.is_dir():
            kinds = ("folder", "file") if entry.is_dir() else ("file", "folder")
            raise ResourceError(
                "{} should be a {} but is a {}. Move it away.".format(target, *kinds)
            )
        if entry.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.move(entry, target)  # the folder may be a link to another disk


def _damaged(archive: Path, error: Exception) -> DataError:
    with archive.open("rb") as file:
        start = file.read(512).lstrip().lower()
    page = start.startswith((b"<!doctype html", b"<html"))
    what = "is a web page, not an archive" if page else f"is damaged or cut short ({error})"
    return DataError(
        f"{archive} {what}.\nNothing was unpacked. Run the command again, "
        "or use another source with --mirror URL."
    )


def _os_error(archive: Path, into: Path, error: OSError) -> DataError | ResourceError:
    if error.errno in (None, errno.EINVAL):  # from the decompressor, not from the system
        return _damaged(archive, error)
    if error.errno in DISK_FULL:
        return ResourceError(
            f"disk full while unpacking {archive.name} in {into}.\n"
            "The archive is kept: free some space and run the same command."
        )
    return ResourceError(f"cannot unpack {archive} in {into}: {error.strerror}")
