"""Training and validation images of a data set, opened before anything heavy is loaded."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skipbench.datasets import (
    Dataset,
    Item,
    find_folder,
    open_dataset,
    source,
    without_empty,
)
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


def open_objects(
    name: str,
    *,
    split: str | None = None,
    score: Literal["boxes", "masks"] | None = None,
    hard: bool = True,
    root: str | Path | None = None,
    limit: int | None = None,
    skip_bad: int = 0,
) -> Dataset:
    """Images with something to be found: boxes where there are any, else masks. Its `kind` says
    which. The split: trainval, where there is one and boxes are asked for."""
    if split is None and score != "masks":
        known = source(name).splits_at(find_folder(name, root))
        split = "trainval" if "trainval" in known else None
    data = open_dataset(name, split, root=root, limit=limit, skip_bad=skip_bad)
    if score is None:
        score = "boxes" if data[0].has_boxes or data.labels is None else "masks"
    if score == "masks":
        who = "--score masks needs; give ecssd, duts, dutomron, voc or folder:PATH"
        return _with_background(_with_masks(data, who))
    if not data[0].has_boxes:
        masks = "; --score masks takes its masks" if data.labels else " and no masks"
        raise UsageError(f"{data.name} {data.split} has no boxes{masks}")
    found = without_empty(replace(data, kind="boxes", labels=None), hard)
    if not len(found):
        raise DataError(f"{data.name} {data.split}: no image has a box to be found")
    return found


def _with_background(data: Dataset) -> Dataset:
    first = data.classes[0]
    if len(data.classes) > 2 and first.lower() not in ("background", "bg"):
        raise UsageError(
            f"{data.name}: its first class is {first!r}, not background: every pixel would be an "
            "object to be found"
        )
    return data


def _with_masks(
    data: Dataset, who: str = "a probe needs; give voc, ade20k, cocostuff, folder:PATH or shapes"
) -> Dataset:
    if data.labels is None:
        raise UsageError(f"{data.name} {data.split} has no masks, which {who}")
    return data


def check_masks(train: Dataset, val: Dataset) -> None:
    """Every mask is decoded before the long work begins: a strange label would else be found only
    hours later. Also says which classes can be neither learnt nor found."""
    seen = [check_labelled(data) for data in (train, val)]
    unknown = [name for i, name in enumerate(val.classes) if seen[1][i] and not seen[0][i]]
    if unknown:
        log.info(
            "%d classes occur in val but in no training mask: %s", len(unknown), some_of(unknown)
        )


def check_labelled(data: Dataset) -> np.ndarray:
    """(256,) bool: which labels its masks have, all of them decoded."""
    there = np.zeros(256, bool)
    for found in in_parallel(_classes_in, data, f"checking masks of {data.split}"):
        there[found] = True
    if not there[: len(data.classes)].any():
        raise DataError(f"{data.name} {data.split}: no labelled pixel in any mask")
    return there


def _classes_in(item: Item) -> np.ndarray:
    return np.flatnonzero(np.bincount(item.mask().ravel(), minlength=256))
