"""A table as data: rows of cells, the best of each group, and footnotes; as CSV and JSON."""

import csv
import io
import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
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

    def to_json(self, with_paper: bool) -> dict[str, Any]:
        found = self.entry.to_json() if self.entry else {"value": None}
        found |= {"best": self.best, "mark": self.mark or None}
        paper = {"paper": self.paper, "difference": self.difference}
        return found | (paper if with_paper else {})


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

    @property
    def spans(self) -> list[tuple[str, int]]:
        """The upper header, if there is one: its words and how many columns each spans."""
        if max(map(len, self.columns), default=1) < 2:
            return []
        tops = groupby(path[0] for path in self.columns)
        return [(name, len(list(group))) for name, group in tops]

    def to_json(self) -> dict[str, Any]:
        rows = [
            {"labels": row.labels, "cells": [cell.to_json(self.with_paper) for cell in row.cells]}
            for row in self.rows
        ]
        return {
            "layout": self.layout,
            "title": self.title,
            "stub": self.stub,
            "columns": self.columns,
            "rows": rows,
            "footnotes": [{"mark": mark or None, "text": text} for mark, text in self.footnotes],
        }

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
    value = value if isinstance(value, int | float | None) else setting_text(value)
    return value is None, isinstance(value, str), 0 if value is None else value


# -- CSV


def as_csv(tables: Sequence[Table]) -> str:
    """A column for each score, with columns for its interval and the paper's, and the footnotes in
    the last. Several tables become one, with a column that names the table."""
    rows = [row for table in tables for row in _csv_rows(table, len(tables) > 1)]
    headers = list(dict.fromkeys(name for row in rows for name in row))
    headers.sort(key=lambda name: name == "remarks")
    out = io.StringIO()
    writer = csv.DictWriter(out, headers, restval="", lineterminator="\n")
    writer.writerow({name: _no_formula(name) for name in headers})
    writer.writerows(rows)
    return out.getvalue()


def _csv_rows(table: Table, several: bool) -> list[dict[str, str]]:
    footnotes = dict(table.footnotes)
    more = ["low", "high", "deviation"] * table.ci + ["paper", "difference"] * table.with_paper
    rows = []
    for row in table.rows:
        line = {"table": table.title} if several else {}
        line |= dict(zip(table.stub, row.labels, strict=True))
        remarks = []
        for path, cell in zip(table.columns, row.cells, strict=True):
            name = " ".join(path)
            names = [name, *(f"{name} {kind}" for kind in more)]
            line |= dict(zip(names, _csv_numbers(cell, table), strict=True))
            remarks += [f"{name}: {footnotes[cell.mark]}"] if cell.mark else []
        line["remarks"] = "; ".join(remarks)
        words = {"table", "remarks", *table.stub}
        rows.append({n: _no_formula(v) if n in words else v for n, v in line.items()})
    return rows


def _csv_numbers(cell: TableCell, table: Table) -> list[str]:
    entry = cell.entry
    values: list[float | None] = [entry.value if entry else None]
    if table.ci:
        low, high = (entry.interval if entry else None) or (None, None)
        values += [low, high, entry.spread if entry else None]
    if table.with_paper:
        values += [cell.paper, cell.difference]
    return ["" if value is None else f"{round(value, 4):.10g}" for value in values]


def _no_formula(text: str) -> str:
    """A spreadsheet would run what begins with one of these."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
