"""Settings of PCA pictures that can be checked without torch."""

from collections.abc import Sequence
from typing import Literal, get_args

from skipbench.errors import UsageError

Fit = Literal["image", "all"]
Upsample = Literal["nearest", "bilinear"]
Background = Literal["keep", "mask"]
FITS: tuple[Fit, ...] = get_args(Fit)
UPSAMPLING: tuple[Upsample, ...] = get_args(Upsample)
BACKGROUNDS: tuple[Background, ...] = get_args(Background)

IMAGES = 40  # the first of COCO val2017, as in the paper
COMPONENTS, MOST_COMPONENTS = 3, 12  # three are one picture
SIZE = "short:448"
MARK = ".skipbench-pca"  # in a folder that pictures are drawn into


def check_components(number: int) -> None:
    if not isinstance(number, int) or not 1 <= number <= MOST_COMPONENTS:
        raise UsageError(f"--components {number}: give a number from 1 to {MOST_COMPONENTS}")


def check_each(
    option: str, given: Sequence[str], checkpoints: int, one_for_all: bool = False
) -> None:
    """As many as there are checkpoints, or one for all of them."""
    if len(given) != checkpoints and not (one_for_all and len(given) == 1):
        raise UsageError(f"{option}: {len(given)} for {checkpoints} checkpoints; give one for each")


def check_names(names: Sequence[str], checkpoints: int) -> None:
    check_each("--name", names, checkpoints)
    for place, name in enumerate(names):
        if not name.strip() or name in names[:place]:
            raise UsageError(f"--name {name!r}: give each checkpoint a name of its own")
