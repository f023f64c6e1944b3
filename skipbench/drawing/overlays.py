"""Masks and boxes drawn over images. Images are HWC uint8, masks HW uint8 with 255 = ignore."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from skipbench.images import IGNORED

Colour = tuple[int, int, int]  # RGB, 0-255

PAPER = (255, 255, 255)
UNLABELLED = (224, 224, 224)
BOX_COLOURS = ((230, 57, 70), (29, 120, 116), (244, 162, 97), (69, 123, 157), (106, 76, 147))


def paint(mask: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """HW classes → HWC uint8; ignored pixels light grey."""
    table = np.full((256, 3), UNLABELLED, np.uint8)
    table[: len(colours)] = colours
    table[IGNORED] = UNLABELLED
    return table[mask]


def hues(count: int) -> np.ndarray:
    """(count, 3) uint8: distinct colours for classes without a palette; neighbours differ most."""
    number = np.arange(count)
    hue, light = number * 0.618034 % 1, np.array([0.95, 0.7, 0.5])[number // 7 % 3]
    thirds = np.array([0, 1 / 3, 2 / 3])
    wheel = np.abs((hue[:, None] + thirds) % 1 * 6 - 3).clip(1, 2) - 1
    return np.round(255 * light[:, None] * (0.25 + 0.75 * wheel)).astype(np.uint8)


def blend(image: np.ndarray, over: np.ndarray, share: float = 0.6) -> np.ndarray:
    return (image * (1 - share) + over * share).round().astype(np.uint8)


def draw_boxes(
    image: np.ndarray,
    boxes_xyxy: np.ndarray,
    names: Sequence[str],
    colours: dict[str, Colour] | None = None,
) -> np.ndarray:
    """Two-pixel frames with names. A new name is added to `colours`, so that images can share it.

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
