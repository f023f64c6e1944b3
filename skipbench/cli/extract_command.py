"""`skipbench extract`: features of a folder of images, stored where every evaluation finds them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipbench.cli.commands import command
from skipbench.console import echo, echo_json
from skipbench.errors import UsageError
from skipbench.files import size_text
from skipbench.records import TENSORS
from skipbench.settings import DATA, WHAT, parsers, same_as, setting
from skipbench.settings.groups import CheckpointSettings, DataSettings, StoredFeatureSettings, size

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.images import ImageItem


@dataclass(frozen=True, kw_only=True)
class ExtractSettings(CheckpointSettings, DataSettings, StoredFeatureSettings):
    images: tuple[str, ...] = setting(
        (), help="Image files or folders.", parse=parsers.texts, panel=WHAT, metavar="IMAGES",
        argument=True, several=True,
    )  # fmt: skip
    dataset: str | None = setting(
        None, help="Data set instead of IMAGES (`skipbench data list`, folder:PATH).",
        parse=parsers.text, panel=WHAT, metavar="NAME",
    )  # fmt: skip
    layers: str = setting(
        "last", help="last, multiscale, last4, ibot, all, or blocks such as 2,5,-1.",
        parse=parsers.layer_set, panel=WHAT, metavar="BLOCKS",
    )  # fmt: skip
    tensor: tuple[str, ...] = setting(
        ("tokens_norm",), help="tokens_norm, tokens, keys, queries or values. Repeatable.",
        parse=parsers.choices(*TENSORS), panel=WHAT, metavar="TENSOR", several=True,
    )  # fmt: skip
    size: str = size("448", panel=WHAT)
    data_root: str | None = same_as(DataSettings, "data_root", None, panel=DATA)
    split: str | None = setting(
        None, help="Split of the data set.", parse=parsers.text, panel=DATA, metavar="NAME",
        default_text="val, or the only one",
    )  # fmt: skip
    train_images: int | None = same_as(
        DataSettings, "limit", None, help="Random subset of N images."
    )
    subset_seed: int = same_as(
        DataSettings, "subset_seed", 0, help="Random seed of --sample and --train-images.",
        flags=("--subset-seed", "--seed"),
    )  # fmt: skip
    in_memory: bool = same_as(StoredFeatureSettings, "in_memory", False, hidden=True)

    def check(self) -> None:
        super().check()
        if bool(self.images) == bool(self.dataset):
            raise UsageError("give images or folders, or a data set with --dataset")
        if self.images and (self.split or self.data_root or self.train_images):
            raise UsageError("--split, --data-root and --train-images go with --dataset")


def _items(settings: ExtractSettings) -> "Sequence[ImageItem] | Dataset":
    from skipbench.datasets import decodable, open_dataset
    from skipbench.images import find_images, part_of

    if settings.dataset:
        return open_dataset(
            settings.dataset, settings.split, train_images=settings.train_images,
            **settings.of_data(),
        )  # fmt: skip
    found = find_images(settings.images)
    items = part_of(found, settings.limit, settings.sample, settings.subset_seed)
    if settings.skip_bad:
        return decodable(items, settings.skip_bad, ", ".join(settings.images))
    return items


@command("extract", ExtractSettings)
def extract(settings: ExtractSettings, as_json: bool) -> None:
    """Compute the features of images with a frozen backbone and store them on disk.

    Resumable; stored features are reused.
    """
    settings.ensure_files()
    items = _items(settings)  # mistakes are reported before torch is loaded
    started = time.monotonic()

    from skipbench import pipeline
    from skipbench.datasets import Dataset

    backbone = pipeline.inspect(settings.ckpt, **settings.reading()).backbone(settings.precision)
    with pipeline.extract(
        backbone, items, layers=settings.layers, tensors=settings.tensor, size=settings.size,
        store_dtype=settings.store_dtype, cache=settings.cache, cache_limit=settings.cache_limit,
        batch_size=settings.source.batch_size, workers=settings.source.workers,
    ) as store:  # fmt: skip
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
        echo_json(summary)
    else:
        data = f"{_name(items)}: " if isinstance(items, Dataset) else ""
        echo(
            f"{data}{summary['images']} images, {', '.join(store.columns)}, {backbone.residual}: "
            f"{size_text(float(summary['bytes']))} in {store.folder}"  # type: ignore[arg-type]
        )


def _name(dataset: "Dataset") -> str:
    partial = f" (partial: {dataset.official:,} in all)" if dataset.official else " (partial)"
    return f"{dataset.name} {dataset.split}{partial if dataset.partial else ''}"
