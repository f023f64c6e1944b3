"""The paper's layouts filled with figures: which one stands in a cell, or none."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from skipbench.errors import UsageError
from skipbench.results.tables.table import Cell, Row, Table, finish, plain_words, sha_of, sortable, word
from skipbench.results.scores import Entry, differing
from skipbench.results.tables.layouts import Layout, Place, published

log = logging.getLogger("skipbench")


def filled(
    layout: Layout, found: Sequence[Entry], *, paper: bool = False, compact: bool = False
) -> Table:
    places: dict[tuple[Place, Place], list[Entry]] = {}
    for entry in found:
        row = tuple(entry.facts[fact] for fact in layout.rows)
        column = tuple(entry.facts[fact] for fact in layout.columns)
        places.setdefault((row, column), []).append(entry)
    chosen = {
        place: one
        for place, group in places.items()
        if (one := _one(layout, place[0], group)) is not None
    }
    if aside := len(found) - len(chosen):
        log.info("figures that %s does not show: %d; --layout plain has all", layout.name, aside)
    rows = _axis(layout.paper_rows, {row for row, _ in chosen}, compact)
    columns = _by_epoch(_axis(layout.paper_columns, {c for _, c in chosen}, compact), layout)
    value_of = published() if paper else {}
    mixed = len({_computing(entry) for entry in chosen.values()}) > 1
    cells = [
        [
            Cell(one := chosen.get((r, c)), _beside(layout, one, value_of.get((layout.name, r, c))))
            for c in columns
        ]
        for r in rows
    ]
    groups: dict[Any, list[tuple[int, int]]] = {}
    for r, row in enumerate(rows):
        for c, column in enumerate(columns):
            key = (row, column[0]) if len(layout.columns) > 1 else column
            groups.setdefault(key, []).append((r, c))
    return finish(
        Table(
            layout.name,
            layout.title,
            layout.rows,
            tuple(_header(layout, column) for column in columns),
            tuple(
                Row(tuple(word(f, v) for f, v in zip(layout.rows, row, strict=True)), tuple(line))
                for row, line in zip(rows, cells, strict=True)
            ),
        ),
        groups.values(),
        lambda row, entry: _off_axis(layout, rows[row], entry) + [_computing(entry)] * mixed,
        layout.notes if paper else (),
    )


def _beside(layout: Layout, entry: Entry | None, value: float | None) -> float | None:
    """The paper's figure; not beside one of another method than the paper's."""
    method = layout.usual.get("method")
    return None if entry and method and entry.facts["method"] != method else value


def _one(layout: Layout, row: Place, group: list[Entry]) -> Entry | None:
    """The figure of a cell. Of several, that of the paper's off-axis facts, and whole data; none
    where they differ in such a fact and the paper's is not among them."""
    for fact in layout.usual:
        usual = layout.usual_at(row, fact)
        group = [entry for entry in group if entry.facts[fact] == usual] or group
    group = [entry for entry in group if not entry.first.partial] or group
    if layout.best_of_blocks and len(group) > 1 and _differ_only_in_features(group):
        return _best_block(group)
    if len(group) == 1:
        return group[0]
    facts = differing([_identity(entry) for entry in group])
    if set(facts) & set(layout.usual):
        return None
    told = "; ".join(f"{k}: {' or '.join(map(plain_words, v))}" for k, v in facts.items())
    raise UsageError(
        f"{len(group)} records for one cell of {layout.name} ({', '.join(map(str, row))}). They "
        f"differ in {told}.\nChoose with --where FACT=VALUE, tell them apart with --label name=…, "
        "or see all with --layout plain."
    )


def _best_block(group: Sequence[Entry]) -> Entry:
    """A record of all blocks has chosen among what the others have. Of others, the best."""
    held = [set(entry.first.result.features.get("blocks") or ()) for entry in group]
    for entry, blocks in zip(group, held, strict=True):
        if entry.first.blocks and blocks == set().union(*held):
            return entry
    best = max(group, key=lambda entry: entry.value)
    return replace(best, remark=f"best of {len(group)} choices of blocks, chosen on the answer")


def _identity(entry: Entry) -> dict[str, Any]:
    """All in which figures of one place in a table may differ."""
    first = entry.first
    facts = {name: value for name, value in entry.facts.items() if name != "seed"}
    return {
        **facts,
        "weights (sha256)": sha_of(entry),
        **first.model,
        **first.computing,
        **first.images,
    }


def _differ_only_in_features(group: Sequence[Entry]) -> bool:
    return set(differing([_identity(entry) for entry in group])) == {"features"}


def _computing(entry: Entry) -> str:
    """Features that are not stored are kept in nothing."""
    precision, kept = (entry.first.computing[name] for name in ("precision", "store_dtype"))
    return f"computed in {precision}" + (f", kept in {kept}" if kept else "")


def _axis(paper: Sequence[Place], there: set[Place], compact: bool) -> list[Place]:
    """The paper's places, then others; of a data set all together."""
    order = {value: i for i, place in enumerate(paper) for value in place if value is not None}
    kept = [place for place in paper if place in there or not compact]
    kept += sorted(there - set(kept), key=lambda p: [(order.get(v, 99), sortable(v)) for v in p])
    if paper and len(paper[0]) > 1:  # a new entry of a known group goes to its end
        groups = list(dict.fromkeys(place[0] for place in kept))
        kept.sort(key=lambda place: groups.index(place[0]))
    return kept


def _by_epoch(columns: list[Place], layout: Layout) -> list[Place]:
    """Of a data set with other epochs than the paper's, in the order of time."""
    if "epoch" not in layout.columns:
        return columns
    other = {column[0] for column in columns if column not in layout.paper_columns}
    groups = list(dict.fromkeys(column[0] for column in columns))
    return [
        column
        for dataset in groups
        for column in sorted(
            (c for c in columns if c[0] == dataset),
            key=lambda c: [sortable(v) for v in c[1:]] if c[0] in other else [],
        )
    ]


def _header(layout: Layout, column: Place) -> tuple[str, ...]:
    words = [
        "? epochs" if fact == "epoch" and value is None else word(fact, value)
        for fact, value in zip(layout.columns, column, strict=True)
    ]
    return (words[0], " ".join(words[1:])) if len(words) > 1 else (words[0],)


def _off_axis(layout: Layout, row: Place, entry: Entry) -> list[str]:
    """Facts that no axis shows and that are not the paper's."""
    found = []
    for fact in layout.usual:
        usual, value = layout.usual_at(row, fact), entry.facts[fact]
        if value != usual and not (fact == "features" and layout.best_of_blocks):
            found.append(f"{fact} {word(fact, value)}" + (f", not {usual}" if usual else ""))
    return found
