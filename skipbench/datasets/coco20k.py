"""COCO20k: 19,817 images of COCO train2014, for object discovery (Vo et al. 2020, LOST, TokenCut).

Boxes around crowds are left out and corners rounded to whole pixels, as in the published code.
"""

from functools import partial
from pathlib import Path

from skipbench.datasets.coco import COCO_LICENCE, COCO_PLACES, annotation_archive, image_archive
from skipbench.datasets.common.coco_annotations import BoxIndex
from skipbench.datasets.common.layouts import fact_lines, first_folder, split_found, stems
from skipbench.datasets.common.types import Item, Labels, Listing, Source, Split


class Coco20k(Source):
    title = "COCO20k"
    licence = COCO_LICENCE
    places = ("coco20k", "COCO20k", "coco2014", "COCO2014", *COCO_PLACES)
    tree = (
        "  DIR/coco/\n"
        "    train2014/               COCO_train2014_000000000009.jpg …  (or images/train2014/)\n"
        "    annotations/             instances_train2014.json"
    )
    splits = {"train": Split(19_817, "boxes")}
    archives = (
        image_archive(
            "train2014",
            13_510_573_713,
            "ede4087e640bddba550e090eae701092534b554b42b05ac33f0300b984b31775",
        ),
        annotation_archive(
            2014,
            252_872_794,
            "031296bbc80c45a1d1f76bf9a90ead27e94e99ec629208449507a4917a3bf009",
        ),
    )

    def is_at(self, folder: Path) -> bool:
        return self._images(folder).is_dir()

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images = self._images(folder)
        json = folder / "annotations" / "instances_train2014.json"
        index = BoxIndex(json, round_corners=True)

        def make(name: str) -> Item:
            file = f"{name}.jpg"
            return Item(name, images / file, read_boxes=partial(index.boxes, file))

        if not json.exists():
            return Listing([], make, why_empty=f"its boxes are missing: {json}")
        names, absent = split_found(official_names(), stems(images, ".jpg"))
        return Listing(names, make, absent)

    def _images(self, folder: Path) -> Path:
        return first_folder(folder, "train2014", "images/train2014")


def official_names() -> list[str]:
    """In the (random) order of the published list."""
    numbers = " ".join(fact_lines("coco20k.txt")).split()
    return [f"COCO_train2014_{int(number):012d}" for number in numbers]


SOURCE = Coco20k()
