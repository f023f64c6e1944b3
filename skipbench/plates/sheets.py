"""Sheets of pictures for print: a row an image, a column a model; as PNG and as PDF.

A page is stacked from strips of its own width (title, headings, a row each, note), so that nothing
lies over anything else. Type is measured in points of the printed page, which is 7 inches at most.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from skipbench.files import write_whole
from skipbench.images import read_image
from skipbench.plates.lettering import (
    FAINT,
    INK,
    PAPER,
    font,
    in_two,
    length,
    line_height,
    plain,
    shortened,
    wrapped,
)
from skipbench.plates.pdf import Pdf, png_pixels, whole

LEAST_DPI, LARGEST_INCHES = 300, (7, 9.5)  # wide and high: what print leaves of A4 and Letter
TITLE_POINTS, HEADING_POINTS, SMALL_POINTS = 9, (8, 7, 6, 5.5), 5.5
TALLEST = 1.51  # of a column's width: an upright 2:3 photograph whose sides were rounded fits


# HWC uint8, or what reads it once its page is drawn: a file, a function.
Source = np.ndarray | Path | Callable[[], np.ndarray]


@dataclass(frozen=True)
class Row:
    label: str  # below the first picture: a file name
    pictures: Sequence[Source | None]  # None: nothing there


# -- a page


@dataclass(frozen=True)
class _Layout:
    columns: tuple[str, ...]
    width: int  # of a column

    @property
    def gap(self) -> int:
        return max(4, round(0.035 * self.width))

    @property
    def page_width(self) -> int:
        return self.left(len(self.columns))

    def left(self, column: int) -> int:
        return self.gap + column * (self.width + self.gap)

    def type_size(self, points: float) -> int:
        """In pixels; smaller where columns are narrow."""
        return max(9, round(min(points * dpi_of(self.strip(1)) / 72, self.width / 4.5)))

    def strip(self, height: int) -> Image.Image:
        return Image.new("RGB", (self.page_width, height), PAPER)


def pages(
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    title: str = "",
    note: str = "",
    width: int = 340,
    rows_on_page: int = 10,
) -> Iterator[Image.Image]:
    """One image a page; its pictures are read when it is asked for. width: of a column, pixels."""
    rows = list(rows)
    layout = _Layout(tuple(map(plain, columns)), width)
    count = -(-len(rows) // rows_on_page)
    labelled = any(plain(row.label) for row in rows)
    for i in range(count):
        number = f" ({i + 1} of {count})" if title and count > 1 else ""
        shown = rows[i * rows_on_page : (i + 1) * rows_on_page]
        yield _stacked(
            layout,
            _text_strip(layout, title + number, TITLE_POINTS, INK),
            _headings(layout),
            *(_row(layout, row, labelled) for row in shown),
            _text_strip(layout, note, SMALL_POINTS, FAINT),
        )


def _stacked(layout: _Layout, *given: Image.Image) -> Image.Image:
    strips = [strip for strip in given if strip.height]
    page = layout.strip(layout.gap + sum(strip.height + layout.gap for strip in strips))
    y = layout.gap
    for strip in strips:
        page.paste(strip, (0, y))
        y += strip.height + layout.gap
    return page


def _text_strip(
    layout: _Layout, text: str, points: float, colour: tuple[int, int, int]
) -> Image.Image:
    size = layout.type_size(points)
    lines = wrapped(plain(text), layout.page_width - 2 * layout.gap, size)
    strip = layout.strip(len(lines) * line_height(size))
    for i, line in enumerate(lines):
        ImageDraw.Draw(strip).text((layout.gap, i * line_height(size)), line, colour, font(size))
    return strip


def _headings(layout: _Layout) -> Image.Image:
    """All in one size: the largest in which none has to be shortened. They end at one height."""
    for size in map(layout.type_size, HEADING_POINTS):
        headings = [in_two(text, layout.width, size) for text in layout.columns]
        if not any("…" in line for lines in headings for line in lines):
            break
    most = max(map(len, headings), default=0)
    strip = layout.strip(most * line_height(size))
    draw = ImageDraw.Draw(strip)
    for column, lines in enumerate(headings):
        for i, line in enumerate(lines, most - len(lines)):
            x = layout.left(column) + (layout.width - length(line, size)) / 2
            draw.text((x, i * line_height(size)), line, INK, font(size))
    return strip


def _row(layout: _Layout, row: Row, labelled: bool) -> Image.Image:
    cells = [None if p is None else _scaled(p, layout.width) for p in row.pictures]
    tall = max((cell.height for cell in cells if cell), default=0)
    size = layout.type_size(SMALL_POINTS)
    strip = layout.strip(tall + (line_height(size) + layout.gap // 4 if labelled else 0))
    for column, cell in zip(range(len(layout.columns)), cells, strict=True):
        if cell:
            x = layout.left(column) + (layout.width - cell.width) // 2
            strip.paste(cell, (x, (tall - cell.height) // 2))
    label = shortened(plain(row.label), layout.width, size, 0)  # its end tells files apart
    ImageDraw.Draw(strip).text((layout.gap, tall + layout.gap // 4), label, FAINT, font(size))
    return strip


def _pixels(source: Source) -> np.ndarray:
    if isinstance(source, np.ndarray):
        return source
    return read_image(source) if isinstance(source, Path) else source()


def _scaled(picture: Source, width: int) -> Image.Image:
    """As wide as its column, or narrower if it would be too tall."""
    image = Image.fromarray(_pixels(picture)).convert("RGB")
    scale = min(width / image.width, TALLEST * width / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    crisp = scale > 1 and 4 * image.width <= width  # a few pixels are to be seen as such
    return image.resize(size, Image.Resampling.NEAREST if crisp else Image.Resampling.LANCZOS)


# -- files


def dpi_of(page: Image.Image) -> float:
    """In print: 300, or more where the page would be wider or higher than a page has room for."""
    width, height = LARGEST_INCHES
    return max(LEAST_DPI, page.width / width, page.height / height)


def save_pages(pages: Iterable[Image.Image], stem: Path) -> list[Path]:
    """stem.png (a second page stem_2.png …) and stem.pdf with all pages, the PDF last.

    Pages of an earlier, longer sheet of this name are removed.
    """
    written: list[Path] = []
    book = stem.with_name(f"{stem.name}.pdf")
    with whole(book) as file:
        pdf = Pdf(file)
        for page in pages:
            png, dpi = io.BytesIO(), dpi_of(page)
            page.convert("RGB").save(png, "PNG", dpi=(dpi, dpi))
            number = f"_{len(written) + 1}" if written else ""
            written.append(stem.with_name(f"{stem.name}{number}.png"))
            write_whole(written[-1], png.getvalue())
            pdf.add(page.size, dpi, png_pixels(png.getvalue()))
            del page  # or it would be kept while the next one is drawn
        pdf.end()
        if not written:
            book.unlink(missing_ok=True)
        _remove_stale(stem, len(written))
    return [*written, book] if written else []


def _remove_stale(stem: Path, count: int) -> None:
    """What has a PDF of its own is no page but another sheet, with a number in its name."""
    name = re.compile(re.escape(stem.name) + r"(?:_([1-9][0-9]*))?\.png")
    for path in stem.parent.iterdir():
        found = name.fullmatch(path.name)
        if found and int(found[1] or 1) > count and not path.with_suffix(".pdf").exists():
            path.unlink(missing_ok=True)
