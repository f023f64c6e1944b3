"""`skipbench extract`: features of a folder of images, stored where every evaluation finds them."""

import json
import time
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from skipbench.cli import options
from skipbench.cli.running import with_exit_codes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipbench.datasets import Dataset
    from skipbench.images import ImageItem


def add_to(app: typer.Typer) -> None:
    app.command("extract")(with_exit_codes(extract))


def extract(
    ckpt: options.Ckpt,
    images: Annotated[
        list[str] | None, typer.Argument(help="Image files or folders.", show_default=False)
    ] = None,
    dataset: options.DatasetOption = None,
    split: options.SplitOption = None,
    data_root: options.DataRoot = None,
    train_images: options.TrainImages = None,
    seed: options.Seed = 0,
    skip_bad: options.SkipBad = 0,
    layers: Annotated[
        str,
        typer.Option("--layers", help="last, multiscale, last4, ibot, all, or blocks: 2,5,-1."),
    ] = "last",
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor",
            help="tokens_norm, tokens, keys, queries or values. Repeatable.",
            show_default="tokens_norm",
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            help="N, HEIGHTxWIDTH, short:N, long:N or native; padded to whole patches.",
        ),
    ] = "448",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many images.")
    ] = None,
    residual: options.ResidualOption = "auto",
    weights: options.Weights = None,
    heads: options.Heads = None,
    expect: options.Expect = None,
    position_rule: options.Positions = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    batch_size: options.BatchSize = "auto",
    workers: options.Workers = None,
    store_dtype: options.StoreDtypeOption = "fp16",
    cache: options.Cache = None,
    cache_limit: options.CacheLimit = "50GB",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compute the features of images with a frozen backbone and keep them on disk.

    Interrupted, it goes on where it was; run again, it finds everything done.
    """
    from skipbench.datasets import Dataset, decodable, open_dataset
    from skipbench.errors import UsageError
    from skipbench.features.layers import check_layers
    from skipbench.files import cache_folder, ensure_writable, parse_bytes, size_text
    from skipbench.images import find_images, parse_size
    from skipbench.records import PRECISIONS, TENSORS, StoreDtype

    how_many = options.batch_size(batch_size)
    cache_bytes = parse_bytes(cache_limit)
    ensure_writable(cache_folder(cache) / "features")
    options.one_of("--precision", precision, *PRECISIONS)
    options.one_of("--store-dtype", store_dtype, *get_args(StoreDtype))
    for name in tensor or []:
        options.one_of("--tensor", name, *TENSORS)
    check_layers(layers)
    parse_size(size)
    if bool(images) == bool(dataset):
        raise UsageError("give either images or folders, or a data set with --dataset; not both")
    if images and (split or data_root or train_images):
        raise UsageError("--split, --data-root and --train-images go with --dataset")
    items: Sequence[ImageItem] | Dataset
    if dataset:
        items = open_dataset(
            dataset,
            split,
            root=data_root,
            limit=limit,
            train_images=train_images,
            seed=seed,
            skip_bad=skip_bad,
        )
    else:
        items = find_images(images or [])[:limit]
        if skip_bad:
            items = decodable(items, skip_bad, ", ".join(images or []))
    started = time.monotonic()
    reading = options.how_to_read(ckpt, residual, weights, heads, expect, position_rule, device)
    found = options.inspection(ckpt, reading)
    backbone = found.backbone(precision)

    from skipbench import pipeline

    with pipeline.extract(
        backbone,
        items,
        layers=layers,
        tensors=tensor or ["tokens_norm"],
        size=size,
        store_dtype=store_dtype,
        cache=cache,
        cache_limit=cache_bytes,
        batch_size=how_many,
        workers=workers,
    ) as store:
        summary = {
            "folder": str(store.folder),
            "images": len(store),
            "dataset": items.facts().to_json() if isinstance(items, Dataset) else None,
            "columns": list(store.columns),
            "residual": backbone.residual,
            "precision": backbone.precision,
            "degenerate": {name: len(found) for name, found in store.degenerate.items()},
            "bytes": sum(f.stat().st_size for f in store.folder.rglob("*.safetensors")),
            "seconds": round(time.monotonic() - started, 2),
        }
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        whose = _whose(items) if isinstance(items, Dataset) else ""
        typer.echo(
            f"{whose}{summary['images']} images, {', '.join(store.columns)}, {backbone.residual}: "
            f"{size_text(float(summary['bytes']))} in {store.folder}"  # type: ignore[arg-type]
        )


def _whose(dataset: "Dataset") -> str:
    partial = f" (partial: {dataset.official:,} in all)" if dataset.official else " (partial)"
    return f"{dataset.name} {dataset.split}{partial if dataset.partial else ''}: "
