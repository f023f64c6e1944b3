"""Contact sheets for print: a row an image, a column a model; as PNG and as PDF.

Pictures keep their aspect ratio and every pixel: they are resampled once, to the width of their
column, and placed on the page's own pixel grid. In the PDF, text is text.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from skipbench.drawing.figure import (
    LEAST_DPI,
    METADATA,
    printable,
    rasterize,
    shortened,
    style,
    wrapped,
)
from skipbench.drawing.overlays import FAINT, INK
from skipbench.drawing.sheet import save
from skipbench.files import write_whole
from skipbench.images import read_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, ROWS = 340, 10  # of a column in pixels; on a page
PRINT_WIDTH, PRINT_HEIGHT = 7, 9.5  # inches: A4 or Letter without margins
HEADING_POINTS, SMALL_POINTS = (8, 7, 6, 5.5), 5.5
LINE = 1.3  # height of a line of text, in font sizes
TALLEST = 1.51  # of a column's width: portrait 2:3 fits
MOST_PICTURES = 1000  # in a PDF, which matplotlib holds in memory: 350 MB

# HWC uint8, or what reads it when its page is drawn: a file, a function.
Source = np.ndarray | Path | Callable[[], np.ndarray]


@dataclass(frozen=True)
class Row:
    label: str  # below the first picture: a file name
    pictures: Sequence[Source | None]  # None: left blank


def contact_sheet(
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    note: str = "",
    width: int = WIDTH,
    rows_on_page: int = ROWS,
) -> Iterator["Figure"]:
    """A figure a page; its pictures are read when it is asked for."""
    rows = list(rows)
    for start in range(0, len(rows), rows_on_page):
        yield _page(columns, rows[start : start + rows_on_page], note, width)


@style()
def _page(columns: Sequence[str], rows: Sequence[Row], note: str, width: int) -> "Figure":
    page = _Page(len(columns), width)
    page.add_headings(columns)
    labelled = any(printable(row.label) for row in rows)
    for row in rows:
        page.add_row(row, labelled)
    page.add_note(note)
    return page.finished()


class _Page:
    """Filled from top to bottom. Lengths and font sizes are in pixels, y points down."""

    def __init__(self, columns: int, width: int) -> None:
        from matplotlib.figure import Figure

        self.width, self.gap = width, max(4, round(0.035 * width))
        self.lefts = [self.gap + i * (width + self.gap) for i in range(columns)]
        self.page_width = columns * (width + self.gap) + self.gap
        self.y = self.gap
        self.axes = Figure().add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def font_size(self, points: float) -> int:
        """Smaller where columns are narrow."""
        dpi = max(LEAST_DPI, self.page_width / PRINT_WIDTH)
        return max(9, round(min(points * dpi / 72, self.width / 4.5)))

    def add_headings(self, texts: Sequence[str]) -> None:
        """In the largest size in which all fit on two lines; bottom-aligned."""
        for size in map(self.font_size, HEADING_POINTS):
            headings = [wrapped(printable(text), self.width, size) for text in texts]
            if all(len(lines) <= 2 and "…" not in "".join(lines) for lines in headings):
                break
        most = min(2, max(map(len, headings)))
        for left, text, lines in zip(self.lefts, texts, headings, strict=True):
            if len(lines) > 2:
                rest = printable(text).removeprefix(lines[0]).strip()
                lines = [lines[0], shortened(rest, self.width, size)]
            bottom = self.y + most * LINE * size
            self._write("\n".join(lines), left + self.width / 2, bottom, size, INK, "center")
        self._advance(most * LINE * size)

    def add_row(self, row: Row, labelled: bool) -> None:
        pictures = [None if p is None else _scaled(p, self.width) for p in row.pictures]
        tall = max((picture.height for picture in pictures if picture), default=0)
        for left, picture in zip(self.lefts, pictures, strict=True):
            if picture:
                x = left + (self.width - picture.width) // 2
                self._place(picture, x, self.y + (tall - picture.height) // 2)
        size = self.font_size(SMALL_POINTS) if labelled else 0
        if labelled:
            label = shortened(printable(row.label), self.width, size, head=0)
            bottom = self.y + tall + self.gap // 4 + LINE * size
            self._write(label, self.lefts[0], bottom, size, FAINT)
        self._advance(tall + (self.gap // 4 + LINE * size if labelled else 0))

    def add_note(self, note: str) -> None:
        size = self.font_size(SMALL_POINTS)
        lines = wrapped(printable(note), self.page_width - 2 * self.gap, size)
        if lines:
            height = len(lines) * LINE * size
            self._write("\n".join(lines), self.gap, self.y + height, size, FAINT)
            self._advance(height)

    def _place(self, picture: Image.Image, x: int, y: int) -> None:
        extent = (x, x + picture.width, y + picture.height, y)
        self.axes.imshow(np.asarray(picture), extent=extent, aspect="auto", interpolation="none")

    def _write(
        self, text: str, x: float, y: float, size: int, colour: tuple[int, ...], align: str = "left"
    ) -> None:
        rgb = tuple(c / 255 for c in colour)
        self.axes.text(x, y, text, size=size, color=rgb, ha=align, va="bottom", linespacing=1.1)

    def _advance(self, height: float) -> None:
        self.y += round(height) + self.gap if height else 0

    def finished(self) -> "Figure":
        """At 300 dpi, or more where the page would be larger than print has room for."""
        dpi = max(LEAST_DPI, self.page_width / PRINT_WIDTH, self.y / PRINT_HEIGHT)
        figure = self.axes.get_figure()
        figure.set_dpi(dpi)
        figure.set_size_inches(self.page_width / dpi, self.y / dpi)
        self.axes.set(xlim=(0, self.page_width), ylim=(self.y, 0))
        for text in self.axes.texts:
            text.set_fontsize(text.get_fontsize() * 72 / dpi)
        return figure


def _scaled(source: Source, width: int) -> Image.Image:
    """As wide as its column, or narrower if it would be too tall."""
    image = Image.fromarray(_pixels(source)).convert("RGB")
    scale = min(width / image.width, TALLEST * width / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    crisp = scale > 1 and 4 * image.width <= width  # single pixels are to be seen
    return image.resize(size, Image.Resampling.NEAREST if crisp else Image.Resampling.LANCZOS)


def _pixels(source: Source) -> np.ndarray:
    if isinstance(source, np.ndarray):
        return source
    return read_image(source) if isinstance(source, Path) else source()


@style()
def save_contact_sheet(pages: Iterable["Figure"], stem: Path) -> list[Path]:
    """stem.png (a second page stem_2.png …) and stem.pdf, which is written last.

    Pages of an earlier, longer sheet of this name are removed.
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
            if pictures <= MOST_PICTURES:
                pdf.savefig(page)
    book = stem.with_name(f"{stem.name}.pdf")
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
