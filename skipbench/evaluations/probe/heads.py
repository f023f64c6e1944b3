"""Linear classifiers of tokens, one for each learning rate, trained side by side.

The heads stand next to each other in one matrix, so that one product serves all. Each has its own
rate and, as AdamW and SGD work element by element, its own optimiser state; none knows of the
others. What tokens are divided by and what is taken from them is folded into the weights in the
end, so a head is a linear function of the tokens as they are.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from skipbench.evaluations.probe.settings import BETAS, Normalisation, Optimiser
from skipbench.evaluations.segmentation.pixels import Drawn, Sample

EPSILON = 1e-8
START_DEVIATION = 0.01
SMALLEST_DEVIATION = 1e-6  # a channel that varies less carries nothing, and is not blown up
NORM_EPSILON = 1e-5
NORM_MOMENTUM = 0.1
LOGITS_AT_ONCE = 400_000  # such a part stays in the cache of a core
ROWS_AT_ONCE = 16_000_000


@dataclass(frozen=True)
class Gradients:
    loss: Tensor  # (heads,)
    slopes: dict[str, Tensor]  # by parameter, of its shape
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
        logits_at_once: of pixels; rows_at_once: numbers in the logits of tokens."""
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
        pixels: Sequence[Drawn],
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
        weighs = counted * torch.tensor([drawn.labelled for drawn in pixels])[:, None]
        total = weighs.sum(0)  # (heads,)
        shares = (counted / torch.where(total > 0, total, 1)).to(device)
        weight, bias = self._product()
        loss = torch.zeros(self.heads, device=device)
        slope = torch.zeros_like(weight), torch.zeros_like(bias)
        normalise = self._normaliser(statistics)
        for group in _groups([len(t) for t in tokens], self.rows_at_once // weight.shape[1]):
            inputs = normalise(torch.cat(list(tokens[group])).to(device).float())
            slopes = torch.addmm(bias, inputs, weight)  # logits, in which their slopes are written
            start = 0
            for drawn, share in zip(pixels[group], shares[group], strict=True):
                for sample in drawn.samples(self.logits_at_once // weight.shape[1]):
                    stop = start + 4 * len(sample.labels)
                    loss += share * self._to_slopes(sample.to(device), slopes[start:stop])
                    slopes[start:stop] *= share.repeat_interleave(self.classes)
                    start = stop
            slope[0].addmm_(inputs.T, slopes)
            slope[1].add_(slopes.sum(0))
        return Gradients(loss, self._chain(*slope), (total > 0).to(device))

    def _to_slopes(self, sample: Sample, logits: Tensor) -> Tensor:
        """Puts the loss's slope in the place of each token's logits; returns the loss by head."""
        corners = logits.view(-1, 4, self.heads * self.classes)
        mixed = torch.bmm(sample.shares, corners)  # (cells, pixels, heads × classes)
        chances = torch.softmax(mixed.view(-1, self.heads, self.classes), -1)
        labels = sample.labels.view(-1, 1, 1).expand(-1, self.heads, 1)
        right = chances.gather(2, labels)
        loss = -(right.squeeze(2).clamp_min(1e-38).log() * sample.weights.view(-1, 1)).sum(0)
        chances.scatter_(2, labels, right - 1)
        back = (sample.shares * sample.weights[..., None]).transpose(1, 2)
        torch.bmm(back, chances.view_as(mixed), out=corners)
        return loss

    def _normaliser(self, statistics: Sequence[Tensor] | None) -> Callable[[Tensor], Tensor]:
        """By the statistics of the training images; with batch norm by those of this batch, which
        then enter the running ones."""
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
        gain, shift = (
            self.parameters[name].repeat_interleave(self.classes, 1) for name in ("gain", "shift")
        )
        return weight * gain, bias + (weight * shift).sum(0)

    def _chain(self, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        """From the slopes of the product's weight and bias to those of the parameters."""
        if self.normalisation != "batch norm":
            return {"weight": weight, "bias": bias}
        own = self.parameters["weight"]
        gain, shift = (
            self.parameters[name].repeat_interleave(self.classes, 1) for name in ("gain", "shift")
        )

        def by_head(values: Tensor) -> Tensor:
            return values.unflatten(1, (self.heads, self.classes)).sum(2)

        return {
            "weight": weight * gain + shift * bias,
            "bias": bias,
            "gain": by_head(weight * own),
            "shift": by_head(own * bias),
        }

    def step(self, gradients: Gradients, share: float) -> None:
        """share: how much of the rate, by the schedule. A head with nothing to learn from stays."""
        self.steps += 1
        for name, slope in gradients.slopes.items():
            value, moments = self.parameters[name], self.moments[name]
            rates = self.rates * share * gradients.counted
            if value.shape[-1] != self.heads:
                rates = rates.repeat_interleave(self.classes)
            if self.optimiser.name == "adamw":
                self._adamw(value, slope, moments, rates)
            else:
                self._sgd(value, slope, moments, rates)

    def _adamw(self, value: Tensor, slope: Tensor, moments: list[Tensor], rates: Tensor) -> None:
        """Decoupled weight decay, as in torch.optim.AdamW."""
        first, second = moments
        first.lerp_(slope, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(slope, slope, value=1 - BETAS[1])
        # first / c₁ / (√(second / c₂) + ε), with the corrections c₁, c₂ taken out of the matrices
        correction = math.sqrt(1 - BETAS[1] ** self.steps)
        move = first / second.sqrt().add_(EPSILON * correction)
        move *= rates * (correction / (1 - BETAS[0] ** self.steps))
        value.mul_(1 - rates * self.optimiser.weight_decay).sub_(move)

    def _sgd(self, value: Tensor, slope: Tensor, moments: list[Tensor], rates: Tensor) -> None:
        """With momentum, weight decay in the gradient, as in torch.optim.SGD."""
        slope = slope.add(value, alpha=self.optimiser.weight_decay)
        moment = moments[0]
        if self.steps == 1:
            moment.copy_(slope)
        else:
            moment.mul_(self.optimiser.momentum).add_(slope)
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
    """Images after one another, as many as have so many rows together (one at least)."""
    start = total = 0
    for i, count in enumerate(rows):
        if i > start and total + count > most:
            yield slice(start, i)
            start, total = i, 0
        total += count
    yield slice(start, len(rows))
