"""Settings shared by several commands, in groups. An evaluation inherits those that it needs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from skipbench.errors import UsageError
from skipbench.files import cache_folder, ensure_writable
from skipbench.records import (
    LABELS,
    PRECISIONS,
    PositionRule,
    Preprocess,
    Residual,
    RopeKeys,
    StoreDtype,
)
from skipbench.settings import (
    CHECKPOINT,
    DATA,
    FEATURES,
    OUTPUT,
    RECORDS,
    WHAT,
    Settings,
    parsers,
    same_as,
    setting,
)
from skipbench.sources import absolute, source_of

if TYPE_CHECKING:
    from skipbench.features.source import FeatureSource
    from skipbench.pipeline import Reading

EXPECTED = {"depth": int, "width": int, "patch": int, "heads": int, "sha256": str}
LABEL_TYPES = {name: int if name == "epoch" else str for name in LABELS}
WEIGHTS = (
    "Weights file or folder, timm:NAME, timm:NAME@FILE, hf:NAME or python:MODULE:FUNCTION "
    "(`skipbench manual checkpoints`)."
)
SIZES = "N, HxW, short:N, long:N or native"


@dataclass(frozen=True, kw_only=True)
class ReadingSettings(Settings):
    """How a checkpoint is read."""

    residual: str = setting(
        "auto",
        help="skip, skipless, or auto: read from the file or its weights.",
        parse=parsers.choice(*get_args(Residual), "auto"), panel=WHAT, metavar="VARIANT",
    )  # fmt: skip
    weights: str | None = setting(
        None, help="Model of a file with several: teacher, student, or its name there.",
        default_text="teacher, if any", parse=parsers.text, panel=CHECKPOINT, metavar="MODEL",
    )  # fmt: skip
    heads: int | None = setting(
        None, help="Number of attention heads, if not in the file.",
        parse=parsers.integer(1), panel=CHECKPOINT, metavar="N", default_text="width / 64",
    )  # fmt: skip
    expected: dict[str, Any] = setting(
        {}, help="Require a depth, width, patch, heads or sha256. Repeatable.",
        parse=parsers.facts(EXPECTED, "depth=12"), panel=CHECKPOINT, metavar="FACT=VALUE",
        flags=("--expect",), several=True,
    )  # fmt: skip
    position_rule: PositionRule | None = setting(
        None, help="Position resampling: offset, size or antialias.",
        parse=parsers.choice(*get_args(PositionRule)), panel=CHECKPOINT, metavar="RULE",
        default_text="by layout",
    )  # fmt: skip
    preprocess: Preprocess = setting(
        "model", help="Mean, deviation and interpolation: the model's own (model), or ImageNet's "
        "and bilinear (imagenet).", parse=parsers.choice(*get_args(Preprocess)), panel=CHECKPOINT,
        metavar="RULE",
    )  # fmt: skip
    rope_keys: RopeKeys = setting(
        "before", help="Take keys and queries before or after their rotary positions.",
        parse=parsers.choice(*get_args(RopeKeys)), panel=CHECKPOINT, metavar="WHEN",
    )  # fmt: skip
    labels: dict[str, str | int] = setting(
        {}, help="name, epoch, optimizer, initialisation in tables. Repeatable.",
        parse=parsers.facts(LABEL_TYPES, "epoch=200"), panel=CHECKPOINT, metavar="FACT=VALUE",
        flags=("--label",), several=True, moves=False,
    )  # fmt: skip
    device: str = setting(
        "auto", help="auto, cpu, cuda, cuda:N or mps.", parse=parsers.device, panel=FEATURES,
        metavar="DEVICE", moves=False,
    )  # fmt: skip

    def reading(self) -> "Reading":
        """The keyword arguments of `pipeline.inspect`."""
        from skipbench.checkpoints import Expected

        known = self.expected if self.heads is None else {**self.expected, "heads": self.heads}
        return {
            "residual": self.residual, "weights": self.weights, "expected": Expected(**known),
            "position_rule": self.position_rule, "preprocess": self.preprocess,
            "rope_keys": self.rope_keys, "device": self.device, "labels": self.labels,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(ReadingSettings):
    """Which weights, and how they are read."""

    ckpt: str = setting(help=WEIGHTS, parse=parsers.checkpoint, panel=WHAT, metavar="MODEL")

    def checkpoints(self) -> "list[tuple[str, Reading]]":
        """Each checkpoint with how it is read."""
        return [(self.ckpt, self.reading())]

    def call(self) -> dict[str, Any]:
        call = super().call()
        return {**call, "ckpt": absolute(self.ckpt)} if "ckpt" in call else call

    def ensure_files(self) -> None:
        source_of(self.ckpt).ensure_exists()
        super().ensure_files()


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Where images come from, and how many of them."""

    data_root: str | None = setting(
        None, help="Folder with the data sets.", parse=parsers.text, panel=WHAT, metavar="DIR",
        default_text="$SKIPBENCH_DATA, ./data, ~/datasets",
    )  # fmt: skip
    limit: int | None = setting(
        None, help="Use at most the first N images of each split.", parse=parsers.integer(1),
        panel=DATA, metavar="N",
    )  # fmt: skip
    sample: int | None = setting(
        None, help="Use at most N random images of each split.", parse=parsers.integer(1),
        panel=DATA, metavar="N",
    )  # fmt: skip
    subset_seed: int = setting(
        0, help="Random seed of --sample.", parse=parsers.integer(0), panel=DATA, metavar="N"
    )
    skip_bad: int = setting(
        0, help="Ignore up to N images that cannot be decoded.", parse=parsers.integer(0),
        panel=DATA, metavar="N",
    )  # fmt: skip

    def check(self) -> None:
        super().check()
        limit = self.changed().get("limit")
        if self.sample is not None and limit is not None:
            raise UsageError(
                f"--sample {self.sample}: not together with --limit {limit}, which takes the first "
                "images of each split; --sample takes random ones"
            )

    def of_data(self) -> dict[str, Any]:
        """The keyword arguments with which every split is opened."""
        return {
            "root": self.data_root, "limit": self.limit, "sample": self.sample,
            "seed": self.subset_seed, "skip_bad": self.skip_bad,
        }  # fmt: skip

    def call(self) -> dict[str, Any]:
        call = super().call()
        if self.data_root is not None:
            call["data_root"] = str(Path(self.data_root).expanduser().absolute())
        kind, colon, folder = str(call.get("dataset", "")).partition(":")
        if colon:
            call["dataset"] = f"{kind}:{Path(folder).expanduser().absolute()}"
        return call


@dataclass(frozen=True, kw_only=True)
class FeatureSettings(Settings):
    """How features are computed."""

    precision: str = setting(
        "auto", help="fp32, bf16, fp16, or auto: bf16 on CUDA, else fp32.",
        parse=parsers.choice(*PRECISIONS), panel=FEATURES, metavar="DTYPE",
    )  # fmt: skip
    batch_size: int | str = setting(
        "auto", help="Images per batch; halved when memory runs out.",
        parse=parsers.integer(1, word="auto"), panel=FEATURES, metavar="N", moves=False,
    )  # fmt: skip
    workers: int | None = setting(
        None, help="Decoding threads.", parse=parsers.integer(1), panel=FEATURES, metavar="N",
        moves=False, default_text="by number of cores",
    )  # fmt: skip
    cache: str | None = setting(
        None, help="Cache, also used to resume.", parse=parsers.text, panel=FEATURES,
        metavar="DIR", moves=False, default_text="$SKIPBENCH_CACHE, ~/.cache/skipbench",
        env="SKIPBENCH_CACHE",
    )  # fmt: skip
    in_memory: bool = setting(
        False, help="Keep features in memory; store nothing.", panel=FEATURES, moves=False,
        flags=("--no-cache",),
    )  # fmt: skip

    @cached_property
    def source(self) -> "FeatureSource":
        from skipbench.features.source import FeatureSource, default_workers

        limit = getattr(self, "cache_limit", None)
        more = {} if limit is None else {"limit_bytes": limit}
        batch_size = None if isinstance(self.batch_size, str) else self.batch_size
        workers = self.workers or default_workers()
        return FeatureSource(self.cache, self.in_memory, batch_size, workers, **more)

    def ensure_files(self) -> None:
        if not self.in_memory:
            ensure_writable(cache_folder(self.cache))
        super().ensure_files()


@dataclass(frozen=True, kw_only=True)
class StoredFeatureSettings(FeatureSettings):
    """How features are computed and stored."""

    store_dtype: StoreDtype = setting(
        "fp16", help="Precision on disk: fp16 or fp32.", parse=parsers.choice("fp16", "fp32"),
        panel=FEATURES, metavar="DTYPE",
    )  # fmt: skip
    cache_limit: int = setting(
        50_000_000_000, help="Evict least recently used features beyond this size.",
        parse=parsers.byte_count, panel=FEATURES, metavar="SIZE", moves=False,
        default_text="50GB", env="SKIPBENCH_CACHE_LIMIT",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OutputSettings(Settings):
    """Where records go."""

    out: Path = setting(
        Path("results"), help="Folder for records.", parse=parsers.path, panel=OUTPUT,
        metavar="DIR", moves=False,
    )  # fmt: skip
    log: tuple[str, ...] = setting(
        (), help="Also log to tensorboard:DIR, wandb:PROJECT or mlflow:URI. Repeatable.",
        parse=parsers.trackers, panel=OUTPUT, metavar="PLACE", several=True, moves=False,
    )  # fmt: skip

    def check(self) -> None:
        super().check()
        parsers.require_packages(self.log)

    def ensure_files(self) -> None:
        ensure_writable(self.out)
        super().ensure_files()


@dataclass(frozen=True, kw_only=True)
class RecordSettings(OutputSettings):
    """Where records go, and whether existing ones are recomputed."""

    force: bool = setting(
        False, help="Recompute even if a record exists.", panel=OUTPUT, moves=False
    )


@dataclass(frozen=True, kw_only=True)
class PictureSettings(RecordSettings):
    """For evaluations that draw what they predict."""

    pictures: int = setting(
        0, help="Draw N predictions, worst and best.", parse=parsers.integer(0), panel=OUTPUT,
        metavar="N", moves=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TokenSettings(CheckpointSettings, DataSettings, StoredFeatureSettings, RecordSettings):
    """For evaluations of one data set on stored patch tokens: what `FeatureRun` needs."""

    positional: ClassVar[tuple[str, ...]] = ("ckpt", "dataset")

    dataset: str = setting(
        help="Data set (`skipbench data list`, folder:PATH).", parse=parsers.text,
        panel=WHAT, metavar="NAME",
    )  # fmt: skip
    layers: tuple[str, ...] = setting(
        ("last",), help="last, multiscale, last4, ibot, all, or blocks such as 2,5,-1. Repeatable: "
        "several share one pass over the images.", parse=parsers.layer_sets, panel=WHAT,
        metavar="BLOCKS", several=True,
    )  # fmt: skip
    norm: bool = setting(True, help="Do not apply the final norm to block outputs.")


def size(default: str | None, **more: Any) -> Any:
    return setting(
        default, help=f"Input size: {SIZES}.", parse=parsers.image_size, metavar="SIZE", **more
    )


@dataclass(frozen=True, kw_only=True)
class ResultsSettings(Settings):
    """Which records a command reads."""

    results: tuple[str, ...] = setting(
        ("results",), help="Folders or files of records.", parse=parsers.texts, panel=RECORDS,
        metavar="RESULTS", argument=True, several=True,
    )  # fmt: skip
    where: tuple[str, ...] = setting(
        (), help="Only records with this evaluation, method, dataset, split, checkpoint, "
        "residual, depth, epoch, optimizer, features, protocol or seed. Repeatable; the same "
        "fact twice means either value.", parse=parsers.texts, panel=RECORDS,
        metavar="FACT=VALUE", several=True,
    )  # fmt: skip
    strict: bool = setting(False, help="Fail on damaged or newer records (exit 4).", panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class RerunSettings(Settings):
    """Where to run a record again, and where its weights and images are now."""

    ckpt: str | None = setting(
        None, help="Weights, if the file has moved.", parse=parsers.text, panel=DATA, metavar="PATH"
    )
    data_root: str | None = same_as(DataSettings, "data_root", None, panel=DATA)
    device: str = same_as(ReadingSettings, "device", "auto")
    cache: str | None = same_as(FeatureSettings, "cache", None)

    def places(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in RerunSettings.options()}


@dataclass(frozen=True, kw_only=True)
class SelectSettings(Settings):
    select: str | None = setting(
        None, help="Use the rate (probe) or block (tokencut) selected on the evaluated images "
        "(val) or on others (holdout); records of a sweep have both.",
        parse=parsers.choice("val", "holdout"), panel=RECORDS, metavar="SPLIT",
        default_text="as recorded",
    )  # fmt: skip
