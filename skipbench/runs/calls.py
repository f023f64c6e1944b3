"""The evaluations as one call each from Python, with the defaults of the command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Unpack

from skipbench.evaluations._protocols import settle
from skipbench.features.cache import DEFAULT_LIMIT
from skipbench.pipeline import Reading, default_workers, inspect
from skipbench.records import Result, StoreDtype
from skipbench.runs._held import Keeping
from skipbench.runs.probe import Asked, Probe
from skipbench.runs.splits import open_splits


class ProbeOptions(Reading, total=False):
    """As on the command line; those of `Reading` say how the checkpoint is read."""

    protocol: str
    epochs: int | None
    lr: str | float | Sequence[float] | None
    size: str | int | None
    score_size: str | int | None
    loss_pixels: str | int | None
    standardize: bool | None
    views: int | None
    select: Literal["val", "holdout"]
    norm: bool
    train_images: int | None
    subset_seed: int
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
    if unknown := set(options) - set(ProbeOptions.__annotations__):
        raise TypeError(f"probe has no option {sorted(unknown)[0]!r}")
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
    train, val = open_splits(
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
        layers=tuple(layers),
        seeds=tuple(seeds),
        select=options.get("select", "val"),
        norm=options.get("norm", True),
        store_dtype=options.get("store_dtype", "fp16"),
        precision=options.get("precision", "auto"),
        keeping=Keeping(
            cache=options.get("cache"),
            limit_bytes=options.get("cache_limit", DEFAULT_LIMIT),
            in_memory=options.get("in_memory", False),
            batch_size=options.get("batch_size"),
            workers=options.get("workers") or default_workers(),
        ),
        out=Path(options.get("out", "results")),
        force=options.get("force", False),
        pictures=options.get("pictures", 0),
    )
    known = Reading.__annotations__
    reading: Reading = {k: v for k, v in options.items() if k in known}  # type: ignore[assignment]
    return Probe(inspect(ckpt, **reading), train, val, asked).run()
