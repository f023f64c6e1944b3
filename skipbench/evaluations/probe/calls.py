"""The evaluations as one call each from Python, with the defaults of the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Unpack

from skipbench.backbones.vit import Backbone
from skipbench.checkpoints import Expected
from skipbench.datasets import Dataset
from skipbench.errors import CheckpointError, DataError, UsageError
from skipbench.evaluations.data import open_splits
from skipbench.evaluations.probe.protocols import settle
from skipbench.evaluations.probe.run import Asked, Probe
from skipbench.evaluations.segmentation.images import Keeping
from skipbench.features.cache import DEFAULT_LIMIT
from skipbench.pipeline import Inspection, Reading, default_workers, inspect
from skipbench.records import LABELS, TOLD, DatasetFacts, Result, StoreDtype


class FeatureOptions(Reading, total=False):
    """As on the command line; those of `Reading` say how the checkpoint is read."""

    size: str | int | None
    norm: bool
    data_root: str | Path | None
    limit: int | None
    classes: int | None
    skip_bad: int
    precision: str
    store_dtype: StoreDtype
    cache: str | None
    cache_limit: int
    in_memory: bool
    batch_size: int | None
    workers: int | None
    out: str | Path
    force: bool
    pictures: int


class ProbeOptions(FeatureOptions, total=False):
    protocol: str
    epochs: int | None
    lr: str | float | Sequence[float] | None
    score_size: str | int | None
    loss_pixels: str | int | None
    standardize: bool | None
    views: int | None
    select: Literal["val", "holdout"]
    train_images: int | None
    subset_seed: int


# Options that say where and how fast, not what: they are no part of the call in a record.
PLACES = frozenset(
    "cache cache_limit in_memory batch_size workers out force pictures device labels".split()
)

USUAL = {
    "protocol": "paper", "select": "val", "norm": True, "subset_seed": 0, "skip_bad": 0,
    "precision": "auto", "store_dtype": "fp16", "residual": "auto", "expected": {},
}  # fmt: skip


def probe(
    ckpt: str | Path,
    dataset: str,
    *,
    layers: str = "last",
    seed: int = 0,
    **options: Unpack[ProbeOptions],
) -> Result:
    """`skipbench probe`: linear-probe segmentation, its record written and returned.

    options: as for `probe_all`.
    """
    return probe_all(ckpt, dataset, layers=[layers], seeds=[seed], **options)[0]


def probe_all(
    ckpt: str | Path,
    dataset: str,
    *,
    layers: Sequence[str] = ("last",),
    seeds: Sequence[int] = (0,),
    **options: Unpack[ProbeOptions],
) -> list[Result]:
    """Several sets of layers and seeds from one pass over the images; a record for each.

    options: those of `skipbench probe --help` without the dashes (lr, epochs, train_images, …),
    and in_memory for --no-cache.
    """
    return open_probe(ckpt, dataset, layers=layers, seeds=seeds, **options).run()


def open_probe(
    ckpt: str | Path,
    dataset: str,
    *,
    layers: Sequence[str] = ("last",),
    seeds: Sequence[int] = (0,),
    splits: tuple[Dataset, Dataset] | None = None,
    inspection: Inspection | None = None,
    **options: Unpack[ProbeOptions],
) -> Probe:
    """All of `probe_all` but the work itself. splits: training and validation images, if they are
    open already; inspection: the checkpoint, if it is."""
    check_names(options, ProbeOptions, "probe")
    protocol = settle(
        options.get("protocol", "paper"),
        epochs=options.get("epochs"),
        rates=options.get("lr"),
        size=options.get("size"),
        score_size=options.get("score_size"),
        loss_pixels=options.get("loss_pixels"),
        standardize=options.get("standardize"),
        views=options.get("views"),
    )
    train, val = splits or open_splits(
        dataset,
        protocol,
        train_images=options.get("train_images"),
        subset_seed=options.get("subset_seed", 0),
        root=options.get("data_root"),
        limit=options.get("limit"),
        classes=options.get("classes"),
        skip_bad=options.get("skip_bad", 0),
    )
    asked = Asked(
        protocol=protocol,
        seeds=tuple(seeds),
        select=options.get("select", "val"),
        call=call_of(ckpt, dataset, options, USUAL),
        **asked_of_features(layers, options),
    )
    return Probe(inspection or inspect(ckpt, **reading_of(options)), train, val, asked)


def check_names(options: Mapping[str, Any], known: type, evaluation: str) -> None:
    if unknown := set(options) - set(known.__annotations__):
        raise TypeError(f"{evaluation} has no option {sorted(unknown)[0]!r}")


def asked_of_features(layers: str | Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """What `AskedOfFeatures` has, but for the seeds and the call."""
    wanted = tuple(dict.fromkeys([layers] if isinstance(layers, str) else layers))
    if not wanted:
        raise UsageError("no --layers: give at least one set of them")
    return {
        "layers": wanted,
        "norm": options.get("norm", True),
        "store_dtype": options.get("store_dtype", "fp16"),
        "precision": options.get("precision", "auto"),
        "keeping": keeping_of(options),
        "out": Path(options.get("out", "results")),
        "force": options.get("force", False),
        "pictures": options.get("pictures", 0),
    }


def check_choices(*choices: tuple[str, object, Sequence[object]]) -> None:
    """Each an option, its value, and those that there are."""
    for option, value, known in choices:
        if value not in known:
            raise UsageError(f"--{option} {value!r}: give {', '.join(map(str, known))}")


def keeping_of(options: Mapping[str, Any]) -> Keeping:
    """How features are computed, and where what takes long is kept."""
    return Keeping(
        cache=options.get("cache"),
        limit_bytes=options.get("cache_limit", DEFAULT_LIMIT),
        in_memory=options.get("in_memory", False),
        batch_size=options.get("batch_size"),
        workers=options.get("workers") or default_workers(),
    )


def reading_of(options: Mapping[str, Any]) -> Reading:
    """Those that say how the checkpoint is read."""
    return {k: v for k, v in options.items() if k in Reading.__annotations__}  # type: ignore[return-value]


def call_of(
    ckpt: str | Path, dataset: str, options: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """What was asked for, so that it can be asked for again: from any folder, with other seeds.
    usual: what options are if they are not given."""
    told = {k: v for k, v in options.items() if v is not None and k not in PLACES}
    if isinstance(told.get("expected"), Expected):
        facts = asdict(told["expected"])
        told["expected"] = {k: v for k, v in facts.items() if v is not None}
    told = {k: v for k, v in told.items() if k not in usual or v != usual[k]}
    if "data_root" in told:
        told["data_root"] = str(Path(told["data_root"]).expanduser().absolute())
    kind, _, folder = dataset.partition(":")
    if folder:
        dataset = f"{kind}:{Path(folder).expanduser().absolute()}"
    if not str(ckpt).startswith("timm:"):
        ckpt = Path(ckpt).expanduser().absolute()
    return {"ckpt": str(ckpt), "dataset": dataset, **told}


def probe_again(
    result: Result, *, ckpt: str | Path | None = None, seeds: Sequence[int], **places: Any
) -> Probe:
    """The probe of a record once more, with other seeds or elsewhere.

    ckpt: where the weights lie now, if not where they lay; places: data_root, out, cache, device …
    """
    call = call_again(result, ProbeOptions, ckpt, places)
    probe = open_probe(seeds=seeds, layers=[call.pop("layers")], **call)
    check_same(result, call["ckpt"], probe.backbone, probe.val_facts, probe.train_facts)
    return probe


def call_again(
    result: Result,
    options: type,
    ckpt: str | Path | None,
    places: Mapping[str, Any],
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """What to call with, but for the seeds. options: those that the evaluation has; more: what its
    records also say."""
    call = dict(result.environment.get("call") or {})
    needed = {"ckpt", "dataset", "layers", "seed", *more}
    if not needed <= set(call) <= needed | set(options.__annotations__):
        raise UsageError(f"{result.id} does not say how it was made, or in another version's words")
    call |= {key: value for key, value in places.items() if value is not None}
    del call["seed"]
    call["ckpt"] = ckpt or call["ckpt"]
    if "expected" in call:
        call["expected"] = Expected(**call["expected"])
    sources = result.checkpoint.get("sources") or {}
    call["labels"] = {k: result.checkpoint[k] for k in LABELS if sources.get(k) == TOLD}
    return call


def check_same(
    result: Result,
    where: str | Path,
    backbone: Backbone,
    val: DatasetFacts,
    train: DatasetFacts | None = None,
) -> None:
    """That these are the weights and the images of a record."""
    found, made = backbone.facts.sha256, result.checkpoint["sha256"]
    if found != made:
        raise CheckpointError(
            f"{where}: not the weights of {result.id} (sha256 {found[:12]}…, not {made[:12]}…)"
        )
    for facts, part in ((val, result.dataset), (train, result.training)):
        if facts and part and facts.fingerprint != part["fingerprint"]:
            raise DataError(f"{facts.name} {facts.split}: not the images or labels of {result.id}")
