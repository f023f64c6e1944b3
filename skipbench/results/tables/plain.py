"""Any records in one table: a row for each figure, a column for each fact that differs."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from skipbench.results.tables.table import Cell, Row, Table, finish, plain_words, sha_of, sortable, word
from skipbench.results.scores import FACTS, METRICS, Entry, differing

WEIGHTS = "weights (sha256)"


def plain(found: Sequence[Entry]) -> Table:
    """A row for each entry, a column for each fact and setting in which they differ."""
    facts = [_all_facts(entry) for entry in found]
    different = differing(facts)
    # What the model is, its name says, unless one name stands for two; and how an evaluation is
    # made, its own name: that a probe has learning rates and TokenCut has none is no news.
    said_by = dict.fromkeys(different, "evaluation")
    said_by |= dict.fromkeys((WEIGHTS, *found[0].first.model), "checkpoint")
    for fact in FACTS:
        if fact != "method":
            said_by.pop(fact, None)
    shown = [
        name for name in different if name not in said_by or _varies(facts, name, said_by[name])
    ]
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
        rows.append(Row(tuple(word(name, facts[i].get(name)) for name in shown), tuple(cells)))
        key = (entry.facts["evaluation"], entry.facts["dataset"], entry.facts["split"])
        settings = json.dumps([entry.first.settings, entry.first.images], sort_keys=True)
        groups[key, settings].append((place, metrics.index(metric)))
    common = {n: facts[0][n] for n in FACTS if n in facts[0] and n not in {*shown, *different}}
    common = {name: value for name, value in common.items() if value is not None}
    title = ", ".join(f"{name} {word(name, value)}" for name, value in common.items())
    header = tuple(("figure", name) if len(metrics) > 1 else (name,) for name in metrics)
    made = Table("plain", title, tuple(shown), header, tuple(rows))
    return finish(made, groups.values(), lambda row, entry: [], ())


def _varies(facts: Sequence[Mapping[str, Any]], name: str, of: str) -> bool:
    """Whether a checkpoint, by its name, or an evaluation has several values of it."""
    owners = {one[of] for one in facts}
    return len({(one[of], str(one.get(name))) for one in facts}) > len(owners)


def _all_facts(entry: Entry) -> dict[str, Any]:
    first = entry.first
    facts = {name: value for name, value in entry.facts.items() if name != "seed"}
    ways = {name: v for name, v in first.settings.items() if name not in FACTS}
    images = {name: count for name, (count, _) in first.images.items()}
    return {**facts, **ways, **first.computing, **first.model, **images, WEIGHTS: sha_of(entry)}


def _key(value: Any) -> tuple[bool, bool, Any]:
    return sortable(value if isinstance(value, str | int | float | None) else plain_words(value))
