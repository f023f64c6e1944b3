"""Atomic writes, the cache folder, and amounts of space as text."""

import csv
import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from threading import get_ident
from typing import Any

from skipbench.errors import CheckpointError, ResourceError, UsageError, did_you_mean, some_of

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WEIGHT_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors")
INDEX = ".index.json"  # of weights in several files
WEIGHTS_IN_FOLDERS = (  # as the Hugging Face hub has them
    "model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)  # fmt: skip


def ensure_writable(folder: Path) -> None:
    """Checked by writing a file, before anything is computed."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ResourceError(
            f"cannot write in {folder}: {error.strerror}. Choose another folder."
        ) from None


def user_path(text: str | Path) -> Path:
    """With ~ expanded."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{text}: {error}") from None


def is_folder(path: str | Path) -> bool:
    """False also without permission, or for an invalid file name."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def ensure_space(need: int, folder: Path, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if need > free:
        raise ResourceError(
            f"{what} needs {size_text(need)}, {folder} has {size_text(free)} free.\n"
            "Free some space, or use another folder."
        )


def write_whole(path: Path, data: bytes) -> None:
    """Atomic: the file appears complete or not at all, even if the machine crashes."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}.partial")
    _partial_files.add(partial)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise _write_error(path, error) from None
    finally:
        _remove(partial)
        _partial_files.discard(partial)


_partial_files: set[Path] = set()  # that this process is writing


def remove_partial_files() -> None:
    """Called when the process is stopped."""
    for path in list(_partial_files):
        _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):  # its folder may be a file
        path.unlink(missing_ok=True)


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """File names in it may be invalid UTF-8."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_whole(path, text.getvalue().encode("utf-8", "surrogateescape"))


def unlike(words: Iterable[str], taken: Iterable[str] = (), form: str = "{}_{}") -> list[str]:
    """Each word, with a number added where it would repeat an earlier one."""
    used, found = set(taken), []
    for word in words:
        numbered = (form.format(word, number) for number in count(2))
        found.append(next(name for name in chain([word], numbered) if name not in used))
        used.add(found[-1])
    return found


def append_line(path: Path, line: str) -> None:
    try:
        with path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _write_error(path, error) from None


def _write_error(path: Path, error: OSError) -> ResourceError:
    if error.errno in DISK_FULL:
        hint = " (see `skipbench cache`)" if _has_cache(path.parent) else ""
        return ResourceError(
            f"disk full while writing {path.parent}.\nFinished work is intact: free some space "
            f"there{hint} and run the same command; it resumes."
        )
    return ResourceError(f"cannot write {path}: {error.strerror}")


def _has_cache(folder: Path) -> bool:
    """Whether clearing the cache would free space on the disk of this folder."""
    try:
        return cache_folder().stat().st_dev == folder.stat().st_dev
    except (OSError, RuntimeError):
        return False


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def cache_folder(given: str | Path | None = None) -> Path:
    """`--cache`, else SKIPBENCH_CACHE, else the user's cache folder."""
    if given or (given := os.environ.get("SKIPBENCH_CACHE")):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skipbench"


def size_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def parse_bytes(text: str) -> int:
    """ "50GB", "500 MB", "1e9" → bytes."""
    units = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1, "": 1}
    number = text.strip().upper().rstrip("TGMKB ")
    unit = text.strip().upper().removeprefix(number).strip()
    try:
        amount = int(float(number) * units[unit])
    except (KeyError, OverflowError, ValueError):
        amount = -1
    if amount < 0:
        raise UsageError(f"{text!r}: expected an amount of space such as 50GB")
    return amount


def weights_file(path: Path) -> Path:
    """The weights in a folder of the Hugging Face hub's layout; else the path itself."""
    inside = (path / name for name in WEIGHTS_IN_FOLDERS)
    return next((file for file in inside if file.exists()), path)


def sha256_of(path: Path) -> str:
    """Of an index of several weights files: the hash of their names and hashes."""
    if path.name.endswith(INDEX):
        parts = [f"{part.name} {sha256_of(part)}\n" for part in shards_of(path)]
        return hashlib.sha256("".join(parts).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shards_of(index: Path) -> list[Path]:
    """The files that an index lists."""
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        parts = [index.parent / name for name in sorted(names)]
    except (ValueError, OSError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: not an index of weights files ({error})") from None
    if outside := [part for part in parts if part.parent != index.parent]:
        raise CheckpointError(f"{index}: lists a file of another folder: {outside[0]}")
    if not parts:
        raise CheckpointError(f"{index}: lists no files")
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"{index.parent}: weights files are missing ({len(missing)} of {len(parts)}): "
            f"{some_of(missing)}.\nDownload the rest; nothing was loaded."
        )
    return parts


def missing_checkpoint(path: Path) -> str:
    """The message for a missing weights file. (Here, so that it does not need torch.)"""
    message = f"no checkpoint at {path}."
    if not path.parent.is_dir():
        return f"{message} The folder {path.parent} does not exist either."
    files = sorted(p.name for p in path.parent.iterdir() if p.suffix in WEIGHT_SUFFIXES)
    if not files:
        return f"{message} The folder {path.parent.absolute()} contains no weights files."
    return f"{message}{did_you_mean(path.name, files)}\nIn that folder: {some_of(files)}"
