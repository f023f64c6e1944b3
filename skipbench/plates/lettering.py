"""Type on pictures, in the font that Pillow brings along: measured, wrapped, shortened."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from unicodedata import combining, normalize

from PIL import ImageFont

INK, PAPER, FAINT = (24, 24, 24), (255, 255, 255), (110, 110, 110)

# Pillow's own font has no glyphs for these.
SPELT = str.maketrans({"–": "-", "—": "-", "−": "-", "‐": "-", "‑": "-", "×": "x", "→": "->"})


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def length(text: str, size: int) -> float:
    return font(size).getlength(text)


def line_height(size: int) -> int:
    return round(1.3 * size)


def plain(text: str) -> str:
    """One line, in signs that the font has: accents dropped, control signs and the like blank."""
    text = "".join(sign for sign in normalize("NFD", text) if not combining(sign))
    text = "".join(sign if sign.isprintable() else " " for sign in text.translate(SPELT))
    return " ".join(text.split())


def shortened(text: str, width: float, size: int, share: float = 0.5) -> str:
    """With "…" for what does not fit; share: how much of what is left stands before it."""
    if length(text, size) <= width:
        return text

    def of(count: int) -> str:
        head = round(count * share)
        return f"{text[:head]}…{text[len(text) - count + head :]}"

    most = bisect_right(range(len(text)), width, key=lambda count: length(of(count), size)) - 1
    return of(most) if most >= 0 else ""


def in_two(text: str, width: float, size: int) -> list[str]:
    """One line or two: cut at a space, or at _ - . / if there is none; shortened if need be."""
    if length(text, size) <= width:
        return [text] if text else []
    cuts = [found.end() for found in re.finditer(" " if " " in text else "[_./-]", text[:-1])]
    halves = [(text[:cut].rstrip(), text[cut:]) for cut in cuts]
    best = min(halves, key=lambda two: max(length(half, size) for half in two), default=(text,))
    return [shortened(half, width, size) for half in best]


def wrapped(text: str, width: float, size: int) -> list[str]:
    """As many lines as it takes."""
    lines: list[str] = []
    for word in text.split():
        if lines and length(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
            continue
        lines += _pieces(word, width, size)
    return lines


def _pieces(word: str, width: float, size: int) -> Iterator[str]:
    """The word, or as much of it a line as fits."""
    while word:
        ends = range(2, len(word) + 1)  # one sign at least
        most = 1 + bisect_right(ends, width, key=lambda end: length(word[:end], size))
        yield word[:most]
        word = word[most:]
