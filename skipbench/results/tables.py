"""Tables of figures: what stands where. How it is printed is `rendering`'s.

A figure that is partial, of another protocol than the paper's, or chosen with knowledge of the
answer carries a mark and a footnote. Figures of different protocols never share a layout of the
paper; `plain` has a column for each setting that differs.
"""

import json
import logging
import string
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skipbench.errors import UsageError, did_you_mean
from skipbench.results.figures import (
    FACTS,
    METRICS,
    Entry,
    Figure,
    differing,
    entries,
    only,
    parse_where,
)
from skipbench.results.layouts import DATASETS, LAYOUTS, Layout, Place, published
from skipbench.results.read import Source, Stored, read_results

log = logging.getLogger("skipbench")

DASH = "–"
WEIGHTS = "weights (sha256)"
SPLITS = tuple(fact for fact in FACTS if fact != "seed")  # seeds of one thing are one figure
FORMATS = ("rich", "md", "latex", "csv", "json")


@dataclass(frozen=True)
class Cell:
    entry: Entry | None = None
    paper: float | None = None
    best: bool = False
    mark: str = ""  # of the footnote with all that is to be said of it

    @property
    def difference(self) -> float | None:
        """To the paper's figure, as both are printed."""
        if self.entry is None or self.paper is None:
            return None
        return round(self.entry.value, 1) - self.paper


@dataclass(frozen=True)
class Row:
    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    layout: str
    title: str
    stub: tuple[str, ...]  # what the labels of rows are
    columns: tuple[tuple[str, ...], ...]  # header levels of each, the widest first
    rows: tuple[Row, ...]
    footnotes: tuple[tuple[str, str], ...] = ()  # mark, or "" for the whole table, and text
    ci: bool = False
    with_paper: bool = False

    def text(self, format: str = "rich", *, fragment: bool = False) -> str:
        """format: rich (plain text here), md, latex, csv or json."""
        from skipbench.results.rendering import render

        return render([self], format, fragment=fragment)

    def __str__(self) -> str:
        return self.text()


def table(results: Source | Iterable[Source] = "results", **options: Any) -> Table:
    """`skipbench table` for one table. options: those of `tables`."""
    found = tables(results, **options)
    if len(found) > 1:
        raise UsageError(f"these records make {len(found)} tables: call tables() instead")
    return found[0]


def tables(
    results: Source | Iterable[Source] = "results",
    *,
    layout: str = "plain",
    where: Iterable[str] = (),
    by: str | None = None,
    ci: bool = False,
    paper: bool = False,
    compact: bool = False,
    strict: bool = False,
) -> list[Table]:
    """`skipbench table`: one table, or with `by` one for each protocol (or other fact).

    where: "epoch=200" and so on; compact: rows and columns without a figure are left out.
    """
    if layout not in ("plain", *LAYOUTS):
        near = did_you_mean(layout, ("plain", *LAYOUTS))
        raise UsageError(f"no layout {layout!r}; give {', '.join((*LAYOUTS, 'plain'))}.{near}")
    if by not in (None, *SPLITS):
        raise UsageError(f"--by {by!r}: give {', '.join(SPLITS)}.{did_you_mean(str(by), SPLITS)}")
    found = read_results(results, strict=strict)
    stored = only(found, parse_where(where))
    if not stored:
        raise UsageError(_nothing_fits(found, where))
    made = []
    for words, group in _split(_eligible(entries(stored), layout), by).items():
        if layout == "plain":
            one = plain(group)
        else:
            one = filled(LAYOUTS[layout], group, paper=paper, compact=compact)
        title = f"{one.title} ({words})" if words else one.title
        made.append(replace(one, title=title, ci=ci, with_paper=paper and layout != "plain"))
    return made


def _nothing_fits(found: Sequence[Stored], where: Iterable[str]) -> str:
    if not found or not where:
        return "no record to show"
    facts = [Figure(one).facts for one in found]
    there = {name: sorted({str(one[name]) for one in facts}) for name in parse_where(where)}
    told = "; ".join(f"{name} {', '.join(values)}" for name, values in there.items())
    return f"no record to show: none fits --where. There are: {told}"


def _eligible(found: Sequence[Entry], layout: str) -> list[Entry]:
    if layout == "plain":
        return list(found)
    wanted = LAYOUTS[layout].evaluation
    fitting = [entry for entry in found if entry.facts["evaluation"] == wanted]
    if not fitting:
        there = ", ".join(sorted({entry.facts["evaluation"] for entry in found}))
        raise UsageError(f"{layout} needs records of {wanted}; these are of {there}")
    return fitting


def _split(found: Sequence[Entry], by: str | None) -> dict[str, list[Entry]]:
    """By the words of the title; protocols by their settings, for their names say too little."""
    if by is None:
        return {"": list(found)}
    groups: dict[str, list[Entry]] = {}
    varying = _differences(found)
    for entry in found:
        words = f"{by} {entry.facts[by]}"
        if by == "protocol":
            ways = _ways(entry)
            kept = [f"{name} {_plain(ways[name])}" for name in varying if name in ways]
            words = ", ".join(kept) or words
        groups.setdefault(words, []).append(entry)
    return groups


def _ways(entry: Entry) -> dict[str, Any]:
    """How it was made and, but for partial runs, which are marked, on which images."""
    dataset, images = entry.facts["dataset"], {} if entry.first.partial else entry.first.images
    of_data = {"split": entry.facts["split"], **images}
    return entry.first.settings | {f"{name} ({dataset})": v for name, v in of_data.items()}


def _differences(found: Sequence[Entry]) -> dict[str, list[Any]]:
    """Settings, and images of one data set, in which they were not made alike."""
    ways = [_ways(entry) for entry in found]
    everywhere = list(dict.fromkeys(name for entry in found for name in entry.first.settings))
    different = differing(ways, everywhere)
    for name in dict.fromkeys(name for way in ways for name in way if name not in everywhere):
        different |= differing([way for way in ways if name in way], [name])
    return different


# -- the paper's layouts


def filled(
    layout: Layout, found: Sequence[Entry], *, paper: bool = False, compact: bool = False
) -> Table:
    require_one_protocol(found)
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
        log.info("%s: %d figures are not shown; --layout plain has all", layout.name, aside)
    rows = _axis(layout.paper_rows, {row for row, _ in chosen}, compact)
    columns = _by_epoch(_axis(layout.paper_columns, {c for _, c in chosen}, compact), layout)
    value_of = published() if paper else {}
    mixed = len({_computing(entry) for entry in chosen.values()}) > 1
    cells = [
        [Cell(chosen.get((r, c)), value_of.get((layout.name, r, c))) for c in columns] for r in rows
    ]
    groups: dict[Any, list[tuple[int, int]]] = {}
    for r, row in enumerate(rows):
        for c, column in enumerate(columns):
            key = (row, column[0]) if len(layout.columns) > 1 else column
            groups.setdefault(key, []).append((r, c))
    return _finish(
        Table(
            layout.name,
            layout.title,
            layout.rows,
            tuple(_header(layout, column) for column in columns),
            tuple(
                Row(tuple(_word(f, v) for f, v in zip(layout.rows, row, strict=True)), tuple(line))
                for row, line in zip(rows, cells, strict=True)
            ),
        ),
        groups.values(),
        lambda row, entry: _off_axis(layout, rows[row], entry) + [_computing(entry)] * mixed,
        layout.notes if paper else (),
    )


def require_one_protocol(found: Sequence[Entry]) -> None:
    """Figures made in different ways are not put side by side."""
    if different := _differences(found):
        told = "\n".join(f"  {k}: {' or '.join(map(_plain, v))}" for k, v in different.items())
        raise UsageError(
            f"these records were made by different protocols and share no table:\n{told}\n"
            "Give --by protocol for a table each, --where to choose, or --layout plain."
        )


def _one(layout: Layout, row: Place, group: list[Entry]) -> Entry | None:
    """The figure of a cell. Of several, that of the paper's off-axis facts, and whole data; none
    where they differ in such a fact and the paper's is not among them."""
    for fact in layout.usual:
        usual = layout.usual_at(row, fact)
        group = [entry for entry in group if entry.facts[fact] == usual] or group
    group = [entry for entry in group if not entry.first.partial] or group
    if layout.best_of_blocks and len(group) > 1 and _differ_only_in_features(group):
        best = max(group, key=lambda entry: entry.value)
        return replace(best, remark=f"best of {len(group)} choices of blocks, chosen on the answer")
    if len(group) == 1:
        return group[0]
    facts = differing([_identity(entry) for entry in group])
    if set(facts) & set(layout.usual):
        return None
    told = "; ".join(f"{k}: {' or '.join(map(_plain, v))}" for k, v in facts.items())
    raise UsageError(
        f"{len(group)} records for one cell of {layout.name} ({', '.join(map(str, row))}). They "
        f"differ in {told}.\nChoose with --where FACT=VALUE, tell them apart with --label name=…, "
        "or see all with --layout plain."
    )


def _identity(entry: Entry) -> dict[str, Any]:
    """All in which figures of one place in a table may differ."""
    first = entry.first
    facts = {name: value for name, value in entry.facts.items() if name != "seed"}
    return {**facts, WEIGHTS: _sha(entry), **first.model, **first.computing, **first.images}


def _differ_only_in_features(group: Sequence[Entry]) -> bool:
    return set(differing([_identity(entry) for entry in group])) == {"features"}


def _computing(entry: Entry) -> str:
    return "computed in {precision}, kept in {store_dtype}".format(**entry.first.computing)


def _sha(entry: Entry) -> str:
    return str(entry.first.result.checkpoint["sha256"])[:12]


def _axis(paper: Sequence[Place], there: set[Place], compact: bool) -> list[Place]:
    """The paper's places, then others; of a data set all together."""
    order = {value: i for i, place in enumerate(paper) for value in place if value is not None}
    kept = [place for place in paper if place in there or not compact]
    kept += sorted(there - set(kept), key=lambda p: [(order.get(v, 99), _sortable(v)) for v in p])
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
            key=lambda c: [_sortable(v) for v in c[1:]] if c[0] in other else [],
        )
    ]


def _sortable(value: Any) -> tuple[bool, bool, Any]:
    return value is None, isinstance(value, str), 0 if value is None else value


def _header(layout: Layout, column: Place) -> tuple[str, ...]:
    words = [
        "? epochs" if fact == "epoch" and value is None else _word(fact, value)
        for fact, value in zip(layout.columns, column, strict=True)
    ]
    return (words[0], " ".join(words[1:])) if len(words) > 1 else (words[0],)


def _off_axis(layout: Layout, row: Place, entry: Entry) -> list[str]:
    """Facts that no axis shows and that are not the paper's."""
    found = []
    for fact in layout.usual:
        usual, value = layout.usual_at(row, fact), entry.facts[fact]
        if value != usual and not (fact == "features" and layout.best_of_blocks):
            found.append(f"{fact} {_word(fact, value)}" + (f", not {usual}" if usual else ""))
    return found


# -- any records


def plain(found: Sequence[Entry]) -> Table:
    """A row for each entry, a column for each fact and setting in which they differ."""
    facts = [_all_facts(entry) for entry in found]
    shown = list(differing(facts))
    own = (
        WEIGHTS,
        *found[0].first.model,
    )  # of the model: its name says them, unless one name has two
    shown = [name for name in shown if name not in own or _varies(facts, name)]
    if not {"checkpoint", "residual"} & set(shown):
        shown = ["checkpoint", *shown]
    metrics = list(dict.fromkeys(METRICS.get(e.first.metric, e.first.metric) for e in found))
    order = sorted(range(len(found)), key=lambda i: [_key(facts[i].get(name)) for name in shown])
    rows = []
    groups: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for place, i in enumerate(order):
        entry = found[i]
        metric = METRICS.get(entry.first.metric, entry.first.metric)
        cells = [Cell(entry if name == metric else None) for name in metrics]
        rows.append(Row(tuple(_word(name, facts[i].get(name)) for name in shown), tuple(cells)))
        key = (entry.facts["evaluation"], entry.facts["dataset"], entry.facts["split"])
        settings = json.dumps([entry.first.settings, entry.first.images], sort_keys=True)
        groups[key, settings].append((place, metrics.index(metric)))
    common = {k: v for k, v in facts[0].items() if k in FACTS and k not in shown and v is not None}
    title = ", ".join(f"{name} {_word(name, value)}" for name, value in common.items())
    header = tuple(("figure", name) if len(metrics) > 1 else (name,) for name in metrics)
    made = Table("plain", title, tuple(shown), header, tuple(rows))
    return _finish(made, groups.values(), lambda row, entry: [], ())


def _varies(facts: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a checkpoint, by its name, has several values of it."""
    names = {one["checkpoint"] for one in facts}
    return len({(one["checkpoint"], str(one[name])) for one in facts}) > len(names)


def _all_facts(entry: Entry) -> dict[str, Any]:
    first = entry.first
    facts = {name: value for name, value in entry.facts.items() if name != "seed"}
    ways = {
        f"{name} of the protocol": v for name, v in first.settings.items() if name != "protocol"
    }
    images = {name: count for name, (count, _) in first.images.items()}
    return {**facts, **ways, **first.computing, **first.model, **images, WEIGHTS: _sha(entry)}


def _key(value: Any) -> tuple[bool, bool, Any]:
    return _sortable(value if isinstance(value, str | int | float | None) else _plain(value))


# -- marks and the best


def _finish(
    made: Table,
    groups: Iterable[Sequence[tuple[int, int]]],
    more: Callable[[int, Entry], list[str]],
    notes: Sequence[str],
) -> Table:
    """The best of each group made bold, as printed; a letter for what is to be remarked."""
    best: set[tuple[int, int]] = set()
    for group in groups:
        there = {p: e for p in group if (e := made.rows[p[0]].cells[p[1]].entry)}
        values = {place: entry.value for place, entry in _contest(there).items()}
        if len(values) > 1:
            top = max(round(value, 1) for value in values.values())
            best |= {place for place, value in values.items() if round(value, 1) == top}
    letters: dict[str, str] = {}
    rows = []
    for r, row in enumerate(made.rows):
        cells = []
        for c, cell in enumerate(row.cells):
            remarks = [*cell.entry.remarks, *more(r, cell.entry)] if cell.entry else []
            text = "; ".join(remarks)
            mark = letters.setdefault(text, _letter(len(letters))) if text else ""
            cells.append(replace(cell, best=(r, c) in best, mark=mark))
        rows.append(replace(row, cells=tuple(cells)))
    footnotes = [(letter, text) for text, letter in letters.items()]
    return replace(made, rows=tuple(rows), footnotes=(*footnotes, *(("", text) for text in notes)))


def _contest(there: Mapping[tuple[int, int], Entry]) -> Mapping[tuple[int, int], Entry]:
    """Partial figures are of other images: they win and lose among themselves at the most."""
    whole = {place: entry for place, entry in there.items() if not entry.first.partial}
    same = len({json.dumps(entry.first.images) for entry in there.values()}) == 1
    return whole if whole or not same else there


def _letter(number: int) -> str:
    """a … z, aa, ab …"""
    rest, last = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + string.ascii_lowercase[last]


def _word(fact: str, value: Any) -> str:
    if value is None:
        return "unknown" if fact in ("epoch", "optimizer", "depth") else DASH
    if fact == "dataset":
        return DATASETS.get(value, str(value))
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k} {_plain(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(_plain, value))
    return DASH if value is None else f"{value:g}" if isinstance(value, float) else str(value)
