"""A table as data: rows of cells, the best of each group, and footnotes; the plain table."""

import json
import string
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from skipbench.results.entries import Entry, differing
from skipbench.results.scores import FACTS
from skipbench.results.words import DASH, dataset_name, setting_text

FORMATS = ("rich", "md", "latex", "csv", "json", "model-index")

WEIGHTS = "weights (sha256)"
CLASSES = "classes"  # of a data set with several sets of them

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
        """format: rich (plain text here), md, latex, csv, json or model-index."""
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
    """With the best of each group marked, and a footnote for each distinct remark.

    remarks: more of them, from a row's number and its entry; notes: on the whole table.
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
    """All that are printed as the highest; none of fewer than two. Partial runs count only if all
    are partial, and on the same images."""
    found = {(r, c): entry for r, c in group if (entry := table.rows[r].cells[c].entry)}
    whole = {place: entry for place, entry in found.items() if not entry.first.partial}
    same = len({json.dumps(entry.first.images) for entry in found.values()}) == 1
    compared = whole if whole or not same else found
    printed = {place: round(entry.value, 1) for place, entry in compared.items()}
    if len(printed) < 2:
        return []
    return [place for place, value in printed.items() if value == max(printed.values())]


def _letter(number: int) -> str:
    """a … z, aa, ab …"""
    rest, last = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + string.ascii_lowercase[last]


def label(fact: str, value: Any) -> str:
    if value is None:
        return "unknown" if fact in ("epoch", "optimizer", "depth") else DASH
    return dataset_name(value) if fact == "dataset" else setting_text(value)


def sort_key(value: Any) -> tuple[bool, bool, Any]:
    """Numbers, then text, then None."""
    value = value if isinstance(value, int | float | None) else setting_text(value)
    return value is None, isinstance(value, str), 0 if value is None else value


# -- plain: a row for each entry, a column for each fact that differs


def plain_table(found: Sequence[Entry]) -> Table:
    facts = [_all_facts(entry) for entry in found]
    different = differing(facts)
    shown = _shown_facts(found, facts, list(different))
    metrics = list(dict.fromkeys(entry.first.metric_name for entry in found))
    rows = []
    groups: dict[str, list[Place]] = defaultdict(list)
    pairs = list(zip(found, facts, strict=True))
    pairs.sort(key=lambda pair: [sort_key(pair[1].get(name)) for name in shown])
    for place, (entry, own) in enumerate(pairs):
        first = entry.first
        cells = [TableCell(entry if name == first.metric_name else None) for name in metrics]
        rows.append(Row(tuple(label(name, own.get(name)) for name in shown), tuple(cells)))
        data = [first.facts[name] for name in ("evaluation", "dataset", "split")]
        group = json.dumps([data, first.settings, first.images], sort_keys=True)
        groups[group].append((place, metrics.index(first.metric_name)))
    common = [name for name in FACTS if name not in {"seed", *shown, *different}]
    known = {name: facts[0][name] for name in common if facts[0][name] is not None}
    title = ", ".join(f"{name} {label(name, value)}" for name, value in known.items())
    header = tuple(("score", name) if len(metrics) > 1 else (name,) for name in metrics)
    return marked(Table("plain", title, tuple(shown), header, tuple(rows)), groups.values())


def _shown_facts(
    found: Sequence[Entry], facts: Sequence[Mapping[str, Any]], different: Sequence[str]
) -> list[str]:
    """Those that differ; weights, classes and settings only if one checkpoint, data set, or method
    of an evaluation has several."""
    of_checkpoint = (WEIGHTS, *found[0].first.model)
    owners = dict.fromkeys(of_checkpoint, ("checkpoint",)) | {CLASSES: ("dataset",)}
    shown = []
    for name in different:
        usual = ("evaluation",) if name in FACTS else ("evaluation", "method")
        known = facts if name != CLASSES else [one for one in facts if one[name]]  # boxes have none
        whose = [tuple(one.get(fact) for fact in owners.get(name, usual)) for one in known]
        values = {(who, str(one.get(name))) for who, one in zip(whose, known, strict=True)}
        always_shown = name in FACTS and name != "method"
        if always_shown or len(values) > len(set(whose)):
            shown.append(name)
    return shown if {"checkpoint", "residual"} & set(shown) else ["checkpoint", *shown]


def _all_facts(entry: Entry) -> dict[str, Any]:
    first = entry.first
    facts = {name: value for name, value in entry.facts.items() if name != "seed"}
    settings = {name: v for name, v in first.settings.items() if name not in FACTS}
    images = {name: count for name, (count, _) in first.images.items()}
    weights = {WEIGHTS: first.sha256[:12]}
    classes = {CLASSES: first.result.dataset.get("classes")}
    return {**facts, **classes, **settings, **first.computing, **first.model, **images, **weights}
