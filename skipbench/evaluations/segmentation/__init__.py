"""What probe, knn and cluster share: their settings, and how tokens become scored class maps."""

from dataclasses import dataclass
from typing import Any

from skipbench.settings import DATA, WHAT, parsers, same_as, setting
from skipbench.settings.groups import PictureSettings, TokenSettings


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings(TokenSettings, PictureSettings):
    dataset: str = setting(
        help="Data set with masks (`skipbench data list`, folder:PATH).", parse=parsers.text,
        panel=WHAT, metavar="NAME",
    )  # fmt: skip
    classes: int | None = setting(
        None, help="Set of classes, where a data set has several (`skipbench data list`).",
        parse=parsers.integer(1), panel=DATA, metavar="N", default_text="the first of them",
    )  # fmt: skip
    seeds: tuple[int, ...] = setting(
        (0,), help="Random seeds, such as 0,1,2.", parse=parsers.integers(0), metavar="N,N",
        flags=("--seeds", "--seed"),
    )  # fmt: skip

    def of_data(self) -> dict[str, Any]:
        return {**super().of_data(), "classes": self.classes}


@dataclass(frozen=True, kw_only=True)
class TrainingImagesSettings(SegmentationSettings):
    """Of evaluations that learn from training images."""

    train_images: int | None = setting(
        None, help="Random subset of N training images, drawn before --limit or --sample.",
        parse=parsers.integer(1), panel=DATA, metavar="N", default_text="all",
    )  # fmt: skip
    subset_seed: int = same_as(
        TokenSettings, "subset_seed", 0, help="Random seed of --train-images and --sample."
    )

    def of_training_data(self) -> dict[str, Any]:
        return {**self.of_data(), "train_images": self.train_images}
