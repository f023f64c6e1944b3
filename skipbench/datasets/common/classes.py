"""Folders of classes: SPLIT/CLASS/image, as ImageNet is stored for training."""

import logging
from collections.abc import Iterable, Mapping
from itertools import chain, zip_longest
from pathlib import Path

from skipbench.datasets.common.types import Item, Listing
from skipbench.errors import DataError, count_of
from skipbench.images import SUFFIXES, walk_images

log = logging.getLogger("skipbench")

EVALUATED = ("val", "valid", "validation", "test")  # names of the split, in order of preference
SPLITS = ("train", *EVALUATED)


def class_folders(folder: Path) -> list[str]:
    """The sub-folders, sorted. No image is looked for."""
    try:
        return sorted(f.name for f in folder.iterdir() if f.name[0] != "." and f.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from None


def class_splits(folder: Path) -> list[str]:
    """The splits in it that consist of folders of classes."""
    return [split for split in SPLITS if class_folders(folder / split)]


def classes_of(folder: Path) -> tuple[str, ...]:
    """Of a split: sub-folders with an image in them. Empty ones are logged."""
    names = class_folders(folder)
    filled = [name for name in names if has_images(folder / name)]
    if empty := sorted(set(names) - set(filled)):
        count = count_of(len(empty), "class has", "classes have")
        log.warning("%s: %s no image, such as %s", folder, count, empty[0])
    return tuple(filled)


def has_images(folder: Path) -> bool:
    """Whether there is one, at any depth."""
    first = (f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and f.name[0] != ".")
    return next(first, None) is not None or bool(walk_images(folder))


def by_class(folder: Path) -> Listing:
    """The images of a split, each named by its path below it."""
    images: dict[str, list[str]] = {}
    outside = 0
    for file in walk_images(folder) if folder.is_dir() else ():
        name, slash, _ = file.partition("/")
        if slash:
            images.setdefault(name, []).append(file)
        outside += not slash
    if outside and images:
        count = count_of(outside, "image is", "images are")
        log.warning("%s: %s in no class folder, and left out", folder, count)
    why = f"no images in folders of classes below {folder.name}/"
    return Listing(in_turn(images), lambda name: item(folder, name), why_empty=why)


def in_turn(images: Mapping[str, Iterable[str]]) -> list[str]:
    """The first of each class, then the second of each, and so on: so the first N are of as many
    classes as possible."""
    rounds = zip_longest(*(images[name] for name in sorted(images)))
    return [name for name in chain.from_iterable(rounds) if name is not None]


def item(folder: Path, name: str) -> Item:
    return Item(name, folder / name, class_name=name.partition("/")[0])
