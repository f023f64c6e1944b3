"""Tokens as methods use them: read ahead, drawn at random, normalised; and class maps that are a
linear function of them."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol as Interface
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.evaluations.segmentation.class_map import class_map
from skipbench.evaluations.segmentation.pixels import Grid

HEADS_AT_ONCE = 8  # whose logits are resized together

# Each purpose has a stream of its own: what is drawn for one tells nothing about another.
PURPOSES = ("order", "held out", "pixels", "shares", "bank", "sample", "probes")

Thing = TypeVar("Thing")
Ready = TypeVar("Ready")


class TokensAndMasks(Interface):
    def grid(self, image: int) -> Grid: ...

    def tokens(self, image: int) -> np.ndarray: ...

    def mask(self, image: int) -> np.ndarray: ...


def ahead(prepare: Callable[[Thing], Ready], things: Sequence[Thing], most: int) -> Iterator[Ready]:
    """Each thing prepared, in order, with at most so many more under way.

    What `prepare` does should be numpy or reading alone: a second thread that calls torch would
    have a team of threads of its own, and both would want the same cores.
    """
    coming: deque[Future[Ready]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        for thing in things:
            coming.append(pool.submit(prepare, thing))
            if len(coming) > most:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


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


@dataclass(frozen=True)
class TokenMap:
    """What the backbone saw at once: a whole picture, or a window of it."""

    grid: Grid
    tokens: np.ndarray  # (height × width, channels)
    box: tuple[int, int, int, int] = (0, 0, 0, 0)  # of a window: top, left, height, width


@dataclass(frozen=True)
class ImageTokens:
    parts: Sequence[TokenMap]
    windows_of_hw: tuple[int, int] | None = None  # size of the picture the windows lie in


def predict(
    seen: ImageTokens,
    size_hw: tuple[int, int],
    weight: Tensor,
    bias: Tensor,
    classes: int,
    heads_at_once: int = HEADS_AT_ONCE,
) -> Iterator[np.ndarray]:
    """For each head, (*size_hw): the class of every pixel."""
    at_once = heads_at_once if seen.windows_of_hw is None else 1
    for start in range(0, len(bias), at_once * classes):
        columns = slice(start, start + at_once * classes)
        maps = [_logits(part, weight[:, columns], bias[columns], classes) for part in seen.parts]
        if seen.windows_of_hw is None:
            found = class_map(maps[0], size_hw, seen.parts[0].grid.extent_hw)
        else:
            mean = _mean_of_windows(maps, seen, seen.windows_of_hw)
            found = class_map(mean, size_hw)
        yield from found.cpu().numpy()


def _logits(part: TokenMap, weight: Tensor, bias: Tensor, classes: int) -> Tensor:
    """(heads, classes, height, width)."""
    tokens = torch.from_numpy(part.tokens).to(weight.device).float()
    logits = torch.addmm(bias, tokens, weight).T
    return logits.reshape(-1, classes, *part.grid.size_hw)


def _mean_of_windows(
    maps: Sequence[Tensor], seen: ImageTokens, picture_hw: tuple[int, int]
) -> Tensor:
    """(heads, classes, *picture_hw): each window's logits resized to its pixels, then averaged."""
    total = maps[0].new_zeros(*maps[0].shape[:2], *picture_hw)
    count = maps[0].new_zeros(picture_hw)
    for logits, part in zip(maps, seen.parts, strict=True):
        top, left, height, width = part.box
        tokens_hw, extent_hw = part.grid.size_hw, part.grid.extent_hw
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
