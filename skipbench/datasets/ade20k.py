"""ADE20K scene parsing (SceneParse150): 150 classes; the value 0 (everything else) is ignored."""

from dataclasses import replace
from pathlib import Path

from skipbench.datasets.common.layouts import fact_labels, fact_rows, pairs
from skipbench.datasets.common.types import Labels, Listing, Source, Split
from skipbench.records import Archive


class Ade20k(Source):
    title = "ADE20K"
    also = "ade ade150"
    licence = "images for non-commercial research and education; annotations BSD 3-clause"
    places = (
        "ADEChallengeData2016",
        "ade/ADEChallengeData2016",
        "ADE20K/ADEChallengeData2016",
        "ade20k/ADEChallengeData2016",
        "ade20k",
        "ADE20K",
    )
    tree = (
        "  DIR/ADEChallengeData2016/\n"
        "    images/training/         ADE_train_00000001.jpg …\n"
        "    images/validation/       ADE_val_00000001.jpg …\n"
        "    annotations/training/    ADE_train_00000001.png …\n"
        "    annotations/validation/  ADE_val_00000001.png …"
    )
    splits = {"train": Split(20_210, "masks"), "val": Split(2_000, "masks")}
    archives = (
        Archive(
            "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
            "sha256:7ff1be44964418441f542a7cc1e1a650e7dc0fc275f5d23252bc9bbdbc977b29",
            bytes=967_382_037,
            unpacked_bytes=1_000_000_000,
        ),
    )
    _folders = {"train": "training", "val": "validation"}

    def is_at(self, folder: Path) -> bool:
        return any((folder / "images" / part).is_dir() for part in self._folders.values())

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        return replace(fact_labels(fact_rows("ade20k.tsv")), ignored=frozenset({0}))

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images = folder / "images" / self._folders[split]
        masks = folder / "annotations" / self._folders[split]
        return pairs(images, masks, labels)


SOURCE = Ade20k()
