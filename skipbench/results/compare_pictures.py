"""The images on which two models differ most: image, mask, both predictions."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.drawing.dataset_sheet import legend_of
from skipbench.drawing.sheet import Cell, save, sheet
from skipbench.errors import UsageError
from skipbench.files import ensure_writable
from skipbench.results.paired import Move, Paired
from skipbench.results.read import Stored
from skipbench.results.rerun import reopen
from skipbench.results.scores import Score

if TYPE_CHECKING:
    from skipbench.evaluations.pictures import Drawing


def draw_comparison(
    found: Paired,
    number: int,
    folder: Path,
    *,
    ckpts: Sequence[str | Path | None] = (None, None),
    **places: Any,
) -> Path:
    """A sheet of the images with the largest effect. ckpts: new places of the weights, if they
    moved; places: data_root, cache, device, …"""
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
        rows, seen = [], set[int]()
        for i, move in enumerate(moves):
            one, other = a.draw(i), b.draw(i)
            rows.append([
                Cell(one.image, move.name),
                Cell(one.truth, "ground truth"),
                Cell(one.prediction, f"A: {metric} {move.a:.1f}"),
                Cell(other.prediction, f"B: {metric} {move.b:.1f}"),
            ])  # fmt: skip
            seen |= one.classes | other.classes
    title = " and ".join(
        f"{letter}: {score.facts['checkpoint']}, {score.facts['features']}"
        for letter, score in zip("AB", scores, strict=True)
    )
    path = folder / "moved.png"
    save(sheet(rows, legend_of(a.data, seen), title=title, aligned=True), path)
    return path


def predictions(
    stored: Stored,
    moves: Sequence[Move],
    stack: ExitStack,
    *,
    ckpt: str | Path | None = None,
    **places: Any,
) -> "Drawing":
    """The record's head on these images, with features computed for them alone."""
    seeds = [stored.result.protocol["seed"]]
    run: Any = reopen(stored.result, ckpt=ckpt, seeds=seeds, in_memory=True, **places)
    place = {name: i for i, name in enumerate(run.val.names)}
    few = [run.val[place[move.name]] for move in moves]
    cell = run.cells[0]
    images = run.scored_images(few, run.spec([cell]), "the images that differ most")
    stack.enter_context(images.features)
    return run.drawing(cell, few, images, stored.arrays())
