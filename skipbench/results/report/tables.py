"""The page's tables: every layout that the records fill, and one with all of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from skipbench.errors import UsageError
from skipbench.results.entries import Entry
from skipbench.results.tables import Table, tables
from skipbench.results.tables.layouts import LAYOUTS
from skipbench.results.tables.render import brackets

MOST_BY_PROTOCOL = 6  # tables of one layout; beyond, `plain` shows them better
COPIES = (("latex", "LaTeX"), ("csv", "CSV"), ("md", "Markdown"))


def page_tables(found: Sequence[Entry]) -> list[dict[str, Any]]:
    made = [one for layout in LAYOUTS for one in _of_layout(found, layout)]
    stored = [one for entry in found for one in entry.stored]
    made += tables(stored, layout="plain") if stored else []
    return [_shown(one, f"table-{i}") for i, one in enumerate(made)]


def _of_layout(found: Sequence[Entry], layout: str) -> list[Table]:
    """Empty if the records do not fit: `plain` has them all. One score alone is no table."""
    wanted = LAYOUTS[layout].evaluation
    stored = [one for e in found if e.facts["evaluation"] == wanted for one in e.stored]
    for by in (None, "protocol"):
        try:
            made = tables(stored, layout=layout, by=by, compact=True) if stored else []
        except UsageError:  # several protocols, or several records for one cell
            continue
        return [t for t in made if len(t.entries) > 1] if len(made) <= MOST_BY_PROTOCOL else []
    return []


def _shown(made: Table, anchor: str) -> dict[str, Any]:
    ci = any(entry.interval or entry.spread is not None for entry in made.entries)
    made = replace(made, ci=ci)
    layout = LAYOUTS.get(made.layout)
    return {
        "anchor": anchor,
        "name": layout.label if layout else "All scores",
        "table": made,
        "groups": _groups(made),
        "notes": brackets(made),
        "copies": [
            (f"{anchor}-{format}", name, made.text(format, fragment=True))
            for format, name in COPIES
        ],
    }


def _groups(made: Table) -> list[tuple[str, int]]:
    """The upper header, if there is one: its words and how many columns each spans."""
    if max(map(len, made.columns), default=1) < 2:
        return []
    tops = groupby(path[0] for path in made.columns)
    return [(name, len(list(group))) for name, group in tops]
