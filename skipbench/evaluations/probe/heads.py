"""Linear classifiers of tokens, one for each learning rate, trained side by side.

The heads stand next to each other in one matrix, so that one product serves all. Each has its own
rate and, as AdamW and SGD work element by element, its own optimiser state; they are independent.
The normalisation of tokens is folded into the weights in the end, so a head is a linear function of
the raw tokens.

The loss of a batch is the mean cross-entropy over its labelled pixels, with logits resized to the
masks; an image counts by the share of its pixels that are labelled, whatever the size of its mask.
A resized logit mixes those of the four tokens around the pixel (its cell). Pixels from anywhere
would need every token in every step, so a step takes every n-th cell in both directions, from a
random start, and random labelled pixels in each. Weighted by how many pixels each of them stands
for, loss and gradient are on average those of all labelled pixels.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skipbench.evaluations.probe.settings import BETAS, Normalisation, Optimiser
from skipbench.evaluations.segmentation.tokens import Grid
from skipbench.metrics.segmentation import IGNORED

EPSILON = 1e-8
START_DEVIATION = 0.01
SMALLEST_DEVIATION = 1e-6  # a channel that varies less is zeroed, not amplified
NORM_EPSILON = 1e-5
NORM_MOMENTUM = 0.1
LOGITS_AT_ONCE = 400_000  # that many stay in the cache of a core
ROWS_AT_ONCE = 16_000_000
CELLS = 32  # of an image, about, that a step looks at

# -- the pixels that a step looks at


@dataclass(frozen=True)
class Sample:
    """Some pixels of one image, by cell, ready for the loss."""

    shares: Tensor  # (cells, pixels, 4) float32: weight of each corner
    labels: Tensor  # (cells, pixels) int64
    weights: Tensor  # (cells, pixels) float32: how many of the mask's pixels each one stands for


@dataclass(frozen=True)
class DrawnPixels:
    """DrawnPixels pixels in compact form: a run keeps those of many epochs."""

    grid: Grid
    size_hw: tuple[int, int]  # of the mask
    labelled: float  # share of the mask's pixels: the image's weight in a batch
    cells: np.ndarray  # (cells,) int32
    places: np.ndarray  # (cells, pixels) int32, in the flattened mask
    labels: np.ndarray  # (cells, pixels) uint8
    weights: np.ndarray  # (cells,) float32: of each pixel; they sum to `labelled` on average
    counts: np.ndarray  # (cells,) int32: how many of the pixels count, the first ones

    def corners(self) -> np.ndarray:
        """(cells × 4,) int64: the tokens around each cell, as indices into the flattened grid."""
        height, width = self.grid.size_hw
        row, column = np.divmod(self.cells.astype(np.int64), width)
        below, beside = np.minimum(row + 1, height - 1), np.minimum(column + 1, width - 1)
        four = [(row, column), (row, beside), (below, column), (below, beside)]
        return np.stack([i * width + j for i, j in four], axis=1).ravel()

    def samples(self, most: int, device: torch.device | str = "cpu") -> Iterator[Sample]:
        """Of at most `most` pixels each (or one cell), in the order of the cells."""
        (_, rows), (_, columns) = self.grid.interpolation(self.size_hw)
        step = max(1, most // max(self.places.shape[1], 1))
        for start in range(0, len(self.cells), step):
            part = slice(start, start + step)
            y, x = np.divmod(self.places[part], self.size_hw[1])
            down, right = rows[y], columns[x]
            up, left = 1 - down, 1 - right
            shares = np.stack([up * left, up * right, down * left, down * right], axis=2)
            counted = np.arange(self.places.shape[1]) < self.counts[part, None]
            labels, weights = self.labels[part].astype(np.int64), self.weights[part, None]
            parts = shares, labels, counted * weights
            yield Sample(*(torch.from_numpy(values).to(device) for values in parts))


class LabelledPixels:
    """The labelled pixels of one mask, sorted by cell."""

    def __init__(self, mask: np.ndarray, grid: Grid) -> None:
        """mask: HW uint8, 255 = ignored."""
        self.grid, self.size_hw = grid, mask.shape
        height, width = grid.size_hw
        (rows, _), (columns, _) = grid.interpolation(mask.shape)
        cells = (rows[:, None] * width + columns).ravel()
        labelled = np.flatnonzero(mask.ravel() != IGNORED)
        small = height * width <= 2**16  # 16 bits are radix-sorted
        order = np.argsort(cells[labelled].astype(np.uint16 if small else np.int64), kind="stable")
        self.places = labelled[order].astype(np.int32)  # of pixels, in the flattened mask
        self.labels = mask.ravel()[self.places]
        self.counts = np.bincount(cells[labelled], minlength=height * width)
        self.starts = np.cumsum(self.counts) - self.counts

    def draw(self, pixels: int, rng: np.random.Generator, stride: int | None = None) -> DrawnPixels:
        """About `pixels` of them, equally many (one at least) in each of the selected cells."""
        height, width = self.grid.size_hw
        stride = stride or max(1, round((height * width / CELLS) ** 0.5))
        down, right = min(stride, height), min(stride, width)
        rows = np.arange(rng.integers(down), height, down)
        columns = np.arange(rng.integers(right), width, right)
        cells = (rows[:, None] * width + columns).ravel()
        cells = cells[self.counts[cells] > 0]
        each = max(1, round(pixels * down * right / (height * width)))
        counts = self.counts[cells]
        chosen = (rng.random((len(cells), each)) * counts[:, None]).astype(np.int64)
        stands_for = down * right * counts / each  # pixels
        return self._drawn(cells, chosen, stands_for, np.full(len(cells), each))

    def every(self) -> DrawnPixels:
        """All of them: each cell padded to the fullest with pixels that do not count."""
        cells = np.flatnonzero(self.counts)
        counts = self.counts[cells]
        chosen = np.minimum(np.arange(counts.max(initial=0)), counts[:, None] - 1)
        return self._drawn(cells, chosen, np.ones(len(cells)), counts)

    def _drawn(
        self, cells: np.ndarray, chosen: np.ndarray, stands_for: np.ndarray, counts: np.ndarray
    ) -> DrawnPixels:
        """chosen: (cells, pixels), indices among the cell's pixels."""
        chosen = self.starts[cells, None] + chosen
        size = self.size_hw[0] * self.size_hw[1]
        return DrawnPixels(
            grid=self.grid,
            size_hw=self.size_hw,
            labelled=len(self.places) / size,
            cells=cells.astype(np.int32),
            places=self.places[chosen],
            labels=self.labels[chosen],
            weights=(stands_for / size).astype(np.float32),
            counts=counts.astype(np.int32),
        )


# -- heads


@dataclass(frozen=True)
class Gradients:
    loss: Tensor  # (heads,)
    of: dict[str, Tensor]  # by parameter, of its shape
    counted: Tensor  # (heads,) bool: whether there was anything to learn from


class Heads:
    """parameters: weight (channels, heads × classes), bias (heads × classes,); with batch norm
    also gain and shift (channels, heads)."""

    def __init__(
        self,
        mean: Tensor,
        deviation: Tensor,
        classes: int,
        rates: Sequence[float],
        optimiser: Optimiser,
        seed: int,
        normalisation: Normalisation = "standardise",
        logits_at_once: int = LOGITS_AT_ONCE,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        """mean, deviation: (channels,) of the training tokens, on the device to compute on.
        With batch norm they are where its running statistics begin.
        logits_at_once, rows_at_once: largest number of pixel logits and of token logits computed
        together."""
        self.classes, self.heads, self.optimiser = classes, len(rates), optimiser
        self.normalisation = normalisation
        self.logits_at_once, self.rows_at_once = logits_at_once, rows_at_once
        device, channels = mean.device, len(mean)
        self.mean, self.deviation = mean.clone(), deviation.clone()
        self.rates = torch.tensor(rates, device=device)
        start = START_DEVIATION * torch.randn(
            channels, classes, generator=torch.Generator().manual_seed(seed)
        )
        self.parameters = {  # every head starts alike
            "weight": start.to(device).repeat(1, len(rates)),
            "bias": torch.zeros(classes * len(rates), device=device),
        }
        if normalisation == "batch norm":
            self.parameters["gain"] = torch.ones(channels, len(rates), device=device)
            self.parameters["shift"] = torch.zeros(channels, len(rates), device=device)
        kept = 2 if optimiser.name == "adamw" else 1
        self.moments = {
            name: [torch.zeros_like(value) for _ in range(kept)]
            for name, value in self.parameters.items()
        }
        self.steps = 0

    def gradients(
        self,
        tokens: Sequence[Tensor],
        pixels: Sequence[DrawnPixels],
        counted: Tensor | None = None,
        statistics: Sequence[Tensor] | None = None,
    ) -> Gradients:
        """Of the mean loss over the labelled pixels of all images.

        tokens: of each image, the corners of the cells drawn, (cells × 4, channels).
        counted: (images, heads) bool, whether a head learns from an image; None: from all.
        statistics: for batch norm, over all tokens of the batch, (channels,) each: mean, variance,
        and variance without bias.
        """
        device = self.mean.device
        if counted is None:
            counted = torch.ones(len(tokens), self.heads, dtype=torch.bool)
        weights = counted * torch.tensor([drawn.labelled for drawn in pixels])[:, None]
        total = weights.sum(0)  # (heads,)
        shares = (counted / torch.where(total > 0, total, 1)).to(device)
        weight, bias = self._product()
        loss = torch.zeros(self.heads, device=device)
        gradient = torch.zeros_like(weight), torch.zeros_like(bias)
        normalise = self._normaliser(statistics)
        pixels_at_once = self.logits_at_once // weight.shape[1]
        for group in _groups([len(t) for t in tokens], self.rows_at_once // weight.shape[1]):
            inputs = normalise(torch.cat(list(tokens[group])).to(device).float())
            logits = torch.addmm(bias, inputs, weight)  # overwritten with their gradients
            start = 0
            for drawn, share in zip(pixels[group], shares[group], strict=True):
                for sample in drawn.samples(pixels_at_once, device):
                    stop = start + 4 * len(sample.labels)
                    loss += share * self._backward(sample, logits[start:stop])
                    logits[start:stop] *= share.repeat_interleave(self.classes)
                    start = stop
            gradient[0].addmm_(inputs.T, logits)
            gradient[1].add_(logits.sum(0))
        return Gradients(loss, self._chain(*gradient), (total > 0).to(device))

    def _backward(self, sample: Sample, logits: Tensor) -> Tensor:
        """Overwrites the tokens' logits with their gradients; returns the loss by head."""
        corners = logits.view(-1, 4, self.heads * self.classes)
        mixed = torch.bmm(sample.shares, corners)  # (cells, pixels, heads × classes)
        probabilities = torch.softmax(mixed.view(-1, self.heads, self.classes), -1)
        labels = sample.labels.view(-1, 1, 1).expand(-1, self.heads, 1)
        target = probabilities.gather(2, labels)
        loss = -(target.squeeze(2).clamp_min(1e-38).log() * sample.weights.view(-1, 1)).sum(0)
        probabilities.scatter_(2, labels, target - 1)
        back = (sample.shares * sample.weights[..., None]).transpose(1, 2)
        torch.bmm(back, probabilities.view_as(mixed), out=corners)
        return loss

    def _normaliser(self, statistics: Sequence[Tensor] | None) -> Callable[[Tensor], Tensor]:
        """Uses the statistics of the training images; with batch norm those of this batch, which
        update the running ones."""
        if self.normalisation == "none":
            return lambda inputs: inputs
        if self.normalisation == "standardise":
            mean, scale = self.mean, self._scale()
        else:
            assert statistics is not None
            mean, variance, unbiased = (value.to(self.mean.device) for value in statistics)
            self.mean.lerp_(mean, NORM_MOMENTUM)
            self.deviation.square_().lerp_(unbiased, NORM_MOMENTUM).sqrt_()
            scale = (variance + NORM_EPSILON).rsqrt()
        return lambda inputs: inputs.sub_(mean).mul_(scale)

    def _scale(self) -> Tensor:
        if self.normalisation == "batch norm":
            return (self.deviation.square() + NORM_EPSILON).rsqrt()
        varies = self.deviation > SMALLEST_DEVIATION
        return torch.where(varies, 1 / self.deviation.clamp_min(SMALLEST_DEVIATION), 0.0)

    def _product(self) -> tuple[Tensor, Tensor]:
        """Weight and bias that act on normalised tokens. logits = (gain · x + shift) W + b."""
        weight, bias = self.parameters["weight"], self.parameters["bias"]
        if self.normalisation != "batch norm":
            return weight, bias
        gain, shift = self._by_class("gain"), self._by_class("shift")
        return weight * gain, bias + (weight * shift).sum(0)

    def _by_class(self, name: str) -> Tensor:
        """A parameter by head, repeated for the classes of each."""
        return self.parameters[name].repeat_interleave(self.classes, 1)

    def _chain(self, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        """From the gradients of the product's weight and bias to those of the parameters."""
        if self.normalisation != "batch norm":
            return {"weight": weight, "bias": bias}
        own = self.parameters["weight"]

        def by_head(values: Tensor) -> Tensor:
            return values.unflatten(1, (self.heads, self.classes)).sum(2)

        return {
            "weight": weight * self._by_class("gain") + self._by_class("shift") * bias,
            "bias": bias,
            "gain": by_head(weight * own),
            "shift": by_head(own * bias),
        }

    def step(self, gradients: Gradients, share: float) -> None:
        """share: of the rate, by the schedule. A head with nothing to learn from is unchanged."""
        self.steps += 1
        for name, gradient in gradients.of.items():
            value, moments = self.parameters[name], self.moments[name]
            rates = self.rates * share * gradients.counted
            if value.shape[-1] != self.heads:
                rates = rates.repeat_interleave(self.classes)
            if self.optimiser.name == "adamw":
                self._adamw(value, gradient, moments, rates)
            else:
                self._sgd(value, gradient, moments, rates)

    def _adamw(self, value: Tensor, gradient: Tensor, moments: list[Tensor], rates: Tensor) -> None:
        """Decoupled weight decay, as in torch.optim.AdamW."""
        first, second = moments
        first.lerp_(gradient, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        # first / c₁ / (√(second / c₂) + ε), with the corrections c₁, c₂ taken out of the matrices
        correction = math.sqrt(1 - BETAS[1] ** self.steps)
        move = first / second.sqrt().add_(EPSILON * correction)
        move *= rates * (correction / (1 - BETAS[0] ** self.steps))
        value.mul_(1 - rates * self.optimiser.weight_decay).sub_(move)

    def _sgd(self, value: Tensor, gradient: Tensor, moments: list[Tensor], rates: Tensor) -> None:
        """With momentum, weight decay in the gradient, as in torch.optim.SGD."""
        gradient = gradient.add(value, alpha=self.optimiser.weight_decay)
        moment = moments[0]
        if self.steps == 1:
            moment.copy_(gradient)
        else:
            moment.mul_(self.optimiser.momentum).add_(gradient)
        value.sub_(rates * moment)

    def folded(self) -> tuple[Tensor, Tensor]:
        """(channels, heads × classes) and (heads × classes,), for tokens as they are."""
        weight, bias = self._product()
        if self.normalisation == "none":
            return weight.clone(), bias.clone()
        weight = weight * self._scale()[:, None]
        return weight, bias - self.mean @ weight

    def state(self) -> dict[str, Tensor]:
        """All that changes in training."""
        state = {"mean": self.mean, "deviation": self.deviation, "steps": torch.tensor(self.steps)}
        for name, value in self.parameters.items():
            state[name] = value
            state |= {f"{name}.{i}": moment for i, moment in enumerate(self.moments[name])}
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        for name, value in self.state().items():
            if name != "steps":
                value.copy_(state[name])


def _groups(rows: Sequence[int], most: int) -> Iterator[slice]:
    """Consecutive images with at most `most` rows together (at least one image)."""
    start = total = 0
    for i, count in enumerate(rows):
        if i > start and total + count > most:
            yield slice(start, i)
            start, total = i, 0
        total += count
    yield slice(start, len(rows))
