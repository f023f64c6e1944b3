"""Training of linear heads on stored tokens: batches, schedule, what the next step needs.

A thread reads the tokens and draws the pixels of the next step while this one is computed. It uses
numpy alone: a second thread that calls torch would have a team of threads of its own.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from skipbench.evaluations._heads import Heads
from skipbench.evaluations._pixels import Drawn, Grid, LabelledPixels, Sample
from skipbench.evaluations._protocols import Course

MOST_DRAWN = 400_000_000  # bytes of drawn pixels kept for coming epochs


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

    def __init__(self, course: Course) -> None:
        self.course = course
        self.bytes_each = 5 * (course.pixels or 0) + 1000  # of an image and epoch
        self.ahead = max(1, MOST_DRAWN // (course.images * self.bytes_each))  # epochs
        self._drawn: dict[tuple[int, int], tuple[Drawn, tuple[int, int]]] = {}

    def most_bytes(self) -> int:
        return self.bytes_each * self.course.images * min(self.ahead, self.course.epochs)

    def sample(self, images: Images, image: int, epoch: int, fresh: bool) -> Sample:
        """fresh: the next epoch has other images (views), so nothing is drawn ahead for it."""
        if (image, epoch) not in self._drawn:
            mask = images.mask(image)
            labelled = LabelledPixels(mask, images.grid(image))
            last = epoch + 1 if fresh or self.course.pixels is None else epoch + self.ahead
            for coming in range(epoch, min(last, self.course.epochs)):
                self._drawn[image, coming] = self._draw(labelled, image, coming), mask.shape
        drawn, size_hw = self._drawn.pop((image, epoch))
        return drawn.sample(images.grid(image), size_hw)

    def _draw(self, labelled: LabelledPixels, image: int, epoch: int) -> Drawn:
        if self.course.pixels is None:
            return labelled.every()
        rng = np.random.default_rng([self.course.seed, image, epoch])
        return labelled.draw(self.course.pixels, rng)


Batch = tuple[np.ndarray, list[Tensor], list[Sample]]  # images, their tokens, their pixels


def train(
    heads: Heads,
    images_at: Callable[[int], Images],
    course: Course,
    counted: Tensor | None = None,
    *,
    begun: int = 0,
    fresh: bool = False,
    after_epoch: Callable[[int, Tensor], None] = lambda epoch, loss: None,
) -> None:
    """From epoch `begun` to the end.

    images_at: the images of an epoch. counted: (images, heads) bool, whether a head learns from an
    image. after_epoch: called with the epoch and the mean loss of each head in it.
    """
    draws = Draws(course)
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
        for epoch in range(begun, course.epochs):
            load = partial(_load, images_at(epoch), draws, epoch, fresh)
            batches = course.batches(epoch)
            losses = torch.zeros(heads.heads)
            for step, (chosen, tokens, samples) in enumerate(_ahead(pool, batches, load)):
                among = None if counted is None else counted[chosen]
                gradients = heads.gradients(tokens, samples, among)
                heads.step(gradients, course.share(epoch * course.steps_per_epoch + step))
                losses += gradients.loss.cpu() / len(batches)
            after_epoch(epoch, losses)


def _load(images: Images, draws: Draws, epoch: int, fresh: bool, batch: np.ndarray) -> Batch:
    samples = [draws.sample(images, int(i), epoch, fresh) for i in batch]
    tokens = [
        torch.from_numpy(images.tokens(int(i), sample.tokens.numpy().ravel()))
        for i, sample in zip(batch, samples, strict=True)
    ]
    return batch, tokens, samples


def _ahead(
    pool: ThreadPoolExecutor, batches: Sequence[np.ndarray], load: Callable[[np.ndarray], Batch]
) -> Iterator[Batch]:
    """Each batch, the next one being loaded meanwhile."""
    coming: deque[Future[Batch]] = deque()
    for batch in batches:
        coming.append(pool.submit(load, batch))
        if len(coming) > 1:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()


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
