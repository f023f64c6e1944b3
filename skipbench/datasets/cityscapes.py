"""Cityscapes: 19 classes of street scenes with fine annotations; the others are ignored.

Masks are read from `*_gtFine_labelIds.png`, whose values are ids from 0 to 33, or else from
`*_gtFine_labelTrainIds.png`: 0 to 18, 255 = ignored. The test masks are not public.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from skipbench.datasets.common.layouts import (
    fact_labels,
    fact_rows,
    first_folder,
    with_other_masks,
)
from skipbench.datasets.common.types import Item, Labels, Listing, Source, Split
from skipbench.images import walk_images

IMAGE = "_leftImg8bit.png"
IDS, TRAIN_IDS = "_gtFine_labelIds.png", "_gtFine_labelTrainIds.png"


class Cityscapes(Source):
    title = "Cityscapes"
    licence = "for non-commercial use; www.cityscapes-dataset.com/license"
    places = ("cityscapes", "Cityscapes", "CityScapes")
    tree = (
        "  DIR/cityscapes/\n"
        "    leftImg8bit/train/aachen/   aachen_000000_000019_leftImg8bit.png …\n"
        "    leftImg8bit/val/frankfurt/  frankfurt_000000_000294_leftImg8bit.png …\n"
        "    gtFine/train/aachen/        aachen_000000_000019_gtFine_labelIds.png …\n"
        "    gtFine/val/frankfurt/       frankfurt_000000_000294_gtFine_labelIds.png …"
    )
    splits = {
        "train": Split(2_975, "masks"),
        "val": Split(500, "masks"),
        "test": Split(1_525, "images", extra=True),
    }
    manual_download = (
        "leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from "
        "www.cityscapes-dataset.com/downloads, after registration"
    )

    def is_at(self, folder: Path) -> bool:
        return any((_images(folder) / split).is_dir() for split in self.splits)

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        labels = fact_labels(fact_rows("cityscapes.tsv"))
        return replace(labels, ignored=frozenset(range(34)).difference(labels.table))

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images, masks = _images(folder) / split, _masks(folder) / split
        names, files = _names(_files(images), IMAGE), _files(masks)

        def make(name: str) -> Item:
            return Item(name, images / f"{name}{IMAGE}", masks / f"{name}{IDS}", labels)

        if split == "test":
            return Listing(sorted(names), lambda name: Item(name, images / f"{name}{IMAGE}"))
        listing = Listing(sorted(names), make, without_label=names - _names(files, IDS))
        by_train_id = labels and replace(
            labels, table={i: i for i in range(len(labels.classes))}, ignored=frozenset({255})
        )
        return with_other_masks(listing, masks, TRAIN_IDS, _names(files, TRAIN_IDS), by_train_id)


def _images(folder: Path) -> Path:
    return first_folder(folder, "leftImg8bit", "leftImg8bit_trainvaltest/leftImg8bit")


def _masks(folder: Path) -> Path:
    return first_folder(folder, "gtFine", "gtFine_trainvaltest/gtFine")


def _files(folder: Path) -> list[str]:
    return walk_images(folder) if folder.is_dir() else []


def _names(files: Iterable[str], ending: str) -> frozenset[str]:
    """ "aachen/aachen_000000_000019", of the files with this ending."""
    return frozenset(file.removesuffix(ending) for file in files if file.endswith(ending))


SOURCE = Cityscapes()
