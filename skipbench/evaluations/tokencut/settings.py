"""Settings of object discovery."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from skipbench.errors import UsageError
from skipbench.records import TENSORS
from skipbench.settings import DATA, WHAT, parsers, setting
from skipbench.settings.groups import (
    CheckpointSettings,
    DataSettings,
    FeatureSettings,
    PictureSettings,
    size,
)

Method = Literal["tokencut", "lost"]
Score = Literal["boxes", "masks"]
TAU, EPS = 0.2, 1e-5
SCORING = ("split", "score", "hard", "pictures", "select")  # of a data set; not with --images


@dataclass(frozen=True, kw_only=True)
class TokencutSettings(CheckpointSettings, DataSettings, FeatureSettings, PictureSettings):
    positional: ClassVar[tuple[str, ...]] = ("ckpt", "dataset")

    dataset: str | None = setting(
        None, help="Boxes: voc, voc07, coco20k, folder:PATH, shapes. Masks: ecssd, duts, dutomron, "
        "folder:PATH.", parse=parsers.text, panel=WHAT, metavar="NAME",
    )  # fmt: skip
    images: tuple[Any, ...] = setting(
        (), help="Draw box, mask and eigenvector over these images or folders, instead of "
        "scoring a data set. Repeatable.", parse=parsers.images, panel=WHAT, metavar="PATH",
        several=True,
    )  # fmt: skip
    layers: str = setting(
        "last", help="last, all, or blocks such as 9,10,-1; each is cut by itself, all in one "
        "pass.", parse=parsers.layer_set, panel=WHAT, metavar="BLOCKS",
    )  # fmt: skip
    feature: str = setting(
        "keys", help="Tensor of a block: keys, queries, values, tokens (its output) or "
        "tokens_norm.", parse=parsers.choice(*TENSORS), metavar="TENSOR",
    )  # fmt: skip
    method: Method = setting(
        "tokencut", help="tokencut or lost.", parse=parsers.choice("tokencut", "lost"),
        metavar="NAME",
    )  # fmt: skip
    tau: float | None = setting(
        None, help="TokenCut: link tokens with a larger cosine.", parse=parsers.number(-1, 1),
        metavar="COS", default_text=f"{TAU:g}",
    )  # fmt: skip
    eps: float | None = setting(
        None, help="TokenCut: weight of all other links.", parse=parsers.number(0, 1),
        metavar="W", default_text=f"{EPS:g}",
    )  # fmt: skip
    size: str = size("native", flags=("--size", "--resize"))
    score: Score | None = setting(
        None, help="Score boxes (CorLoc) or masks (IoU, F-beta, accuracy).",
        parse=parsers.choice("boxes", "masks"), metavar="KIND",
        default_text="boxes, if there are any",
    )  # fmt: skip
    hard: bool = setting(True, help="Ignore boxes marked difficult or truncated.")
    select: Literal["val", "holdout"] = setting(
        "val", help="With several blocks: report the best on the evaluated images, as papers do, "
        "or one chosen on the other half (holdout). Both are recorded.",
        parse=parsers.choice("val", "holdout"), metavar="SPLIT",
    )  # fmt: skip
    split: str | None = setting(
        None, help="Split to evaluate.", parse=parsers.text, panel=DATA, metavar="NAME",
        default_text="trainval, else val or the only one",
    )  # fmt: skip

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Self:
        if given.get("images") and given.get("out") is None:
            given = {**given, "out": "found"}  # pictures, not records
        return super().make(given)

    @property
    def threshold(self) -> float:
        return TAU if self.tau is None else self.tau

    @property
    def weak_link(self) -> float:
        return EPS if self.eps is None else self.eps

    def check(self) -> None:
        super().check()
        if self.method == "lost" and (self.tau, self.eps) != (None, None):
            name = "tau" if self.tau is not None else "eps"
            value = getattr(self, name)
            raise UsageError(f"--{name} {value:g}: only for --method tokencut; LOST has neither")
        if bool(self.dataset) == bool(self.images):
            raise UsageError("give --dataset NAME for a score, or --images PATH for pictures alone")
        if self.images and (given := [name for name in SCORING if name in self.changed()]):
            raise UsageError(f"--{given[0]} goes with --dataset, not with --images")
