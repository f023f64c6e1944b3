"""Training and validation images of a data set, opened before anything heavy is loaded."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skipbench.datasets import (
    Dataset,
    Item,
    Items,
    decodable,
    find_folder,
    names,
    open_dataset,
    source,
    without_empty,
)
from skipbench.engine.parallel import in_parallel
from skipbench.errors import DataError, UsageError, some_of
from skipbench.evaluations.pca.settings import MARK, OF_DATASET
from skipbench.evaluations.probe.settings import Protocol
from skipbench.files import unlike
from skipbench.images import ImageItem, find_images

log = logging.getLogger("skipbench")

NAMES = "give voc, ade20k, cocostuff, folder:PATH or shapes"


def open_splits(
    name: str,
    protocol: Protocol | None = None,
    *,
    train_images: int | None = None,
    subset_seed: int = 0,
    **options: Any,
) -> tuple[Dataset, Dataset]:
    """Training and validation images, as the protocol of a probe takes them; without one, all.
    options: of `open_dataset`."""
    split = protocol.train_splits.get(name, "train") if protocol else "train"
    wanted = train_images or (protocol.train_images.get(name) if protocol else None)
    train = open_masks(name, split, train_images=wanted, seed=subset_seed, **options)
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


def open_pictures(
    sources: Sequence[str | Path | ImageItem],
    *,
    split: str | None = None,
    root: str | Path | None = None,
    limit: int | None = None,
    skip_bad: int = 0,
) -> Dataset:
    """Files and folders as they are, or `dataset:NAME`: then with what is known of its images."""
    given = [str(source) for source in sources if not isinstance(source, ImageItem)]
    if any(word.startswith(OF_DATASET) for word in given):
        if len(sources) > 1:
            raise UsageError(f"{OF_DATASET}NAME stands by itself: give it, or files and folders")
        name = given[0].removeprefix(OF_DATASET)
        return open_dataset(name, split, root=root, limit=limit, skip_bad=skip_bad)
    if split is not None:
        raise UsageError(f"--split goes with {OF_DATASET}NAME: files and folders have none")
    for word in given:
        if word in names() and not Path(word).exists():
            raise DataError(f"no such image or folder: {word}. Did you mean {OF_DATASET}{word}?")
    found = _originals(sources)
    if limit is not None and limit < len(found):
        log.info("the first %d of %d pictures; --limit takes more", limit, len(found))
        found = found[:limit]
    kept = decodable(found, skip_bad, "these pictures") if skip_bad else found
    if not kept:
        raise DataError("no picture is left of those that were given")
    bad = tuple(item.name for item in found if item not in kept)
    items = {
        name: Item(name, item.path) for name, item in zip(_told_apart(kept), kept, strict=True)
    }
    return Dataset(
        name="images", split="all", folder=None, items=Items(list(items), items.__getitem__),
        labels=None, kind="images", official=None, bad=bad,
    )  # fmt: skip


def _originals(sources: Sequence[str | Path | ImageItem]) -> list[ImageItem]:
    """Without what `skipbench pca` has drawn in a folder among them: `skipbench pca .`"""
    folders = {Path(s).resolve() for s in sources if not isinstance(s, ImageItem)}
    drawn = cache(lambda folder: (folder / MARK).exists() and bool(folders & set(folder.parents)))
    return [i for i in find_images(sources) if not any(map(drawn, i.path.resolve().parents))]


def _told_apart(items: Sequence[ImageItem]) -> list[str]:
    """Their names; with the folder, where several have one name, and with a number if need be."""
    times = Counter(item.name for item in items)
    return unlike(
        (i.name if times[i.name] == 1 else f"{i.path.parent.name}/{i.name}" for i in items),
        form="{} ({})",
    )


def _with_background(data: Dataset) -> Dataset:
    first = data.classes[0]
    if len(data.classes) > 2 and first.lower() not in ("background", "bg"):
        raise UsageError(
            f"{data.name}: its first class is {first!r}, not background: every pixel would be an "
            "object to be found"
        )
    return data


def _with_masks(data: Dataset, who: str = f"are needed; {NAMES}") -> Dataset:
    if data.labels is None:
        raise UsageError(f"{data.name} {data.split} has no masks, which {who}")
    return data


def check_masks(*splits: Dataset) -> None:
    """Every mask is decoded before the long work begins: a strange label would else be found only
    hours later. Also says which classes of the last split are in no mask of the first."""
    seen = [check_labelled(data) for data in splits]
    classes = splits[-1].classes
    unknown = [name for i, name in enumerate(classes) if seen[-1][i] and not seen[0][i]]
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
