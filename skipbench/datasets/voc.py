"""PASCAL VOC2012, with the larger training set that SBD's masks make of it (`train_aug`)."""

from collections.abc import Sequence
from pathlib import Path

from skipbench.datasets.common.types import Split
from skipbench.datasets.common.voc_layout import Devkit, train_aug, write_masks
from skipbench.records import Archive


class Voc2012(Devkit):
    def archives_for(self, folder: Path | None, splits: Sequence[str]) -> list[Archive]:
        """Of SBD only the masks are used: VOC's own archive has the images, if they are lacking."""
        wanted = super().archives_for(folder, splits)
        if folder and list(splits) == ["train_aug"] and not self._absent(folder):
            return wanted[1:]
        return wanted

    def _absent(self, folder: Path) -> Sequence[str]:
        return self.listing(folder, "train_aug", None).absent

    def finish(self, folder: Path) -> None:
        """SBD comes as MATLAB files: write its masks as PNG, VOC's own where there are both."""
        sbd = folder.parent.parent / "benchmark_RELEASE" / "dataset" / "cls"
        if sbd.is_dir():
            write_masks(sbd, folder, train_aug())


SOURCE = Voc2012(
    year=2012,
    splits={
        "train": Split(1_464, "masks"),
        "val": Split(1_449, "masks"),
        "train_aug": Split(10_582, "masks", extra=True),
        "trainval": Split(11_540, "boxes"),
    },
    archives=(
        Archive(
            "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
            "md5:6cd6e144f989b92b3379bac3b3de84fd",
            bytes=1_999_639_040,
            unpacked_bytes=1_999_639_040,
        ),
        Archive(
            "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/"
            "semantic_contours/benchmark.tgz",
            "md5:82b4d87ceb2ed10f6038a1cba92111cb",
            bytes=1_419_539_633,
            unpacked_bytes=1_600_000_000,
            splits=("train_aug",),
        ),
    ),
)
