"""`skipbench table`: records as tables. How they are printed is `rendering`'s.

A figure that is partial, of another protocol than the paper's, or chosen with knowledge of the
answer carries a mark and a footnote. Figures of different protocols never share a layout of the
paper; `plain` has a column for each setting that differs.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from skipbench.errors import UsageError, did_you_mean
from skipbench.results.tables.table import FORMATS, Table, plain_words
from skipbench.results.scores import (
    CHOSEN,
    FACTS,
    METRICS,
    Entry,
    Score,
    differing,
    entries,
    only,
    parse_where,
)
from skipbench.results.tables.fill_layout import filled
from skipbench.results.tables.layouts import LAYOUTS
from skipbench.results.tables.plain import plain
from skipbench.results.read import Source, Stored, read_results, selected_on

__all__ = ["FORMATS", "Table", "table", "tables"]

log = logging.getLogger("skipbench")

SPLITS = tuple(fact for fact in FACTS if fact != "seed")  # seeds of one thing are one figure


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
    select: str | None = None,
    strict: bool = False,
) -> list[Table]:
    """`skipbench table`: one table, or with `by` one for each protocol (or other fact).

    where: "epoch=200" and so on; compact: rows and columns without a figure are left out;
    select: "val" or "holdout", where the learning rate (of a probe) or the block (of TokenCut) of
    the figures shown was chosen.
    """
    if layout not in ("plain", *LAYOUTS):
        near = did_you_mean(layout, ("plain", *LAYOUTS))
        raise UsageError(f"no layout {layout!r}; give {', '.join((*LAYOUTS, 'plain'))}.{near}")
    if by not in (None, *SPLITS):
        raise UsageError(f"--by {by!r}: give {', '.join(SPLITS)}.{did_you_mean(str(by), SPLITS)}")
    found = read_results(results, strict=strict)
    found = selected_on(found, select) if select else found
    stored = only(found, parse_where(where))
    if not stored:
        raise UsageError(_nothing_fits(found, where))
    made = []
    for words, group in _split(_eligible(entries(stored), layout), by).items():
        if layout == "plain":
            one = plain(group)
        else:
            group = _of_the_papers_method(group, layout)
            require_one_protocol(group)
            one = filled(LAYOUTS[layout], group, paper=paper, compact=compact)
        title = f"{one.title} ({words})" if words else one.title
        made.append(replace(one, title=title, ci=ci, with_paper=paper and layout != "plain"))
    return made


def _nothing_fits(found: Sequence[Stored], where: Iterable[str]) -> str:
    if not found or not where:
        return "no record to show"
    facts = [Score(one).facts for one in found]
    there = {name: sorted({str(one[name]) for one in facts}) for name in parse_where(where)}
    told = "; ".join(f"{name} {', '.join(values)}" for name, values in there.items())
    return f"no record to show: none fits --where. There are: {told}"


def _eligible(found: Sequence[Entry], layout: str) -> list[Entry]:
    if not found:
        raise UsageError("these records have no figures: there is nothing for a table")
    if layout == "plain":
        return list(found)
    wanted = LAYOUTS[layout].evaluation
    fitting = [entry for entry in found if entry.facts["evaluation"] == wanted]
    if not fitting:
        there = ", ".join(sorted({entry.facts["evaluation"] for entry in found}))
        raise UsageError(f"{layout} needs records of {wanted}; these are of {there}")
    return _of_the_papers_metric(fitting, layout)


def _of_the_papers_metric(found: Sequence[Entry], layout: str) -> list[Entry]:
    """An IoU is no CorLoc, though both are of TokenCut."""
    wanted = LAYOUTS[layout].metric
    fitting = [entry for entry in found if entry.first.metric == wanted]
    if not fitting:
        there = sorted({METRICS.get(e.first.metric, e.first.metric) for e in found})
        raise UsageError(
            f"{layout} is one of {METRICS[wanted]}; these are of {', '.join(there)}: "
            "--layout plain shows them"
        )
    _say_aside(layout, len(found) - len(fitting), f"that are no {METRICS[wanted]}")
    return fitting


def _of_the_papers_method(found: list[Entry], layout: str) -> list[Entry]:
    """Of TokenCut and LOST, TokenCut; LOST alone, which is marked."""
    usual = LAYOUTS[layout].usual.get("method")
    fitting = [entry for entry in found if entry.facts["method"] == usual] or found
    _say_aside(layout, len(found) - len(fitting), f"by another method than {usual}")
    return fitting


def _say_aside(layout: str, number: int, what: str) -> None:
    if number:
        words = "figures %s, which %s does not show: %d; --layout plain has all"
        log.info(words, what, layout, number)


def _split(found: Sequence[Entry], by: str | None) -> dict[str, list[Entry]]:
    """By the words of the title; protocols by their settings, for their names say too little."""
    if by is None:
        return {"": list(found)}
    groups: dict[str, list[Entry]] = {}
    varying = _differences(found) if by == "protocol" else {}
    for entry in found:
        words = f"{by} {entry.facts[by]}"
        if by == "protocol":
            ways = _ways(entry)
            kept = [f"{name} {plain_words(ways[name])}" for name in varying if name in ways]
            words = ", ".join(kept) or words
        groups.setdefault(words, []).append(entry)
    return groups


def require_one_protocol(found: Sequence[Entry]) -> None:
    """Figures made in different ways are not put side by side."""
    if different := _differences(found):
        told = "\n".join(f"  {k}: {' or '.join(map(plain_words, v))}" for k, v in different.items())
        select = " --select to have one choice of all," if CHOSEN in different else ""
        raise UsageError(
            f"these records were made by different protocols and share no table:\n{told}\n"
            f"Give --by protocol for a table each, --where to choose,{select} or --layout plain."
        )


def _ways(entry: Entry) -> dict[str, Any]:
    """How it was made and, but for partial runs, which are marked, on which images."""
    dataset, images = entry.facts["dataset"], {} if entry.first.partial else entry.first.images
    of_data = {"split": entry.facts["split"], **images}
    settings = dict(entry.first.settings)
    if entry.first.by_block and settings[CHOSEN] is None:
        del settings[CHOSEN]  # one block alone stands beside the best of several, which is marked
    return settings | {f"{name} ({dataset})": v for name, v in of_data.items()}


def _differences(found: Sequence[Entry]) -> dict[str, list[Any]]:
    """Settings, and images of one data set, in which they were not made alike."""
    ways = [_ways(entry) for entry in found]
    names = dict.fromkeys(name for entry in found for name in entry.first.settings)
    everywhere = [name for name in names if name != CHOSEN]
    different = differing(ways, everywhere)
    for name in dict.fromkeys(name for way in ways for name in way if name not in everywhere):
        different |= differing([way for way in ways if name in way], [name])
    return different
