"""A table to read: on a screen, as Markdown, as LaTeX."""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from skipbench.errors import UsageError, printable
from skipbench.results.tables.structure import FORMATS, Table, TableCell, as_csv
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
        content = [table.to_json() for table in tables]
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if format == "csv":
        return as_csv(tables)
    if format == "latex":
        text = "\n".join(map(latex, tables))
        return text if fragment else LATEX_DOCUMENT % text
    kinds: dict[str, Callable[[Table], str]] = {"md": markdown, "rich": screen}
    return "\n".join(map(kinds[format], tables))


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
    for cells in body(table, lambda label: escape(printable(label)), _rich_cell):
        made.add_row(*cells)
    return made


def _rich_cell(cell: TableCell, table: Table) -> str:
    from rich.markup import escape

    value, more = cell_parts(cell, table)
    value = f"[bold]{value}[/bold]" if cell.best else value
    return value + raised(cell.mark) + escape(more)


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
    """Each name over its columns, and a rule below it."""
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
    """Letters that the usual fonts lack are written as their code point, so that it compiles."""
    return "".join(LATEX_SIGNS.get(sign) or _latex_sign(sign) for sign in " ".join(text.split()))


def _latex_sign(sign: str) -> str:
    known = sign.isprintable() if sign.isascii() else "À" <= sign <= "ÿ" and sign.isalpha()
    return sign if known else f"(U+{ord(sign):04X})"
