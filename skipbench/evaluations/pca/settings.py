"""Settings of PCA pictures."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from skipbench.errors import UsageError
from skipbench.records import TENSORS, StoreDtype
from skipbench.settings import DATA, FEATURES, OUTPUT, WHAT, parsers, setting
from skipbench.settings.groups import (
    WEIGHTS,
    DataSettings,
    OutputSettings,
    ReadingSettings,
    StoredFeatureSettings,
    size,
)
from skipbench.sources import absolute, source_of

if TYPE_CHECKING:
    from skipbench.pipeline import Reading

Fit = Literal["image", "all"]
Upsample = Literal["nearest", "bilinear"]
Background = Literal["keep", "mask"]

IMAGES = 40  # the first of COCO val2017, as in the paper
MARK = ".skipbench-pca"  # in a folder that pictures are drawn into
OF_DATASET = "dataset:"


@parsers.offers("skip", "skipless", "auto")
def parse_variants(given: str | Iterable[str]) -> tuple[str, ...]:
    one = parsers.choice("skip", "skipless", "auto")
    return tuple(map(one, parsers.texts(given))) or ("auto",)


@dataclass(frozen=True, kw_only=True)
class PcaSettings(ReadingSettings, DataSettings, StoredFeatureSettings, OutputSettings):
    positional: ClassVar[tuple[str, ...]] = ("ckpts", "images")

    images: tuple[Any, ...] = setting(
        help="Images, folders, or dataset:NAME.", parse=parsers.images, panel=WHAT,
        metavar="IMAGES", argument=True, several=True,
    )  # fmt: skip
    ckpts: tuple[str, ...] = setting(
        help=f"{WEIGHTS} Repeatable: a column each, in the colours of the first.",
        parse=parsers.checkpoints, panel=WHAT, metavar="MODEL", flags=("--ckpt",), several=True,
    )  # fmt: skip
    residual: tuple[str, ...] = setting(  # type: ignore[assignment]
        ("auto",), help="skip, skipless, or auto: read from the file or its weights. Once for all "
        "checkpoints, or once for each.", parse=parse_variants, panel=WHAT,
        metavar="VARIANT", several=True,
    )  # fmt: skip
    names: tuple[str, ...] = setting(
        (), help="Title above the pictures, one for each --ckpt.", parse=parsers.texts, panel=WHAT,
        metavar="TEXT", flags=("--name",), several=True, default_text="file name",
    )  # fmt: skip
    layers: str = setting(
        "last", help="last, all, multiscale, or blocks such as 3,7,-1. One picture each.",
        parse=parsers.layer_set, panel=WHAT, metavar="BLOCKS",
    )  # fmt: skip
    feature: str = setting(
        "tokens_norm", help="Tensor of a block: tokens_norm (output after the final norm), tokens, "
        "keys, queries or values.", parse=parsers.choice(*TENSORS), metavar="TENSOR",
    )  # fmt: skip
    fit: Fit = setting(
        "image", help="Fit components per image, or over all images, so that colours mean the same "
        "in all of them.", parse=parsers.choice("image", "all"), metavar="KIND",
    )  # fmt: skip
    components: int = setting(
        3, help="Number of components, up to 12; every three are one RGB picture.",
        parse=parsers.integer(1, 12), metavar="N",
    )  # fmt: skip
    upsample: Upsample = setting(
        "nearest", help="Upsampling of tokens to image size: nearest or bilinear.",
        parse=parsers.choice("nearest", "bilinear"), metavar="KIND",
    )  # fmt: skip
    background: Background = setting(
        "keep", help="keep, or mask: black out what the first component separates and fit the "
        "rest, as in DINOv2's figures.", parse=parsers.choice("keep", "mask"), metavar="KIND",
    )  # fmt: skip
    align: bool = setting(True, help="Do not align components to the first checkpoint's.")
    size: str = size("short:448")
    split: str | None = setting(
        None, help="Split of dataset:NAME.", parse=parsers.text, panel=DATA, metavar="NAME",
        default_text="val, or the only one",
    )  # fmt: skip
    limit: int | str = setting(  # type: ignore[assignment]
        IMAGES, help="Use at most the first N images, or all.", panel=DATA, metavar="N",
        parse=parsers.integer(1, word="all"),
    )  # fmt: skip
    store_dtype: StoreDtype = setting(
        "fp32", help="Precision on disk: fp16 or fp32.", parse=parsers.choice("fp16", "fp32"),
        panel=FEATURES, metavar="DTYPE",
    )  # fmt: skip
    out: Path = setting(
        Path("pca"), help="Folder for pictures and records.", parse=parsers.path, panel=OUTPUT,
        metavar="DIR", moves=False,
    )  # fmt: skip
    own_folder: bool = setting(
        False, help="Draw into a sub-folder named after the record.", panel=OUTPUT, hidden=True,
        moves=False,
    )  # fmt: skip

    def of_data(self) -> dict[str, Any]:
        most = None if isinstance(self.limit, str) or self.sample else self.limit
        return {**super().of_data(), "limit": most}

    @property
    def fit_words(self) -> list[str]:
        found = ["fitted to each image" if self.fit == "image" else "fitted to all images"]
        return [*found, "foreground alone"] if self.background == "mask" else found

    def check(self) -> None:
        super().check()
        count = len(self.ckpts)
        for flag, given, or_else in (("--residual", self.residual, 1), ("--name", self.names, 0)):
            if len(given) not in (or_else, count):
                raise UsageError(f"{flag}: {len(given)} for {count} checkpoints; give one for each")
        for place, name in enumerate(self.names):
            if not name.strip() or name in self.names[:place]:
                raise UsageError(f"--name {name!r}: give each checkpoint a name of its own")

    def ensure_files(self) -> None:
        for ckpt in self.ckpts:
            source_of(ckpt).ensure_exists()
        super().ensure_files()

    def checkpoints(self) -> "list[tuple[str, Reading]]":
        """Each with how it is read."""
        found = []
        for number, ckpt in enumerate(self.ckpts):
            name = {"name": self.names[number]} if self.names else {}
            variant = self.residual[min(number, len(self.residual) - 1)]
            reading = {**self.reading(), "residual": variant, "labels": {**self.labels, **name}}
            found.append((ckpt, reading))
        return found  # type: ignore[return-value]

    def call_of(self, number: int) -> dict[str, Any]:
        """For the record of one checkpoint."""
        call = self.call()
        call.pop("ckpts")
        images = [str(getattr(one, "path", one)) for one in self.images]
        call["ckpt"] = absolute(self.ckpts[number])
        call["images"] = [
            one if one.startswith(OF_DATASET) else str(Path(one).expanduser().absolute())
            for one in images
        ]
        if "residual" in call:
            call["residual"] = self.residual[min(number, len(self.residual) - 1)]
        if self.names:
            call["names"] = [self.names[number]]
        return call
