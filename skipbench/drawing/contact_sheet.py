"""Contact sheets for print: a row an image, a column a model; as PNG and as PDF.

Pictures are resampled once, to the width of their column, and placed on the page's own pixel grid.
In the PDF they have the same pixels, and text is text.
"""

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from skipbench.drawing.figure import (
    FAINT,
    LEAST_DPI,
    LINE,
    METADATA,
    Page,
    rasterize,
    style,
    wrapped,
)
from skipbench.drawing.sheet import save
from skipbench.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("skipbench")

PRINT_WIDTH, PRINT_HEIGHT = 7, 9.5  # inches: A4 or Letter without margins
HEADING_POINTS, SMALL_POINTS = 6.5, 5
TALLEST = 1.51  # of a column's width: portrait 2:3 fits
PDF_PICTURES = 1000  # matplotlib keeps them in memory until the PDF is closed: 350 MB


@dataclass(frozen=True)
class Row:
    label: str  # below the first picture: a file name
    pictures: Sequence[Callable[[], np.ndarray] | None]  # return HWC uint8; None: left blank


def contact_sheet(
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    note: str = "",
    width: int = 340,
    rows_on_page: int = 10,
) -> Iterator["Figure"]:
    """A figure a page; its pictures are read when it is asked for. width: of a column, pixels."""
    rows = list(rows)
    for start in range(0, len(rows), rows_on_page):
        yield _page(columns, rows[start : start + rows_on_page], note, width)


@style()
def _page(columns: Sequence[str], rows: Sequence[Row], note: str, width: int) -> "Figure":
    """At 300 dpi, or more where the page would be larger than print has room for."""
    gap = max(4, round(0.035 * width))
    page, lefts = Page(gap), [gap + i * (width + gap) for i in range(len(columns))]
    page_width = gap + len(columns) * (width + gap)
    dpi = max(LEAST_DPI, page_width / PRINT_WIDTH)
    heading, small = (
        max(9, min(points * dpi / 72, width / 4.5)) for points in (HEADING_POINTS, SMALL_POINTS)
    )
    _add_headings(page, columns, lefts, width, heading)
    for row in rows:
        pictures = [read and _scaled(read(), width) for read in row.pictures]
        page.add_row(pictures, [row.label], lefts, [width] * len(lefts), small, centred=True)
        page.y += gap
    lines = wrapped(note, page_width - 2 * gap, small)
    page.y += len(lines) * LINE * small
    page.write(lines, gap, small, color=FAINT)
    page.y += gap if lines else 0
    return page.finish(page_width, max(dpi, page.y / PRINT_HEIGHT))


def _add_headings(
    page: Page, texts: Sequence[str], lefts: Sequence[int], width: int, size: float
) -> None:
    headings = [wrapped(text, width, size) for text in texts]
    page.y += max(map(len, headings)) * LINE * size
    for left, lines in zip(lefts, headings, strict=True):
        page.write(lines, left + width / 2, size, ha="center")


def _scaled(pixels: np.ndarray, width: int) -> Image.Image:
    """As wide as its column, or narrower if it would be too tall."""
    image = Image.fromarray(pixels).convert("RGB")
    scale = min(width / image.width, TALLEST * width / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    crisp = scale > 1 and 4 * image.width <= width  # single pixels are to be seen
    return image.resize(size, Image.Resampling.NEAREST if crisp else Image.Resampling.LANCZOS)


@style()
def save_contact_sheet(
    pages: Iterable["Figure"], stem: Path, pdf_pictures: int = PDF_PICTURES
) -> list[Path]:
    """stem.png (a second page stem_2.png …) and stem.pdf, which is written last.

    Pages are cleared once they are saved. PNGs of an earlier, longer sheet of this name are
    removed. pdf_pictures: pages beyond so many pictures are PNGs alone.
    """
    from matplotlib.backends.backend_pdf import PdfPages

    written: list[Path] = []
    content, pictures = io.BytesIO(), 0
    with PdfPages(content, metadata=METADATA["pdf"]) as pdf:
        for page in pages:
            number = f"_{len(written) + 1}" if written else ""
            written.append(stem.with_name(f"{stem.name}{number}.png"))
            save(rasterize(page), written[-1], page.dpi)
            pictures += len(page.axes[0].images)
            if pictures <= pdf_pictures or len(written) == 1:
                pdf.savefig(page)
            page.clear()
    book = stem.with_name(f"{stem.name}.pdf")
    if pictures > pdf_pictures:
        log.info("%s stops at %d pictures; the PNG pages have all %d", book, pdf_pictures, pictures)
    if written:
        write_whole(book, content.getvalue())
    else:
        book.unlink(missing_ok=True)
    _remove_stale(stem, len(written))
    return [*written, book] if written else []


def _remove_stale(stem: Path, count: int) -> None:
    """A PNG with a PDF of its own is another sheet that has a number in its name."""
    name = re.compile(re.escape(stem.name) + r"(?:_([1-9][0-9]*))?\.png")
    for path in stem.parent.iterdir():
        found = name.fullmatch(path.name)
        if found and int(found[1] or 1) > count and not path.with_suffix(".pdf").exists():
            path.unlink(missing_ok=True)
