"""Training of linear heads on stored tokens. The tokens and pixels of the next step are read and
drawn while this one is computed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from skipbench.evaluations.probe.heads import Heads
from skipbench.evaluations.probe.protocols import Course
from skipbench.evaluations.segmentation.pixels import Drawn, Grid, LabelledPixels
from skipbench.evaluations.segmentation.tokens import ahead, randomness

DRAWN_BYTES = 400_000_000  # of drawn pixels kept for coming epochs, at most


class Images(Protocol):
    """A split as the probe sees it: tokens and masks, by number."""

    def __len__(self) -> int: ...

    def grid(self, image: int) -> Grid: ...

    def tokens(self, image: int, rows: np.ndarray | None = None) -> np.ndarray:
        """(height × width, channels) float16 or float32, or only these rows of it."""

    def mask(self, image: int) -> np.ndarray:
        """HW uint8, 255 = ignored."""


class Draws:
    """The pixels of every image and epoch: each depends on seed, image and epoch alone.

    A mask is decoded once for as many epochs as fit in memory.
    """

    def __init__(self, course: Course, drawn_bytes: int = DRAWN_BYTES) -> None:
        self.course = course
        self.bytes_each = 5 * (course.pixels or 0) + 1000  # of an image and epoch
        self.ahead = max(1, drawn_bytes // (course.images * self.bytes_each))  # epochs
        self._drawn: dict[tuple[int, int], Drawn] = {}

    def most_bytes(self) -> int:
        return self.bytes_each * self.course.images * min(self.ahead, self.course.epochs)

    def of(self, images: Images, image: int, epoch: int, fresh: bool) -> Drawn:
        """fresh: the next epoch has other images (views), so nothing is drawn ahead for it."""
        if (image, epoch) not in self._drawn:
            labelled = LabelledPixels(images.mask(image), images.grid(image))
            last = epoch + 1 if fresh or self.course.pixels is None else epoch + self.ahead
            for coming in range(epoch, min(last, self.course.epochs)):
                self._drawn[image, coming] = self._draw(labelled, image, coming)
        return self._drawn.pop((image, epoch))

    def _draw(self, labelled: LabelledPixels, image: int, epoch: int) -> Drawn:
        if self.course.pixels is None:
            return labelled.every()
        rng = randomness("pixels", self.course.seed, image, epoch)
        return labelled.draw(self.course.pixels, rng)


@dataclass(frozen=True)
class Batch:
    images: np.ndarray
    tokens: list[Tensor]  # of each image, the corners of the cells drawn
    pixels: list[Drawn]
    statistics: list[Tensor] | None  # over all tokens: mean, variance, variance without bias


def train(
    heads: Heads,
    images_at: Callable[[int], Images],
    course: Course,
    counted: Tensor | None = None,
    *,
    begun: int = 0,
    fresh: bool = False,
    after_epoch: Callable[[int, Tensor], None] = lambda epoch, loss: None,
    drawn_bytes: int = DRAWN_BYTES,
) -> None:
    """From epoch `begun` to the end.

    images_at: the images of an epoch. counted: (images, heads) bool, whether a head learns from an
    image. after_epoch: called with the epoch and the mean loss of each head in it.
    """
    draws = Draws(course, drawn_bytes)
    whole = heads.normalisation == "batch norm"
    for epoch in range(begun, course.epochs):
        load = partial(_load, images_at(epoch), draws, epoch, fresh, whole)
        batches = course.batches(epoch)
        losses = torch.zeros(heads.heads)
        for step, batch in enumerate(ahead(load, batches, most=1)):
            among = None if counted is None else counted[batch.images]
            gradients = heads.gradients(batch.tokens, batch.pixels, among, batch.statistics)
            heads.step(gradients, course.share(epoch * course.steps_per_epoch + step))
            losses += gradients.loss.cpu() / len(batches)
        after_epoch(epoch, losses)


def _load(
    images: Images, draws: Draws, epoch: int, fresh: bool, whole: bool, batch: np.ndarray
) -> Batch:
    """whole: all tokens are looked at, for statistics over them."""
    pixels = [draws.of(images, int(i), epoch, fresh) for i in batch]
    if not whole:
        tokens = [images.tokens(int(i), p.corners()) for i, p in zip(batch, pixels, strict=True)]
        return Batch(batch, list(map(torch.from_numpy, tokens)), pixels, None)
    every = [images.tokens(int(i)).astype(np.float32) for i in batch]
    tokens = [t[p.corners()] for t, p in zip(every, pixels, strict=True)]
    found = map(torch.from_numpy, batch_statistics(np.concatenate(every)))
    return Batch(batch, list(map(torch.from_numpy, tokens)), pixels, list(found))


def batch_statistics(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(channels,) each: mean, variance, and variance without bias."""
    mean = tokens.mean(0)
    square = np.square(tokens - mean).sum(0)
    return mean, square / len(tokens), square / max(len(tokens) - 1, 1)


def statistics(images: Images) -> tuple[Tensor, Tensor]:
    """(channels,) mean and deviation over all tokens of all images, summed in float64."""
    # Around the mean of one image, so that squares of large means do not drown small deviations.
    around = torch.from_numpy(images.tokens(0)).float().mean(0)
    total = square = torch.zeros(len(around), dtype=torch.float64)
    count = 0
    for image in range(len(images)):
        tokens = torch.from_numpy(images.tokens(image)).float().sub_(around)
        total = total + tokens.sum(0, dtype=torch.float64)
        square = square + tokens.square_().sum(0, dtype=torch.float64)
        count += len(tokens)
    mean = total / count
    variance = (square / count - mean.square()).clamp_min(0)
    return (around + mean).float(), variance.sqrt().float()
