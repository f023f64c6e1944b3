"""The layout of saliency data sets: images with a mask of the salient object.

Masks are grey: values from 128 are salient, 255 included, and nothing is ignored. Most files
contain only 0 and 255; some are JPEG, or have soft edges.

The official folders are recognised by their names. Repacked, all these data sets look alike (img/
and gt/), so such folders count only inside a folder that has the name of the data set.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skipbench.datasets.common.files import by_stem, first_folder, palette
from skipbench.datasets.common.types import Item, Labels, Listing, Source, Split

IMAGES = ("img", "imgs", "Imgs", "image", "images", "Image", "Images")
MASKS = ("gt", "GT", "mask", "masks", "Mask", "Masks", "ground_truth_mask")


class Greys(Labels):
    def decode(self, stored: np.ndarray, path: Path) -> np.ndarray:
        """Files of one bit, and some others, use 0 and 1 for black and white."""
        return super().decode(stored * 255 if stored.max() <= 1 else stored, path)


LABELS = Greys(
    classes=("background", "salient"),
    colours=palette(2),
    table={grey: int(grey >= 128) for grey in range(256)},
    ignored=frozenset(),
)


@dataclass(frozen=True)
class Part:
    """A split: how many images, and where they are."""

    images: int
    official: tuple[tuple[str, str], ...]  # folders of images and of masks
    named: tuple[str, ...]  # names of folders that contain it repacked; letters and digits only
    below: tuple[str, ...] = ()  # such folders inside the data set's folder


class Saliency(Source):
    def __init__(
        self,
        title: str,
        licence: str,
        places: tuple[str, ...],
        tree: str,
        parts: Mapping[str, Part],
    ) -> None:
        self.title, self.licence, self.places, self.tree = title, licence, places, tree
        self.parts = parts
        self.splits = {name: Split(part.images, "masks") for name, part in parts.items()}

    def is_at(self, folder: Path) -> bool:
        return any(self._folders(folder, split) for split in self.splits)

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        return LABELS

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        found = self._folders(folder, split)
        if found is None:
            return Listing([], lambda name: Item(name, folder / name))
        images, masks = found
        files, mask_files = (by_stem(f, deep=False) for f in found)

        def make(name: str) -> Item:
            mask = masks / mask_files.get(name, f"{name}.png")
            return Item(name, images / files[name], mask, labels)

        return Listing(sorted(files), make, without_label=frozenset(files) - mask_files.keys())

    def _folders(self, folder: Path, split: str) -> tuple[Path, Path] | None:
        """Of images and of masks, if both exist."""
        found = self._candidates(folder, self.parts[split])
        return next((pair for pair in found if all(f.is_dir() for f in pair)), None)

    def _candidates(self, folder: Path, part: Part) -> Iterator[tuple[Path, Path]]:
        for images, masks in part.official:
            yield folder / images, folder / masks
        for place in (folder, *(folder / name for name in part.below)):
            if _names(place) & set(part.named):
                yield first_folder(place, *IMAGES), first_folder(place, *MASKS)


def _names(folder: Path) -> set[str]:
    """Its name, and that of a link's target: "DUT-OMRON" → "dutomron"."""
    called = {folder.absolute().name, folder.resolve().name}
    return {re.sub(r"[^a-z0-9]", "", name.lower()) for name in called}
