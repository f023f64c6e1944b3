"""Training and validation images of a data set, opened before anything heavy is loaded."""

from pathlib import Path
from typing import Any

from skipbench.datasets import Dataset, open_dataset
from skipbench.errors import UsageError
from skipbench.evaluations._protocols import Protocol


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
    train = open_dataset(name, split, train_images=wanted, seed=subset_seed, **options)
    val = open_dataset(name, "val", **options)
    for data in (train, val):
        if data.labels is None:
            raise UsageError(
                f"{name} {data.split} has no masks, which a probe needs; "
                "give voc, ade20k, cocostuff, folder:PATH or shapes"
            )
    return train, val
