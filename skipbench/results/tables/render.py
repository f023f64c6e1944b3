"""A table as text: for a screen, Markdown, LaTeX, CSV or JSON."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from skipbench.errors import UsageError
from skipbench.results.tables.table import DASH, FORMATS, Cell, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

RAISED = dict(zip("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True))


def render(tables: Sequence[Table], format: str, *, fragment: bool = False) -> str:
    """One text for all of them. fragment: LaTeX without the document around it."""
    if format not in FORMATS:
        raise UsageError(f"no format {format!r}; give {', '.join(FORMATS)}")
    if format == "json":
        return json.dumps([to_json(table) for table in tables], indent=2, ensure_ascii=False) + "\n"
    if format == "latex":
        text = "\n".join(map(latex, tables))
        return text if fragment else LATEX_DOCUMENT % text
    if format == "csv":
        return as_csv(tables)
    kinds: dict[str, Callable[[Table], str]] = {"md": markdown, "rich": screen}
    return "\n".join(map(kinds[format], tables))


def _figure(cell: Cell, table: Table) -> list[str]:
    """The figure itself, what belongs to it with --ci, and what with --paper."""
    entry, parts = cell.entry, [DASH, "", ""]
    if entry:
        parts[0] = f"{entry.value:.1f}"
        if table.ci:
            spread = "" if entry.spread is None else f"±{entry.spread:.1f}"
            ends = entry.interval
            parts[1] = spread + (f" [{ends[0]:.1f}, {ends[1]:.1f}]" if ends else "")
    if table.with_paper and cell.paper is not None:
        moved = "" if cell.difference is None else f", {signed(cell.difference)}"
        parts[2] = f" ({cell.paper:.1f}{moved})"
    return parts


def signed(value: float, digits: int = 1) -> str:
    """With a real minus, and no "−0.0"."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        text = f"{0:.{digits}f}"
    return text.replace("-", "−")


def chance(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def _labels(table: Table) -> list[tuple[str, ...]]:
    """A label that stands above already is not said again, but for the last one."""
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


def legend(table: Table) -> list[str]:
    """The footnotes, one line each; and what stands in brackets."""
    lines = [f"{raised(mark)} {text}" if mark else text for mark, text in table.footnotes]
    return [*brackets(table), *lines]


def brackets(table: Table) -> list[str]:
    """What they mean."""
    lines = []
    if table.ci:
        lines.append(
            "in square brackets: 95 % interval over images (of several seeds, the mean of theirs); "
            "±: deviation over seeds"
        )
    if table.with_paper:
        lines.append("in brackets: the paper's figure, and the difference to it")
    return lines


def printable(text: str) -> str:
    """Signs that would steer a terminal, or that are no text, written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
    for row, labels in zip(table.rows, _labels(table), strict=True):
        cells = []
        for cell in row.cells:
            value, ci, paper = _figure(cell, table)
            bold = f"[bold]{value}[/bold]" if cell.best else value
            cells.append(bold + raised(cell.mark) + escape(ci + paper))
        made.add_row(*(escape(printable(label)) for label in labels), *cells)
    return made


def show(table: Table, console: "Console") -> None:
    """console: wide enough; what does not fit would be cut off."""
    if table.title:
        console.print(printable(table.title), style="bold", markup=False)
    console.print(rich_table(table))
    for line in legend(table):
        console.print(printable(line), markup=False, style="dim")


def screen(table: Table) -> str:
    """As it stands on a terminal, without colour."""
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
    for row, labels in zip(table.rows, _labels(table), strict=True):
        cells = []
        for cell in row.cells:
            value, ci, paper = _figure(cell, table)
            value = f"**{value}**" if cell.best else value
            marks = f"<sup>{cell.mark}</sup>" if cell.mark else ""
            cells.append(f"{value}{marks}{ci}{paper}")
        lines.append(md_row([*map(md, labels), *cells]))
    notes = [f"<sup>{mark}</sup> {md(text)}" for mark, text in table.footnotes if mark]
    notes += [md(text) for text in brackets(table)] + [
        md(text) for mark, text in table.footnotes if not mark
    ]
    return "\n".join([*lines, *(["", "  \n".join(notes)] if notes else [])]) + "\n"


def md_row(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def md(text: str) -> str:
    """Whatever a file was called, it stays text."""
    text = printable(text)
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, "\\" + sign if sign not in "<>" else f"&{'lg'[sign == '>']}t;")
    return " ".join(text.split())


# -- LaTeX

LATEX_DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs}
\usepackage[T1]{fontenc}
\usepackage[landscape,margin=1cm]{geometry}
\begin{document}
%s\end{document}
"""

LATEX_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "–": "--", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "…": r"\dots{}",
    "’": "'", "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip


def tex(text: str) -> str:
    """Letters that LaTeX's usual fonts lack are given by their number, so that it compiles."""
    signs = []
    for sign in " ".join(text.split()):
        if sign in LATEX_SIGNS:
            signs.append(LATEX_SIGNS[sign])
        elif (sign.isascii() and sign.isprintable()) or ("À" <= sign <= "ÿ" and sign.isalpha()):
            signs.append(sign)
        else:
            signs.append(f"(U+{ord(sign):04X})")
    return "".join(signs)


def latex(table: Table) -> str:
    """booktabs, data sets over their columns. Needs \\usepackage{booktabs}."""
    stub, columns = len(table.stub), len(table.columns)
    spans = _spans([path[0] for path in table.columns])
    levels = max(map(len, table.columns))
    lines = [r"\begin{table}[ht]", r"\centering", r"\small", r"\setlength{\tabcolsep}{4pt}"]
    if table.title:
        lines.append(rf"\caption{{{tex(table.title)}}}")
    lines += [rf"\begin{{tabular}}{{{'l' * stub}{'r' * columns}}}", r"\toprule"]
    if levels > 1:
        tops = [rf"\multicolumn{{{n}}}{{c}}{{{tex(name)}}}" for name, _, n in spans]
        lines.append(_tex_row([""] * stub + tops))
        rules = [rf"\cmidrule(lr){{{stub + at + 1}-{stub + at + n}}}" for _, at, n in spans]
        lines.append("".join(rules))
    lines.append(_tex_row([*map(tex, table.stub), *(tex(path[-1]) for path in table.columns)]))
    lines.append(r"\midrule")
    for i, (row, labels) in enumerate(zip(table.rows, _labels(table), strict=True)):
        if i and len(labels) > 1 and labels[0] and table.layout != "plain":
            lines.append(r"\addlinespace")
        lines.append(_tex_row([*map(tex, labels), *(_tex_cell(c, table) for c in row.cells)]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [rf"\textsuperscript{{{mark}}}\,{tex(text)}" for mark, text in table.footnotes if mark]
    notes += [tex(text) for text in brackets(table)]
    notes += [tex(text) for mark, text in table.footnotes if not mark]
    if notes:
        lines += [r"\par\smallskip\footnotesize", *(rf"{note}.\\" for note in notes[:-1])]
        lines.append(f"{notes[-1]}.")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _tex_cell(cell: Cell, table: Table) -> str:
    value, ci, paper = _figure(cell, table)
    value = rf"\textbf{{{tex(value)}}}" if cell.best else tex(value)
    marks = rf"\textsuperscript{{{cell.mark}}}" if cell.mark else ""
    small = rf"{{\scriptsize\,{tex(ci + paper)}}}" if ci or paper else ""
    return value + marks + small


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _spans(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """(name, first, how many) of neighbours with one name."""
    spans: list[tuple[str, int, int]] = []
    for i, name in enumerate(names):
        if spans and spans[-1][0] == name:
            spans[-1] = (name, spans[-1][1], spans[-1][2] + 1)
        else:
            spans.append((name, i, 1))
    return spans


# -- for machines


def as_csv(tables: Sequence[Table]) -> str:
    """A figure a column, its interval and the paper's beside it, remarks in the last column; of
    several tables one, with a column that says which."""
    rows = [row for table in tables for row in _csv_rows(table, len(tables) > 1)]
    headers = list(dict.fromkeys(name for row in rows for name in row))
    headers.sort(key=lambda name: name == "remarks")
    out = io.StringIO()
    writer = csv.DictWriter(out, headers, restval="", lineterminator="\n")
    writer.writerow({name: _csv(name) for name in headers})
    writer.writerows(rows)
    return out.getvalue()


def _csv_rows(table: Table, several: bool) -> list[dict[str, str]]:
    remarks = dict(table.footnotes)
    rows = []
    for row in table.rows:
        cells = {"table": _csv(table.title)} if several else {}
        cells |= {name: _csv(label) for name, label in zip(table.stub, row.labels, strict=True)}
        told = []
        for path, cell in zip(table.columns, row.cells, strict=True):
            name = " ".join(path)
            names = [name, *(f"{name} {kind}" for kind in _extra_columns(table))]
            cells |= dict(zip(names, _csv_cell(cell, table), strict=True))
            told += [f"{name}: {remarks[cell.mark]}"] if cell.mark else []
        rows.append(cells | {"remarks": _csv("; ".join(told))})
    return rows


def _extra_columns(table: Table) -> list[str]:
    return ["low", "high", "deviation"] * table.ci + ["paper", "difference"] * table.with_paper


def _csv_cell(cell: Cell, table: Table) -> list[str]:
    entry = cell.entry
    values: list[float | None] = [entry.value if entry else None]
    if table.ci:
        low, high = (entry.interval if entry else None) or (None, None)
        values += [low, high, entry.spread if entry else None]
    if table.with_paper:
        values += [cell.paper, cell.difference]
    return ["" if value is None else f"{round(value, 4):.10g}" for value in values]


def _csv(text: str) -> str:
    """A spreadsheet takes what begins so for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def to_json(table: Table) -> dict[str, Any]:
    return {
        "layout": table.layout,
        "title": table.title,
        "stub": table.stub,
        "columns": table.columns,
        "rows": [
            {
                "labels": row.labels,
                "cells": [
                    (cell.entry.to_json() if cell.entry else {"value": None})
                    | {"best": cell.best, "mark": cell.mark or None}
                    | (
                        {"paper": cell.paper, "difference": cell.difference}
                        if table.with_paper
                        else {}
                    )
                    for cell in row.cells
                ],
            }
            for row in table.rows
        ],
        "footnotes": [{"mark": mark or None, "text": text} for mark, text in table.footnotes],
    }
