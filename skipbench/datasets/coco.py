"""COCO 2017: images, and with `annotations/instances_*.json` the boxes and outlines of objects."""

from pathlib import Path

from skipbench.datasets.common.coco_annotations import (
    ANNOTATIONS_2017,
    COCO_LICENCE,
    COCO_PLACES,
    BoxIndex,
    image_archive,
)
from skipbench.datasets.common.coco_segments import SegmentIndex
from skipbench.datasets.common.files import first_folder, stems
from skipbench.datasets.common.types import Item, Labels, Listing, Source, Split


class Coco(Source):
    title = "COCO 2017"
    licence = COCO_LICENCE
    places = COCO_PLACES
    tree = (
        "  DIR/coco/\n"
        "    val2017/                 000000000139.jpg …  (or images/val2017/)\n"
        "    train2017/               000000000009.jpg …\n"
        "    annotations/             instances_val2017.json …  (boxes, segments)"
    )
    splits = {"val": Split(5_000, "images"), "train": Split(118_287, "images", extra=True)}
    archives = (image_archive("val2017"), image_archive("train2017"), ANNOTATIONS_2017)

    def is_at(self, folder: Path) -> bool:
        return any(self._images(folder, split).is_dir() for split in self.splits)

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images = self._images(folder, split)
        json = folder / "annotations" / f"instances_{split}2017.json"
        boxes, segments = BoxIndex(json), SegmentIndex(json)
        annotated = json.exists()

        def make(name: str) -> Item:
            path = images / f"{name}.jpg"
            return Item(
                name,
                path,
                read_boxes=boxes.reader(path.name) if annotated else None,
                read_segments=segments.reader(path) if annotated else None,
            )

        return Listing(sorted(stems(images, ".jpg")), make)

    def is_complete(self, folder: Path, split: str) -> bool:
        json = folder / "annotations" / f"instances_{split}2017.json"
        return super().is_complete(folder, split) and json.exists()

    def _images(self, folder: Path, split: str) -> Path:
        return first_folder(folder, f"{split}2017", f"images/{split}2017")


SOURCE = Coco()
