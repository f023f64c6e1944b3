"""A table as text: for a screen, as Markdown, CSV or JSON."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from skipbench.console import printable
from skipbench.errors import UsageError
from skipbench.results.tables.structure import FORMATS, Table, TableCell
from skipbench.results.words import DASH, signed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

RAISED = dict(zip("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True))


def render(tables: Sequence[Table], format: str, *, fragment: bool = False) -> str:
    """All of them as one text. fragment: LaTeX without the document around it."""
    if format not in FORMATS:
        raise UsageError(f"no format {format!r}; give {', '.join(FORMATS)}")
    if format == "json":
        return json.dumps([to_json(table) for table in tables], indent=2, ensure_ascii=False) + "\n"
    if format == "csv":
        return as_csv(tables)
    if format == "latex":
        from skipbench.results.tables.latex import document

        return document(tables, fragment)
    kinds: dict[str, Callable[[Table], str]] = {"md": markdown, "rich": screen}
    return "\n".join(map(kinds[format], tables))


def cell_parts(cell: TableCell, table: Table) -> tuple[str, str, str]:
    """The score; with --ci its spread and interval; with --paper the paper's."""
    entry, value, ci, paper = cell.entry, DASH, "", ""
    if entry:
        value = f"{entry.value:.1f}"
        if table.ci:
            ends = entry.interval
            ci = "" if entry.spread is None else f"±{entry.spread:.1f}"
            ci += f" [{ends[0]:.1f}, {ends[1]:.1f}]" if ends else ""
    if table.with_paper and cell.paper is not None:
        moved = "" if cell.difference is None else f", {signed(cell.difference)}"
        paper = f" ({cell.paper:.1f}{moved})"
    return value, ci, paper


def row_labels(table: Table) -> list[tuple[str, ...]]:
    """Without labels that stand above already, but always with the last one."""
    shown: list[tuple[str, ...]] = []
    before: tuple[str, ...] = ()
    for row in table.rows:
        same = 0
        while table.layout != "plain" and same < len(row.labels) - 1 and same < len(before):
            if row.labels[same] != before[same]:
                break
            same += 1
        shown.append(("",) * same + row.labels[same:])
        before = row.labels
    return shown


def brackets(table: Table) -> list[str]:
    """What stands in them."""
    lines = []
    if table.ci:
        lines.append(
            "in square brackets: 95 % interval over images (of several seeds, the mean of theirs); "
            "±: deviation over seeds"
        )
    if table.with_paper:
        lines.append("in brackets: the paper's figure, and the difference to it")
    return lines


# -- a screen


def rich_table(table: Table) -> "RichTable":
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    levels = max(map(len, table.columns))
    for name in table.stub:
        made.add_column("\n" * (levels - 1) + escape(name), no_wrap=True)
    before = ""
    for path in table.columns:
        top = "" if levels > 1 and path[0] == before else path[0]
        before = path[0]
        made.add_column(escape("\n".join([top, *path[1:]])), justify="right", no_wrap=True)
    for row, labels in zip(table.rows, row_labels(table), strict=True):
        cells = []
        for cell in row.cells:
            value, ci, paper = cell_parts(cell, table)
            bold = f"[bold]{value}[/bold]" if cell.best else value
            cells.append(bold + raised(cell.mark) + escape(ci + paper))
        made.add_row(*(escape(printable(label)) for label in labels), *cells)
    return made


def show(table: Table, console: "Console") -> None:
    """console: wide enough; what does not fit would be cut off."""
    if table.title:
        console.print(printable(table.title), style="bold", markup=False)
    console.print(rich_table(table))
    notes = [f"{raised(mark)} {text}" if mark else text for mark, text in table.footnotes]
    for line in [*brackets(table), *notes]:
        console.print(printable(line), markup=False, style="dim")


def screen(table: Table) -> str:
    """As on a terminal, without colour."""
    from rich.console import Console

    out = io.StringIO()
    show(table, Console(file=out, width=1000, color_system=None, highlight=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip()) + "\n"


def raised(mark: str) -> str:
    """ "a" → "ᵃ"; there is no raised q."""
    return "".join(RAISED.get(letter, letter) for letter in mark)


# -- Markdown


def markdown(table: Table) -> str:
    lines = [f"**{md(table.title)}**", ""] if table.title else []
    headers = [*table.stub, *(" ".join(path) for path in table.columns)]
    lines.append(md_row(map(md, headers)))
    lines.append(md_row(["---"] * len(table.stub) + ["---:"] * len(table.columns)))
    for row, labels in zip(table.rows, row_labels(table), strict=True):
        cells = []
        for cell in row.cells:
            value, ci, paper = cell_parts(cell, table)
            value = f"**{value}**" if cell.best else value
            marks = f"<sup>{cell.mark}</sup>" if cell.mark else ""
            cells.append(f"{value}{marks}{ci}{paper}")
        lines.append(md_row([*map(md, labels), *cells]))
    notes = [f"<sup>{mark}</sup> {md(text)}" for mark, text in table.footnotes if mark]
    notes += [md(text) for text in brackets(table)]
    notes += [md(text) for mark, text in table.footnotes if not mark]
    return "\n".join([*lines, *(["", "  \n".join(notes)] if notes else [])]) + "\n"


def md_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def md(text: str) -> str:
    """Escaped: a file may have any name."""
    text = printable(text)
    for sign in "\\`*_[]|":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.replace("<", "&lt;").replace(">", "&gt;").split())


# -- CSV and JSON


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


def to_json(table: Table) -> dict[str, Any]:
    rows = [
        {"labels": row.labels, "cells": [_cell_json(cell, table.with_paper) for cell in row.cells]}
        for row in table.rows
    ]
    return {
        "layout": table.layout,
        "title": table.title,
        "stub": table.stub,
        "columns": table.columns,
        "rows": rows,
        "footnotes": [{"mark": mark or None, "text": text} for mark, text in table.footnotes],
    }


def _cell_json(cell: TableCell, with_paper: bool) -> dict[str, Any]:
    found = cell.entry.to_json() if cell.entry else {"value": None}
    found |= {"best": cell.best, "mark": cell.mark or None}
    return found | ({"paper": cell.paper, "difference": cell.difference} if with_paper else {})
