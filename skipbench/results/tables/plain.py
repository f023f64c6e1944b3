"""Any records in one table: a row for each entry, a column for each fact that differs."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from skipbench.results.entries import Entry, differing
from skipbench.results.scores import FACTS
from skipbench.results.tables.structure import Place, Row, Table, TableCell, label, marked, sort_key
from skipbench.results.words import setting_text

WEIGHTS = "weights (sha256)"


def plain_table(found: Sequence[Entry]) -> Table:
    facts = [_all_facts(entry) for entry in found]
    different = differing(facts)
    shown = _shown_facts(found, facts, list(different))
    metrics = list(dict.fromkeys(entry.first.metric_name for entry in found))
    rows = []
    groups: dict[str, list[Place]] = defaultdict(list)
    order = sorted(range(len(found)), key=lambda i: [_key(facts[i].get(name)) for name in shown])
    for place, i in enumerate(order):
        first = found[i].first
        cells = [TableCell(found[i] if name == first.metric_name else None) for name in metrics]
        rows.append(Row(tuple(label(name, facts[i].get(name)) for name in shown), tuple(cells)))
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


def _key(value: Any) -> tuple[bool, bool, Any]:
    return sort_key(value if isinstance(value, str | int | float | None) else setting_text(value))
