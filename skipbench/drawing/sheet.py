"""Images with masks and boxes over them; sheets of them for the screen, contact sheets for print.

Images are HWC uint8, masks HW uint8 with 255 = ignore.
"""

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from skipbench.drawing.figure import (
    FAINT,
    LEAST_DPI,
    LINE,
    METADATA,
    Page,
    ending,
    rasterize,
    style,
    text_width,
    wrapped,
)
from skipbench.files import write_whole
from skipbench.images import IGNORED, resize, resize_boxes, target_hw
from skipbench.records import Side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from skipbench.datasets import Dataset, Item

log = logging.getLogger("skipbench")

Colour = tuple[int, int, int]  # RGB, 0-255

PAPER = (255, 255, 255)
UNLABELLED = (224, 224, 224)
BOX_COLOURS = ((230, 57, 70), (29, 120, 116), (244, 162, 97), (69, 123, 157), (106, 76, 147))
BOXED_HEIGHT = 320
MARGIN, ENTRY, TITLE_SIZE, SIZE = 12, 20, 14, 12  # pixels
OUTLINE = (110, 110, 110)

# Of contact sheets
PRINT_WIDTH, PRINT_HEIGHT = 7, 9.5  # inches: A4 or Letter without margins
HEADING_POINTS, SMALL_POINTS = 6.5, 5
TALLEST = 1.51  # of a column's width: portrait 2:3 fits
PDF_PICTURES = 1000  # matplotlib keeps them in memory until the PDF is closed: 350 MB


def paint(mask: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """HW classes → HWC uint8; ignored pixels are light grey."""
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
    """Two-pixel frames with names. New names are added to `colours`, which images can share.

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
    shown = [[_within(cell.picture, 3 * height, height) for cell in row] for row in rows]
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


def _within(picture: np.ndarray, width: float, height: float, crisp: bool = False) -> Image.Image:
    """As large as fits. crisp: keep single pixels visible."""
    image = Image.fromarray(picture).convert("RGB")
    scale = min(width / image.width, height / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.NEAREST if crisp else Image.Resampling.LANCZOS)


# -- data sets


def dataset_sheet(data: "Dataset") -> Image.Image:
    """Every image next to its mask, or with its boxes."""
    if data.kind == "classes":
        rows = _in_rows([Cell(item.read(), f"{item.image_class()}: {item.name}") for item in data])
        return sheet(rows, height=BOXED_HEIGHT)
    if data.labels is None:
        colours: dict[str, Colour] = {}
        boxed = data.kind != "images"
        cells = [_with_boxes(item, boxed, colours) for item in data]
        return sheet(_in_rows(cells), height=BOXED_HEIGHT)
    cells, present = [], set[int]()
    for item in data:
        image, mask = item.read(), item.mask()
        present |= set(np.unique(mask).tolist())
        cells += [Cell(image, item.name), Cell(blend(image, paint(mask, data.labels.colours)))]
    return sheet(_in_rows(cells), legend_of(data, present))


def legend_of(data: "Dataset", present: set[int]) -> list[tuple[str, Colour]]:
    """Name and colour of each class present, and of ignored pixels if there are any."""
    assert data.labels is not None
    names = zip(data.classes, data.labels.colours, strict=True)
    legend = [key for i, key in enumerate(names) if i in present]
    return legend + ([("ignored", UNLABELLED)] if IGNORED in present else [])


def _in_rows(cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    return [cells[i : i + 4] for i in range(0, len(cells), 4)]


def _with_boxes(item: "Item", boxed: bool, colours: dict[str, Colour]) -> Cell:
    """Boxes drawn after resizing, so that their names stay legible."""
    image = item.read()
    if not boxed and item.read_boxes is None:
        return Cell(image, item.name)
    boxes, old_hw = item.boxes(), image.shape[:2]
    image = resize(image, target_hw(old_hw, Side("long", round(1.4 * BOXED_HEIGHT))))
    xyxy = resize_boxes(boxes.xyxy, old_hw, image.shape[:2])
    return Cell(draw_boxes(image, xyxy, boxes.classes, colours), item.name)


# -- contact sheets


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
    """A figure per page, a row per image, a column per model. Lazy. width: of a column, in pixels.

    Pictures are resampled once, to the width of their column, and placed on the page's pixel grid;
    a PDF has the same pixels, and text as text.
    """
    rows = list(rows)
    for start in range(0, len(rows), rows_on_page):
        yield _page(columns, rows[start : start + rows_on_page], note, width)


@style()
def _page(columns: Sequence[str], rows: Sequence[Row], note: str, width: int) -> "Figure":
    """At 300 dpi, or more where the page would not fit the paper."""
    gap = max(4, round(0.035 * width))
    page, lefts = Page(gap), [gap + i * (width + gap) for i in range(len(columns))]
    page_width = gap + len(columns) * (width + gap)
    dpi = max(LEAST_DPI, page_width / PRINT_WIDTH)
    heading, small = (
        max(9, min(points * dpi / 72, width / 4.5)) for points in (HEADING_POINTS, SMALL_POINTS)
    )
    headings = [wrapped(text, width, heading) for text in columns]
    page.y += max(map(len, headings)) * LINE * heading
    for left, lines in zip(lefts, headings, strict=True):
        page.write(lines, left + width / 2, heading, ha="center")
    for row in rows:
        pictures = [read and _of_width(read(), width) for read in row.pictures]
        page.add_row(pictures, [row.label], lefts, [width] * len(lefts), small, centred=True)
        page.y += gap
    lines = wrapped(note, page_width - 2 * gap, small)
    page.y += len(lines) * LINE * small
    page.write(lines, gap, small, color=FAINT)
    page.y += gap if lines else 0
    return page.finish(page_width, max(dpi, page.y / PRINT_HEIGHT))


def _of_width(picture: np.ndarray, width: int) -> Image.Image:
    """As wide as its column, or narrower if it would be too tall."""
    height = TALLEST * width
    crisp = 4 * picture.shape[1] <= width and picture.shape[0] < height
    return _within(picture, width, height, crisp)


@style()
def save_contact_sheet(
    pages: Iterable["Figure"], stem: Path, pdf_pictures: int = PDF_PICTURES
) -> list[Path]:
    """stem.png (further pages: stem_2.png …) and stem.pdf, which is written last.

    Pages are cleared once saved. PNGs of an earlier, longer sheet of this name are removed.
    pdf_pictures: the PDF has the pages up to this many pictures, or the first page.
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
    """A PNG with a PDF of its own belongs to another sheet whose name ends in a number."""
    name = re.compile(re.escape(stem.name) + r"(?:_([1-9][0-9]*))?\.png")
    for path in stem.parent.iterdir():
        found = name.fullmatch(path.name)
        if found and int(found[1] or 1) > count and not path.with_suffix(".pdf").exists():
            path.unlink(missing_ok=True)
