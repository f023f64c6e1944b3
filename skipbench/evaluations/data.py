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
    names_with,
    open_dataset,
    source,
    without_empty,
)
from skipbench.engine.parallel import in_parallel
from skipbench.errors import DataError, UsageError, some_of

log = logging.getLogger("skipbench")


def open_splits(
    name: str,
    *,
    train_split: str = "train",
    train_images: int | None = None,
    **options: Any,
) -> tuple[Dataset, Dataset]:
    """Training and validation images. train_images: None for all; options: of `open_dataset`."""
    train = open_masks(name, train_split, train_images=train_images, **options)
    return train, open_masks(name, "val", **options)


def open_masks(name: str, split: str | None, **options: Any) -> Dataset:
    """Images with masks of one split."""
    return _with_masks(open_dataset(name, split, **options))


def open_objects(
    name: str,
    *,
    split: str | None = None,
    score: Literal["boxes", "masks"] | None = None,
    hard: bool = True,
    root: str | Path | None = None,
    **options: Any,
) -> Dataset:
    """Images with objects to discover: boxes if there are any, else masks; `kind` says which. The
    default split is trainval if there is one, unless masks are asked for. options: of
    `open_dataset`."""
    if split is None and score != "masks":
        known = source(name).splits_at(find_folder(name, root))
        split = "trainval" if "trainval" in known else None
    data = open_dataset(name, split, root=root, **options)
    if score is None:
        score = "boxes" if data[0].has_boxes or data.labels is None else "masks"
    if score == "masks":
        first = _with_masks(data, "--score masks needs").classes[0]
        if len(data.classes) > 2 and first.lower() not in ("background", "bg"):
            raise UsageError(
                f"{data.name}: its first class is {first!r}, not background: every pixel would "
                "belong to an object"
            )
        return data
    if not data[0].has_boxes:
        masks = "; --score masks uses its masks" if data.labels else " and no masks"
        raise UsageError(f"{data.name} {data.split} has no boxes{masks}")
    found = without_empty(replace(data, kind="boxes", labels=None), hard)
    if not len(found):
        raise DataError(f"{data.name} {data.split}: no image has a box to find")
    return found


def _with_masks(data: Dataset, who: str = "are needed") -> Dataset:
    if data.labels is None:
        raise UsageError(
            f"{data.name} {data.split} has no masks, which {who}.\n"
            f"Data sets with masks: {', '.join(names_with('masks'))}"
        )
    return data


def check_masks(*splits: Dataset) -> None:
    """Decodes every mask before the long work begins, so that an invalid label is not found only
    hours later. Also logs which classes of the last split are in no mask of the first."""
    labels = [check_labelled(data) for data in splits]
    classes = splits[-1].classes
    if unknown := [name for i, name in enumerate(classes) if labels[-1][i] and not labels[0][i]]:
        log.info("classes that occur in val but in no training mask: %s", some_of(unknown))


def check_labelled(data: Dataset) -> np.ndarray:
    """(256,) bool: which labels its masks have. Decodes all of them."""
    there = np.zeros(256, bool)

    def pixels(item: Item) -> np.ndarray:
        return np.bincount(item.mask().ravel(), minlength=256)

    for counts in in_parallel(pixels, data, f"checking masks of {data.split}"):
        there |= counts > 0
    if not there[: len(data.classes)].any():
        raise DataError(f"{data.name} {data.split}: no labelled pixel in any mask")
    return there
