"""`skipbench table`: records as tables.

structure.py     a table as data: rows, cells, the best of each group, footnotes; the plain table
layouts.py       the paper's tables and its published numbers, with records put into them
render.py        as text: for a screen, as Markdown, LaTeX, CSV or JSON
model_index.py   as YAML for a model card

A score of partial data, of another protocol than the paper's, or of a rate or block chosen on the
evaluated images has a footnote. Scores of different protocols never share a layout of the paper.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec

from skipbench.errors import UsageError, count_of, did_you_mean
from skipbench.results.entries import Entry, differing, entries, grouped
from skipbench.results.read import Source, Stored, read_results, selected_on
from skipbench.results.scores import CHOSEN, FACTS, Score, only, parse_where
from skipbench.results.tables.layouts import LAYOUTS, Layout, fill_layout
from skipbench.results.tables.structure import FORMATS, Table, plain_table
from skipbench.results.words import setting_text, value_text

__all__ = ["FORMATS", "Table", "table", "tables"]

log = logging.getLogger("skipbench")

Options = ParamSpec("Options")
SPLITS = tuple(fact for fact in FACTS if fact != "seed")  # seeds of one entry belong together


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

    where: "epoch=200" and so on; compact: without empty rows and columns; select: "val" or
    "holdout", the images on which the rate (of a probe) or the block (of TokenCut) was chosen.
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
    all_entries = entries(stored)
    if not all_entries:
        raise UsageError("these records have no scores to show in a table")
    chosen = LAYOUTS.get(layout)
    fitting = _of_evaluation(all_entries, chosen) if chosen else all_entries
    made = []
    for suffix, group in _split(fitting, by).items():
        if chosen:
            group = _of_method(group, chosen)
            require_one_protocol(group)
            one = fill_layout(chosen, group, paper=paper, compact=compact)
        else:
            one = plain_table(group)
        title = f"{one.title} ({suffix})" if suffix not in one.title else one.title
        made.append(replace(one, title=title, ci=ci, with_paper=paper and chosen is not None))
    return made


def _one(made: Callable[Options, list[Table]]) -> Callable[Options, Table]:
    @wraps(made)
    def table(*args: Options.args, **options: Options.kwargs) -> Table:
        found = made(*args, **options)
        if len(found) > 1:
            raise UsageError(f"these records make {len(found)} tables: call tables() instead")
        return found[0]

    return table


table = _one(tables)


def _nothing_fits(found: Sequence[Stored], where: Iterable[str]) -> str:
    if not found or not where:
        return "no records to show"
    facts = [Score(one).facts for one in found]
    known = {name: sorted({str(one[name]) for one in facts}) for name in parse_where(where)}
    facts_here = "; ".join(f"{name} {', '.join(values)}" for name, values in known.items())
    return f"no records match --where. Records have: {facts_here}"


# -- what belongs in a layout of the paper


def _of_evaluation(found: Sequence[Entry], layout: Layout) -> list[Entry]:
    """Those of the layout's evaluation and metric: TokenCut has CorLoc and IoU."""
    fitting = [entry for entry in found if entry.facts["evaluation"] == layout.evaluation]
    if not fitting:
        others = ", ".join(sorted({str(entry.facts["evaluation"]) for entry in found}))
        raise UsageError(
            f"{layout.name} needs records of {layout.evaluation}; these are of {others}"
        )
    metric = fitting[0].first.evaluation.metrics.get(layout.metric, layout.metric)
    measured = [entry for entry in fitting if entry.first.metric == layout.metric]
    if not measured:
        others = ", ".join(sorted({entry.first.metric_name for entry in fitting}))
        raise UsageError(
            f"{layout.name} shows {metric}; these records have {others}: use --layout plain"
        )
    _log_left_out(layout, len(fitting) - len(measured), f"other than {metric}")
    return measured


def _of_method(found: list[Entry], layout: Layout) -> list[Entry]:
    """Of TokenCut and LOST, TokenCut; only LOST is shown with a footnote."""
    usual = layout.usual.get("method")
    fitting = [entry for entry in found if entry.facts["method"] == usual] or found
    _log_left_out(layout, len(found) - len(fitting), f"by another method than {usual}")
    return fitting


def _log_left_out(layout: Layout, number: int, what: str) -> None:
    if number:
        scores = count_of(number, "score")
        log.info("%s leaves out %s %s; --layout plain shows all", layout.name, scores, what)


# -- protocols


def _split(found: Sequence[Entry], by: str | None) -> dict[str, list[Entry]]:
    """Groups by what their titles add; protocols by their settings, not only by name."""
    if by is None:
        return {"": list(found)}
    varying = _differences(found) if by == "protocol" else {}

    def title(entry: Entry) -> str:
        settings = _protocol(entry)
        words = [f"{name} {setting_text(settings[name])}" for name in varying if name in settings]
        return ", ".join(words) or f"{by} {entry.facts[by]}"

    return grouped(found, title)


def require_one_protocol(found: Sequence[Entry]) -> None:
    """Raises UsageError for scores that must not share a table."""
    if different := _differences(found):
        lines = (f"  {k}: {' or '.join(map(value_text, v))}\n" for k, v in different.items())
        select = " --select to have one choice of all," if CHOSEN in different else ""
        raise UsageError(
            f"these records have different protocols and cannot share a table:\n{''.join(lines)}"
            "Use --by protocol for one table each, --where or single records (files) to choose,"
            f"{select} or --layout plain."
        )


def _protocol(entry: Entry) -> dict[str, Any]:
    """Settings and images; of a partial run, which has a footnote, only settings."""
    dataset, images = entry.facts["dataset"], {} if entry.first.partial else entry.first.images
    of_data = {"split": entry.facts["split"], **images}
    settings = dict(entry.first.settings)
    if entry.first.evaluation.by_block and settings[CHOSEN] is None:
        del settings[CHOSEN]  # a single block may share a table with the best of several
    return settings | {f"{name} ({dataset})": v for name, v in of_data.items()}


def _differences(found: Sequence[Entry]) -> dict[str, list[Any]]:
    """Settings, and images of one data set, that are not the same for all."""
    protocols = [_protocol(entry) for entry in found]
    names = dict.fromkeys(name for entry in found for name in entry.first.settings)
    everywhere = [name for name in names if name != CHOSEN]
    different = differing(protocols, everywhere)
    for name in dict.fromkeys(n for one in protocols for n in one if n not in everywhere):
        different |= differing([one for one in protocols if name in one], [name])
    return different
