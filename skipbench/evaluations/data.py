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
from skipbench.datasets.common.classes import EVALUATED
from skipbench.engine.parallel import in_parallel
from skipbench.errors import DataError, UsageError, count_of, did_you_mean, some_of

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


def open_classes(
    name: str,
    *,
    split: str | None = None,
    train_images: int | None = None,
    root: str | Path | None = None,
    **options: Any,
) -> tuple[Dataset, Dataset]:
    """Training and evaluated images with a class each. split: of the evaluated ones; default val,
    or the next best. train_images: None for all; options: of `open_dataset`."""
    folder = find_folder(name, root)
    known = list(source(name).splits_at(folder))
    split = split or next((one for one in EVALUATED if one in known), "val")
    if split == "train":
        raise UsageError("--split train: the classifier is made from these images")
    train = open_dataset(name, "train", root=root, train_images=train_images, **options)
    train = _with_classes(train, folder)
    val = _with_classes(open_dataset(name, split, root=root, **options), folder)
    if len(train.classes) < 2:
        only = f"one class, {train.classes[0]!r}" if train.classes else "no class"
        raise DataError(f"{train.name} train has {only}: at least two are needed ({folder}/train)")
    unknown = sorted({item.image_class() for item in val} - set(train.classes))
    if unknown:
        near = did_you_mean(unknown[0], train.classes) or " Such images can only be wrong."
        raise DataError(
            f"{val.name}: {count_of(len(unknown), 'class', 'classes')} of {split} without a "
            f"training image: {some_of(unknown, 3)}.{near}"
        )
    return train, val


def _with_classes(data: Dataset, folder: Path) -> Dataset:
    if data.kind == "classes":
        return data
    if not data[0].has_class:
        raise UsageError(
            f"{data.name} {data.split} has no classes of whole images.\n"
            f"Data sets with classes: {', '.join([*names_with('classes'), 'shapes'])}"
        )
    classes = source(data.name).image_classes(folder)
    return replace(data, kind="classes", labels=None, image_classes=classes)


def class_numbers(data: Dataset) -> np.ndarray:
    """(images,) int64"""
    number = {name: i for i, name in enumerate(data.classes)}
    return np.array([number[item.image_class()] for item in data], np.int64)


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
