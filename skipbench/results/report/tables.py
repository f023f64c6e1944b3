"""The tables of the page, from `tables`: every layout that the records can fill, and `plain`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from skipbench.errors import UsageError
from skipbench.results.scores import Entry
from skipbench.results.tables import Table, tables
from skipbench.results.tables.layouts import LAYOUTS
from skipbench.results.tables.render import legend

MOST_BY_PROTOCOL = 6  # tables of one layout; beyond, `plain` shows them better
NAMES = {
    "table2": "Table 2", "table3": "Table 3", "table4": "Table 4", "figure3": "Figure 3",
    "plain": "All figures",
}  # fmt: skip
COPIES = (("latex", "LaTeX"), ("csv", "CSV"), ("md", "Markdown"))


def page_tables(found: Sequence[Entry]) -> list[dict[str, Any]]:
    made = [one for layout in LAYOUTS for one in _of_layout(found, layout)]
    stored = [figure.stored for entry in found for figure in entry.figures]
    made += tables(stored, layout="plain") if stored else []
    return [_shown(one, f"table-{i}") for i, one in enumerate(made)]


def _of_layout(found: Sequence[Entry], layout: str) -> list[Table]:
    """None where the records do not fit: `plain` has them all. One figure alone is no table."""
    wanted = LAYOUTS[layout].evaluation
    entries = [entry for entry in found if entry.facts["evaluation"] == wanted]
    stored = [figure.stored for entry in entries for figure in entry.figures]
    for by in (None, "protocol"):
        try:
            made = tables(stored, layout=layout, by=by, compact=True) if stored else []
        except UsageError:  # several protocols, or several records for one cell
            continue
        return [one for one in made if _figures(one) > 1] if len(made) <= MOST_BY_PROTOCOL else []
    return []


def _figures(table: Table) -> int:
    return sum(cell.entry is not None for row in table.rows for cell in row.cells)


def _shown(made: Table, anchor: str) -> dict[str, Any]:
    entries = [cell.entry for row in made.rows for cell in row.cells if cell.entry]
    ci = any(entry.interval or entry.spread is not None for entry in entries)
    made = replace(made, ci=ci)
    return {
        "anchor": anchor,
        "name": NAMES[made.layout],
        "table": made,
        "groups": _groups(made),
        "notes": legend(replace(made, footnotes=())),
        "copies": [
            (f"{anchor}-{format}", name, made.text(format, fragment=True))
            for format, name in COPIES
        ],
    }


def _groups(made: Table) -> list[tuple[str, int]]:
    """The upper header, where there is one: its words and how many columns each spans."""
    if max(map(len, made.columns), default=1) < 2:
        return []
    spans: list[tuple[str, int]] = []
    for path in made.columns:
        if spans and spans[-1][0] == path[0]:
            spans[-1] = (path[0], spans[-1][1] + 1)
        else:
            spans.append((path[0], 1))
    return spans
