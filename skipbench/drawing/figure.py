"""matplotlib figures: one style for all of them, the same bytes each time, any name as text."""

import io
import logging
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING
from unicodedata import normalize

from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_DPI = 300
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
    """For drawing and saving, in place of the user's matplotlibrc, which may ask for LaTeX."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else: "building the font cache"
    from matplotlib.style import context

    with context(["default", STYLE]):
        yield


def rasterize(figure: "Figure") -> Image.Image:
    """RGB, at the figure's own dpi."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")


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
    """In the unit of the font size."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def shortened(text: str, width: float, size: float, head: float = 0.5) -> str:
    """With "…" for what does not fit; head: share of the kept characters that precede it."""
    if text_width(text, size) <= width:
        return text

    def keep(count: int) -> str:
        first = round(count * head)
        return f"{text[:first]}…{text[len(text) - count + first :]}"

    fits = bisect_right(range(len(text)), width, key=lambda n: text_width(keep(n), size))
    return keep(fits - 1) if fits else ""


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Lines broken after spaces and _ . / -; a longer piece is shortened."""
    lines: list[str] = []
    for piece in filter(None, re.split(r"(?<=[ _./-])", text)):
        if lines and text_width((lines[-1] + piece).rstrip(), size) <= width:
            lines[-1] += piece
        else:
            lines.append(shortened(piece.rstrip(), width, size) + piece[len(piece.rstrip()) :])
    return [line.rstrip() for line in lines]
