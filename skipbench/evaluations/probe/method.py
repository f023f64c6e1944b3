"""Linear-probe segmentation: how well a linear function of frozen tokens predicts their classes.

A linear classifier of patch tokens is trained for each learning rate of a sweep, all at once. Its
logits are resized bilinearly to the mask; the loss is cross-entropy on labelled pixels, the score
is mIoU from one confusion matrix over the split. The rate is chosen twice: on the validation images
themselves, as papers do, and on training images held out from a second set of heads, without that
bias.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from skipbench.engine.parallel import ahead
from skipbench.errors import NumbersError
from skipbench.evaluations.probe.heads import DrawnPixels, Heads, LabelledPixels
from skipbench.evaluations.probe.settings import Protocol, TrainingPlan
from skipbench.evaluations.segmentation.tokens import (
    ImageTokens,
    TokensAndMasks,
    predict,
    randomness,
)
from skipbench.metrics.segmentation import class_counts

HELD_OUT = 0.1  # of the training images
DRAWN_BYTES = 400_000_000  # of pixels drawn ahead for later epochs, at most


@dataclass(frozen=True)
class Trained:
    """Heads for each rate, trained on all images and, for choosing the rate, without some."""

    rates: tuple[float, ...]
    classes: int
    weight: Tensor  # (channels, heads × classes), for tokens as they are
    bias: Tensor  # (heads × classes,)
    held_out: tuple[int, ...]  # training images that the second half of the heads did not train on
    loss: tuple[float, ...]  # mean over the last epoch, by head
    finite: tuple[bool, ...]  # by head; too high a rate ends in NaN or Inf

    def heads(self, which: slice) -> tuple[Tensor, Tensor]:
        columns = slice(which.start * self.classes, which.stop * self.classes)
        return self.weight[:, columns], self.bias[columns]

    @property
    def full(self) -> slice:
        """The heads trained on all images."""
        return slice(0, len(self.rates))

    @property
    def choosing(self) -> slice:
        return slice(len(self.rates), 2 * len(self.rates))


def held_out_images(count: int, rates: int, seed: int) -> tuple[int, ...]:
    """One in ten, at random; none if there is one rate, or one image."""
    if rates < 2 or count < 2:
        return ()
    chosen = randomness("held out", seed).permutation(count)[: max(1, round(HELD_OUT * count))]
    return tuple(sorted(chosen.tolist()))


def fit(
    images_at: Callable[[int], TokensAndMasks],
    count: int,
    classes: int,
    protocol: Protocol,
    seed: int,
    *,
    device: torch.device | str = "cpu",
    state: Mapping[str, Tensor] | None = None,
    after_epoch: Callable[[int, dict[str, Tensor], Sequence[float]], None] | None = None,
    drawn_bytes: int = DRAWN_BYTES,
) -> Trained:
    """Train all heads.

    images_at: the training images of an epoch, `count` in each.
    state: what `after_epoch` was last given, to resume from there; it is called with the epoch, the
    training state, and the loss of each head.
    """
    held_out = held_out_images(count, len(protocol.rates), seed)
    rates = protocol.rates * (2 if held_out else 1)
    counted = torch.ones(count, len(rates), dtype=torch.bool)
    counted[list(held_out), len(protocol.rates) :] = False
    plan = protocol.training_plan(count, seed)
    begun = 0 if state is None else int(state["epoch"]) + 1
    loss = torch.zeros(len(rates)) if state is None else state["loss"]
    if state is not None:
        mean, deviation = state["mean"], state["deviation"]
    elif protocol.normalisation == "standardise":
        mean, deviation = statistics(images_at(0))
    else:
        channels = images_at(0).tokens(0).shape[1]
        mean, deviation = torch.zeros(channels), torch.ones(channels)
    heads = Heads(
        mean.to(device), deviation.to(device), classes, rates, protocol.optimiser, seed,
        protocol.normalisation,
    )  # fmt: skip
    if state is not None:
        heads.restore(dict(state))
    draws, fresh = Draws(plan, drawn_bytes), protocol.views != "whole"
    for epoch, loss in _epochs(heads, images_at, plan, counted, draws, begun, fresh):
        if after_epoch:
            extra = {"epoch": torch.tensor(epoch), "loss": loss}
            after_epoch(epoch, heads.state() | extra, loss.tolist())
    weight, bias, finite = _harmless(*heads.folded(), classes)
    if not any(finite[: len(protocol.rates)]):
        raise NumbersError("every learning rate ended in NaN or Inf: give lower ones with --lr")
    return Trained(protocol.rates, classes, weight, bias, held_out, tuple(loss.tolist()), finite)


def _harmless(
    weight: Tensor, bias: Tensor, classes: int
) -> tuple[Tensor, Tensor, tuple[bool, ...]]:
    """Diverged heads become zero, so that the others can be scored beside them."""
    both = torch.cat([weight, bias[None]])
    finite = both.unflatten(1, (-1, classes)).isfinite().all(2).all(0)
    both = torch.where(finite.repeat_interleave(classes), both, torch.zeros_like(both))
    return both[:-1], both[-1], tuple(finite.tolist())


# -- training


class Draws:
    """The pixels of every image and epoch; they depend on seed, image and epoch alone.

    A mask is decoded once for as many epochs as fit in memory.
    """

    def __init__(self, plan: TrainingPlan, drawn_bytes: int = DRAWN_BYTES) -> None:
        self.plan = plan
        self.bytes_each = 5 * (plan.pixels or 0) + 1000  # of an image and epoch
        self.ahead = max(1, drawn_bytes // (plan.images * self.bytes_each))  # epochs
        self._drawn: dict[tuple[int, int], DrawnPixels] = {}

    def most_bytes(self) -> int:
        return self.bytes_each * self.plan.images * min(self.ahead, self.plan.epochs)

    def of(self, images: TokensAndMasks, image: int, epoch: int, fresh: bool) -> DrawnPixels:
        """fresh: every epoch has other views of the images, so nothing is drawn ahead."""
        pixels = self.plan.pixels
        if (image, epoch) not in self._drawn:
            labelled = LabelledPixels(images.mask(image), images.grid(image))
            last = epoch + 1 if fresh or pixels is None else epoch + self.ahead
            for coming in range(epoch, min(last, self.plan.epochs)):
                rng = randomness("pixels", self.plan.seed, image, coming)
                drawn = labelled.every() if pixels is None else labelled.draw(pixels, rng)
                self._drawn[image, coming] = drawn
        return self._drawn.pop((image, epoch))


def _epochs(
    heads: Heads,
    images_at: Callable[[int], TokensAndMasks],
    plan: TrainingPlan,
    counted: Tensor,
    draws: Draws,
    begun: int,
    fresh: bool,
) -> Iterator[tuple[int, Tensor]]:
    """Train from epoch `begun` to the end: each epoch, and the mean loss of each head in it.

    counted: (images, heads) bool, whether a head learns from an image.
    """
    whole = heads.normalisation == "batch norm"
    for epoch in range(begun, plan.epochs):
        load = partial(_load, images_at(epoch), draws, epoch, fresh, whole)
        batches = plan.batches(epoch)
        losses = torch.zeros(heads.heads)
        loaded = zip(batches, ahead(load, batches, most=1), strict=True)
        for step, (images, (tokens, pixels, statistics)) in enumerate(loaded):
            gradients = heads.gradients(tokens, pixels, counted[images], statistics)
            heads.step(gradients, plan.rate_factor(epoch * plan.steps_per_epoch + step))
            losses += gradients.loss.cpu() / len(batches)
        yield epoch, losses


def _load(
    images: TokensAndMasks, draws: Draws, epoch: int, fresh: bool, whole: bool, batch: np.ndarray
) -> tuple[list[Tensor], list[DrawnPixels], list[Tensor] | None]:
    """Of each image of a batch the tokens at the corners of its cells, and its pixels; with `whole`
    also the batch statistics over all tokens."""
    pixels = [draws.of(images, int(i), epoch, fresh) for i in batch]
    found = None
    if whole:
        every = [images.tokens(int(i)).astype(np.float32) for i in batch]
        tokens = [t[p.corners()] for t, p in zip(every, pixels, strict=True)]
        found = list(map(torch.from_numpy, batch_statistics(np.concatenate(every))))
    else:
        tokens = [images.tokens(int(i), p.corners()) for i, p in zip(batch, pixels, strict=True)]
    return list(map(torch.from_numpy, tokens)), pixels, found


def batch_statistics(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(channels,) each: mean, variance, and variance without bias."""
    mean = tokens.mean(0)
    square = np.square(tokens - mean).sum(0)
    return mean, square / len(tokens), square / max(len(tokens) - 1, 1)


def statistics(images: TokensAndMasks) -> tuple[Tensor, Tensor]:
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


# -- scoring


def score(
    images: TokensAndMasks,
    weight: Tensor,
    bias: Tensor,
    classes: int,
    numbers: Sequence[int] | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> np.ndarray:
    """(images, heads, 3, classes) int32: `class_counts` of each image and head.

    weight: (channels, heads × classes); numbers: of the images to score, default all.
    """
    numbers = range(len(images)) if numbers is None else numbers
    counts = np.zeros((len(numbers), len(bias) // classes, 3, classes), np.int32)

    def read(image: int) -> tuple[ImageTokens, np.ndarray]:
        return images.image_tokens(image), images.mask(image)

    for row, (tokens, mask) in enumerate(ahead(read, numbers, most=2)):
        for head, prediction in enumerate(predict(tokens, mask.shape, weight, bias, classes)):
            counts[row, head] = class_counts(prediction, mask, classes)
        advance(1)
    return counts
