"""Tokens as methods use them: with the grid they form, drawn at random, normalised; and class maps
that are a linear function of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol as Interface

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.evaluations.segmentation.class_map import class_map

HEADS_AT_ONCE = 8  # whose logits are resized together

# A stream for each purpose, so that draws for one are independent of draws for another.
PURPOSES = ("order", "held out", "pixels", "shares", "bank", "sample", "probes")


def randomness(purpose: str, *numbers: int) -> np.random.Generator:
    return np.random.default_rng([PURPOSES.index(purpose) + 1, *numbers])


def even_shares(total: int, images: int, seed: int) -> np.ndarray:
    """(images,): how much of the total each image gets; the remainder goes to random ones."""
    share, rest = divmod(total, images)
    shares = np.full(images, share)
    shares[randomness("shares", seed).permutation(images)[:rest]] += 1
    return shares


def normalised(tokens: np.ndarray) -> np.ndarray:
    """(n, channels) float32 of length 1; zeros stay zeros."""
    tokens = tokens.astype(np.float32)
    length = np.sqrt(np.einsum("ij,ij->i", tokens, tokens, dtype=np.float64))
    tokens /= np.maximum(length, 1e-12)[:, None].astype(np.float32)
    return tokens


# -- of images


@dataclass(frozen=True)
class Grid:
    """The tokens of one image: how many there are, and how many of them the picture covers (fewer,
    where it was padded to whole patches)."""

    size_hw: tuple[int, int]
    extent_hw: tuple[float, float]

    def interpolation(self, pixels_hw: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For the rows and for the columns of pixels: the cell of each (the token before it), and
        the weight of the next token, float32."""
        return list(map(_interpolation, self.size_hw, self.extent_hw, pixels_hw))


@lru_cache(maxsize=4096)
def _interpolation(tokens: int, extent: float, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    source = np.maximum((np.arange(pixels) + 0.5) * extent / pixels - 0.5, 0)
    cell = np.minimum(source.astype(np.int64), tokens - 1)
    return cell, (source - cell).astype(np.float32)


@dataclass(frozen=True)
class TokenMap:
    """Tokens of one forward pass: of a whole picture, or of a window of it."""

    grid: Grid
    tokens: np.ndarray  # (height × width, channels)
    box: tuple[int, int, int, int] = (0, 0, 0, 0)  # of a window: top, left, height, width


@dataclass(frozen=True)
class ImageTokens:
    parts: Sequence[TokenMap]
    windows_of_hw: tuple[int, int] | None = None  # size of the picture the windows lie in


class TokensAndMasks(Interface):
    """Images by number."""

    def __len__(self) -> int: ...

    def grid(self, image: int) -> Grid: ...

    def tokens(self, image: int, rows: np.ndarray | None = None) -> np.ndarray:
        """(height × width, channels) float16 or float32, or only these rows of it."""
        ...

    def image_tokens(self, image: int) -> ImageTokens: ...

    def mask(self, image: int) -> np.ndarray:
        """HW uint8, 255 = ignored."""
        ...


# -- class maps


def predict(
    image: ImageTokens,
    size_hw: tuple[int, int],
    weight: Tensor,
    bias: Tensor,
    classes: int,
    heads_at_once: int = HEADS_AT_ONCE,
) -> Iterator[np.ndarray]:
    """For each head, (*size_hw): the class of every pixel."""
    at_once = classes * (1 if image.windows_of_hw else heads_at_once)
    for start in range(0, len(bias), at_once):
        heads = slice(start, start + at_once)
        logits = [_logits(part, weight[:, heads], bias[heads], classes) for part in image.parts]
        if image.windows_of_hw:
            mean = _mean_of_windows(logits, image.parts, image.windows_of_hw)
            found = class_map(mean, size_hw)
        else:
            found = class_map(logits[0], size_hw, image.parts[0].grid.extent_hw)
        yield from found.cpu().numpy()


def _logits(part: TokenMap, weight: Tensor, bias: Tensor, classes: int) -> Tensor:
    """(heads, classes, height, width)."""
    tokens = torch.from_numpy(part.tokens).to(weight.device).float()
    logits = torch.addmm(bias, tokens, weight).T
    return logits.reshape(-1, classes, *part.grid.size_hw)


def _mean_of_windows(
    maps: Sequence[Tensor], windows: Sequence[TokenMap], picture_hw: tuple[int, int]
) -> Tensor:
    """(heads, classes, *picture_hw): each window's logits resized to its pixels, then averaged."""
    total = maps[0].new_zeros(*maps[0].shape[:2], *picture_hw)
    count = maps[0].new_zeros(picture_hw)
    for logits, window in zip(maps, windows, strict=True):
        top, left, height, width = window.box
        tokens_hw, extent_hw = window.grid.size_hw, window.grid.extent_hw
        # Tokens may reach beyond the window (padding), and the window beyond the picture.
        pixels_hw = [
            round(tokens * side / extent)
            for tokens, side, extent in zip(tokens_hw, (height, width), extent_hw, strict=True)
        ]
        resized = F.interpolate(logits, pixels_hw, mode="bilinear")
        height, width = min(height, picture_hw[0] - top), min(width, picture_hw[1] - left)
        where = slice(top, top + height), slice(left, left + width)
        total[..., where[0], where[1]] += resized[..., :height, :width]
        count[where] += 1
    return total / count
