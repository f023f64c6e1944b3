"""A table as data: rows of cells, the best of each group, and footnotes."""

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skipbench.results.entries import Entry
from skipbench.results.words import DASH, dataset_name, setting_text

FORMATS = ("rich", "md", "latex", "csv", "json")

Place = tuple[int, int]  # row, column


@dataclass(frozen=True)
class TableCell:
    entry: Entry | None = None
    paper: float | None = None
    best: bool = False
    mark: str = ""  # of its footnote

    @property
    def difference(self) -> float | None:
        """To the paper's number, as both are printed."""
        if self.entry is None or self.paper is None:
            return None
        return round(round(self.entry.value, 1) - self.paper, 1)


@dataclass(frozen=True)
class Row:
    labels: tuple[str, ...]
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Table:
    layout: str
    title: str
    stub: tuple[str, ...]  # names of the rows' labels
    columns: tuple[tuple[str, ...], ...]  # header levels of each, the widest first
    rows: tuple[Row, ...]
    footnotes: tuple[tuple[str, str], ...] = ()  # mark, or "" for the whole table, and text
    ci: bool = False
    with_paper: bool = False

    @property
    def entries(self) -> list[Entry]:
        return [cell.entry for row in self.rows for cell in row.cells if cell.entry]

    def text(self, format: str = "rich", *, fragment: bool = False) -> str:
        """format: rich (plain text here), md, latex, csv or json."""
        from skipbench.results.tables.render import render

        return render([self], format, fragment=fragment)

    def __str__(self) -> str:
        return self.text()


def marked(
    table: Table,
    groups: Iterable[Sequence[Place]],
    remarks: Callable[[int, Entry], list[str]] = lambda row, entry: [],
    notes: Sequence[str] = (),
) -> Table:
    """With the best of each group marked, and a footnote for each different remark.

    remarks: further ones of a row's entry; notes: on the whole table.
    """
    best = {place for group in groups for place in _best(table, group)}
    letters: dict[str, str] = {}

    def cell_with_mark(r: int, c: int, cell: TableCell) -> TableCell:
        text = "; ".join([*cell.entry.remarks, *remarks(r, cell.entry)]) if cell.entry else ""
        mark = letters.setdefault(text, _letter(len(letters))) if text else ""
        return replace(cell, best=(r, c) in best, mark=mark)

    rows = tuple(
        replace(row, cells=tuple(cell_with_mark(r, c, cell) for c, cell in enumerate(row.cells)))
        for r, row in enumerate(table.rows)
    )
    footnotes = [(letter, text) for text, letter in letters.items()]
    return replace(table, rows=rows, footnotes=(*footnotes, *(("", text) for text in notes)))


def _best(table: Table, group: Sequence[Place]) -> list[Place]:
    """Of several: all that are printed as the highest."""
    entries = {(r, c): entry for r, c in group if (entry := table.rows[r].cells[c].entry)}
    printed = {place: round(entry.value, 1) for place, entry in _comparable(entries).items()}
    if len(printed) < 2:
        return []
    return [place for place, value in printed.items() if value == max(printed.values())]


def _comparable(entries: Mapping[Place, Entry]) -> Mapping[Place, Entry]:
    """Partial runs saw other images: they are compared with each other at most."""
    whole = {place: entry for place, entry in entries.items() if not entry.first.partial}
    same = len({json.dumps(entry.first.images) for entry in entries.values()}) == 1
    return whole if whole or not same else entries


def _letter(number: int) -> str:
    """a … z, aa, ab …"""
    rest, last = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + string.ascii_lowercase[last]


def label(fact: str, value: Any) -> str:
    if value is None:
        return "unknown" if fact in ("epoch", "optimizer", "depth") else DASH
    return dataset_name(value) if fact == "dataset" else setting_text(value)


def sort_key(value: Any) -> tuple[bool, bool, Any]:
    """Numbers, then words, then what is not known."""
    return value is None, isinstance(value, str), 0 if value is None else value
