"""Discovered objects drawn over images: box, mask and eigenvector.

results/<id>/01_worst_NAME.png …    images of a data set with ground truth; sheet.png has the
                                    first of them
results/<id>/tiles/                 the first images one by one, for the report's page
OUT/NAME.png …                      plain pictures (`--images`), with objects.csv and sheet.png
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from skipbench.datasets import Item, decodable
from skipbench.drawing.sheet import Cell, Colour, blend, paint, save, sheet
from skipbench.engine.progress import progress
from skipbench.evaluations.pictures import (
    MOST_ON_SHEET,
    file_names,
    from_both_ends,
    keep_originals,
    save_tile,
    title_of,
    write_tiles,
)
from skipbench.evaluations.tokencut import EVALUATION
from skipbench.evaluations.tokencut.record import (
    CORNERS,
    ImageObjects,
    ious_by_image,
    reported,
    true_boxes,
)
from skipbench.evaluations.tokencut.run import Finder, TokencutRun
from skipbench.evaluations.tokencut.settings import TokencutSettings
from skipbench.files import ensure_writable, write_csv
from skipbench.images import IGNORED, Picture, find_images, part_of
from skipbench.pipeline import inspect
from skipbench.record_store import read_arrays
from skipbench.records import Result

log = logging.getLogger("skipbench")

FOUND, TRUE = (230, 57, 70), (44, 182, 125)
LOW, MIDDLE, HIGH = (38, 84, 160), (245, 245, 240), (190, 40, 45)
MAPS = {"tokencut": "eigenvector", "lost": "correlation"}
LEGEND: list[tuple[str, Colour]] = [("found", FOUND), ("true", TRUE)]


def outlined(image: np.ndarray, boxes: np.ndarray, colour: Colour) -> np.ndarray:
    """Box outlines, thicker on larger images."""
    canvas = Image.fromarray(image)
    width = max(2, round(min(image.shape[:2]) / 100))
    for x0, y0, x1, y1 in np.asarray(boxes).reshape(-1, 4).tolist():
        ends = [x0, y0, max(x1 - 1, x0), max(y1 - 1, y0)]
        ImageDraw.Draw(canvas).rectangle(ends, outline=colour, width=width)
    return np.asarray(canvas)


def in_colours(values: np.ndarray) -> np.ndarray:
    """(height, width) → HWC uint8: above the mean red, below it blue."""
    values = values - values.mean()
    share = values / max(float(np.abs(values).max()), 1e-12)
    ends = np.where(share[..., None] > 0, np.array(HIGH), np.array(LOW))
    mixed = np.array(MIDDLE) + np.abs(share)[..., None] * (ends - np.array(MIDDLE))
    return mixed.round().astype(np.uint8)


def dimmed_outside(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    grey = image.mean(-1, keepdims=True) * 0.35 + 20
    return np.where(mask[..., None], image, grey.repeat(3, -1)).round().astype(np.uint8)


def found_box(objects: ImageObjects, place: int) -> np.ndarray:
    """(1, 4), or (0, 4) in a degenerate image."""
    return objects.boxes[[place]][~objects.degenerate[[place]]]


def panels(image: np.ndarray, objects: ImageObjects, place: int) -> dict[str, np.ndarray]:
    """place: index of the block among those evaluated. In a degenerate image nothing was found."""
    return {
        "box": outlined(image, found_box(objects, place), FOUND),
        "mask": dimmed_outside(image, objects.mask(place) & ~objects.degenerate[place]),
        "map": in_colours(objects.map(place)),
    }


def truth_of(item: Item, image: np.ndarray, run: TokencutRun) -> np.ndarray:
    """The image with the ground truth over it."""
    if run.kind == "masks":
        mask = item.mask()
        found = np.where(mask == IGNORED, IGNORED, mask > 0).astype(np.uint8)
        return blend(image, paint(found, [(0, 0, 0), TRUE]), 0.45)
    return outlined(image, true_boxes(item, run.settings.hard).xyxy, TRUE)


def draw_found(run: TokencutRun, result: Result, number: int) -> None:
    """The worst and best images of a record, `number` in all; and the first ones as tiles."""
    folder, name = run.settings.out / result.id, result.metrics["headline"]
    place = reported(run, result.metrics)
    best = _best_by_image(read_arrays(run.settings.out / f"{result.id}.npz"), place)
    chosen = from_both_ends(best, number)
    first = range(min(number, len(run.data)))
    wanted = sorted({image for image, *_ in chosen} | set(first))
    drawn = dict(_find(run, [run.data[i] for i in wanted], wanted))
    scores = {i: _score_words(drawn[i], place, best[i], name) for i in wanted}
    how = f"{run.settings.method} on {run.settings.feature} of block {run.blocks[place]}"
    title = title_of(result, how, EVALUATION.metrics[name])
    rows = []
    ensure_writable(folder)
    for rank, (image, which, _) in enumerate(chosen, 1):
        note = f"{which}: {scores[image]}"
        rows.append(_row(run, run.data[image], drawn[image], place, note))
        stem = Path(run.data.names[image]).stem
        save(sheet([rows[-1]], LEGEND, title=title), folder / f"{rank:02d}_{which}_{stem}.png")
    if rows:
        whole = sheet(rows[:MOST_ON_SHEET], LEGEND, title=title, aligned=True)
        save(whole, folder / "sheet.png")
    ensure_writable(folder / "tiles")
    tiles = [_tile(folder / "tiles", run, i, drawn[i], place, scores[i]) for i in first]
    write_tiles(folder / "tiles", tiles)
    log.info("pictures: %s", folder)


def _find(finder: Finder, pictures: Sequence[Picture], numbers: Sequence[int]) -> Any:
    plan = finder.plan(pictures)
    with progress("drawing", len(pictures)) as advance:
        for place, objects in finder.find(pictures, plan, range(len(plan.shards))):
            yield numbers[place], objects
            advance(1)


def _best_by_image(arrays: dict[str, np.ndarray], place: int) -> np.ndarray:
    """(images,) the highest IoU with a true box, or with the mask; 0 for degenerate images."""
    if "ious" not in arrays:
        return arrays["score"][:, place]
    highest = np.array([rows[:, place].max() for rows in ious_by_image(arrays)])
    return np.where(arrays["degenerate"][:, place], 0, highest)


def _score_words(objects: ImageObjects, place: int, iou: float, metric: str) -> str:
    if np.isnan(iou):
        return "no label"
    if objects.degenerate[place]:
        return "degenerate, a miss"
    return f"IoU {iou:.2f}" if metric == "iou" else f"best IoU {iou:.2f}"


def _row(run: TokencutRun, item: Item, objects: ImageObjects, place: int, note: str) -> list[Cell]:
    image = item.read()
    shown = panels(image, objects, place)
    both = outlined(truth_of(item, image, run), found_box(objects, place), FOUND)
    facts = "degenerate" if objects.found[place].degenerate else MAPS[run.settings.method]
    return [Cell(both, item.name), Cell(shown["mask"], note), Cell(shown["map"], facts)]


def _tile(
    folder: Path, run: TokencutRun, number: int, objects: ImageObjects, place: int, score: str
) -> dict[str, Any]:
    item = run.data[number]
    image = item.read()
    drawn = panels(image, objects, place)
    shared = {"image": image, "truth": truth_of(item, image, run)}
    own = {"box": drawn["box"], MAPS[run.settings.method]: drawn["map"]}
    return save_tile(folder, number, item.name, f"block {run.blocks[place]}, {score}", shared, own)


# -- plain pictures


def find_objects(settings: TokencutSettings) -> Path:
    """`--images`: box, mask and eigenvector drawn over each, into `out`, which is returned.

    One PNG a picture, a row for each block; objects.csv; the first of them on one sheet.
    """
    out = settings.out
    pictures = part_of(
        find_images(settings.images), settings.limit, settings.sample, settings.subset_seed
    )
    keep_originals(pictures, [out])
    if settings.skip_bad:
        pictures = list(decodable(pictures, settings.skip_bad, "these images"))
    finder = Finder(inspect(settings.ckpt, **settings.reading()), settings)
    ensure_writable(out)
    files = file_names([picture.name for picture in pictures])
    lines: dict[int, list[list[Any]]] = {}
    first: dict[int, list[Cell]] = {}
    for number, objects in _find(finder, pictures, range(len(pictures))):
        rows = _rows(finder, pictures[number], objects)
        save(sheet(rows, aligned=True), out / f"{files[number]}.png")
        lines[number] = _lines(finder, pictures[number], objects)
        if number < MOST_ON_SHEET:
            first[number] = rows[-1]
    save(sheet([first[i] for i in sorted(first)], aligned=True), out / "sheet.png")
    header = ["image", "block", *CORNERS, "tokens", "solver", "degenerate", "tied"]
    write_csv(out / "objects.csv", [header, *(line for i in sorted(lines) for line in lines[i])])
    return out


def _rows(finder: Finder, picture: Picture, objects: ImageObjects) -> list[list[Cell]]:
    image, rows = picture.read(), []
    for place, block in enumerate(finder.blocks):
        shown, found = panels(image, objects, place), objects.found[place]
        what = "degenerate: nothing stands out" if found.degenerate else f"{found.tokens} tokens"
        facts = f"{MAPS[finder.settings.method]}, block {block}"
        captions = {"box": picture.name, "mask": what, "map": facts}
        rows.append([Cell(shown[kind], caption) for kind, caption in captions.items()])
    return rows


def _lines(finder: Finder, picture: Picture, objects: ImageObjects) -> list[list[Any]]:
    return [
        [picture.name, block, *(f"{corner:g}" for corner in box), found.tokens, found.solver,
         int(found.degenerate), int(found.tied)]
        for block, box, found in zip(finder.blocks, objects.boxes, objects.found, strict=True)
    ]  # fmt: skip
