"""Linear classifiers of images, one for each learning rate, trained side by side on stored vectors.

SGD with momentum 0.9, no weight decay, and a cosine schedule without warm-up, as DINO trains its
linear probe; but every image has one vector, so there is no augmentation. A second set of
classifiers is trained without a tenth of the images, on which the rate can be chosen.

The classifiers stand next to each other in one matrix, so that one product serves all; they are
independent. The gradient of the loss is bounded, so too high a rate ends in a poor classifier, but
not in NaN or Inf.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skipbench.evaluations.classify.method import ranks_of
from skipbench.evaluations.classify.settings import RATES_FOR
from skipbench.evaluations.segmentation.tokens import randomness

MOMENTUM = 0.9
START_DEVIATION = 0.01
HELD_OUT = 0.1  # of the training images
SMALLEST_DEVIATION = 1e-6  # a channel that varies less is zeroed, not amplified
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Training:
    rates: tuple[float, ...]  # for batches of RATES_FOR
    epochs: int
    batch: int
    standardise: bool
    seed: int

    def steps_per_epoch(self, images: int) -> int:
        return math.ceil(images / self.batch)

    def batches(self, images: int, epoch: int) -> list[np.ndarray]:
        order = randomness("order", self.seed, epoch).permutation(images)
        return [order[i : i + self.batch] for i in range(0, images, self.batch)]

    def held_out(self, images: int) -> np.ndarray:
        """Sorted; none if there is one rate, or one image."""
        if len(self.rates) < 2 or images < 2:
            return np.arange(0)
        number = max(1, round(HELD_OUT * images))
        return np.sort(randomness("held out", self.seed).permutation(images)[:number])


class Heads:
    """weight (channels, heads × classes), bias (heads × classes,), and their momentum."""

    def __init__(
        self, channels: int, classes: int, rates: Sequence[float], seed: int, device: torch.device
    ) -> None:
        self.classes, self.heads = classes, len(rates)
        start = START_DEVIATION * torch.randn(
            channels, classes, generator=torch.Generator().manual_seed(seed)
        )
        weight = start.to(device).repeat(1, self.heads)  # every head starts alike
        bias = torch.zeros(self.heads * classes, device=device)
        self.parameters = {"weight": weight, "bias": bias}
        self.moments = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.rates = torch.tensor(rates, device=device).repeat_interleave(classes)

    def logits(self, vectors: Tensor) -> Tensor:
        """(images, heads, classes)"""
        product = torch.addmm(self.parameters["bias"], vectors, self.parameters["weight"])
        return product.unflatten(1, (self.heads, self.classes))

    def step(self, vectors: Tensor, labels: Tensor, counted: Tensor, share: float) -> Tensor:
        """One step on the mean cross-entropy; returns it, (heads,).

        counted: (images, heads), whether a head learns from an image; share: of the rate, by the
        schedule.
        """
        probabilities = self.logits(vectors).softmax(-1)
        at = labels[:, None, None].expand(-1, self.heads, 1)
        target = probabilities.gather(2, at)
        shares = counted / counted.sum(0).clamp_min(1)
        loss = -(target.squeeze(2).clamp_min(1e-38).log() * shares).sum(0)
        probabilities.scatter_(2, at, target - 1)  # now the gradient of the logits
        back = (probabilities * shares[..., None]).flatten(1)
        gradients = {"weight": vectors.T @ back, "bias": back.sum(0)}
        for name, gradient in gradients.items():
            self.moments[name].mul_(MOMENTUM).add_(gradient)
            self.parameters[name].sub_(self.rates * share * self.moments[name])
        return loss

    def state(self) -> dict[str, Tensor]:
        return self.parameters | {f"{name}.0": value for name, value in self.moments.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])


@dataclass(frozen=True)
class Classifiers:
    """For each rate, trained on all images; then, for choosing the rate, without some."""

    rates: tuple[float, ...]
    classes: int
    weight: Tensor  # (channels, heads × classes), for vectors as they are
    bias: Tensor
    held_out: np.ndarray  # training images that the second half has not seen
    loss: tuple[float, ...]  # mean over the last epoch, by head

    @property
    def full(self) -> slice:
        return slice(0, len(self.rates))

    @property
    def choosing(self) -> slice:
        return slice(len(self.rates), 2 * len(self.rates))

    def head(self, index: int) -> tuple[Tensor, Tensor]:
        columns = slice(index * self.classes, (index + 1) * self.classes)
        return self.weight[:, columns], self.bias[columns]

    def ranks(
        self, vectors: np.ndarray, truth: np.ndarray, heads: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """(heads, images) each: rank of the true class, and the class predicted."""
        ranks, predicted = [], []
        for head in range(heads.start, heads.stop):
            weight, bias = self.head(head)
            mine = []
            for start in range(0, len(vectors), ROWS_AT_ONCE):
                rows = torch.from_numpy(vectors[start : start + ROWS_AT_ONCE]).to(weight.device)
                mine.append(torch.addmm(bias, rows.float(), weight).cpu().numpy())
            logits = np.concatenate(mine)
            ranks.append(ranks_of(logits, truth))
            predicted.append(logits.argmax(1))
        return np.stack(ranks), np.stack(predicted)


def fit(
    vectors: np.ndarray,
    labels: np.ndarray,
    classes: int,
    training: Training,
    *,
    device: torch.device | str = "cpu",
    state: Mapping[str, Tensor] | None = None,
    after_epoch: Callable[[dict[str, Tensor], Sequence[float]], None] | None = None,
) -> Classifiers:
    """vectors: (images, channels) float16 or float32; state: what `after_epoch` was last given, to
    resume from there."""
    device, count = torch.device(device), len(vectors)
    held_out = training.held_out(count)
    rates = training.rates * (2 if len(held_out) else 1)
    counted = torch.ones(count, len(rates), device=device)
    counted[held_out, len(training.rates) :] = 0
    mean, scale = statistics(vectors) if training.standardise else unchanged(vectors)
    mean, scale = mean.to(device), scale.to(device)
    scaled = [rate * training.batch / RATES_FOR for rate in rates]
    heads = Heads(vectors.shape[1], classes, scaled, training.seed, device)
    begun, loss = 0, torch.zeros(len(rates))
    if state is not None:
        heads.restore(state)
        begun, loss = int(state["epoch"]) + 1, state["loss"]
    truth = torch.from_numpy(labels).to(device)
    per_epoch = training.steps_per_epoch(count)
    for epoch in range(begun, training.epochs):
        total = torch.zeros(len(rates), device=device)
        for step, batch in enumerate(training.batches(count, epoch)):
            rows = (torch.from_numpy(vectors[batch]).to(device).float() - mean) * scale
            done = (epoch * per_epoch + step) / (training.epochs * per_epoch)
            share = 0.5 * (1 + math.cos(math.pi * done))
            total += heads.step(rows, truth[batch], counted[batch], share) / per_epoch
        loss = total.cpu()
        if after_epoch:
            after_epoch(
                {**heads.state(), "epoch": torch.tensor(epoch), "loss": loss}, loss.tolist()
            )
    return _classifiers(heads, training.rates, mean, scale, held_out, loss)


def statistics(vectors: np.ndarray) -> tuple[Tensor, Tensor]:
    """(channels,) each: mean, and one over the deviation; 0 for a channel that does not vary."""
    mean = vectors.mean(0, dtype=np.float64)
    square = sum(
        np.square(vectors[i : i + ROWS_AT_ONCE] - mean).sum(0)
        for i in range(0, len(vectors), ROWS_AT_ONCE)
    )
    deviation = np.sqrt(square / len(vectors))
    varies = deviation > SMALLEST_DEVIATION
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=varies)
    return torch.from_numpy(mean).float(), torch.from_numpy(scale).float()


def unchanged(vectors: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.zeros(vectors.shape[1]), torch.ones(vectors.shape[1])


def _classifiers(
    heads: Heads,
    rates: tuple[float, ...],
    mean: Tensor,
    scale: Tensor,
    held_out: np.ndarray,
    loss: Tensor,
) -> Classifiers:
    """With the standardisation folded in."""
    weight = heads.parameters["weight"] * scale[:, None]
    bias = heads.parameters["bias"] - mean @ weight
    return Classifiers(rates, heads.classes, weight, bias, held_out, tuple(loss.tolist()))
