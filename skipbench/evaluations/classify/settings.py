"""Settings of image classification; the protocols are DINO's (Caron et al. 2021)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from skipbench.evaluations.segmentation import TrainingImagesSettings
from skipbench.settings import DATA, WHAT, parsers, same_as, setting
from skipbench.settings.groups import TokenSettings, size
from skipbench.settings.parsers import InvalidError, offers

METHODS = {"knn": "k-NN classification", "linear": "linear classification"}
MOST_K = 1000
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
RATES_FOR = 256  # images in a batch: rates are scaled with it
WHOLE = "whole"

Pool = Literal["auto", "cls", "mean", "both"]


@offers(*METHODS)
def parse_methods(given: str | Iterable[str]) -> tuple[str, ...]:
    one = parsers.choice(*METHODS)
    found = parsers.distinct(map(one, parsers.listed(given)))
    if not found:
        raise InvalidError(f"expected {parsers.one_of(tuple(METHODS))}, or both")
    return found


def parse_ks(given: int | str | Iterable[int | str]) -> tuple[int, ...]:
    return tuple(sorted(parsers.integers(1, MOST_K, example="10,20,100,200")(given)))


@offers(WHOLE)
def parse_crop(given: float | str) -> float | str:
    if given == WHOLE:
        return WHOLE
    try:
        share = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        share = math.nan
    if not 0.1 <= share <= 1:
        raise InvalidError(f"expected {WHOLE} or a number from 0.1 to 1")
    return share


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(TokenSettings):
    dataset: str = setting(
        help="imagenet, shapes, or folder:PATH with PATH/train/CLASS/ and PATH/val/CLASS/.",
        parse=parsers.text, panel=WHAT, metavar="NAME",
    )  # fmt: skip
    method: tuple[str, ...] = setting(
        tuple(METHODS), help="knn, linear, or knn,linear.", parse=parse_methods, panel=WHAT,
        metavar="NAME,NAME",
    )  # fmt: skip
    pool: Pool = setting(
        "auto", help="Vector of an image: class token (cls), mean patch token (mean), both "
        "concatenated, or auto: cls if the model has one, else mean.",
        parse=parsers.choice("auto", "cls", "mean", "both"), metavar="NAME",
    )  # fmt: skip
    k: tuple[int, ...] = setting(
        (20,), help="knn: number of neighbours; several share one search: 10,20,100,200.",
        parse=parse_ks, metavar="N,N",
    )  # fmt: skip
    temperature: tuple[float, ...] = setting(
        (0.07,), help="knn: votes are weighted by exp(cosine / temperature).",
        parse=parsers.numbers(1e-3, 1e3, example="0.02,0.07"), metavar="T,T",
    )  # fmt: skip
    epochs: int = setting(
        100, help="linear: training epochs.", parse=parsers.integer(1), metavar="N"
    )
    lr: tuple[float, ...] = setting(
        RATES, help=f"linear: learning rates for batches of {RATES_FOR}, trained together.",
        parse=parsers.numbers(1e-9, 1e6, example="1e-3,1e-2"), metavar="LR,LR",
        default_text="3e-4 to 1e-1",
    )  # fmt: skip
    batch: int = setting(
        1024, help="linear: images per step; rates are scaled linearly with it.",
        parse=parsers.integer(1), metavar="N",
    )  # fmt: skip
    select: Literal["val", "holdout"] = setting(
        "val", help="linear: pick the rate on the evaluated images (as papers do) or a training "
        "holdout.", parse=parsers.choice("val", "holdout"), metavar="SPLIT",
    )  # fmt: skip
    standardize: bool = setting(
        False, help="linear: standardise each channel over the training images."
    )
    size: str = size("224")
    crop: float | str = setting(
        0.875, help="Resize images to --size divided by this, then crop the centre (224: short "
        "side 256). whole: resize the whole image, without a crop.", parse=parse_crop,
        metavar="SHARE",
    )  # fmt: skip
    seeds: tuple[int, ...] = setting(
        (0,), help="linear: random seeds, such as 0,1,2.", parse=parsers.integers(0),
        metavar="N,N", flags=("--seeds", "--seed"),
    )  # fmt: skip
    split: str | None = setting(
        None, help="Split to evaluate.", parse=parsers.text, panel=DATA, metavar="NAME",
        default_text="val, else test",
    )  # fmt: skip
    train_images: int | None = same_as(TrainingImagesSettings, "train_images", None)
    subset_seed: int = same_as(TrainingImagesSettings, "subset_seed", 0)
    limit: int | None = same_as(
        TokenSettings, "limit", None, help="Use at most the first N images of each split, taken "
        "from all classes in turn.",
    )  # fmt: skip

    def of_training_data(self) -> dict[str, Any]:
        return {**self.of_data(), "split": self.split, "train_images": self.train_images}
