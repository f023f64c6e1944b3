"""Pictures for people: masks in the data set's colours, boxes, sheets with captions, a legend."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from skipbench.datasets import Dataset, Item
from skipbench.datasets.common.types import Colour as Colour
from skipbench.datasets.common.types import Kind
from skipbench.files import write_whole
from skipbench.images import IGNORED, resize, resize_boxes, target_hw
from skipbench.plates.lettering import FAINT, INK, PAPER
from skipbench.records import Side

MARGIN = 12
BOXED_HEIGHT = 320
UNLABELLED = (224, 224, 224)
BOX_COLOURS = ((230, 57, 70), (29, 120, 116), (244, 162, 97), (69, 123, 157), (106, 76, 147))


def paint(mask: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """HW classes → HWC uint8; ignored pixels light grey."""
    table = np.full((256, 3), UNLABELLED, np.uint8)
    table[: len(colours)] = colours
    table[IGNORED] = UNLABELLED
    return table[mask]


def hues(count: int) -> np.ndarray:
    """(count, 3) uint8: colours that differ, neighbours most of all; for what has no colours."""
    number = np.arange(count)
    hue, light = number * 0.618034 % 1, np.array([0.95, 0.7, 0.5])[number // 7 % 3]
    thirds = np.array([0, 1 / 3, 2 / 3])
    wheel = np.abs((hue[:, None] + thirds) % 1 * 6 - 3).clip(1, 2) - 1
    return np.round(255 * light[:, None] * (0.25 + 0.75 * wheel)).astype(np.uint8)


def save(picture: Image.Image, path: Path) -> None:
    """A PNG, whole or not at all."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    write_whole(path, buffer.getvalue())


def blend(image: np.ndarray, over: np.ndarray, share: float = 0.6) -> np.ndarray:
    return (image * (1 - share) + over * share).round().astype(np.uint8)


def draw_boxes(
    image: np.ndarray,
    boxes_xyxy: np.ndarray,
    names: Sequence[str],
    shades: dict[str, Colour] | None = None,
) -> np.ndarray:
    """Each box two pixels wide, with its name; one colour a name, the same with the same shades."""
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    shades = {} if shades is None else shades
    font = ImageFont.load_default(11)
    for (x0, y0, x1, y1), name in zip(boxes_xyxy.tolist(), names, strict=True):
        shade = shades.setdefault(name, BOX_COLOURS[len(shades) % len(BOX_COLOURS)])
        corners = (x0, y0, max(x0, x1 - 1), max(y0, y1 - 1))  # half-open: the last pixel is inside
        draw.rectangle(corners, outline=shade, width=2)
        place = (x0 + 3, y0 + 2)
        draw.rectangle(draw.textbbox(place, name, font), fill=shade)
        draw.text(place, name, PAPER, font)
    return np.asarray(canvas)


@dataclass(frozen=True)
class Cell:
    picture: np.ndarray  # HWC uint8
    caption: str = ""


def sheet(
    rows: Sequence[Sequence[Cell]],
    legend: Iterable[tuple[str, Colour]] = (),
    height: int = 240,
    title: str = "",
    aligned: bool = False,
) -> Image.Image:
    """Rows of pictures of one height, aspect ratio kept, captions below, a legend at the end.

    aligned: what is below each other in the rows, is so in the picture.
    """
    font = ImageFont.load_default(14)
    shown = [[(_of_height(c.picture, height), c.caption) for c in row] for row in rows]
    widths = [[picture.width for picture, _ in row] for row in shown]
    if aligned:
        widths = [list(map(max, zip(*widths, strict=True)))] * len(rows)
    width = max(sum(w + MARGIN for w in row) for row in widths) + MARGIN
    width = max(width, 2 * MARGIN + int(font.getlength(title)))
    keys = _legend_rows(list(legend), width, font)
    top, line = MARGIN + (26 if title else 0), height + 20 + MARGIN
    canvas = Image.new("RGB", (width, top + len(rows) * line + 22 * len(keys) + MARGIN), PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.text((MARGIN, MARGIN), title, INK, font)
    for i, row in enumerate(shown):
        x, y = MARGIN, top + i * line
        for (picture, caption), wide in zip(row, widths[i], strict=False):
            canvas.paste(picture, (x, y))
            draw.text((x, y + height + 3), _fitting(caption, wide, font), FAINT, font)
            x += wide + MARGIN
    for i, entries in enumerate(keys):
        y = top + len(rows) * line + 22 * i
        for x, name, colour in entries:
            draw.rectangle((x, y + 2, x + 14, y + 16), fill=colour, outline=FAINT)
            draw.text((x + 20, y), name, INK, font)
    return canvas


def _of_height(picture: np.ndarray, height: int) -> Image.Image:
    """Smaller than that, and in the middle, where it would be wider than three times its height."""
    image = Image.fromarray(picture)
    scale = min(height / image.height, 3 * height / image.width)
    width, tall = (max(1, round(side * scale)) for side in image.size)
    image = image.resize((width, tall), Image.Resampling.LANCZOS)
    if tall == height:
        return image
    padded = Image.new("RGB", (width, height), PAPER)
    padded.paste(image, (0, (height - tall) // 2))
    return padded


def _fitting(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Its end, which tells one file from another."""
    while text and font.getlength(text) > width:
        text = "…" + text.lstrip("…")[1:] if len(text) > 2 else ""
    return text


def _legend_rows(
    legend: Sequence[tuple[str, Colour]],
    width: int,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> list[list[tuple[int, str, Colour]]]:
    rows: list[list[tuple[int, str, Colour]]] = []
    x = width  # the first entry starts a row
    for name, colour in legend:
        needed = 20 + int(font.getlength(name)) + 2 * MARGIN
        if x + needed > width:
            rows.append([])
            x = MARGIN
        rows[-1].append((x, name, colour))
        x += needed
    return rows


def dataset_sheet(data: Dataset) -> Image.Image:
    """Every image with its mask beside it, or with its boxes on it."""
    if data.labels is None:
        shades: dict[str, Colour] = {}
        cells = [_with_boxes(item, data.kind, shades) for item in data]
        return sheet(_in_rows(cells), height=BOXED_HEIGHT)
    cells, seen = [], set[int]()
    for item in data:
        image, mask = item.read(), item.mask()
        seen |= set(np.unique(mask).tolist())
        cells += [Cell(image, item.name), Cell(blend(image, paint(mask, data.labels.colours)))]
    return sheet(_in_rows(cells), legend_of(data, seen))


def legend_of(data: Dataset, seen: set[int]) -> list[tuple[str, Colour]]:
    """Names and colours of these classes, and of what is ignored, if that is among them."""
    assert data.labels is not None
    names = zip(data.classes, data.labels.colours, strict=True)
    legend = [key for i, key in enumerate(names) if i in seen]
    return legend + ([("ignored", UNLABELLED)] if IGNORED in seen else [])


def _in_rows(cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    return [cells[i : i + 4] for i in range(0, len(cells), 4)]


def _with_boxes(item: Item, kind: Kind, shades: dict[str, Colour]) -> Cell:
    """Drawn at the size at which it is shown, so that names can be read."""
    image = item.read()
    if kind == "images" and item.read_boxes is None:
        return Cell(image, item.name)
    boxes, old_hw = item.boxes(), image.shape[:2]
    image = resize(image, target_hw(old_hw, Side("long", round(1.4 * BOXED_HEIGHT))))
    xyxy = resize_boxes(boxes.xyxy, old_hw, image.shape[:2])
    return Cell(draw_boxes(image, xyxy, boxes.classes, shades), item.name)
