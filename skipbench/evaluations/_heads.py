"""Linear classifiers of tokens, one for each learning rate, trained side by side.

The heads stand next to each other in one matrix, so that one product serves all. Each has its own
rate and, as AdamW works element by element, its own optimiser state; none knows of the others.
Tokens are standardised by the mean and deviation of each channel over the training images; both
are folded into the weights in the end, so a head is a linear function of the tokens as they are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from skipbench.evaluations._pixels import Sample, in_parts

BETAS = (0.9, 0.999)
EPSILON = 1e-8
START_DEVIATION = 0.01
PIXELS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Gradients:
    loss: Tensor  # (heads,)
    weight: Tensor  # (channels, heads × classes)
    bias: Tensor  # (heads × classes,)


class Heads:
    def __init__(
        self,
        mean: Tensor,
        deviation: Tensor,
        classes: int,
        rates: Sequence[float],
        weight_decay: float,
        seed: int,
    ) -> None:
        """mean, deviation: (channels,) of the training tokens."""
        self.mean, self.classes, self.heads = mean, classes, len(rates)
        # A channel that never varies carries nothing, and is not blown up.
        self.scale = torch.where(deviation > 1e-6, 1 / deviation.clamp_min(1e-6), 0.0)
        self.rates = torch.tensor(rates).repeat_interleave(classes)
        self.weight_decay = weight_decay
        generator = torch.Generator().manual_seed(seed)
        start = START_DEVIATION * torch.randn(len(mean), classes, generator=generator)
        self.weight = start.repeat(1, len(rates))  # every head starts alike
        self.bias = torch.zeros(classes * len(rates))
        self.moments = {
            name: (torch.zeros_like(value), torch.zeros_like(value))
            for name, value in (("weight", self.weight), ("bias", self.bias))
        }
        self.steps = 0

    def gradients(self, tokens: Iterable[Tensor], samples: Iterable[Sample]) -> Gradients:
        """Of the mean over images of their losses. tokens: (height × width, channels) each."""
        pairs = list(zip(tokens, samples, strict=True))
        inputs = torch.cat([image[sample.tokens.flatten()] for image, sample in pairs])
        inputs = inputs.float().sub_(self.mean).mul_(self.scale)
        logits = torch.addmm(self.bias, inputs, self.weight)
        slopes = torch.empty_like(logits)
        loss = torch.zeros(self.heads)
        start = 0
        for _, sample in pairs:
            for part in in_parts(sample, PIXELS_AT_ONCE):
                stop = start + part.tokens.numel()
                loss += self._slopes(part, logits[start:stop], slopes[start:stop])
                start = stop
        slopes /= len(pairs)
        return Gradients(loss / len(pairs), inputs.T @ slopes, slopes.sum(0))

    def _slopes(self, sample: Sample, logits: Tensor, slopes: Tensor) -> Tensor:
        """Writes the loss's slope with respect to each token's logits; returns the loss by head."""
        corners = logits.view(-1, 4, self.heads * self.classes)
        mixed = torch.bmm(sample.shares, corners).view(-1, self.heads, self.classes)
        chances = torch.softmax(mixed, -1)  # (pixels, heads, classes)
        labels = sample.labels.view(-1, 1, 1).expand(-1, self.heads, 1)
        right = chances.gather(2, labels)
        weights = sample.weights.view(-1, 1, 1)
        loss = -(right.clamp_min(1e-38).log() * weights).sum((0, 2))
        chances.scatter_(2, labels, right - 1).mul_(weights)
        torch.bmm(
            sample.shares.transpose(1, 2),
            chances.view(*sample.labels.shape, -1),
            out=slopes.view_as(corners),
        )
        return loss

    def step(self, gradients: Gradients, share: float) -> None:
        """AdamW, decoupled weight decay; share: how much of the rate, by the schedule."""
        self.steps += 1
        rates = self.rates * share
        for name, slope in (("weight", gradients.weight), ("bias", gradients.bias)):
            value, (first, second) = getattr(self, name), self.moments[name]
            first.lerp_(slope, 1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(slope, slope, value=1 - BETAS[1])
            spread = (second / (1 - BETAS[1] ** self.steps)).sqrt_().add_(EPSILON)
            value.mul_(1 - rates * self.weight_decay)
            value.sub_(rates / (1 - BETAS[0] ** self.steps) * first / spread)

    def folded(self) -> tuple[Tensor, Tensor]:
        """(channels, heads × classes) and (heads × classes,), for tokens as they are."""
        weight = self.weight * self.scale[:, None]
        return weight, self.bias - self.mean @ weight

    def state(self) -> dict[str, Tensor | int]:
        """All that changes in training."""
        moments = {
            f"{name}.{i}": m for name, pair in self.moments.items() for i, m in enumerate(pair)
        }
        return {"weight": self.weight, "bias": self.bias, "steps": self.steps, **moments}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.weight.copy_(state["weight"])
        self.bias.copy_(state["bias"])
        self.steps = int(state["steps"])
        for name, pair in self.moments.items():
            for i, moment in enumerate(pair):
                moment.copy_(state[f"{name}.{i}"])
