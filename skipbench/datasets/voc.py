"""PASCAL VOC2012, with the larger training set `train_aug` that SBD's masks make of it
(Hariharan et al. 2011)."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from skipbench.datasets.common.files import fact_lines, palette, stems
from skipbench.datasets.common.types import Split
from skipbench.datasets.common.voc_layout import Devkit
from skipbench.engine.parallel import in_parallel
from skipbench.errors import DataError
from skipbench.records import Archive


class Voc2012(Devkit):
    def mask_folder(self, folder: Path, split: str) -> Path | None:
        if split == "train_aug":
            return folder / "SegmentationClassAug"
        return super().mask_folder(folder, split)

    def listed(self, folder: Path, split: str) -> list[str] | None:
        return self.train_aug() if split == "train_aug" else super().listed(folder, split)

    def train_aug(self) -> list[str]:
        """VOC2012 train and the images of SBD, without val: the list everybody uses."""
        names: list[str] = []
        for line in fact_lines("voc_train_aug.txt"):
            if line.startswith("["):
                year = line.strip("[]")
            else:
                names += [f"{year}_{int(number):06d}" for number in line.split()]
        return names

    def archives_for(self, folder: Path | None, splits: Sequence[str]) -> list[Archive]:
        """Only the masks of SBD are used; its images are in VOC's own archive."""
        wanted = super().archives_for(folder, splits)
        if folder and list(splits) == ["train_aug"] and not self._absent(folder):
            return wanted[1:]
        return wanted

    def _absent(self, folder: Path) -> Sequence[str]:
        return self.listing(folder, "train_aug", None).absent

    def finish(self, folder: Path) -> None:
        """SBD's masks are MATLAB files: write them as PNG, except where VOC has its own."""
        sbd = folder.parent.parent / "benchmark_RELEASE" / "dataset" / "cls"
        if sbd.is_dir():
            write_masks(sbd, folder, self.train_aug())


def write_masks(mats: Path, devkit: Path, names: Sequence[str]) -> None:
    """`SegmentationClassAug` from SBD's .mat files; where VOC has a mask of its own, from that."""
    folder = devkit / "SegmentationClassAug"
    folder.mkdir(exist_ok=True)
    done = stems(folder, ".png")
    todo = [name for name in names if name not in done]
    for _ in in_parallel(partial(_write_mask, mats, devkit, folder), todo, "SBD masks", "masks"):
        pass


def _write_mask(mats: Path, devkit: Path, folder: Path, name: str) -> None:
    partial_file = folder / f".{name}.png"
    own = devkit / "SegmentationClass" / f"{name}.png"
    if own.exists():
        shutil.copyfile(own, partial_file)
    else:
        image = Image.fromarray(_read_mat(mats / f"{name}.mat"))
        image.putpalette([part for colour in palette(256) for part in colour])
        image.save(partial_file, "PNG")
    partial_file.replace(folder / f"{name}.png")


def _read_mat(path: Path) -> np.ndarray:
    """HW uint8, 0 to 20."""
    from scipy.io import loadmat

    if not path.exists():
        raise DataError(f"mask is missing: {path}")
    try:
        return loadmat(path)["GTcls"][0]["Segmentation"][0].astype("uint8")
    except Exception as error:  # scipy has many exceptions for damaged files
        raise DataError(f"{path}: not a mask of SBD ({error})") from None


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
