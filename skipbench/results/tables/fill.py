"""Entries as tables: the paper's layouts filled, and any records in one plain table."""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from skipbench.errors import UsageError
from skipbench.results.entries import Entry, differing, grouped
from skipbench.results.scores import FACTS
from skipbench.results.tables.layouts import Layout, Values, published
from skipbench.results.tables.structure import (
    Place,
    Row,
    Table,
    TableCell,
    label,
    marked,
    sort_key,
)
from skipbench.results.words import setting_text

log = logging.getLogger("skipbench")

WEIGHTS = "weights (sha256)"


def fill_layout(
    layout: Layout, found: Sequence[Entry], *, paper: bool = False, compact: bool = False
) -> Table:
    chosen = _entry_by_place(layout, found)
    if aside := len(found) - len(chosen):
        log.info("%d scores are not in %s; --layout plain shows all", aside, layout.name)
    rows = _axis(layout.paper_rows, {row for row, _ in chosen}, compact)
    columns = _axis(layout.paper_columns, {column for _, column in chosen}, compact)
    columns = _by_epoch(columns, layout)
    printed = published() if paper else {}

    def cell(row: Values, column: Values) -> TableCell:
        entry = chosen.get((row, column))
        return TableCell(entry, _printed(layout, entry, printed.get((layout.name, row, column))))

    def compared(place: Place) -> Values:
        column = columns[place[1]]
        return (place[0], column[0]) if len(layout.columns) > 1 else column

    groups = grouped(product(range(len(rows)), range(len(columns))), compared)
    mixed = len({_computing(entry) for entry in chosen.values()}) > 1
    made = Table(
        layout.name,
        layout.title,
        layout.rows,
        tuple(_header(layout, column) for column in columns),
        tuple(
            Row(tuple(map(label, layout.rows, row)), tuple(cell(row, column) for column in columns))
            for row in rows
        ),
    )
    return marked(
        made,
        groups.values(),
        lambda row, entry: _off_axis(layout, rows[row], entry) + [_computing(entry)] * mixed,
        layout.notes if paper else (),
    )


def _printed(layout: Layout, entry: Entry | None, value: float | None) -> float | None:
    """The paper's number; none beside an entry of another method than the paper's."""
    method = layout.usual.get("method")
    return None if entry and method and entry.facts["method"] != method else value


# -- the entry of a cell


def _entry_by_place(layout: Layout, found: Sequence[Entry]) -> dict[tuple[Values, Values], Entry]:
    candidates = grouped(found, lambda entry: layout.place(entry.facts))
    chosen = {place: _choose(layout, place[0], group) for place, group in candidates.items()}
    return {place: entry for place, entry in chosen.items() if entry}


def _choose(layout: Layout, row: Values, group: list[Entry]) -> Entry | None:
    """Of several, the one with the paper's off-axis facts and whole data; none if they differ in
    such a fact and the paper's is not among them."""
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
    told = "; ".join(f"{k}: {' or '.join(map(setting_text, v))}" for k, v in facts.items())
    raise UsageError(
        f"{len(group)} records for one cell of {layout.name} ({', '.join(map(str, row))}). They "
        f"differ in {told}.\nChoose with --where FACT=VALUE, tell them apart with --label name=…, "
        "or see all with --layout plain."
    )


def _best_block(group: Sequence[Entry]) -> Entry:
    """A record of all blocks has chosen among those of the others; without one, the best."""
    blocks = [set(entry.first.result.features.get("blocks") or ()) for entry in group]
    for entry, own in zip(group, blocks, strict=True):
        if entry.first.blocks and own == set().union(*blocks):
            return entry
    best = max(group, key=lambda entry: entry.value)
    return replace(best, remark=f"best of {len(group)} choices of blocks, chosen on the answer")


def _identity(entry: Entry) -> dict[str, Any]:
    """All in which entries of one cell may differ."""
    first = entry.first
    facts = {name: value for name, value in entry.facts.items() if name != "seed"}
    weights = {"weights (sha256)": first.sha256[:12]}
    return {**facts, **weights, **first.model, **first.computing, **first.images}


# -- footnotes


def _computing(entry: Entry) -> str:
    """Features that are not stored have no stored precision."""
    precision, stored = (entry.first.computing[name] for name in ("precision", "store_dtype"))
    return f"computed in {precision}" + (f", kept in {stored}" if stored else "")


def _off_axis(layout: Layout, row: Values, entry: Entry) -> list[str]:
    """Facts that no axis shows and that are not the paper's."""
    found = []
    for fact in layout.usual:
        usual, value = layout.usual_at(row, fact), entry.facts[fact]
        if value != usual and not (fact == "features" and layout.best_of_blocks):
            found.append(f"{fact} {label(fact, value)}" + (f", not {usual}" if usual else ""))
    return found


# -- axes


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
    """A data set with other epochs than the paper's has its columns in the order of epochs."""
    if "epoch" not in layout.columns:
        return columns
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
    common = {n: facts[0][n] for n in FACTS if n in facts[0] and n not in {*shown, *different}}
    title = ", ".join(f"{name} {label(name, v)}" for name, v in common.items() if v is not None)
    header = tuple(("figure", name) if len(metrics) > 1 else (name,) for name in metrics)
    return marked(Table("plain", title, tuple(shown), header, tuple(rows)), groups.values())


def _shown_facts(
    found: Sequence[Entry], facts: Sequence[Mapping[str, Any]], different: Sequence[str]
) -> list[str]:
    """Of what differs, what no other column tells: the checkpoint's name stands for the model, and
    the evaluation's for its settings, unless one name has several."""
    told_by = dict.fromkeys(different, "evaluation")
    told_by |= dict.fromkeys((WEIGHTS, *found[0].first.model), "checkpoint")
    for fact in set(FACTS) - {"method"}:
        told_by.pop(fact, None)
    shown = [n for n in different if n not in told_by or _varies(facts, n, told_by[n])]
    return shown if {"checkpoint", "residual"} & set(shown) else ["checkpoint", *shown]


def _varies(facts: Sequence[Mapping[str, Any]], name: str, of: str) -> bool:
    """Whether one checkpoint or evaluation has several values of it."""
    owners = {one[of] for one in facts}
    return len({(one[of], str(one.get(name))) for one in facts}) > len(owners)


def _all_facts(entry: Entry) -> dict[str, Any]:
    first = entry.first
    facts = {name: value for name, value in entry.facts.items() if name != "seed"}
    settings = {name: v for name, v in first.settings.items() if name not in FACTS}
    images = {name: count for name, (count, _) in first.images.items()}
    weights = {WEIGHTS: first.sha256[:12]}
    return {**facts, **settings, **first.computing, **first.model, **images, **weights}
