"""The layouts of the paper's tables, its published numbers, and records put into them.

table2    linear probe: features and optimizer against data set, epochs and variant
table3    linear probe: variant and depth against data set
table4    TokenCut: variant and depth against data set
figure3   TokenCut: optimizer against data set, epochs and variant
"""

import csv
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from skipbench.errors import UsageError
from skipbench.results.entries import Entry, differing, grouped
from skipbench.results.tables.structure import (
    WEIGHTS,
    Place,
    Row,
    Table,
    TableCell,
    label,
    marked,
    sort_key,
)
from skipbench.results.words import setting_text, value_text

log = logging.getLogger("skipbench")

DEPTHS = (("skip", 12), ("skipless", 12), ("skipless", 11), ("skipless", 10), ("skipless", 9))

Values = tuple[Any, ...]  # of the facts on an axis


@dataclass(frozen=True)
class Layout:
    """Which facts are on which axis, and the paper's values of the others."""

    name: str
    label: str  # as the paper calls it
    title: str
    evaluation: str
    rows: tuple[str, ...]  # facts
    columns: tuple[str, ...]  # the first is the group whose best score is bold
    usual: Mapping[str, Any] = field(default_factory=dict)  # the paper's, of facts on neither axis
    best_of_blocks: bool = False  # the paper reports the best block
    metric: str = "miou"
    notes: tuple[str, ...] = ()  # on the published numbers

    def place(self, facts: Mapping[str, Any]) -> tuple[Values, Values]:
        """Row and column."""
        row = tuple(facts[fact] for fact in self.rows)
        return row, tuple(facts[fact] for fact in self.columns)

    @property
    def paper_rows(self) -> list[Values]:
        return list(dict.fromkeys(row for name, row, _ in published() if name == self.name))

    @property
    def paper_columns(self) -> list[Values]:
        return list(dict.fromkeys(column for name, _, column in published() if name == self.name))

    def usual_at(self, row: Values, fact: str) -> Any:
        """The paper's value of a fact that is on neither axis; the epoch may depend on the row."""
        value = self.usual[fact]
        return value.get(row) if isinstance(value, Mapping) else value


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(
            name="table2",
            label="Table 2",
            title="Linear-probe segmentation, mIoU in percent",
            evaluation="probe",
            rows=("features", "optimizer"),
            columns=("dataset", "epoch", "residual"),
            usual={"depth": 12},
        ),
        Layout(
            name="table3",
            label="Table 3",
            title="Linear-probe segmentation by depth, mIoU in percent",
            evaluation="probe",
            rows=("residual", "depth"),
            columns=("dataset",),
            usual={
                "features": "multiscale",
                "optimizer": "AdamW",
                "epoch": {row: 300 if row[0] == "skip" else 200 for row in DEPTHS},
            },
            notes=(
                "the paper's text gives 200 epochs for Table 3; its 12-block rows are Table 2's "
                "multiscale AdamW figures, skip at 300 epochs and skipless at 200",
            ),
        ),
        Layout(
            name="table4",
            label="Table 4",
            title="TokenCut object discovery by depth, CorLoc in percent",
            evaluation="tokencut",
            rows=("residual", "depth"),
            columns=("dataset",),
            usual={
                "method": "tokencut",
                "optimizer": "AdamW",
                "epoch": {row: 300 if row[1] == 12 else 200 for row in DEPTHS},
            },
            best_of_blocks=True,
            metric="corloc",
            notes=(
                "the paper's text gives 200 epochs for Table 4; its 12-block skipless figures are "
                "those of Figure 3 at 300",
            ),
        ),
        Layout(
            name="figure3",
            label="Figure 3",
            title="TokenCut object discovery, CorLoc in percent",
            evaluation="tokencut",
            rows=("optimizer",),
            columns=("dataset", "epoch", "residual"),
            usual={"method": "tokencut", "depth": 12},
            best_of_blocks=True,
            metric="corloc",
        ),
    )
}


@cache
def published() -> Mapping[tuple[str, Values, Values], float]:
    """(layout, row, column) → the paper's number, in its order."""
    text = (files("skipbench.results") / "facts" / "paper.csv").read_text()
    found = {}
    for line in csv.DictReader(text.splitlines()):
        facts: dict[str, Any] = {**line, "depth": int(line["depth"])}
        facts["epoch"] = int(line["epoch"]) if line["epoch"] else None
        layout = LAYOUTS[line["layout"]]
        found[layout.name, *layout.place(facts)] = float(line["value"])
    return found


# -- records in a layout


def fill_layout(
    layout: Layout, found: Sequence[Entry], *, paper: bool = False, compact: bool = False
) -> Table:
    candidates = grouped(found, lambda entry: layout.place(entry.facts))
    choices = {place: _choose(layout, place[0], group) for place, group in candidates.items()}
    chosen = {place: entry for place, entry in choices.items() if entry}
    if left_out := len(found) - len(chosen):
        log.info("%d scores are not in %s; --layout plain shows all", left_out, layout.name)
    rows = _axis(layout.paper_rows, {row for row, _ in chosen}, compact)
    columns = _axis(layout.paper_columns, {column for _, column in chosen}, compact)
    if "epoch" in layout.columns:
        columns = _by_epoch(columns, layout)
    printed = published() if paper else {}

    def cell(row: Values, column: Values) -> TableCell:
        entry, number = chosen.get((row, column)), printed.get((layout.name, row, column))
        if entry and entry.facts["method"] != layout.usual.get("method", entry.facts["method"]):
            number = None  # of the paper's method
        return TableCell(entry, number)

    def compared(place: Place) -> Values:
        column = columns[place[1]]
        return (place[0], column[0]) if len(layout.columns) > 1 else column

    groups = grouped(product(range(len(rows)), range(len(columns))), compared)
    mixed = len({_computing(entry) for entry in chosen.values()}) > 1
    filled = tuple(
        Row(tuple(map(label, layout.rows, row)), tuple(cell(row, column) for column in columns))
        for row in rows
    )
    headers = tuple(_header(layout, column) for column in columns)
    return marked(
        Table(layout.name, layout.title, layout.rows, headers, filled),
        groups.values(),
        lambda row, entry: _off_axis(layout, rows[row], entry) + [_computing(entry)] * mixed,
        layout.notes if paper else (),
    )


def _choose(layout: Layout, row: Values, group: list[Entry]) -> Entry | None:
    """Of several, the one with the paper's off-axis facts and complete data; None if they differ in
    such a fact and none has the paper's."""
    for fact in layout.usual:
        usual = layout.usual_at(row, fact)
        group = [entry for entry in group if entry.facts[fact] == usual] or group
    group = [entry for entry in group if not entry.first.partial] or group
    facts = differing([_identity(entry) for entry in group])
    if layout.best_of_blocks and set(facts) == {"features"}:
        return _best_block(group)
    if len(group) == 1:
        return group[0]
    if set(facts) & set(layout.usual):
        return None
    ways = "; ".join(f"{k}: {' or '.join(map(value_text, v))}" for k, v in facts.items())
    raise UsageError(
        f"{len(group)} records for one cell of {layout.name} ({setting_text(row)}). They differ "
        f"in {ways}.\nChoose with --where FACT=VALUE, give single records (files), or see all with "
        "--layout plain."
    )


def _best_block(group: Sequence[Entry]) -> Entry:
    """The record of all these blocks, which has made this choice; else the best of its parts."""
    blocks = [set(entry.first.result.features.get("blocks") or ()) for entry in group]
    for entry, own in zip(group, blocks, strict=True):
        if entry.first.blocks and own == set().union(*blocks):
            return entry
    best = max(group, key=lambda entry: entry.value)
    return replace(
        best, remark=f"best of {len(group)} choices of blocks, chosen on the evaluated images"
    )


def _identity(entry: Entry) -> dict[str, Any]:
    """Everything in which entries of one cell may differ."""
    first = entry.first
    facts = {name: value for name, value in entry.facts.items() if name != "seed"}
    weights = {WEIGHTS: first.sha256[:12]}
    return {**facts, **weights, **first.model, **first.computing, **first.images}


def _computing(entry: Entry) -> str:
    """ "computed in bf16, kept in fp16"; streamed features are not kept."""
    precision, stored = (entry.first.computing[name] for name in ("precision", "store_dtype"))
    return f"computed in {precision}" + (f", kept in {stored}" if stored else "")


def _off_axis(layout: Layout, row: Values, entry: Entry) -> list[str]:
    """Facts on neither axis that differ from the paper's."""
    found = []
    for fact in layout.usual:
        usual, value = layout.usual_at(row, fact), entry.facts[fact]
        if value != usual and not (fact == "features" and layout.best_of_blocks):
            found.append(f"{fact} {label(fact, value)}" + (f", not {usual}" if usual else ""))
    return found


def _axis(paper: Sequence[Values], found: set[Values], compact: bool) -> list[Values]:
    """The paper's values, then others; those of one data set together."""
    order = {value: i for i, place in enumerate(paper) for value in place if value is not None}
    kept = [place for place in paper if place in found or not compact]
    kept += sorted(found - set(kept), key=lambda p: [(order.get(v, 99), sort_key(v)) for v in p])
    if paper and len(paper[0]) > 1:  # new values of a known group go to its end
        groups = list(dict.fromkeys(place[0] for place in kept))
        kept.sort(key=lambda place: groups.index(place[0]))
    return kept


def _by_epoch(columns: list[Values], layout: Layout) -> list[Values]:
    """Sorts the columns of a data set by epoch if it has others than the paper's."""
    other = {column[0] for column in columns if column not in layout.paper_columns}
    groups = list(dict.fromkeys(column[0] for column in columns))

    def key(column: Values) -> tuple[int, list[Any]]:
        by_epoch = [sort_key(value) for value in column[1:]] if column[0] in other else []
        return groups.index(column[0]), by_epoch

    return sorted(columns, key=key)


def _header(layout: Layout, column: Values) -> tuple[str, ...]:
    words = [
        "? epochs" if fact == "epoch" and value is None else label(fact, value)
        for fact, value in zip(layout.columns, column, strict=True)
    ]
    return (words[0], " ".join(words[1:])) if len(words) > 1 else (words[0],)
