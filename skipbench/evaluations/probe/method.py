"""Linear-probe segmentation: how well a linear function of a frozen token tells its class.

A linear classifier of patch tokens is trained for each learning rate of a sweep, all at once. Its
logits are resized bilinearly to the mask; the loss is cross-entropy on labelled pixels, the score
is mIoU from one confusion matrix over the split. The rate is chosen twice: on the validation images
themselves, as papers do, and on training images held out from a second set of heads, which is what
an honest reader wants to know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from skipbench.errors import NumbersError
from skipbench.evaluations.probe.heads import Heads
from skipbench.evaluations.probe.protocols import Protocol
from skipbench.evaluations.probe.training import DRAWN_BYTES, Images, statistics, train
from skipbench.evaluations.segmentation.scores import by_class, of_counts
from skipbench.evaluations.segmentation.tokens import ImageTokens, ahead, predict, randomness
from skipbench.metrics.intervals import RESAMPLES, resample_weights
from skipbench.metrics.segmentation import LEFT_OUT, class_counts, scores

HELD_OUT = 0.1  # of the training images


@dataclass(frozen=True)
class Trained:
    """Heads for each rate, trained on all images and, for choosing the rate, without some."""

    rates: tuple[float, ...]
    classes: int
    weight: Tensor  # (channels, heads × classes), for tokens as they are
    bias: Tensor  # (heads × classes,)
    held_out: tuple[int, ...]  # training images; the second half of the heads has not seen them
    loss: tuple[float, ...]  # mean over the last epoch, by head
    finite: tuple[bool, ...]  # by head; a rate that is too high ends in NaN or Inf

    def heads(self, which: slice) -> tuple[Tensor, Tensor]:
        columns = slice(which.start * self.classes, which.stop * self.classes)
        return self.weight[:, columns], self.bias[columns]

    @property
    def full(self) -> slice:
        """The heads that have seen all training images."""
        return slice(0, len(self.rates))

    @property
    def choosing(self) -> slice:
        return slice(len(self.rates), 2 * len(self.rates))


def held_out_images(count: int, rates: int, seed: int) -> tuple[int, ...]:
    """One in ten, at random; none where there is nothing to choose, or too little to hold out."""
    if rates < 2 or count < 2:
        return ()
    chosen = randomness("held out", seed).permutation(count)[: max(1, round(HELD_OUT * count))]
    return tuple(sorted(chosen.tolist()))


def fit(
    images_at: Callable[[int], Images],
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
    state: what `after_epoch` was last given, to go on from there; it is called with the epoch, all
    that changes in training, and the loss of each head.
    """
    held_out = held_out_images(count, len(protocol.rates), seed)
    rates = protocol.rates * (2 if held_out else 1)
    counted = torch.ones(count, len(rates), dtype=torch.bool)
    counted[list(held_out), len(protocol.rates) :] = False
    course = protocol.course(count, seed)
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

    def note(epoch: int, losses: Tensor) -> None:
        nonlocal loss
        loss = losses
        if after_epoch:
            extra = {"epoch": torch.tensor(epoch), "loss": losses}
            after_epoch(epoch, heads.state() | extra, losses.tolist())

    train(
        heads, images_at, course, counted if held_out else None,
        begun=begun, fresh=protocol.views != "whole", after_epoch=note, drawn_bytes=drawn_bytes,
    )  # fmt: skip
    weight, bias, finite = _harmless(*heads.folded(), classes)
    if not any(finite[: len(protocol.rates)]):
        raise NumbersError("every learning rate ended in NaN or Inf: give lower ones with --lr")
    return Trained(protocol.rates, classes, weight, bias, held_out, tuple(loss.tolist()), finite)


def _harmless(
    weight: Tensor, bias: Tensor, classes: int
) -> tuple[Tensor, Tensor, tuple[bool, ...]]:
    """Heads that have diverged become zero, so that the others can be scored beside them."""
    both = torch.cat([weight, bias[None]])
    finite = both.unflatten(1, (-1, classes)).isfinite().all(2).all(0)
    both = torch.where(finite.repeat_interleave(classes), both, torch.zeros_like(both))
    return both[:-1], both[-1], tuple(finite.tolist())


# -- scoring


class Scenes(Interface):
    """A split to be scored."""

    def __len__(self) -> int: ...

    def seen(self, image: int) -> ImageTokens: ...

    def mask(self, image: int) -> np.ndarray: ...


def score(
    scenes: Scenes,
    weight: Tensor,
    bias: Tensor,
    classes: int,
    numbers: Sequence[int] | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> np.ndarray:
    """(images, heads, 3, classes) int32: `class_counts` of each image and head.

    weight: (channels, heads × classes); numbers: of the images to score, default all.
    """
    numbers = range(len(scenes)) if numbers is None else numbers
    counts = np.zeros((len(numbers), len(bias) // classes, 3, classes), np.int32)

    def read(image: int) -> tuple[ImageTokens, np.ndarray]:
        return scenes.seen(image), scenes.mask(image)

    for row, (seen, mask) in enumerate(ahead(read, numbers, most=2)):
        for head, prediction in enumerate(predict(seen, mask.shape, weight, bias, classes)):
            counts[row, head] = class_counts(prediction, mask, classes)
        advance(1)
    return counts


# -- what is reported


def metrics(
    trained: Trained,
    counts: np.ndarray,
    held_out: np.ndarray | None,
    names: Sequence[str],
    absent: str = LEFT_OUT,
    select: Literal["val", "holdout"] = "val",
) -> dict[str, Any]:
    """All that is said of one training.

    counts: (images, rates, 3, classes) on validation images, of heads trained on all images;
    held_out: the same on held-out training images, of heads that have not seen them.
    """
    rates = trained.rates
    weights = resample_weights(len(counts), RESAMPLES, seed=0)  # the same images for every rate
    table = [
        {"rate": rate, "loss": trained.loss[i]}
        | of_counts(counts[:, i], weights, absent)
        | {"holdout_miou": _miou_of(_chooser(trained, held_out, i), absent)}
        if trained.finite[i]
        else {"rate": rate, "loss": None, "diverged": True, "miou": None}
        for i, rate in enumerate(rates)
    ]
    chosen = {"val": _best(table, "miou"), "holdout": _best(table, "holdout_miou")}
    if chosen[select] is None:
        select = "val"
    index = chosen[select]
    assert index is not None
    return {
        "headline": "miou",
        "miou": table[index]["miou"],
        "interval": table[index]["interval"],
        **{
            name: table[index][name] for name in ("pixel_accuracy", "mean_accuracy", "weighted_iou")
        },
        "rate": rates[index],
        "selected_on": select if len(rates) > 1 else None,
        "chosen": {
            where: None
            if i is None
            else {name: table[i][name] for name in ("rate", "miou", "interval")}
            | {"edge": _edge(rates, i)}
            for where, i in chosen.items()
        },
        "edge": _edge(rates, index),
        "rates": table,
        **by_class(counts[:, index], names),
    }


def _chooser(trained: Trained, held_out: np.ndarray | None, rate: int) -> np.ndarray | None:
    """(images, 3, classes) of the head that has not seen them, unless it has diverged."""
    sound = held_out is not None and trained.finite[trained.choosing][rate]
    return held_out[:, rate] if held_out is not None and sound else None


def _miou_of(held_out: np.ndarray | None, absent: str) -> float | None:
    """None also where no held-out pixel is labelled."""
    miou = np.nan if held_out is None else scores(held_out.sum(0, dtype=np.int64), absent).miou
    return None if np.isnan(miou) else miou


def _best(table: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """The first of the best; None where nothing was measured."""
    known = [i for i, row in enumerate(table) if row.get(name) is not None]
    return max(known, key=lambda i: (table[i][name], -i), default=None)


def _edge(rates: Sequence[float], index: int) -> str | None:
    """Whether a rate beyond the sweep might be better still."""
    if len(rates) < 2 or rates[index] not in (min(rates), max(rates)):
        return None
    return "highest" if rates[index] == max(rates) else "lowest"
