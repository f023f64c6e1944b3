"""Validation pictures beside their masks and predictions: worst, best, and so on inwards."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from skipbench.datasets import Dataset
from skipbench.evaluations.probe import Scenes, predict
from skipbench.files import ensure_writable
from skipbench.metrics.segmentation import miou_percent
from skipbench.pictures import Cell, blend, legend_of, paint, sheet

MOST_ON_SHEET = 12


def worst_and_best(counts: np.ndarray, number: int) -> list[tuple[int, str, float]]:
    """(image, "worst" or "best", its own mIoU), from both ends in turn. counts: (images, 3, c).

    Images without a labelled pixel have no score and are left out.
    """
    alone = miou_percent(counts)
    order = [int(i) for i in np.argsort(alone, kind="stable") if not np.isnan(alone[i])]
    chosen: list[tuple[int, str, float]] = []
    while order and len(chosen) < number:
        image = order.pop(0 if len(chosen) % 2 == 0 else -1)
        chosen.append((image, "worst" if len(chosen) % 2 == 0 else "best", float(alone[image])))
    return chosen


def draw_predictions(
    folder: Path,
    data: Dataset,
    scenes: Scenes,
    arrays: Mapping[str, np.ndarray],
    number: int,
    title: str,
) -> None:
    """One PNG a picture, and the first of them on one sheet. arrays: of the record.

    The mIoU of a picture is that over the classes in its mask or in its prediction, so a few stray
    pixels of another class cost much.
    """
    ensure_writable(folder)
    assert data.labels is not None
    colours, classes = data.labels.colours, len(data.classes)
    weight, bias = torch.from_numpy(arrays["weight"]), torch.from_numpy(arrays["bias"])
    rows, seen_classes = [], set[int]()
    for place, (image, which, miou) in enumerate(worst_and_best(arrays["counts"], number), 1):
        item = data[image]
        pixels, mask = item.read(), item.mask()
        found = next(predict(scenes.seen(image), mask.shape, weight, bias, classes))
        row = [
            Cell(pixels, item.name),
            Cell(blend(pixels, paint(mask, colours)), "ground truth"),
            Cell(blend(pixels, paint(found, colours)), f"{which}: mIoU {miou:.1f}"),
        ]
        there = set(np.unique(mask).tolist()) | set(np.unique(found).tolist())
        name = Path(item.name).stem
        alone = sheet([row], legend_of(data, there), title=title)
        alone.save(folder / f"{place:02d}_{which}_{name}.png")
        if place <= MOST_ON_SHEET:
            rows.append(row)
            seen_classes |= there
    if rows:
        legend = legend_of(data, seen_classes)
        sheet(rows, legend, title=title, aligned=True).save(folder / "sheet.png")
