"""Training and validation images of a data set, opened before anything heavy is loaded."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.datasets import Dataset, Item, open_dataset
from skipbench.engine.parallel import in_parallel
from skipbench.errors import DataError, UsageError, some_of
from skipbench.evaluations._protocols import Protocol

log = logging.getLogger("skipbench")


def open_splits(
    name: str,
    protocol: Protocol,
    *,
    train_images: int | None = None,
    subset_seed: int = 0,
    root: str | Path | None = None,
    limit: int | None = None,
    classes: int | None = None,
    skip_bad: int = 0,
) -> tuple[Dataset, Dataset]:
    """Training and validation images, as the protocol takes them."""
    options: dict[str, Any] = {
        "root": root, "limit": limit, "classes": classes, "skip_bad": skip_bad,
    }  # fmt: skip
    split = protocol.train_splits.get(name, "train")
    wanted = train_images or protocol.train_images.get(name)
    train = _with_masks(open_dataset(name, split, train_images=wanted, seed=subset_seed, **options))
    return train, _with_masks(open_dataset(name, "val", **options))


def _with_masks(data: Dataset) -> Dataset:
    if data.labels is None:
        raise UsageError(
            f"{data.name} {data.split} has no masks, which a probe needs; "
            "give voc, ade20k, cocostuff, folder:PATH or shapes"
        )
    return data


def check_masks(train: Dataset, val: Dataset) -> None:
    """Every mask is decoded before the long work begins: a strange label would else be found only
    hours later. Also says which classes can be neither learnt nor found."""
    seen = []
    for data in (train, val):
        there = np.zeros(256, bool)
        for found in in_parallel(_classes_in, data, f"checking masks of {data.split}"):
            there[found] = True
        if not there[: len(data.classes)].any():
            raise DataError(f"{data.name} {data.split}: no labelled pixel in any mask")
        seen.append(there)
    unknown = [name for i, name in enumerate(val.classes) if seen[1][i] and not seen[0][i]]
    if unknown:
        log.info(
            "%d classes occur in val but in no training mask: %s", len(unknown), some_of(unknown)
        )


def _classes_in(item: Item) -> np.ndarray:
    return np.flatnonzero(np.bincount(item.mask().ravel(), minlength=256))
