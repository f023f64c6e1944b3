"""`skipbench compare`: matching records of two models, how they differ, and pictures of that."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.errors import DataError, UsageError
from skipbench.files import WEIGHT_SUFFIXES, ensure_writable, is_folder, user_path
from skipbench.metrics.intervals import RESAMPLES
from skipbench.records import Result
from skipbench.results.entries import Entry, differing, entries
from skipbench.results.paired import Move, Paired, paired
from skipbench.results.pick import pick
from skipbench.results.read import Source, Stored, read_results, selected_on
from skipbench.results.scores import Score

if TYPE_CHECKING:
    from skipbench.evaluations.pictures import Drawing

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

    a, b: a Result, an id or its beginning, a checkpoint's name or path, a folder or file of
    records; results: where they were written; select: "val" or "holdout", the images on which the
    learning rate (of a probe) or the block (of TokenCut) was chosen.
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
        except (DataError, UsageError) as error:  # one that fails does not hide the others
            trouble = error
            if len(pairs) > 1:
                log.warning("left out: %s", error)
    if trouble and not made:
        raise trouble
    return made


def _records(name: Source, known: Callable[[], list[Stored]]) -> list[Stored]:
    if isinstance(name, Result):  # its counts are where it was written
        return pick(known(), name.id)
    if isinstance(name, Stored):
        return [name]
    path = user_path(name)
    if is_folder(path):  # of a checkpoint, or of records
        has_records = not any(file.suffix in WEIGHT_SUFFIXES for file in path.iterdir())
    else:
        has_records = path.suffix == ".json"
    return (read_results(path) if has_records else []) or pick(known(), str(name))


def _pairs(a: Sequence[Entry], b: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Any two single entries; of several, those that match, on the same images if there are any.
    No entry is paired with itself."""
    if [_paths(entry) for entry in a] == [_paths(entry) for entry in b]:
        raise UsageError("A and B are the same records: give two that differ")
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    same = ["evaluation", "dataset", "split", "features"]
    if all(len({entry.facts["checkpoint"] for entry in side}) > 1 for side in (a, b)):
        same.append("checkpoint")  # two folders of several models each
    found = [
        (x, y)
        for x, y in product(a, b)
        if not differing([x.facts, y.facts], same)
        and not differing([x.first.settings, y.first.settings])
        and _paths(x) != _paths(y)
    ]
    if not found:
        raise UsageError(
            "A and B have no evaluation in common (same data set, layers and settings).\n"
            "To compare two records anyway, give their ids: `skipbench results list`."
        )
    exact = [(x, y) for x, y in found if x.first.images == y.first.images]
    matched = {id(entry) for pair in exact for entry in pair}
    found = exact + [(x, y) for x, y in found if not {id(x), id(y)} & matched]
    return sorted(found, key=lambda pair: [str(pair[0].facts[name]) for name in same])


def _paths(entry: Entry) -> list[str]:
    return [str(stored.path) for stored in entry.stored]


# -- pictures: image, mask and both predictions, where two models differ most


def draw_comparison(
    found: Paired,
    number: int,
    folder: Path,
    *,
    ckpts: Sequence[str | Path | None] = (None, None),
    **places: Any,
) -> Path:
    """A sheet of the images with the largest effect. ckpts: paths of the weights, if they moved;
    places: data_root, cache, device, …"""
    from skipbench.drawing.sheet import Cell, legend_of, save, sheet

    scores = Score(found.a[0]), Score(found.b[0])
    if any(one.counts_name != "counts" for one in (*found.a, *found.b)):
        raise UsageError("--pictures cannot be combined with --select")
    if without := [score.evaluation.name for score in scores if not score.evaluation.redraws]:
        raise UsageError(f"no pictures of {without[0]} can be compared yet")
    moves = [move for move in found.moved if move.effect and move.difference][:number]
    if not moves:
        raise UsageError("no image differs: there is nothing to draw")
    ensure_writable(folder)
    metric = scores[0].metric_name
    with ExitStack() as stack:
        a, b = (
            predictions(score.stored, moves, stack, ckpt=ckpt, **places)
            for score, ckpt in zip(scores, ckpts, strict=True)
        )
        rows, classes = [], set[int]()
        for i, move in enumerate(moves):
            one, other = a.draw(i), b.draw(i)
            rows.append([
                Cell(one.image, move.name),
                Cell(one.truth, "ground truth"),
                Cell(one.prediction, f"A: {metric} {move.a:.1f}"),
                Cell(other.prediction, f"B: {metric} {move.b:.1f}"),
            ])  # fmt: skip
            classes |= one.classes | other.classes
    title = " and ".join(
        f"{letter}: {score.facts['checkpoint']}, {score.facts['features']}"
        for letter, score in zip("AB", scores, strict=True)
    )
    path = folder / "moved.png"
    save(sheet(rows, legend_of(a.data, classes), title=title, aligned=True), path)
    return path


def predictions(
    stored: Stored,
    moves: Sequence[Move],
    stack: ExitStack,
    *,
    ckpt: str | Path | None = None,
    **places: Any,
) -> "Drawing":
    """Of the record's head, with features of these images only."""
    from skipbench.results.calibrate import reopen

    seeds = [stored.result.protocol["seed"]]
    run: Any = reopen(stored.result, ckpt=ckpt, seeds=seeds, in_memory=True, **places)
    place = {name: i for i, name in enumerate(run.val.names)}
    few = [run.val[place[move.name]] for move in moves]
    cell = run.cells[0]
    images = run.scored_images(few, run.spec([cell]), "the images that differ most")
    stack.enter_context(images.features)
    return run.drawing(cell, few, images, stored.arrays())
