"""Images with masks and boxes over them, and sheets of them with captions and a legend.

Images are HWC uint8, masks HW uint8 with 255 = ignore.
"""

import io
from collections.abc import Iterable, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from skipbench.drawing.figure import LINE, Page, ending, rasterize, style, text_width, wrapped
from skipbench.files import write_whole
from skipbench.images import IGNORED, resize, resize_boxes, target_hw
from skipbench.records import Side

if TYPE_CHECKING:
    from skipbench.datasets import Dataset, Item

Colour = tuple[int, int, int]  # RGB, 0-255

PAPER = (255, 255, 255)
UNLABELLED = (224, 224, 224)
BOX_COLOURS = ((230, 57, 70), (29, 120, 116), (244, 162, 97), (69, 123, 157), (106, 76, 147))
BOXED_HEIGHT = 320
MARGIN, ENTRY, TITLE_SIZE, SIZE = 12, 20, 14, 12  # pixels
OUTLINE = (110, 110, 110)


def paint(mask: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """HW classes → HWC uint8; ignored pixels light grey."""
    table = np.full((256, 3), UNLABELLED, np.uint8)
    table[: len(colours)] = colours
    table[IGNORED] = UNLABELLED
    return table[mask]


def hues(count: int) -> np.ndarray:
    """(count, 3) uint8: distinct colours for classes without a palette; neighbours differ most."""
    lights = (0.95, 0.7, 0.5)
    found = [hsv_to_rgb(-n * 0.618034 % 1, 0.75, lights[n // 7 % 3]) for n in range(count)]
    return np.round(255 * np.reshape(found, (-1, 3))).astype(np.uint8)


def blend(image: np.ndarray, over: np.ndarray, share: float = 0.6) -> np.ndarray:
    return (image * (1 - share) + over * share).round().astype(np.uint8)


def draw_boxes(
    image: np.ndarray,
    boxes_xyxy: np.ndarray,
    names: Sequence[str],
    colours: dict[str, Colour] | None = None,
) -> np.ndarray:
    """Two-pixel frames with names. A new name is added to `colours`, so that images can share it.

    boxes_xyxy: (n, 4), half-open.
    """
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    colours = {} if colours is None else colours
    font = ImageFont.load_default(11)
    for (x0, y0, x1, y1), name in zip(boxes_xyxy.tolist(), names, strict=True):
        colour = colours.setdefault(name, BOX_COLOURS[len(colours) % len(BOX_COLOURS)])
        corners = (x0, y0, max(x0, x1 - 1), max(y0, y1 - 1))
        draw.rectangle(corners, outline=colour, width=2)
        place = (x0 + 3, y0 + 2)
        draw.rectangle(draw.textbbox(place, name, font), fill=colour)
        draw.text(place, name, PAPER, font)
    return np.asarray(canvas)


# -- sheets


@dataclass(frozen=True)
class Cell:
    picture: np.ndarray  # HWC uint8
    caption: str = ""


def save(picture: Image.Image, path: Path, dpi: float | None = None) -> None:
    """A PNG, whole or not at all."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", dpi=(dpi, dpi) if dpi else None)
    write_whole(path, buffer.getvalue())


@style()
def sheet(
    rows: Sequence[Sequence[Cell]],
    legend: Iterable[tuple[str, Colour]] = (),
    height: int = 240,
    title: str = "",
    aligned: bool = False,
) -> Image.Image:
    """Rows of pictures of one height, aspect ratio kept, captions below, a legend at the end.

    aligned: cells below each other form columns of one width.
    """
    shown = [[_of_height(cell.picture, height) for cell in row] for row in rows]
    widths = [[picture.width for picture in row] for row in shown]
    if aligned:
        widths = [list(map(max, zip(*widths, strict=True)))] * len(rows)
    page, page_width = Page(MARGIN), MARGIN + max(sum(w + MARGIN for w in row) for row in widths)
    lines = wrapped(title, page_width - 2 * MARGIN, TITLE_SIZE)
    page.y += len(lines) * LINE * TITLE_SIZE
    page.write(lines, MARGIN, TITLE_SIZE)
    page.y += MARGIN / 2 if lines else 0
    for row, pictures, wide in zip(rows, shown, widths, strict=True):
        lefts = [MARGIN + start + i * MARGIN for i, start in enumerate(accumulate([0, *wide[:-1]]))]
        page.add_row(pictures, [cell.caption for cell in row], lefts, wide, SIZE)
        page.y += MARGIN
    _add_legend(page, legend, page_width)
    return rasterize(page.finish(page_width))


def _add_legend(page: Page, legend: Iterable[tuple[str, Colour]], width: int) -> None:
    x, page.y = MARGIN, page.y + ENTRY
    for name, colour in legend:
        text = ending(name, width - 2 * MARGIN - ENTRY, SIZE)
        needed = ENTRY + int(text_width(text, SIZE)) + MARGIN
        if x > MARGIN and x + needed > width:
            x, page.y = MARGIN, page.y + ENTRY
        swatch = ImageOps.expand(Image.new("RGB", (12, 12), colour), 1, OUTLINE)
        page.place(swatch, x, round(page.y) - 16)
        page.write([text], x + ENTRY, SIZE)
        x += needed + MARGIN
    page.y += MARGIN if x > MARGIN else -ENTRY


def _of_height(picture: np.ndarray, height: int) -> Image.Image:
    """Less than that where it would be wider than 3:1."""
    image = Image.fromarray(picture)
    scale = min(height / image.height, 3 * height / image.width)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.LANCZOS)


# -- data sets


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
