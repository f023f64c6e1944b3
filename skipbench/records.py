"""The frozen dataclasses that the pipeline passes on. Importing them does not import torch, so the
command line and the readers of results stay fast."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

Residual = Literal["skip", "skipless"]

# Of a block: `tokens` is its output, `tokens_norm` the same after the final norm; the others are
# the projections inside its attention, heads concatenated.
TENSORS = ("tokens", "tokens_norm", "keys", "queries", "values")

# How position embeddings are resampled to another grid, as in the original code:
#   offset     DINO, iBOT, DINOv2: bicubic, scale factor (grid + 0.1) / old grid, no antialias
#   size       DeiT, MAE, MoCo v3: bicubic to the size, no antialias
#   antialias  DINOv2 with registers, timm: bicubic to the size, with antialias
PositionRule = Literal["offset", "size", "antialias"]

StoreDtype = Literal["fp16", "fp32"]
Preprocess = Literal["model", "imagenet"]
RopeKeys = Literal["before", "after"]  # keys and queries of models with rotary positions
Pool = Literal["cls", "mean"]  # the class token, or the mean of an image's patches


@dataclass(frozen=True)
class Side:
    """Resized to this many pixels on one side, keeping the aspect ratio."""

    which: Literal["short", "long"]
    pixels: int


# Of the model's input: (height, width), by one side, or None: native.
Size = tuple[int, int] | Side | None
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """Of pixels between 0 and 1, before the model."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation = "bilinear"  # of the resized image


IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class CheckpointFacts:
    """What a weights file is, and in `sources` where each fact was read.

    None: the file does not say, or this architecture has no such thing.
    """

    name: str  # file name, or timm:NAME
    sha256: str
    layout: str  # dino, dinov2, ibot, mae, …; of other families, the class of the model
    weights: str | None  # "teacher" or "student" where the file has both or either
    width: int  # of the last block
    depth: int
    patch: int
    heads: int | None = None
    mlp_width: int | None = None
    gated_mlp: bool | None = None  # SwiGLU, as DINOv2's largest model
    registers: int | None = None
    layer_scale: bool | None = None
    grid_hw: tuple[int, int] | None = None  # of the stored position embedding
    position_rule: PositionRule | None = None
    norm_eps: float | None = None
    rope_keys: RopeKeys | None = None  # keys are before or after them; None: no rotary positions
    epoch: int | None = None
    optimizer: str | None = None
    residual: Residual | None = None
    initialisation: str | None = None
    preprocessing: Preprocessing = IMAGENET
    native_hw: tuple[int, int] | None = None  # size of images that it was made for
    sources: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)  # e.g. {"head": 4}: tensors not used
    notes: tuple[str, ...] = ()  # for the user
    doubts: tuple[str, ...] = ()  # what was assumed, with the flag that settles it

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# What a user may set of a checkpoint (`--label epoch=200`): shown in tables, changes no score.
LABELS = ("name", "epoch", "optimizer", "initialisation")
TOLD = "--label"


@dataclass(frozen=True)
class FeatureSpec:
    """With the checkpoint, the variant and the images, this determines the features."""

    blocks: tuple[int, ...]
    tensors: tuple[str, ...] = ("tokens_norm",)
    size: Size = None  # padded to whole patches afterwards
    store_dtype: StoreDtype = "fp16"
    pools: tuple[Pool, ...] = ()  # one vector for each of these and each image, instead of tokens

    @property
    def columns(self) -> tuple[str, ...]:
        """The name of each stored array: "tokens_norm.11", or "tokens_norm-cls.11"."""
        kinds = [f"-{pool}" for pool in self.pools] or [""]
        return tuple(
            f"{tensor}{kind}.{block}"
            for block in self.blocks
            for tensor in self.tensors
            for kind in kinds
        )


@dataclass(frozen=True)
class BlockHealth:
    """Statistics of the patch tokens after one block, on a few photographs."""

    block: int  # -1: before the first block
    norm: float  # mean L2 norm of a token
    growth: float  # norm relative to the block before
    spread: float  # deviation over the tokens of an image, relative to their norm; 0: all equal
    rank: float | None  # effective rank of the centred tokens; None: they are rounding noise
    attention_distance: float | None  # mean distance query to key, in patches
    finite: bool


@dataclass(frozen=True)
class VariantHealth:
    """Of one variant, on the photographs."""

    residual: Residual
    blocks: tuple[BlockHealth, ...]  # the first one is the embedding
    retention: float  # share of the tokens' spread that one of the first blocks preserves
    plausible: bool
    against: tuple[str, ...]  # evidence against it; empty if plausible
    notes: tuple[str, ...]  # problems of its features, even if plausible

    @property
    def finite(self) -> bool:
        return all(block.finite for block in self.blocks)


@dataclass(frozen=True)
class Verdict:
    """Skip or skipless, judged by how the weights behave."""

    winner: Residual | None  # None: unclear
    reason: str
    skip: VariantHealth | None  # None: it cannot be run as this variant
    skipless: VariantHealth | None

    @property
    def variants(self) -> tuple[VariantHealth, ...]:
        return tuple(one for one in (self.skip, self.skipless) if one)


@dataclass(frozen=True)
class Archive:
    """A file that a data set is published in."""

    url: str
    checksum: str | None  # "md5:…", "sha1:…", "sha256:…" as published; None: none is published
    bytes: int  # of the archive; 0: not known
    unpacked_bytes: int  # once unpacked, roughly; 0: as large as the archive
    into: str = ""  # folder below the root where it is unpacked
    splits: tuple[str, ...] = ()  # those that need it; none: all

    @property
    def file(self) -> str:
        return urlsplit(self.url).path.rpartition("/")[2]


Chosen = Literal["first", "random"]  # by --limit, by --sample


@dataclass(frozen=True)
class DatasetFacts:
    """The images of a score."""

    name: str
    split: str
    images: int
    official_images: int | None
    partial: bool  # neither the whole official split nor the protocol's own sample
    sample: tuple[int, int] | None  # (images, seed) of a random subset
    bad: tuple[str, ...]  # left out: unreadable
    empty: tuple[str, ...]  # left out: without a box
    classes: int
    fingerprint: str
    names: tuple[str, ...]
    chosen: Chosen | None = None  # how a part was chosen, if the user asked for one

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def chosen_words(chosen: Chosen | None, images: str) -> str:
    """ "the first 200 images", "200 images drawn at random"."""
    if chosen is None:
        return images
    return f"the first {images}" if chosen == "first" else f"{images} drawn at random"


RESULT_SCHEMA = 2  # since 2, a record has a digest


@dataclass(frozen=True)
class Result:
    """One evaluation: the number, and how it was made, as plain JSON."""

    id: str  # a hash of `determines`
    evaluation: str
    metrics: Mapping[str, Any]
    checkpoint: Mapping[str, Any]  # CheckpointFacts, the variant that was run, and why that one
    features: Mapping[str, Any]
    protocol: Mapping[str, Any]  # every setting
    dataset: Mapping[str, Any]  # DatasetFacts of the images it was measured on
    training: Mapping[str, Any] | None  # DatasetFacts of the images a head was trained on
    timing: Mapping[str, Any]  # seconds by stage, peak memory
    environment: Mapping[str, Any]
    determines: Mapping[str, Any] | None  # all that the number depends on; None before schema 2
    schema: int = RESULT_SCHEMA

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
