"""The pictures on which two models differ most: image, mask, both predictions."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from skipbench.datasets import Dataset
from skipbench.errors import UsageError
from skipbench.evaluations.pictures import Drawing
from skipbench.evaluations.probe.run import ProbeRun
from skipbench.files import ensure_writable
from skipbench.pictures import Cell, legend_of, save, sheet
from skipbench.results.compare import Move, Paired
from skipbench.results.read import Stored
from skipbench.results.rerun import open_again
from skipbench.results.scores import Score

log = logging.getLogger("skipbench")


def draw_comparison(
    found: Paired,
    number: int,
    folder: Path,
    *,
    ckpts: Sequence[str | Path | None] = (None, None),
    **places: Any,
) -> Path:
    """A sheet of the images that moved most. ckpts: where the weights lie, if not where they did;
    places: data_root, cache, device, …"""
    if any(one.counts_name != "counts" for one in (*found.a, *found.b)):
        raise UsageError("pictures are drawn of the rate that a record was made with: no --select")
    moves = [move for move in found.moved if move.effect and move.difference][:number]
    if found.metric != "miou" or found.a[0].result.evaluation != "probe":
        raise UsageError(f"no pictures of {found.a[0].result.evaluation} can be compared yet")
    if not moves:
        raise UsageError("no image moved: there is nothing to draw")
    ensure_writable(folder)
    with ExitStack() as stack:
        sides = [
            _drawing(stored, ckpt, moves, stack, places)
            for stored, ckpt in zip((found.a[0], found.b[0]), ckpts, strict=True)
        ]
        rows, seen = [], set[int]()
        for i, move in enumerate(moves):
            one, other = (side.draw(i) for side in sides)
            rows.append([
                Cell(one.image, move.name),
                Cell(one.truth, "ground truth"),
                Cell(one.prediction, f"A: mIoU {move.a:.1f}"),
                Cell(other.prediction, f"B: mIoU {move.b:.1f}"),
            ])  # fmt: skip
            seen |= one.classes | other.classes
        title = " and ".join(
            f"{which}: {side[0].result.checkpoint['name']}, {Score(side[0]).facts['features']}"
            for which, side in (("A", found.a), ("B", found.b))
        )
        path = folder / "moved.png"
        legend = legend_of(sides[0].data, seen)
        save(sheet(rows, legend, title=title, aligned=True), path)
    return path


def _drawing(
    stored: Stored,
    ckpt: str | Path | None,
    moves: Sequence[Move],
    stack: ExitStack,
    places: dict[str, Any],
) -> Drawing:
    """The record's head, and features of these images alone."""
    result = stored.result
    probe = open_again(result, ckpt=ckpt, seeds=[result.protocol["seed"]], in_memory=True, **places)
    assert isinstance(probe, ProbeRun)
    cell = probe.cells[0]
    val: Dataset = probe.val
    place = {name: i for i, name in enumerate(val.names)}
    few = [val[place[move.name]] for move in moves]
    held = probe.hold(few, probe.spec([cell]), "the images that moved most")
    stack.enter_context(held.features)
    return probe.drawing(cell, few, held, stored.arrays())
