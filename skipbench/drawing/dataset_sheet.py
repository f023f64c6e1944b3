"""Images of a data set with their masks or boxes, and the legend of its classes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from skipbench.drawing.overlays import UNLABELLED, Colour, blend, draw_boxes, paint
from skipbench.drawing.sheet import Cell, sheet
from skipbench.images import IGNORED, resize, resize_boxes, target_hw
from skipbench.records import Side

if TYPE_CHECKING:
    from skipbench.datasets import Dataset, Item

BOXED_HEIGHT = 320


def dataset_sheet(data: "Dataset") -> Image.Image:
    """Every image with its mask beside it, or with its boxes on it."""
    if data.labels is None:
        colours: dict[str, Colour] = {}
        boxed = data.kind != "images"
        cells = [_with_boxes(item, boxed, colours) for item in data]
        return sheet(_in_rows(cells), height=BOXED_HEIGHT)
    cells, seen = [], set[int]()
    for item in data:
        image, mask = item.read(), item.mask()
        seen |= set(np.unique(mask).tolist())
        cells += [Cell(image, item.name), Cell(blend(image, paint(mask, data.labels.colours)))]
    return sheet(_in_rows(cells), legend_of(data, seen))


def legend_of(data: "Dataset", seen: set[int]) -> list[tuple[str, Colour]]:
    """Name and colour of each class seen, and of ignored pixels if there are any."""
    assert data.labels is not None
    names = zip(data.classes, data.labels.colours, strict=True)
    legend = [key for i, key in enumerate(names) if i in seen]
    return legend + ([("ignored", UNLABELLED)] if IGNORED in seen else [])


def _in_rows(cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    return [cells[i : i + 4] for i in range(0, len(cells), 4)]


def _with_boxes(item: "Item", boxed: bool, colours: dict[str, Colour]) -> Cell:
    """Drawn at the size at which it is shown, so that names can be read."""
    image = item.read()
    if not boxed and item.read_boxes is None:
        return Cell(image, item.name)
    boxes, old_hw = item.boxes(), image.shape[:2]
    image = resize(image, target_hw(old_hw, Side("long", round(1.4 * BOXED_HEIGHT))))
    xyxy = resize_boxes(boxes.xyxy, old_hw, image.shape[:2])
    return Cell(draw_boxes(image, xyxy, boxes.classes, colours), item.name)
