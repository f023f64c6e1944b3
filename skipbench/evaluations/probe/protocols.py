"""What a linear probe is made of, value by value. No torch here: a wrong value is said at once."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from skipbench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

BETAS = (0.9, 0.999)  # of AdamW
SWEEP = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)

Normalisation = Literal["standardise", "batch norm", "none"]
Schedule = Literal["cosine", "poly", "step"]


@dataclass(frozen=True)
class Optimiser:
    name: Literal["adamw", "sgd"] = "adamw"
    weight_decay: float = 1e-4
    momentum: float = 0.9  # of SGD


@dataclass(frozen=True)
class Course:
    """How long, in which batches, on how many pixels of an image, at which share of the rate."""

    images: int
    batch: int
    steps: int
    schedule: Schedule
    pixels: int | None  # of an image and step; None: all that are labelled
    seed: int
    warm_up: int = 0  # steps

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.images / self.batch)

    @property
    def epochs(self) -> int:
        return math.ceil(self.steps / self.steps_per_epoch)

    def batches(self, epoch: int) -> "list[np.ndarray]":
        """The images of each step; the last epoch may be shorter."""
        from skipbench.evaluations.segmentation.tokens import randomness  # numpy

        order = randomness("order", self.seed, epoch).permutation(self.images)
        batches = [order[i : i + self.batch] for i in range(0, self.images, self.batch)]
        return batches[: self.steps - epoch * self.steps_per_epoch]

    def share(self, step: int) -> float:
        """Of the learning rate, at this step, counted from 0."""
        done = step / self.steps
        warm = max(step / self.warm_up, 1e-6) if step < self.warm_up else 1.0
        if self.schedule == "cosine":
            return warm * 0.5 * (1 + math.cos(math.pi * done))
        if self.schedule == "poly":
            return warm * (1 - done)
        return warm * (1.0 if done < 0.8 else 0.1)


@dataclass(frozen=True)
class Protocol:
    """Every setting of a probe; a command may change single ones, and the record says what it was.

    Where published codes differ from each other, so do the three below.
    """

    name: str
    train_splits: Mapping[str, str] = field(default_factory=dict)  # by data set; else "train"
    train_images: Mapping[str, int] = field(default_factory=dict)  # by data set; else all
    size: str = "448"
    views: Literal["whole", "dinov2", "leopart"] = "whole"  # what is seen of an image in training
    different_views: int | None = None  # of each image; None: another one in every epoch
    window: tuple[int, int] | None = None  # (size, stride) of sliding windows when scoring
    normalisation: Normalisation = "standardise"
    optimiser: Optimiser = Optimiser()
    schedule: Schedule = "cosine"
    batch: int = 16
    epochs: int | None = 30
    steps: int | None = None  # instead of epochs
    warm_up: float = 0.0  # share of the steps
    rates: tuple[float, ...] = SWEEP
    loss_pixels: int | None = 1024  # of an image and step; None: all
    loss_size: int | None = None  # masks are resized to this square for the loss; None: as they are
    score_size: int | None = None  # the same for the score
    absent_classes: Literal["left out", "zero"] = "left out"

    def course(self, images: int, seed: int) -> Course:
        per_epoch = -(-images // self.batch)
        steps = self.steps if self.epochs is None else self.epochs * per_epoch
        assert steps is not None
        return Course(
            images=images,
            batch=self.batch,
            steps=steps,
            schedule=self.schedule,
            pixels=self.loss_pixels,
            seed=seed,
            warm_up=round(self.warm_up * steps),
        )

    def facts(self) -> dict[str, Any]:
        """For the record. Which images were trained on stands elsewhere in it, as they are."""
        facts = asdict(self)
        del facts["train_splits"], facts["train_images"]
        if self.optimiser.name == "adamw":
            del facts["optimiser"]["momentum"]
            facts["optimiser"]["betas"] = BETAS
        return facts


PROTOCOLS = {
    "paper": Protocol("paper", train_images={"ade20k": 3000, "cocostuff": 3000}),
    "dinov2": Protocol(
        "dinov2",
        size="512",
        views="dinov2",
        window=(512, 341),
        normalisation="batch norm",
        schedule="poly",
        epochs=None,
        steps=40_000,
        warm_up=1500 / 40_000,
        rates=(1e-3,),
    ),
    "leopart": Protocol(
        "leopart",
        train_splits={"voc": "train_aug"},
        views="leopart",
        normalisation="none",
        optimiser=Optimiser("sgd"),
        schedule="step",
        epochs=25,
        rates=(1e-2,),
        loss_size=100,
        score_size=100,
        absent_classes="zero",
    ),
}


def with_changes(
    protocol: Protocol,
    *,
    epochs: int | None = None,
    rates: tuple[float, ...] | None = None,
    size: str | None = None,
    score_size: int | str | None = None,
    loss_pixels: int | str | None = None,
    standardize: bool | None = None,
    views: int | None = None,
) -> Protocol:
    """None: as the protocol has it; "full" and "all": no size, no limit."""
    if epochs is not None:
        protocol = replace(protocol, epochs=epochs, steps=None)
    if rates is not None:
        protocol = replace(protocol, rates=rates)
    if size is not None:
        protocol = _with_size(protocol, size)
    if score_size is not None:
        side = None if isinstance(score_size, str) else score_size
        protocol = replace(protocol, score_size=side)
    if loss_pixels is not None:
        count = None if isinstance(loss_pixels, str) else loss_pixels
        protocol = replace(protocol, loss_pixels=count)
    if standardize is not None:
        protocol = replace(protocol, normalisation="standardise" if standardize else "none")
    if views is not None:
        if protocol.views == "whole":
            raise UsageError(f"--views {views}: only for --protocol dinov2 or leopart")
        protocol = replace(protocol, different_views=views)
    return protocol


def _with_size(protocol: Protocol, size: str) -> Protocol:
    if protocol.views == "whole":
        return replace(protocol, size=size)
    if not size.isdecimal():
        raise UsageError(f"--size {size}: crops are square; expected an integer of at least 1")
    side = int(size)
    window = protocol.window and (side, round(side * protocol.window[1] / protocol.window[0]))
    return replace(protocol, size=size, window=window)
