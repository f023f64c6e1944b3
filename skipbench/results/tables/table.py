"""A table as data: rows of cells, the best of each group, and the marks that cells carry."""

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skipbench.results.scores import Entry
from skipbench.results.tables.layouts import DATASETS

DASH = "–"
FORMATS = ("rich", "md", "latex", "csv", "json")


@dataclass(frozen=True)
class Cell:
    entry: Entry | None = None
    paper: float | None = None
    best: bool = False
    mark: str = ""  # of the footnote with all that is to be said of it

    @property
    def difference(self) -> float | None:
        """To the paper's figure, as both are printed."""
        if self.entry is None or self.paper is None:
            return None
        return round(round(self.entry.value, 1) - self.paper, 1)


@dataclass(frozen=True)
class Row:
    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    layout: str
    title: str
    stub: tuple[str, ...]  # what the labels of rows are
    columns: tuple[tuple[str, ...], ...]  # header levels of each, the widest first
    rows: tuple[Row, ...]
    footnotes: tuple[tuple[str, str], ...] = ()  # mark, or "" for the whole table, and text
    ci: bool = False
    with_paper: bool = False

    def text(self, format: str = "rich", *, fragment: bool = False) -> str:
        """format: rich (plain text here), md, latex, csv or json."""
        from skipbench.results.tables.render import render

        return render([self], format, fragment=fragment)

    def __str__(self) -> str:
        return self.text()


def finish(
    made: Table,
    groups: Iterable[Sequence[tuple[int, int]]],
    more: Callable[[int, Entry], list[str]],
    notes: Sequence[str],
) -> Table:
    """The best of each group made bold, as printed; a letter for what is to be remarked."""
    best: set[tuple[int, int]] = set()
    for group in groups:
        there = {p: e for p in group if (e := made.rows[p[0]].cells[p[1]].entry)}
        values = {place: entry.value for place, entry in _contest(there).items()}
        if len(values) > 1:
            top = max(round(value, 1) for value in values.values())
            best |= {place for place, value in values.items() if round(value, 1) == top}
    letters: dict[str, str] = {}
    rows = []
    for r, row in enumerate(made.rows):
        cells = []
        for c, cell in enumerate(row.cells):
            remarks = [*cell.entry.remarks, *more(r, cell.entry)] if cell.entry else []
            text = "; ".join(remarks)
            mark = letters.setdefault(text, _letter(len(letters))) if text else ""
            cells.append(replace(cell, best=(r, c) in best, mark=mark))
        rows.append(replace(row, cells=tuple(cells)))
    footnotes = [(letter, text) for text, letter in letters.items()]
    return replace(made, rows=tuple(rows), footnotes=(*footnotes, *(("", text) for text in notes)))


def _contest(there: Mapping[tuple[int, int], Entry]) -> Mapping[tuple[int, int], Entry]:
    """Partial figures are of other images: they win and lose among themselves at the most."""
    whole = {place: entry for place, entry in there.items() if not entry.first.partial}
    same = len({json.dumps(entry.first.images) for entry in there.values()}) == 1
    return whole if whole or not same else there


def _letter(number: int) -> str:
    """a … z, aa, ab …"""
    rest, last = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + string.ascii_lowercase[last]


def word(fact: str, value: Any) -> str:
    if value is None:
        return "unknown" if fact in ("epoch", "optimizer", "depth") else DASH
    if fact == "dataset":
        return DATASETS.get(value, str(value))
    return plain_words(value)


def plain_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k} {plain_words(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(plain_words, value))
    return DASH if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def sortable(value: Any) -> tuple[bool, bool, Any]:
    """Numbers, then words, then what is not known."""
    return value is None, isinstance(value, str), 0 if value is None else value


def sha_of(entry: Entry) -> str:
    return str(entry.first.result.checkpoint["sha256"])[:12]
