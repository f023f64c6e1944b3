"""COCO-Object: COCO's 80 objects and background, as in open-vocabulary segmentation.

Masks are made from COCO-Stuff's `stuffthingmaps`, as in GroupViT (and TCL, which uses its masks):
objects become 1 to 80, in COCO's order; stuff and unlabelled pixels (255) become 0, background. No
pixel is ignored. COCO's own outlines are not used. If an image has no COCO-Stuff mask, its
converted mask is read, `*_instanceTrainIds.png`.
"""

from dataclasses import replace
from pathlib import Path

from skipbench.datasets.cocostuff import CocoStuff
from skipbench.datasets.common.layouts import colour, fact_rows, stems, with_other_masks
from skipbench.datasets.common.types import Labels, Listing

CONVERTED = "_instanceTrainIds.png"


class CocoObject(CocoStuff):
    title, short = "COCO-Object", ""
    also = "coco-object coco_object object"
    class_sets = ()

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        rows = [row for row in fact_rows("cocostuff.tsv") if row[3] != "-"]
        objects = [row for row in rows if row[2].endswith("-things")]
        table = {int(row[0]): 0 for row in rows} | {255: 0}
        return Labels(
            classes=("background", *(name for _, name, _, _ in objects)),
            colours=((0, 0, 0), *(colour(text) for *_, text in objects)),
            table=table | {int(row[0]): i for i, row in enumerate(objects, start=1)},
            ignored=frozenset(),
        )

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        masks = self._masks(folder, split)
        converted = labels and replace(labels, table={i: i for i in range(len(labels.classes))})
        listing = super().listing(folder, split, labels)
        return with_other_masks(listing, masks, CONVERTED, stems(masks, CONVERTED), converted)


SOURCE = CocoObject()
