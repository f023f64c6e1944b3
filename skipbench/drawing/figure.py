"""matplotlib figures in one style: reproducible bytes, names as plain text."""

import io
import logging
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_DPI = 300
LINE = 1.3  # height of a line of text, in font sizes
INK, FAINT = "#181818", "#6e6e6e"
FONT = "DejaVu Sans"  # comes with matplotlib
STYLE = {
    "font.family": FONT,
    "text.parse_math": False,  # a "$" in a name is a dollar sign
    "image.composite_image": False,  # in a PDF each picture keeps its own pixels
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's Type 3 default
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "skipbench",
}
# No dates and versions, so that equal figures are equal files.
METADATA: dict[str, dict[str, None]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}


@contextmanager
def style() -> Iterator[None]:
    """For drawing and saving, instead of the user's matplotlibrc, which may ask for LaTeX."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else: "building the font cache"
    try:
        from matplotlib.style import context
    except ValueError:  # a notebook's backend, inherited by an environment that lacks it
        os.environ.pop("MPLBACKEND", None)
        from matplotlib.style import context

    with context(["default", STYLE]):
        yield


class Page:
    """A figure filled from top to bottom. Lengths and font sizes are in pixels; y points down."""

    def __init__(self, y: float) -> None:
        from matplotlib.figure import Figure

        self.y = y  # of the next line or row
        self.figure = Figure(dpi=72)  # so far, one point is one pixel
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def place(self, picture: Image.Image, x: int, y: int) -> None:
        """Pixel for pixel."""
        extent = (x, x + picture.width, y + picture.height, y)
        self.axes.imshow(np.asarray(picture), extent=extent, aspect="auto", interpolation="none")

    def add_row(
        self,
        pictures: Sequence[Image.Image | None],
        captions: Sequence[str],
        lefts: Sequence[int],
        widths: Sequence[int],
        size: float,
        centred: bool = False,
    ) -> None:
        """Captions below. Smaller pictures are centred vertically, and if asked, horizontally."""
        top, tall = round(self.y), max((one.height for one in pictures if one), default=0)
        for picture, left, width in zip(pictures, lefts, widths, strict=True):
            if picture:
                x = left + (width - picture.width) // 2 if centred else left
                self.place(picture, x, top + (tall - picture.height) // 2)
        fitting = [ending(text, width, size) for text, width in zip(captions, widths, strict=False)]
        self.y = top + tall + (1.1 * LINE * size if any(fitting) else 0)
        for text, left in zip(fitting, lefts, strict=False):
            self.write([text], left, size, color=FAINT)

    def write(self, lines: Sequence[str], x: float, size: float, **look: Any) -> None:
        """The last line ends at y."""
        look = {"color": INK, "va": "baseline", "linespacing": 1.1, "size": size, **look}
        self.axes.text(x, self.y - 0.3 * size, "\n".join(lines), **look)

    def finish(self, width: int, dpi: float = 72) -> "Figure":
        """width: in pixels; the height is that of the content. dpi: only the size in print."""
        figure, height = self.figure, round(self.y)
        figure.set_dpi(dpi)
        figure.set_size_inches(width / dpi, height / dpi)
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        for text in self.axes.texts:
            text.set_fontsize(float(text.get_fontsize()) * 72 / dpi)
        return figure


def rasterize(figure: "Figure") -> Image.Image:
    """RGB, at the figure's own dpi."""
    from matplotlib.backends.backend_agg import RendererAgg

    width, height = np.rint(figure.bbox.size)  # matplotlib before 3.11.1 cuts 54.999… to 54
    renderer = RendererAgg(width, height, figure.dpi)
    figure.draw(renderer)
    return Image.fromarray(np.asarray(renderer.buffer_rgba())).convert("RGB")


def vectorize(figure: "Figure", kind: str) -> bytes:
    """kind: pdf or svg."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=METADATA[kind])
    return buffer.getvalue()


# -- text


def printable(text: str) -> str:
    """One line; a box for each character that the font lacks."""
    text = normalize("NFC", " ".join(text.split()))
    return "".join(c if ord(c) in _glyphs() else "□" for c in text)


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(FONT)).get_charmap())


def text_width(text: str, size: float) -> float:
    """In pixels for a font size in pixels, in points for one in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Lines broken at spaces, else after _ . / -, else anywhere."""
    text, lines = printable(text), []
    while text:
        ends = range(2, len(text) + 1)  # one character at least
        most = 1 + bisect_right(ends, width, key=lambda end: text_width(text[:end], size))
        cut = most if most == len(text) else _break(text, most)
        lines.append(text[:cut])
        text = text[cut:].lstrip()
    return lines


def _break(text: str, most: int) -> int:
    for pattern in (r"(?= )", r"(?<=[_./-])"):
        places = [m.start() for m in re.finditer(pattern, text) if 0 < m.start() <= most]
        if places:
            return places[-1]
    return most


def ending(text: str, width: float, size: float) -> str:
    """A long name cut at the start: file names differ at the end."""
    text = printable(text)
    if text_width(text, size) <= width:
        return text
    counts = range(1, len(text))
    most = bisect_right(counts, width, key=lambda n: text_width(f"…{text[-n:]}", size))
    return f"…{text[len(text) - most :]}"
