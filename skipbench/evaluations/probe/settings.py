"""Settings of the linear probe. Those without a default of their own are the protocol's."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Literal

from skipbench.evaluations.probe.protocols import PROTOCOLS, Protocol, with_changes
from skipbench.evaluations.segmentation import TrainingImagesSettings
from skipbench.settings import parsers, setting
from skipbench.settings.groups import size
from skipbench.settings.parsers import InvalidError


def parse_rates(given: Any) -> tuple[float, ...]:
    """ "1e-3,3e-3" → (0.001, 0.003), sorted."""
    try:
        rates = sorted({float(part) for part in parsers.listed(given)})
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < inf for rate in rates):
        raise InvalidError("expected numbers above 0, such as 1e-3,3e-3")
    return tuple(rates)


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
        None, help="Learning rates, all trained at once: 1e-3,3e-3.", parse=parse_rates,
        metavar="LR,LR", default_text="protocol; paper: six from 1e-4 to 3e-2",
    )  # fmt: skip
    select: Literal["val", "holdout"] = setting(
        "val", help="Choose the headline's rate on val, as papers do, or on held-out training "
        "images (holdout). Both are reported.", parse=parsers.choice("val", "holdout"),
        metavar="SPLIT",
    )  # fmt: skip
    size: str | None = size(None, default_text="protocol; paper: 448")
    score_size: int | str | None = setting(
        None, help="Score masks at full size, or resized to N×N.",
        parse=parsers.integer(1, 10**7, word="full"), metavar="N", default_text="protocol",
    )  # fmt: skip
    loss_pixels: int | str | None = setting(
        None, help="Labelled pixels per image and step, or all.",
        parse=parsers.integer(1, 10**7, word="all"), metavar="N", default_text="1024",
    )  # fmt: skip
    standardize: bool | None = setting(
        None, help="Standardise each channel over the training tokens, or not.",
        default_text="protocol",
    )  # fmt: skip
    views: int | None = setting(
        None, help="dinov2, leopart: N crops per image in turn, not new ones in every epoch.",
        parse=parsers.integer(1), metavar="N",
    )  # fmt: skip

    @cached_property
    def resolved(self) -> Protocol:
        """The protocol with what the user changed."""
        return with_changes(
            PROTOCOLS[self.protocol], epochs=self.epochs, rates=self.lr, size=self.size,
            score_size=self.score_size, loss_pixels=self.loss_pixels,
            standardize=self.standardize, views=self.views,
        )  # fmt: skip

    def check(self) -> None:
        super().check()
        _ = self.resolved
