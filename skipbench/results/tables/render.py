"""A table as text: for a screen, as Markdown, LaTeX, CSV, JSON or YAML."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from skipbench.errors import UsageError, printable
from skipbench.results.tables.model_index import model_index
from skipbench.results.tables.structure import FORMATS, Table, TableCell
from skipbench.results.words import DASH, signed

RAISED = dict(zip("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True))


def render(tables: Sequence[Table], format: str, *, fragment: bool = False) -> str:
    """All of them as one text. fragment: LaTeX without the document around it."""
    if format not in FORMATS:
        raise UsageError(f"no format {format!r}; give {', '.join(FORMATS)}")
    if format == "json":
        content = [table.to_json() for table in tables]
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if format in ("csv", "model-index"):
        return as_csv(tables) if format == "csv" else model_index(tables)
    writers: dict[str, Callable[[Table], str]] = {"md": markdown, "rich": screen, "latex": latex}
    text = "\n".join(map(writers[format], tables))
    return LATEX_DOCUMENT % text if format == "latex" and not fragment else text


def cell_parts(cell: TableCell, table: Table) -> tuple[str, str]:
    """The score; and with --ci its spread and interval, with --paper the paper's."""
    entry, more = cell.entry, ""
    if entry and table.ci:
        more += "" if entry.spread is None else f"±{entry.spread:.1f}"
        more += " [{:.1f}, {:.1f}]".format(*entry.interval) if entry.interval else ""
    if table.with_paper and cell.paper is not None:
        moved = "" if cell.difference is None else f", {signed(cell.difference)}"
        more += f" ({cell.paper:.1f}{moved})"
    return f"{entry.value:.1f}" if entry else DASH, more


def row_labels(table: Table) -> list[tuple[str, ...]]:
    """Without labels that repeat those above, except the last one."""
    shown: list[tuple[str, ...]] = []
    before: tuple[str, ...] = ()
    for row in table.rows:
        above = zip(row.labels[:-1], () if table.layout == "plain" else before, strict=False)
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], above)))
        shown.append(("",) * same + row.labels[same:])
        before = row.labels
    return shown


def brackets(table: Table) -> list[str]:
    """What numbers in brackets are."""
    lines = []
    if table.ci:
        lines.append(
            "in square brackets: 95 % interval over images (of several seeds, the mean of theirs); "
            "±: standard deviation over seeds"
        )
    if table.with_paper:
        lines.append("in brackets: the paper's figure, and the difference to it")
    return lines


def body(
    table: Table, escape: Callable[[str], str], cell: Callable[[TableCell, Table], str]
) -> list[list[str]]:
    """Labels and scores of each row."""
    return [
        [*map(escape, labels), *(cell(one, table) for one in row.cells)]
        for row, labels in zip(table.rows, row_labels(table), strict=True)
    ]


def notes(table: Table, escape: Callable[[str], str], mark: str) -> list[str]:
    """Footnotes with a mark first, those on the whole table last."""
    marked = [mark.format(letter) + escape(text) for letter, text in table.footnotes if letter]
    whole = [text for letter, text in table.footnotes if not letter]
    return [*marked, *map(escape, [*brackets(table), *whole])]


# -- CSV


def as_csv(tables: Sequence[Table]) -> str:
    """A column for each score, with columns for its interval and the paper's; footnotes in the last
    column. Several tables become one, with a column that names the table."""
    rows = [row for table in tables for row in _csv_rows(table, len(tables) > 1)]
    headers = list(dict.fromkeys(name for row in rows for name in row))
    headers.sort(key=lambda name: name == "remarks")
    out = io.StringIO()
    writer = csv.DictWriter(out, headers, restval="", lineterminator="\n")
    writer.writerow({name: no_formula(name) for name in headers})
    writer.writerows(rows)
    return out.getvalue()


def _csv_rows(table: Table, several: bool) -> list[dict[str, str]]:
    footnotes = dict(table.footnotes)
    more = ["low", "high", "deviation"] * table.ci + ["paper", "difference"] * table.with_paper
    rows = []
    for row in table.rows:
        line = {"table": no_formula(table.title)} if several else {}
        labels = ("" if label == DASH else no_formula(label) for label in row.labels)
        line |= zip(table.stub, labels, strict=True)
        remarks = []
        for path, cell in zip(table.columns, row.cells, strict=True):
            name = " ".join(path)
            numbers = zip(("", *more), _csv_numbers(cell, table), strict=True)
            line |= {f"{name} {kind}".rstrip(): number for kind, number in numbers}
            remarks += [f"{name}: {footnotes[cell.mark]}"] if cell.mark else []
        rows.append(line | {"remarks": no_formula("; ".join(remarks))})
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


def no_formula(text: str) -> str:
    """Quoted if a spreadsheet would run it."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


# -- a screen


def rich_table(table: Table) -> RichTable:
    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    levels = max(map(len, table.columns))
    for name in table.stub:
        made.add_column("\n" * (levels - 1) + escape(name), no_wrap=True)
    before = ""
    for path in table.columns:
        top = "" if levels > 1 and path[0] == before else path[0]
        before = path[0]
        made.add_column(escape("\n".join([top, *path[1:]])), justify="right", no_wrap=True)
    for cells in body(table, lambda label: escape(printable(label)), _rich_cell):
        made.add_row(*cells)
    return made


def _rich_cell(cell: TableCell, table: Table) -> str:
    value, more = cell_parts(cell, table)
    value = f"[bold]{value}[/bold]" if cell.best else value
    return value + raised(cell.mark) + escape(more)


def show(table: Table, console: Console) -> None:
    """console: wide enough for the table, as rich truncates cells."""
    if table.title:
        console.print(printable(table.title), style="bold", markup=False)
    console.print(rich_table(table))
    notes = [f"{raised(mark)} {text}" if mark else text for mark, text in table.footnotes]
    for line in [*brackets(table), *notes]:
        console.print(printable(line), markup=False, style="dim")


def screen(table: Table) -> str:
    """As on a terminal, without colour."""
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
    lines += map(md_row, body(table, md, _md_cell))
    if below := notes(table, md, "<sup>{}</sup> "):
        lines += ["", "  \n".join(below)]
    return "\n".join(lines) + "\n"


def _md_cell(cell: TableCell, table: Table) -> str:
    value, more = cell_parts(cell, table)
    value = f"**{value}**" if cell.best else value
    return value + (f"<sup>{cell.mark}</sup>" if cell.mark else "") + more


def md_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def md(text: str) -> str:
    """Escaped: a file may have any name."""
    text = printable(text)
    for sign in "\\`*_[]|":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.replace("<", "&lt;").replace(">", "&gt;").split())


# -- LaTeX, with booktabs


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


def latex(table: Table) -> str:
    stub, columns = len(table.stub), len(table.columns)
    lines = [r"\begin{table}[ht]", r"\centering", r"\small", r"\setlength{\tabcolsep}{4pt}"]
    if table.title:
        lines.append(rf"\caption{{{tex(table.title)}}}")
    lines += [rf"\begin{{tabular}}{{{'l' * stub}{'r' * columns}}}", r"\toprule"]
    if table.spans:
        lines += _upper_header(table)
    lines.append(_latex_row([*map(tex, table.stub), *(tex(path[-1]) for path in table.columns)]))
    lines.append(r"\midrule")
    for i, cells in enumerate(body(table, tex, _latex_cell)):
        if i and stub > 1 and cells[0] and table.layout != "plain":
            lines.append(r"\addlinespace")
        lines.append(_latex_row(cells))
    lines += [r"\bottomrule", r"\end{tabular}"]
    if below := notes(table, tex, r"\textsuperscript{{{}}}\,"):
        lines += [r"\par\smallskip\footnotesize", ".\\\\\n".join(below) + "."]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _upper_header(table: Table) -> list[str]:
    """Each name above its columns, with a rule below."""
    names, rules, at = [""] * len(table.stub), "", len(table.stub)
    for name, width in table.spans:
        names.append(rf"\multicolumn{{{width}}}{{c}}{{{tex(name)}}}")
        rules += rf"\cmidrule(lr){{{at + 1}-{at + width}}}"
        at += width
    return [_latex_row(names), rules]


def _latex_cell(cell: TableCell, table: Table) -> str:
    value, more = cell_parts(cell, table)
    value = rf"\textbf{{{tex(value)}}}" if cell.best else tex(value)
    marks = rf"\textsuperscript{{{cell.mark}}}" if cell.mark else ""
    small = rf"{{\scriptsize\,{tex(more)}}}" if more else ""
    return value + marks + small


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def tex(text: str) -> str:
    """Letters that the usual fonts lack are written as code points, so that it compiles."""
    return "".join(LATEX_SIGNS.get(sign) or _latex_sign(sign) for sign in " ".join(text.split()))


def _latex_sign(sign: str) -> str:
    known = sign.isprintable() if sign.isascii() else "À" <= sign <= "ÿ" and sign.isalpha()
    return sign if known else f"(U+{ord(sign):04X})"
