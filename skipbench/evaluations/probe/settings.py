"""Settings of the linear probe, and the published protocols that they change. A setting without a
default is the protocol's. No torch here: invalid values are reported at once."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from skipbench.errors import UsageError
from skipbench.evaluations.segmentation import TrainingImagesSettings
from skipbench.settings import parsers, setting
from skipbench.settings.groups import size
from skipbench.settings.parsers import InvalidError

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
class TrainingPlan:
    """Length of the training, batches, pixels of an image, and learning rate schedule."""

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
        from skipbench.evaluations.segmentation.tokens import randomness  # torch

        order = randomness("order", self.seed, epoch).permutation(self.images)
        batches = [order[i : i + self.batch] for i in range(0, self.images, self.batch)]
        return batches[: self.steps - epoch * self.steps_per_epoch]

    def rate_factor(self, step: int) -> float:
        """What the learning rate is multiplied by at this step, counted from 0."""
        done = step / self.steps
        warm = max(step / self.warm_up, 1e-6) if step < self.warm_up else 1.0
        if self.schedule == "cosine":
            return warm * 0.5 * (1 + math.cos(math.pi * done))
        if self.schedule == "poly":
            return warm * (1 - done)
        return warm * (1.0 if done < 0.8 else 0.1)


@dataclass(frozen=True)
class Protocol:
    """Every setting of a probe. A command may change single ones; the record lists the changes."""

    name: str
    train_splits: Mapping[str, str] = field(default_factory=dict)  # by data set; else "train"
    train_images: Mapping[str, int] = field(default_factory=dict)  # by data set; else all
    size: str = "448"
    views: Literal["whole", "dinov2", "leopart"] = "whole"  # training images: whole, or crops
    different_views: int | None = None  # of each image; None: a new one in every epoch
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

    def training_plan(self, images: int, seed: int) -> TrainingPlan:
        per_epoch = -(-images // self.batch)
        steps = self.steps if self.epochs is None else self.epochs * per_epoch
        assert steps is not None
        return TrainingPlan(
            images=images,
            batch=self.batch,
            steps=steps,
            schedule=self.schedule,
            pixels=self.loss_pixels,
            seed=seed,
            warm_up=round(self.warm_up * steps),
        )

    def facts(self) -> dict[str, Any]:
        """For the record, which has the training images elsewhere. "448" and "448x448" are one
        size."""
        from skipbench.images import parse_size, size_name  # numpy

        facts = asdict(self) | {"size": size_name(parse_size(self.size))}
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


def parse_rates(given: float | str | Iterable[float | str]) -> tuple[float, ...]:
    """ "1e-3,3e-3" → (0.001, 0.003), sorted."""
    try:
        rates = sorted(map(float, parsers.listed(given)))
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise InvalidError("expected numbers above 0, such as 1e-3,3e-3")
    return parsers.distinct(rates)


@dataclass(frozen=True, kw_only=True)
class ProbeSettings(TrainingImagesSettings):
    protocol: str = setting(
        "paper", help="Published settings to follow: paper, dinov2 or leopart.",
        parse=parsers.choice(*PROTOCOLS), metavar="NAME",
    )  # fmt: skip
    epochs: int | None = setting(
        None, help="Training epochs.", parse=parsers.integer(1), metavar="N",
        default_text="protocol; paper: 30",
    )  # fmt: skip
    lr: tuple[float, ...] | None = setting(
        None, help="Learning rates, trained together.", parse=parse_rates,
        metavar="LR,LR", default_text="protocol; paper: 1e-4 to 3e-2",
    )  # fmt: skip
    select: Literal["val", "holdout"] = setting(
        "val", help="Pick the rate on val (as papers do) or a training holdout.",
        parse=parsers.choice("val", "holdout"), metavar="SPLIT",
    )  # fmt: skip
    size: str | None = size(None, default_text="paper: 448")
    score_size: int | str | None = setting(
        None, help="Score masks at full size, or resized to N×N.",
        parse=parsers.integer(1, 10**7, word="full"), metavar="N", default_text="protocol",
    )  # fmt: skip
    loss_pixels: int | str | None = setting(
        None, help="Labelled pixels per image and step, or all.",
        parse=parsers.integer(1, 10**7, word="all"), metavar="N", default_text="1024",
    )  # fmt: skip
    standardize: bool | None = setting(
        None, help="Standardise each channel over the training tokens.",
        default_text="protocol",
    )  # fmt: skip
    views: int | None = setting(
        None, help="dinov2, leopart: cycle through N fixed crops per image.",
        parse=parsers.integer(1), metavar="N",
    )  # fmt: skip

    @cached_property
    def resolved(self) -> Protocol:
        """The protocol with what the user changed; "full" and "all" are no size and no limit."""
        protocol, changes = PROTOCOLS[self.protocol], dict[str, Any]()
        if self.epochs is not None:
            changes |= {"epochs": self.epochs, "steps": None}
        if self.lr is not None:
            changes["rates"] = self.lr
        if self.size is not None:
            changes |= _sizes(protocol, self.size)
        for name in ("score_size", "loss_pixels"):
            if (given := getattr(self, name)) is not None:
                changes[name] = None if isinstance(given, str) else given
        if self.standardize is not None:
            changes["normalisation"] = "standardise" if self.standardize else "none"
        if self.views is not None:
            if protocol.views == "whole":
                raise UsageError(f"--views {self.views}: only for --protocol dinov2 or leopart")
            changes["different_views"] = self.views
        return replace(protocol, **changes)

    def check(self) -> None:
        super().check()
        _ = self.resolved


def _sizes(protocol: Protocol, size: str) -> dict[str, Any]:
    """What a size changes: crops are square, and windows keep their overlap."""
    if protocol.views == "whole":
        return {"size": size}
    if not size.isdecimal():
        raise UsageError(f"--size {size}: crops are square; expected an integer of at least 1")
    side = int(size)
    window = protocol.window and (side, round(side * protocol.window[1] / protocol.window[0]))
    return {"size": size, "window": window}
