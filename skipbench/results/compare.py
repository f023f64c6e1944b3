"""`skipbench compare`: which records of two models belong together, and how they differ."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from skipbench.errors import DataError, UsageError
from skipbench.metrics.intervals import RESAMPLES
from skipbench.records import Result
from skipbench.results.entries import Entry, differing, entries
from skipbench.results.paired import Paired, paired
from skipbench.results.read import Source, Stored, pick, read_results, selected_on

log = logging.getLogger("skipbench")


def compare(
    a: Source,
    b: Source,
    *,
    results: Source | Iterable[Source] = "results",
    resamples: int = RESAMPLES,
    seed: int = 0,
    select: str | None = None,
) -> list[Paired]:
    """`skipbench compare`: one comparison for each evaluation that both have.

    a, b: a Result, an id or its beginning, a checkpoint's name, a folder or file of records;
    results: where they were written; select: "val" or "holdout", the images on which the learning
    rate (of a probe) or the block (of TokenCut) was chosen.
    """
    known = cache(lambda: read_results(results))  # once, if at all
    sides = [_records(name, known) for name in (a, b)]
    if select:
        sides = [selected_on(side, select) for side in sides]
    found_a, found_b = (entries(side) for side in sides)
    for name, found in ((a, found_a), (b, found_b)):
        if not found:
            raise UsageError(f"{name}: no score to compare; its records have only pictures")
    pairs = _pairs(found_a, found_b)
    made, trouble = [], None
    for x, y in pairs:
        try:
            made.append(paired(x.stored, y.stored, resamples=resamples, seed=seed))
        except DataError as error:  # one without counts does not hide the others
            trouble = error
            if len(pairs) > 1:
                log.warning("left out: %s", error)
    if trouble and not made:
        raise trouble
    return made


def _records(name: Source, known: Callable[[], list[Stored]]) -> list[Stored]:
    if isinstance(name, Result):  # its counts are where it was written
        return pick(known(), name.id)
    if not isinstance(name, str):
        return read_results(name)
    path = Path(name).expanduser()
    found = read_results(path) if path.suffix == ".json" or path.is_dir() else []
    return found or pick(known(), name)


def _pairs(a: Sequence[Entry], b: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Two entries whatever they are; of several, those of one kind. None with itself."""
    if [_paths(entry) for entry in a] == [_paths(entry) for entry in b]:
        raise UsageError("A and B are the same records: give two that differ")
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]

    kinds = ["evaluation", "dataset", "split", "features"]
    if all(len({entry.facts["checkpoint"] for entry in side}) > 1 for side in (a, b)):
        kinds.append("checkpoint")  # two folders of several models each

    def kind(entry: Entry) -> list[str]:
        return [str(entry.facts[name]) for name in kinds]

    found = [
        (x, y)
        for x in a
        for y in b
        if kind(x) == kind(y)
        and not differing([x.first.settings, y.first.settings])
        and _paths(x) != _paths(y)
    ]
    if not found:
        raise UsageError(
            "A and B have no evaluation in common (same data set, layers and settings).\n"
            "To compare two records anyway, give their ids: `skipbench results list`."
        )
    return sorted(found, key=lambda pair: kind(pair[0]))


def _paths(entry: Entry) -> list[str]:
    return [str(stored.path) for stored in entry.stored]
