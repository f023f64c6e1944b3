"""The types of all data sets. Masks are HW uint8, 255 = ignored; boxes are xyxy in half-open
pixels; both refer to the image as shown (EXIF orientation applied). Files are read on access."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from skipbench.errors import DataError, UsageError
from skipbench.images import (
    IGNORED,
    ImageItem,
    random_subset,
    read_header,
    read_mask,
    shown_hw,
    turn_boxes,
)
from skipbench.records import Archive, Chosen, DatasetFacts

Colour = tuple[int, int, int]
Kind = Literal["masks", "boxes", "images", "classes"]  # classes: one for each whole image
UNKNOWN = 254  # in the look-up table: neither a class nor ignored


class UnknownLabelError(DataError):
    def __init__(self, message: str, values: Sequence[int]) -> None:
        super().__init__(message)
        self.values = values


@dataclass(frozen=True)
class Labels:
    """What the values in a data set's masks mean."""

    classes: tuple[str, ...]
    colours: tuple[Colour, ...]
    table: Mapping[int, int]  # value in the file → class
    ignored: frozenset[int] = frozenset({255})  # values in the file that are not scored
    listed_in: Path | None = None  # the user's own file, which can be changed

    def __post_init__(self) -> None:
        if len(self.classes) > UNKNOWN:
            where = f"{self.listed_in}: " if self.listed_in else ""
            raise DataError(f"{where}{len(self.classes)} classes; at most {UNKNOWN} are possible")

    @cached_property
    def _lookup(self) -> np.ndarray:
        lookup = np.full(256, UNKNOWN, np.uint8)
        lookup[[v for v in self.ignored if v < 256]] = IGNORED
        for value, number in self.table.items():
            lookup[value] = number
        return lookup

    def decode(self, stored: np.ndarray, path: Path) -> np.ndarray:
        """HW integers as stored → HW uint8 classes, 255 = ignored."""
        if stored.min() >= 0 and stored.max() <= 255:
            classes = np.take(self._lookup, stored)
            if not (classes == UNKNOWN).any():
                return classes
        if path.suffix.lower() in (".jpg", ".jpeg"):
            raise DataError(f"{path}: JPEG does not preserve class values. Save masks as PNG.")
        values, counts = (each.tolist() for each in np.unique(stored, return_counts=True))
        known = [0 <= v <= 255 and self._lookup[v] != UNKNOWN for v in values]
        first = known.index(False)
        advice = self.advice(values[first])
        raise UnknownLabelError(
            f"{path}: {counts[first]:,} pixels have the value {values[first]}, "
            f"which is neither one of the {len(self.classes)} classes nor ignored."
            + (f"\nTo {advice}." if advice else ""),
            [value for value, is_known in zip(values, known, strict=True) if not is_known],
        )

    def advice(self, value: int) -> str:
        """How to ignore this value, where the user has a file of classes."""
        if self.listed_in is None or value > IGNORED:
            return ""
        return f"ignore it, add the line {value}<TAB>ignore to {self.listed_in}"


@dataclass(frozen=True)
class Boxes:
    xyxy: np.ndarray  # (n, 4) float64
    classes: tuple[str, ...]  # of each box
    hard: np.ndarray  # (n,) bool: marked difficult or truncated
    crowds: int = 0  # boxes around crowds, which are left out
    drawn_on_hw: tuple[int, int] | None = None  # size of the annotated image, if known

    def content(self) -> bytes:
        return self.xyxy.tobytes() + self.hard.tobytes() + "\0".join(self.classes).encode()

    def without_hard(self) -> "Boxes":
        keep = ~self.hard
        classes = tuple(c for c, kept in zip(self.classes, keep, strict=True) if kept)
        return replace(self, xyxy=self.xyxy[keep], classes=classes, hard=self.hard[keep])


@dataclass(frozen=True)
class Item(ImageItem):
    """One image file with its annotations."""

    mask_path: Path | None = None
    labels: Labels | None = None
    read_boxes: Callable[[], Boxes] | None = None  # as annotated
    read_segments: Callable[[], np.ndarray] | None = None  # as shown; None: the mask's classes
    class_name: str | None = None  # of the whole image

    def mask(self) -> np.ndarray:
        if self.mask_path is None or self.labels is None:
            raise DataError(f"{self.path}: has no mask")
        return self.labels.decode(read_mask(self.mask_path, of=self.path), self.mask_path)

    @property
    def has_boxes(self) -> bool:
        return self.read_boxes is not None

    def boxes(self) -> Boxes:
        if self.read_boxes is None:
            raise DataError(f"{self.path}: has no boxes")
        boxes = self.read_boxes()
        stored_hw, orientation = read_header(self.path)
        if orientation == 1 or boxes.drawn_on_hw not in (None, stored_hw):
            return boxes  # nothing to rotate, or annotated on the image as shown
        turned = turn_boxes(boxes.xyxy, stored_hw, orientation)
        size_hw = boxes.drawn_on_hw and shown_hw(stored_hw, orientation)
        return replace(boxes, xyxy=turned, drawn_on_hw=size_hw)

    @property
    def has_segments(self) -> bool:
        return self.read_segments is not None or None not in (self.mask_path, self.labels)

    def segments(self) -> np.ndarray:
        """HW int32: a number for each region, which is an object or a class; -1 = not scored."""
        if not self.has_segments:
            raise DataError(f"{self.path}: has no segments")
        if self.read_segments is not None:
            return self.read_segments()
        mask = self.mask()
        return np.where(mask == IGNORED, np.int32(-1), mask)

    @property
    def has_class(self) -> bool:
        return self.class_name is not None

    def image_class(self) -> str:
        if self.class_name is None:
            raise DataError(f"{self.path}: has no class")
        return self.class_name

    def content(self, of: Kind) -> bytes:
        """What a fingerprint covers: the image's file size, and the labels to the last bit."""
        try:
            length = self.path.stat().st_size
            mask = self.mask_path.read_bytes() if of == "masks" and self.mask_path else b""
        except OSError as error:
            raise DataError(f"file disappeared: {error.filename}") from None
        boxes = self.read_boxes().content() if of == "boxes" and self.read_boxes else b""
        named = os.fsencode(self.class_name or "") if of == "classes" else b""
        return f"{length}\0".encode() + hashlib.sha256(mask + boxes + named).digest()


@dataclass(frozen=True)
class Split:
    """An official part of a data set."""

    images: int | None  # how many it has; None: any number
    labels: Kind
    extra: bool = False  # downloaded only by name


@dataclass(frozen=True)
class Listing:
    """The files of one split, as found on disk. Items are made on access."""

    names: Sequence[str]  # images that exist
    make: Callable[[str], Item]
    absent: Sequence[str] = ()  # images that are listed but do not exist
    without_label: frozenset[str] = frozenset()  # the image exists, its mask (or XML) does not
    why_empty: str = "none of its images exists"  # reported where there are no names
    listed: bool = False  # a file lists the images of the split

    @property
    def missing(self) -> str | None:
        """Why nothing of this split is usable, if so."""
        if not self.names:
            return self.why_empty
        return "none of its images has a label" if len(self.without_label) == len(self) else None

    def __len__(self) -> int:
        return len(self.names)


class Items(Sequence[Item]):
    """The images with these names, in this order; made on access."""

    def __init__(self, names: Sequence[str], make: Callable[[str], Item]) -> None:
        self.names, self.make = names, make

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self.make(name) for name in self.names[index]]
        return self.make(self.names[index])


@dataclass(frozen=True)
class Dataset(Sequence[Item]):
    """A split, ready to be read."""

    name: str
    split: str
    folder: Path | None  # None: drawn by the package
    items: Items = field(repr=False)
    labels: Labels | None = field(repr=False)
    kind: Kind  # the labels of the split
    official: int | None  # images of the full split
    partial: bool = False  # neither the full official split nor a sample that the protocol asks for
    sample: tuple[int, int] | None = None  # (images, seed)
    chosen: Chosen | None = None
    bad: tuple[str, ...] = ()  # images left out because they cannot be decoded
    empty: tuple[str, ...] = ()  # images left out because they have no box
    image_classes: tuple[str, ...] = ()  # of whole images

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self.items[index]

    @property
    def names(self) -> Sequence[str]:
        return self.items.names

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labels.classes if self.labels else self.image_classes

    def only(self, names: Sequence[str], **facts: Any) -> "Dataset":
        """These images, with other facts about them."""
        return replace(self, items=Items(names, self.items.make), **facts)

    def sampled(self, count: int, seed: int, **facts: Any) -> "Dataset":
        """A random subset: see `images.random_subset`."""
        if count >= len(self):
            return self
        names = [self.names[i] for i in random_subset(self.names, count, seed)]
        return self.only(names, sample=(count, seed), **facts)

    def fingerprint(self) -> str:
        """Identifies the exact list of files and labels, whatever their folder.

        It covers the name and file size of images, every byte of mask files, every number and name
        of boxes, and the meaning of the values in masks.
        """
        what = self.name.partition(":")[0]  # a folder may be renamed
        digest = hashlib.sha256(f"{what}\0{self.split}\0{self.kind}\n".encode())
        if self.image_classes:
            digest.update(repr(self.image_classes).encode())
        if self.labels:
            digest.update(repr((self.labels.classes, sorted(self.labels.table.items()))).encode())
        for item in self.items:
            digest.update(os.fsencode(item.name) + b"\0" + item.content(self.kind))
        return digest.hexdigest()

    def facts(self) -> DatasetFacts:
        """As stored in records."""
        return DatasetFacts(
            name=self.name,
            split=self.split,
            images=len(self),
            official_images=self.official,
            partial=self.partial,
            sample=self.sample,
            chosen=self.chosen,
            bad=self.bad,
            empty=self.empty,
            classes=len(self.classes),
            fingerprint=self.fingerprint(),
            names=tuple(self.names),
        )


class Source(ABC):
    """One data set: where its files are and what they mean."""

    title: str
    short: str = ""  # its name in tables; the title if empty
    also: str = ""  # other common names, for "did you mean"
    licence: str  # one line
    tree: str  # the folders, as shown in messages
    places: tuple[str, ...]  # its folder below a data root, the most common first
    splits: Mapping[str, Split]
    archives: tuple[Archive, ...] = ()
    manual_download: str = ""  # without archives: what to download, and from where
    on_disk: bool = True  # False: drawn by the package
    class_sets: tuple[int, ...] = ()  # numbers of classes to choose from, default first

    @abstractmethod
    def is_at(self, folder: Path) -> bool:
        """Whether this folder contains it, or a part of it."""

    @abstractmethod
    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing: ...

    def labels(self, folder: Path, classes: int | None = None) -> Labels | None:
        """For data sets with masks; classes: one of `class_sets`."""
        return None

    def image_classes(self, folder: Path) -> tuple[str, ...]:
        """For data sets with classes of whole images: those of the training images, in order."""
        return ()

    def splits_at(self, folder: Path) -> Mapping[str, Split]:
        """The splits in this folder; the official ones for most data sets."""
        return self.splits

    def is_complete(self, folder: Path, split: str) -> bool:
        """Whether every image of the official split exists, with its label."""
        listing = self.listing(folder, split, None)
        wanted = self.splits[split].images or 0
        return len(listing) >= wanted and not listing.without_label

    def archives_for(self, folder: Path | None, splits: Sequence[str]) -> list[Archive]:
        """The archives with these splits. folder: where part of the data set is already, if any."""
        return [a for a in self.archives if not a.splits or set(a.splits) & set(splits)]

    def check_classes(self, classes: int | None) -> None:
        if classes is not None and classes not in self.class_sets:
            known = self.known_classes() or "only one set of classes"
            raise UsageError(f"--classes {classes}: {self.title} has {known}")

    def known_classes(self) -> str:
        """ "171 or 27 classes", if there is a choice."""
        return f"{' or '.join(map(str, self.class_sets))} classes" if self.class_sets else ""

    def finish(self, folder: Path) -> None:  # noqa: B027 - nothing to do for most
        """Called once its archives are unpacked in this folder."""
