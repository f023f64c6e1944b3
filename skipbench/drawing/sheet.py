"""Sheets of images with captions and a legend."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from skipbench.drawing.figure import (
    LINE,
    Page,
    ending,
    rasterize,
    style,
    text_width,
    wrapped,
)
from skipbench.drawing.overlays import Colour
from skipbench.files import write_whole

MARGIN, ENTRY, TITLE_SIZE, SIZE = 12, 20, 14, 12  # pixels
OUTLINE = (110, 110, 110)


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
