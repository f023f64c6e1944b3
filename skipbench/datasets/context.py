"""PASCAL Context: VOC2010's images with 59 classes of things and stuff; all else is background.

Background is ignored, or one more class (`--classes 60`). Masks and lists are those of
mmsegmentation's converter: 0 = background, 1 to 59 = the classes in alphabetical order. In other
conversions 255 = background and 0 = the first class, so 255 is an error. The converter writes 4,996
and 5,104 names; papers often quote the 4,998 and 5,105 of an earlier release.
"""

from dataclasses import replace
from pathlib import Path

from skipbench.datasets.common.layouts import fact_labels, fact_rows
from skipbench.datasets.common.types import Labels, Split
from skipbench.datasets.voc import Devkit


class Context(Devkit):
    licence = "images under Flickr's terms of use, for research; no licence is stated for the masks"
    class_sets = (59, 60)
    with_boxes = False  # VOC's boxes are of 20 classes
    manual_download = (
        "VOCtrainval_03-May-2010.tar from host.robots.ox.ac.uk/pascal/VOC/voc2010; masks and lists "
        "are made by mmsegmentation's tools/dataset_converters/pascal_context.py"
    )

    def __init__(self) -> None:
        splits = {"train": Split(4_996, "masks"), "val": Split(5_104, "masks")}
        super().__init__(2010, splits, also="pascal-context pascal_context pcontext pc59 context59")
        self.title, self.short = "PASCAL Context", ""
        self.tree = (
            "  DIR/VOCdevkit/VOC2010/\n"
            "    JPEGImages/               2008_000002.jpg …\n"
            "    SegmentationClassContext/ 2008_000002.png …\n"
            "    ImageSets/SegmentationContext/train.txt, val.txt"
        )

    def is_at(self, folder: Path) -> bool:
        parts = ("SegmentationClassContext", "ImageSets/SegmentationContext")
        return super().is_at(folder) and any((folder / part).is_dir() for part in parts)

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        background, *rows = fact_rows("context.tsv")
        if classes == 60:
            return replace(fact_labels([background, *rows]), ignored=frozenset())
        return replace(fact_labels(rows), ignored=frozenset({0}))

    def mask_folder(self, folder: Path, split: str) -> Path:
        return folder / "SegmentationClassContext"

    def list_file(self, folder: Path, split: str) -> Path:
        return folder / "ImageSets" / "SegmentationContext" / f"{split}.txt"


SOURCE = Context()
