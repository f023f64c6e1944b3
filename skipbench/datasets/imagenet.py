"""ImageNet (ILSVRC2012): the classes of whole images.

Training and validation images are in folders named after their WordNet ids; or as on Kaggle, where
the validation images are in one folder and LOC_val_solution.csv has their classes.
"""

import csv
import re
from pathlib import Path

from skipbench.datasets.common.classes import by_class, class_folders, classes_of, in_turn
from skipbench.datasets.common.layouts import read_text
from skipbench.datasets.common.types import Item, Labels, Listing, Source, Split
from skipbench.errors import DataError
from skipbench.images import walk_images

KAGGLE = "ILSVRC/Data/CLS-LOC"
SOLUTION = "LOC_val_solution.csv"  # of Kaggle: beside ILSVRC/


class ImageNet(Source):
    title = "ImageNet"
    also = "ilsvrc ilsvrc2012 imagenet1k imagenet-1k in1k"
    licence = "for research, after registration; image-net.org"
    places = (
        "imagenet", "ImageNet", "ILSVRC2012", "imagenet-1k", "imagenet1k", KAGGLE,
        f"imagenet/{KAGGLE}", f"ImageNet/{KAGGLE}", "ILSVRC2012/Data/CLS-LOC",
    )  # fmt: skip
    tree = (
        "  DIR/imagenet/\n"
        "    train/n01440764/         n01440764_10026.JPEG …\n"
        "    val/n01440764/           ILSVRC2012_val_00000293.JPEG …\n"
        f"  or as on Kaggle: DIR/{KAGGLE}/ with DIR/{SOLUTION}"
    )
    splits = {"train": Split(1_281_167, "classes"), "val": Split(50_000, "classes")}

    def is_at(self, folder: Path) -> bool:
        return any(_wordnet(folder / split) for split in self.splits)

    def image_classes(self, folder: Path) -> tuple[str, ...]:
        return classes_of(folder / "train")

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        if class_folders(folder / split) or split == "train":
            return by_class(folder / split)
        return _unsorted(folder / split)


def _wordnet(folder: Path) -> bool:
    return any(re.fullmatch(r"n\d{8}", name) for name in class_folders(folder))


def _unsorted(folder: Path) -> Listing:
    """Images in one folder, with their classes in Kaggle's table."""
    files = walk_images(folder) if folder.is_dir() else []
    table = folder.parents[3] / SOLUTION if len(folder.parents) > 3 else folder / SOLUTION
    if not files or not table.exists():
        why = f"its images are in no folders of classes, and there is no {table}" if files else ""
        return Listing([], lambda name: Item(name, folder / name), why_empty=why or "no images")
    classes = _solution(table)
    known: dict[str, list[str]] = {}
    for file in files:
        known.setdefault(classes.get(Path(file).stem, ""), []).append(file)
    unknown = frozenset(known.get("", ()))

    def make(name: str) -> Item:
        return Item(name, folder / name, class_name=classes.get(Path(name).stem))

    return Listing(in_turn(known), make, without_label=unknown)


def _solution(table: Path) -> dict[str, str]:
    """Image → WordNet id: the first word of its predictions."""
    rows = csv.DictReader(read_text(table).splitlines())
    if not {"ImageId", "PredictionString"} <= set(rows.fieldnames or ()):
        raise DataError(f"{table}: its first line must be ImageId,PredictionString")
    return {row["ImageId"]: row["PredictionString"].partition(" ")[0] for row in rows}


SOURCE = ImageNet()
