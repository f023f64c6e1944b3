"""Sheets of images with captions and a legend, composed pixel by pixel as PNG."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from skipbench.drawing.overlays import FAINT, INK, PAPER, Colour
from skipbench.files import write_whole

MARGIN, CAPTION, KEY, TITLE = 12, 20, 22, 26  # pixels
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Cell:
    picture: np.ndarray  # HWC uint8
    caption: str = ""


def save(picture: Image.Image, path: Path, dpi: float | None = None) -> None:
    """A PNG, whole or not at all."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", **({"dpi": (dpi, dpi)} if dpi else {}))
    write_whole(path, buffer.getvalue())


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
    font = ImageFont.load_default(14)
    title = one_line(title)
    shown = [[(_of_height(c.picture, height), one_line(c.caption)) for c in row] for row in rows]
    widths = [[picture.width for picture, _ in row] for row in shown]
    if aligned:
        widths = [list(map(max, zip(*widths, strict=True)))] * len(rows)
    width = max(sum(w + MARGIN for w in row) for row in widths) + MARGIN
    width = max(width, 2 * MARGIN + int(font.getlength(title)))
    keys = _legend_rows(list(legend), width, font)
    top, line = MARGIN + (TITLE if title else 0), height + CAPTION + MARGIN
    canvas = Image.new("RGB", (width, top + len(rows) * line + KEY * len(keys) + MARGIN), PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.text((MARGIN, MARGIN), title, INK, font)
    for i, row in enumerate(shown):
        x, y = MARGIN, top + i * line
        for (picture, caption), wide in zip(row, widths[i], strict=False):
            canvas.paste(picture, (x, y))
            draw.text((x, y + height + 3), _fitting(caption, wide, font), FAINT, font)
            x += wide + MARGIN
    for i, entries in enumerate(keys):
        y = top + len(rows) * line + KEY * i
        for x, name, colour in entries:
            draw.rectangle((x, y + 2, x + 14, y + 16), fill=colour, outline=FAINT)
            draw.text((x + 20, y), name, INK, font)
    return canvas


def one_line(text: str) -> str:
    """Line breaks, control characters and undecodable bytes of file names as spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _of_height(picture: np.ndarray, height: int) -> Image.Image:
    """Very wide images (over 3:1) are shrunk further and padded to the height."""
    image = Image.fromarray(picture)
    scale = min(height / image.height, 3 * height / image.width)
    width, tall = (max(1, round(side * scale)) for side in image.size)
    image = image.resize((width, tall), Image.Resampling.LANCZOS)
    if tall == height:
        return image
    padded = Image.new("RGB", (width, height), PAPER)
    padded.paste(image, (0, (height - tall) // 2))
    return padded


def _fitting(text: str, width: int, font: Font) -> str:
    """The end of a name that is too long: it tells one file from another."""
    while text and font.getlength(text) > width:
        text = "…" + text.lstrip("…")[1:] if len(text) > 2 else ""
    return text


def _legend_rows(
    legend: Sequence[tuple[str, Colour]], width: int, font: Font
) -> list[list[tuple[int, str, Colour]]]:
    """(x, name, colour) of each entry, row by row."""
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
