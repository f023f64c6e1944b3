"""Validation images with masks and predictions: worst, best, second worst, and so on.

results/<id>/01_worst_NAME.png …    picture, mask, prediction; sheet.png has the first of them
results/<id>/tiles/                 the split's first pictures one by one, the same for every
                                    checkpoint, so that a page can set models side by side
    index.json                      written last
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from skipbench.datasets import Dataset, Item
from skipbench.drawing.sheet import Cell, blend, legend_of, paint, save, sheet
from skipbench.errors import UsageError
from skipbench.files import ensure_writable, unlike, write_whole
from skipbench.images import ImageItem
from skipbench.metrics.segmentation import miou_percent
from skipbench.records import Result

log = logging.getLogger("skipbench")

MOST_ON_SHEET = 12
TILE_HEIGHT = 224
MOST_BYTES = 150  # of a file name


def from_both_ends(scores: np.ndarray, number: int) -> list[tuple[int, str, float]]:
    """(image, "worst" or "best", its score), from both ends in turn. scores: (images,), NaN where
    there is none."""
    order = [int(i) for i in np.argsort(scores, kind="stable") if not np.isnan(scores[i])]
    chosen: list[tuple[int, str, float]] = []
    while order and len(chosen) < number:
        image = order.pop(0 if len(chosen) % 2 == 0 else -1)
        chosen.append((image, "worst" if len(chosen) % 2 == 0 else "best", float(scores[image])))
    return chosen


@dataclass(frozen=True)
class Drawn:
    item: Item
    image: np.ndarray
    truth: np.ndarray
    prediction: np.ndarray
    classes: set[int]  # in the mask or in the prediction
    more: Mapping[str, np.ndarray]  # further pictures, by caption


# (image, size_hw) → (*size_hw) predicted classes, and further pictures, by caption
Predict = Callable[[int, tuple[int, int]], tuple[np.ndarray, Mapping[str, np.ndarray]]]


@dataclass(frozen=True)
class Drawing:
    """Images, masks and predictions of a data set, ready to be put on a sheet."""

    data: Dataset
    items: Sequence[Item]  # all or some of its images, numbered as in `predict`
    predict: Predict
    counts: np.ndarray  # (images, 3, classes), of all images

    def draw(self, image: int) -> Drawn:
        assert self.data.labels is not None
        item, colours = self.items[image], self.data.labels.colours
        pixels, mask = item.read(), item.mask()
        found, more = self.predict(image, mask.shape)
        return Drawn(
            item,
            pixels,
            blend(pixels, paint(mask, colours)),
            blend(pixels, paint(found, colours)),
            set(np.unique(mask).tolist()) | set(np.unique(found).tolist()),
            {caption: blend(pixels, picture) for caption, picture in more.items()},
        )


def draw_record(folder: Path, drawing: Drawing, number: int, result: Result, how: str) -> None:
    """All pictures of a record. how: layers and settings, for the title."""
    draw_predictions(folder, drawing, number, title_of(result, how, "mIoU"))
    draw_tiles(folder / "tiles", drawing, number)
    log.info("pictures: %s", folder)


def title_of(result: Result, how: str, metric: str) -> str:
    checkpoint, dataset = result.checkpoint, result.dataset
    return (
        f"{checkpoint['name']} ({checkpoint['residual']}), {how}, {dataset['name']} "
        f"{dataset['split']}: {metric} {result.metrics[result.metrics['headline']]:.1f}"
    )


def draw_predictions(folder: Path, drawing: Drawing, number: int, title: str) -> None:
    """One PNG a picture, and the first of them on one sheet.

    The mIoU of a picture is that over the classes in its mask or in its prediction, so a few stray
    pixels of another class cost much.
    """
    ensure_writable(folder)
    rows, seen = [], set[int]()
    chosen = from_both_ends(miou_percent(drawing.counts), number)
    for place, (image, which, miou) in enumerate(chosen, 1):
        drawn = drawing.draw(image)
        row = [
            Cell(drawn.image, drawn.item.name),
            Cell(drawn.truth, "ground truth"),
            Cell(drawn.prediction, f"{which}: mIoU {miou:.1f}"),
            *(Cell(picture, caption) for caption, picture in drawn.more.items()),
        ]
        name = Path(drawn.item.name).stem
        alone = sheet([row], legend_of(drawing.data, drawn.classes), title=title)
        save(alone, folder / f"{place:02d}_{which}_{name}.png")
        if place <= MOST_ON_SHEET:
            rows.append(row)
            seen |= drawn.classes
    if rows:
        legend = legend_of(drawing.data, seen)
        save(sheet(rows, legend, title=title, aligned=True), folder / "sheet.png")


def draw_tiles(folder: Path, drawing: Drawing, number: int) -> None:
    ensure_writable(folder)
    tiles, seen = [], set[int]()
    for image in range(min(number, len(drawing.items))):
        drawn = drawing.draw(image)
        shared = {"image": drawn.image, "truth": drawn.truth}
        own = {"prediction": drawn.prediction, **drawn.more}
        miou = float(miou_percent(drawing.counts[image]))
        note = "" if np.isnan(miou) else f"mIoU {miou:.1f}"
        tiles.append(save_tile(folder, image, drawn.item.name, note, shared, own))
        seen |= drawn.classes
    legend = [
        (name, "#{:02x}{:02x}{:02x}".format(*colour))
        for name, colour in legend_of(drawing.data, seen)
    ]
    write_tiles(folder, tiles, legend)


def write_tiles(
    folder: Path, tiles: list[dict[str, Any]], legend: Sequence[tuple[str, str]] = ()
) -> None:
    """index.json, written last: where it exists, all tiles do."""
    index = {"tiles": tiles, "legend": legend}
    write_whole(folder / "index.json", json.dumps(index, indent=1).encode())


def save_tile(
    folder: Path,
    number: int,
    name: str,
    note: str,
    shared: Mapping[str, np.ndarray],
    own: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """PNGs of one image, and its entry in index.json. shared: the same for all models."""
    for kind, pixels in {**shared, **own}.items():
        image = Image.fromarray(pixels)
        size_wh = max(1, round(image.width * TILE_HEIGHT / image.height)), TILE_HEIGHT
        path = folder / f"{number:05d}_{kind}.png"
        save(image.resize(size_wh, Image.Resampling.LANCZOS), path)
    files = [{kind: f"{number:05d}_{kind}.png" for kind in kinds} for kinds in (shared, own)]
    return {"image": name, "shared": files[0], "own": files[1], "note": note}


def file_names(names: Sequence[str]) -> list[str]:
    """ "a/b.jpg" → "a_b"; with its suffix where two would be called that, and with a number where
    the suffix is the same, too."""
    flat = [_short(name.replace("/", "_")) for name in names]
    times = Counter(Path(name).stem for name in flat)
    first = [Path(name).stem if times[Path(name).stem] == 1 else name for name in flat]
    return unlike(first, taken=["sheet"])


def _short(name: str) -> str:
    """Its end, which distinguishes files, if the whole is too long for a file system."""
    whole = os.fsencode(name)
    return name if len(whole) <= MOST_BYTES else whole[-MOST_BYTES:].decode("utf-8", "ignore")


def keep_originals(pictures: Iterable[ImageItem], places: Iterable[Path]) -> None:
    """Input images are neither overwritten nor mixed with what is drawn."""
    homes = {picture.path.resolve().parent for picture in pictures}
    for place in places:
        if place.resolve() in homes:
            raise UsageError(f"{place} contains the input images; choose another folder with --out")
