"""The text of a suite and its mistakes, each with the path of its key."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError, UsageError, did_you_mean
from skipbench.settings import shown
from skipbench.settings.parsers import InvalidError

MOST_SHOWN = 30


def read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode()  # some editors write a BOM
        return tomllib.loads(text)
    except FileNotFoundError:
        there = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        raise UsageError(f"no suite at {path}.{did_you_mean(path.name, there)}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line = int(place[1]) if place else text.rstrip().count("\n") + 1
        words = str(error)[: place.start()] if place else str(error)
        column = f", column {place[2]}" if place else ""
        raise UsageError(f"{path}:{line}{column}: not TOML: {words}") from None
    except (RecursionError, ValueError) as error:  # nested too deeply, a number of 5,000 digits
        raise UsageError(f"{path}: not TOML: {error}") from None


class Problems:
    """Collected, so that all are reported at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, type[SkipbenchError]] = {}

    def add(self, where: str, error: SkipbenchError | str) -> None:
        kind = UsageError if isinstance(error, str) else type(error)
        self._found.setdefault(f"{self.path}: {where}: {error}", kind)

    def raise_if_any(self) -> None:
        """A UsageError, unless only files are missing: then the error of the first one."""
        if not self._found:
            return
        kinds = list(self._found.values())
        wrong = next((kind for kind in kinds if issubclass(kind, UsageError)), kinds[0])
        lines = list(self._found)[:MOST_SHOWN]
        if more := len(kinds) - len(lines):
            lines.append(f"… and {more} more")
        raise wrong("\n".join(lines))


class Table:
    """One table of a suite. Its path is `evaluation[2]`, counted from 1 as a reader does."""

    def __init__(self, problems: Problems, path: str, values: Mapping[str, Any]) -> None:
        self.problems, self.path, self.values = problems, path, values

    def add(self, key: str, error: SkipbenchError | str) -> None:
        self.problems.add(f"{self.path}.{key}" if self.path else key, error)

    def checked(self, parsers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
        """The valid values; invalid ones and unknown keys are added to the problems."""
        good: dict[str, Any] = {}
        for key, value in self.values.items():
            if key not in parsers:
                near = did_you_mean(key, parsers)
                self.add(key, f"no such key.{near} Known: {', '.join(parsers)}")
                continue
            try:
                good[key] = parsers[key](value)
            except InvalidError as error:
                self.add(key, f"{shown(value)}: {error}")
            except SkipbenchError as error:
                self.add(key, error)
        return good
