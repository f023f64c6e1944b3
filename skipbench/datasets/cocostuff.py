"""COCO-Stuff 164k: 171 classes of things and stuff, or the 27 coarse ones (`--classes 27`).

The PNG files of `stuffthingmaps` contain 0 to 181 with eleven gaps, 255 = unlabelled.
"""

from pathlib import Path

from skipbench.datasets.coco import COCO_LICENCE, COCO_PLACES, TRAIN_2017, VAL_2017
from skipbench.datasets.common.layouts import fact_labels, fact_rows, first_folder, pairs, palette
from skipbench.datasets.common.types import Labels, Listing, Source, Split
from skipbench.records import Archive


class CocoStuff(Source):
    title, short = "COCO-Stuff", "COCOStuff"
    also = "coco-stuff coco_stuff stuff"
    licence = COCO_LICENCE
    places = ("cocostuff", "coco_stuff164k", "COCO-Stuff", *COCO_PLACES)
    tree = (
        "  DIR/coco/\n"
        "    train2017/               000000000009.jpg …  (or images/train2017/)\n"
        "    val2017/                 000000000139.jpg …\n"
        "    stuffthingmaps_trainval2017/\n"
        "      train2017/             000000000009.png …\n"
        "      val2017/               000000000139.png …"
    )
    splits = {"train": Split(118_287, "masks"), "val": Split(5_000, "masks")}
    class_sets: tuple[int, ...] = (171, 27)
    archives = (
        TRAIN_2017,
        VAL_2017,
        Archive(
            "http://calvin.inf.ed.ac.uk/wp-content/uploads/data/cocostuffdataset/"
            "stuffthingmaps_trainval2017.zip",
            None,
            bytes=0,
            unpacked_bytes=800_000_000,
            into="coco/stuffthingmaps_trainval2017",
        ),
    )

    def is_at(self, folder: Path) -> bool:
        return any(self._masks(folder, split).is_dir() for split in self.splits)

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        rows = fact_rows("cocostuff.tsv")
        if classes != 27:
            fine = [row for row in rows if row[3] != "-"]
            return fact_labels((value, name, colour) for value, name, _, colour in fine)
        return Labels(
            classes=COARSE,
            colours=palette(len(COARSE) + 1)[1:],
            table={int(value): COARSE.index(coarse) for value, _, coarse, _ in rows},
        )

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images = first_folder(folder, f"{split}2017", f"images/{split}2017")
        masks = self._masks(folder, split)
        return pairs(images, masks, labels)

    def _masks(self, folder: Path, split: str) -> Path:
        return first_folder(
            folder,
            f"stuffthingmaps_trainval2017/{split}2017",
            f"stuffthingmaps/{split}2017",
            f"annotations/stuffthingmaps/{split}2017",
            f"annotations/{split}2017",
        )


THINGS = (
    "electronic appliance food furniture indoor kitchen accessory animal outdoor person sports "
    "vehicle"
)
STUFF = (
    "ceiling floor food furniture rawmaterial textile wall window building ground plant sky solid "
    "structural water"
)
COARSE = (
    *(f"{name}-things" for name in THINGS.split()),
    *(f"{name}-stuff" for name in STUFF.split()),
)

SOURCE = CocoStuff()
