"""The text of a suite, and what is wrong with it as text."""

import tomllib
from pathlib import Path
from re import search
from typing import Any

from skipbench.errors import UsageError, did_you_mean


def text_of(path: Path) -> str:
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode()  # as some editors begin
    except FileNotFoundError:
        there = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        raise UsageError(f"no suite at {path}.{did_you_mean(path.name, there)}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: is not UTF-8 text") from None


def parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line = int(place[1]) if place else text.rstrip().count("\n") + 1
        words = str(error)[: place.start()] if place else str(error)
        column = f", column {place[2]}" if place else ""
        raise UsageError(f"{path}:{line}{column}: not TOML: {words}") from None
