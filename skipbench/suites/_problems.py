"""What is wrong in a suite, all of it at once, each with its line and key."""

import re
from collections import Counter
from pathlib import Path

from skipbench.errors import SkipbenchError, UsageError

MOST_SHOWN = 30

_TEXT = re.compile(
    r'"""(?:\\.|[^\\])*?""""{0,2}'
    r"|'''.*?''''{0,2}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*",
    re.DOTALL,
)
_HEADER = re.compile(r"""\s*\[{1,2}\s*["']?([\w-]+)""")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*[.=]""")


class Lines:
    """Where each key of a TOML text stands; tomllib tells that for syntax errors only.

    The text is sound TOML: what tomllib has not read is not asked for.
    """

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, int, str], int] = {}
        self._table, self._index, self._seen = "", 0, Counter[str]()
        depth = 0
        # Without strings and comments, brackets are brackets.
        bare = _TEXT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        pairs = zip(text.split("\n"), bare.split("\n"), strict=True)
        for number, (line, skeleton) in enumerate(pairs, 1):
            if depth == 0 and skeleton.strip():
                self._note(line, number)
            depth += len(re.findall(r"[\[{]", skeleton)) - len(re.findall(r"[\]}]", skeleton))

    def _note(self, line: str, number: int) -> None:
        if header := _HEADER.match(line):
            self._table = header[1]
            self._index = self._seen[self._table]
            self._seen[self._table] += 1
            self._found[self._table, self._index, ""] = number
        elif key := _KEY.match(line):
            self._found.setdefault((self._table, self._index, key[1]), number)

    def has(self, table: str, index: int, key: str) -> bool:
        return bool(key) and (table, index, key) in self._found

    def of(self, table: str, index: int, key: str) -> int:
        """The line of a key; else that of its table's header, or where the table is written."""
        places = ((table, index, key), (table, index, ""), ("", 0, table), (key, 0, ""))
        return next((self._found[place] for place in places if place in self._found), 1)


class Problems:
    def __init__(self, path: Path, lines: Lines) -> None:
        self.path, self.lines = path, lines
        self._found: list[tuple[int, str, type[SkipbenchError]]] = []

    def add(self, table: str, index: int, key: str, error: SkipbenchError) -> None:
        """An error of an option (`--lr 'quick': …`) is one of the key of that name."""
        option = re.match(r"--([\w-]+)", str(error))
        named = option[1].replace("-", "_") if option else ""
        key = named if self.lines.has(table, index, named) else key
        words = re.sub(r"^(--[\w-]+|size):? ", "", str(error))
        line = self.lines.of(table, index, key)
        name = f"{table}.{key}" if table else key
        text = f"{self.path}:{line}: {name}: {words}"
        if text not in (known for _, known, _ in self._found):
            self._found.append((line, text, type(error)))

    def __len__(self) -> int:
        return len(self._found)

    def raise_if_any(self) -> None:
        """A wrong suite is a wrong command; if only files are missing, it is about these."""
        if not self._found:
            return
        found = sorted(self._found, key=lambda problem: problem[0])
        kinds = [kind for _, _, kind in found]
        wrong = next((kind for kind in kinds if issubclass(kind, UsageError)), kinds[0])
        shown = [text for _, text, _ in found[:MOST_SHOWN]]
        if more := len(found) - len(shown):
            shown.append(f"… and {more} more")
        raise wrong("\n".join(shown))


class At:
    """One table of a suite, for what is wrong in it."""

    def __init__(self, problems: Problems, table: str, index: int = 0) -> None:
        self.problems, self.table, self.index = problems, table, index

    def add(self, key: str, error: SkipbenchError | str) -> None:
        error = UsageError(error) if isinstance(error, str) else error
        self.problems.add(self.table, self.index, key, error)
