"""Tables in LaTeX, with booktabs; data sets span their columns."""

from collections.abc import Sequence
from itertools import groupby

from skipbench.results.tables.render import brackets, cell_parts, row_labels
from skipbench.results.tables.structure import Table, TableCell

DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs}
\usepackage[T1]{fontenc}
\usepackage[landscape,margin=1cm]{geometry}
\begin{document}
%s\end{document}
"""

SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "–": "--", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "…": r"\dots{}",
    "’": "'", "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip


def document(tables: Sequence[Table], fragment: bool) -> str:
    """fragment: the tables alone, which need \\usepackage{booktabs}."""
    text = "\n".join(map(latex, tables))
    return text if fragment else DOCUMENT % text


def latex(table: Table) -> str:
    stub, columns = len(table.stub), len(table.columns)
    lines = [r"\begin{table}[ht]", r"\centering", r"\small", r"\setlength{\tabcolsep}{4pt}"]
    if table.title:
        lines.append(rf"\caption{{{tex(table.title)}}}")
    lines += [rf"\begin{{tabular}}{{{'l' * stub}{'r' * columns}}}", r"\toprule"]
    if max(map(len, table.columns)) > 1:
        lines += _upper_header(table)
    lines.append(_row([*map(tex, table.stub), *(tex(path[-1]) for path in table.columns)]))
    lines.append(r"\midrule")
    for i, (row, labels) in enumerate(zip(table.rows, row_labels(table), strict=True)):
        if i and len(labels) > 1 and labels[0] and table.layout != "plain":
            lines.append(r"\addlinespace")
        lines.append(_row([*map(tex, labels), *(_cell(cell, table) for cell in row.cells)]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [rf"\textsuperscript{{{mark}}}\,{tex(text)}" for mark, text in table.footnotes if mark]
    notes += [tex(text) for text in brackets(table)]
    notes += [tex(text) for mark, text in table.footnotes if not mark]
    if notes:
        lines += [r"\par\smallskip\footnotesize", *(rf"{note}.\\" for note in notes[:-1])]
        lines.append(f"{notes[-1]}.")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _upper_header(table: Table) -> list[str]:
    """Each name over its columns, and a rule below it."""
    names, rules, at = [""] * len(table.stub), "", len(table.stub)
    for name, group in groupby(path[0] for path in table.columns):
        width = len(list(group))
        names.append(rf"\multicolumn{{{width}}}{{c}}{{{tex(name)}}}")
        rules += rf"\cmidrule(lr){{{at + 1}-{at + width}}}"
        at += width
    return [_row(names), rules]


def _cell(cell: TableCell, table: Table) -> str:
    value, ci, paper = cell_parts(cell, table)
    value = rf"\textbf{{{tex(value)}}}" if cell.best else tex(value)
    marks = rf"\textsuperscript{{{cell.mark}}}" if cell.mark else ""
    small = rf"{{\scriptsize\,{tex(ci + paper)}}}" if ci or paper else ""
    return value + marks + small


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def tex(text: str) -> str:
    """Letters that the usual fonts lack are written as their code point, so that it compiles."""
    signs = []
    for sign in " ".join(text.split()):
        if sign in SIGNS:
            signs.append(SIGNS[sign])
        elif (sign.isascii() and sign.isprintable()) or ("À" <= sign <= "ÿ" and sign.isalpha()):
            signs.append(sign)
        else:
            signs.append(f"(U+{ord(sign):04X})")
    return "".join(signs)
