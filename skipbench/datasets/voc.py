"""PASCAL VOC2012, with the larger training set `train_aug` that SBD's masks make of it
(Hariharan et al. 2011); and the layout that all years of VOC share.

Boxes in its XML count pixels from 1 and include both ends: half-open, that is [xmin − 1, xmax).
"""

import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from skipbench.datasets.common.layouts import fact_lines, palette, read_list, split_found, stems
from skipbench.datasets.common.types import Boxes, Item, Labels, Listing, Source, Split
from skipbench.engine.parallel import in_parallel
from skipbench.errors import DataError
from skipbench.records import Archive

CLASSES = (
    "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse "
    "motorbike person pottedplant sheep sofa train tvmonitor"
).split()

LABELS = Labels(tuple(CLASSES), palette(len(CLASSES)), {i: i for i in range(len(CLASSES))})


class Devkit(Source):
    with_boxes = True
    licence = "images under Flickr's terms of use, for research; host.robots.ox.ac.uk/pascal/VOC"

    def __init__(
        self,
        year: int,
        splits: Mapping[str, Split],
        archives: tuple[Archive, ...] = (),
        also: str = "",
    ) -> None:
        folder = f"VOC{year}"
        example = "000032" if year == 2007 else "2007_000032"
        self.year = year
        self.title, self.short = f"PASCAL VOC{year}", f"VOC{year}"
        self.splits, self.archives, self.also = splits, archives, also
        parents = ("VOCdevkit/", "", "voc/VOCdevkit/", "VOC/VOCdevkit/", "pascal/VOCdevkit/")
        self.places = tuple(f"{parent}{folder}" for parent in parents)
        self.tree = (
            f"  DIR/VOCdevkit/{folder}/\n"
            f"    JPEGImages/            {example}.jpg …\n"
            f"    SegmentationClass/     {example}.png …\n"
            f"    Annotations/           {example}.xml …\n"
            "    ImageSets/Segmentation/train.txt, val.txt\n"
            "    ImageSets/Main/trainval.txt"
        )

    def is_at(self, folder: Path) -> bool:
        named = re.search(r"VOC(20\d\d)", folder.resolve().name)
        if named and int(named[1]) != self.year:
            return False  # all years have the same layout
        return (folder / "JPEGImages").is_dir() and (folder / "ImageSets").is_dir()

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        return LABELS

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images, annotations = folder / "JPEGImages", folder / "Annotations"
        masks = self.mask_folder(folder, split)
        labelled = stems(masks, ".png") if masks else stems(annotations, ".xml")
        with_xml = self.with_boxes and annotations.is_dir()

        def make(name: str) -> Item:
            xml = annotations / f"{name}.xml"
            return Item(
                name,
                images / f"{name}.jpg",
                mask_path=masks / f"{name}.png" if masks else None,
                labels=labels if masks else None,
                read_boxes=partial(read_xml, xml) if with_xml else None,
            )

        file, listed = self.list_file(folder, split), self.listed(folder, split)
        if listed is None:
            return Listing([], make, why_empty=f"its list is missing: {file}")
        # Some lists have a flag after the name, in some copies it is the file's name.
        wanted = [PurePosixPath(line.split()[0]).stem for line in listed]
        names, absent = split_found(wanted, stems(images, ".jpg"))
        why = f"none of the images listed in {file} exists" if listed else f"{file} is empty"
        return Listing(names, make, absent, frozenset(names) - labelled, why, listed=True)

    def mask_folder(self, folder: Path, split: str) -> Path | None:
        return folder / "SegmentationClass" if self.splits[split].labels == "masks" else None

    def list_file(self, folder: Path, split: str) -> Path:
        part = "Segmentation" if self.splits[split].labels == "masks" else "Main"
        return folder / "ImageSets" / part / f"{split}.txt"

    def listed(self, folder: Path, split: str) -> list[str] | None:
        """The images of a split; None where the list is missing."""
        file = self.list_file(folder, split)
        return read_list(file) if file.exists() else None


def read_xml(path: Path) -> Boxes:
    try:
        root = ET.parse(path).getroot()
    except FileNotFoundError:
        raise DataError(f"annotation is missing: {path}") from None
    except ET.ParseError as error:
        line, column = error.position
        raise DataError(f"{path}: not XML at line {line}, column {column} ({error})") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, LookupError) as error:  # an encoding unknown to expat
        raise DataError(f"{path}: unreadable XML ({error})") from None
    objects = root.findall("object")
    boxes = np.array([_corners(o, path) for o in objects], np.float64).reshape(-1, 4)
    return Boxes(
        xyxy=boxes,
        classes=tuple(o.findtext("name", "?") for o in objects),
        hard=np.array([_is_hard(o, path) for o in objects], bool),
        drawn_on_hw=_size_hw(root),
    )


def _corners(thing: ET.Element, path: Path) -> list[float]:
    place = thing.find("bndbox")
    try:
        if place is None:
            raise ValueError("no <bndbox>")
        x0, y0, x1, y1 = (
            _pixels(place.findtext(tag, "")) for tag in ("xmin", "ymin", "xmax", "ymax")
        )
        if x1 < x0 or y1 < y0:
            raise ValueError(f"a box from {x0},{y0} to {x1},{y1}")
    except (ValueError, OverflowError) as error:
        name = thing.findtext("name", "?")
        raise DataError(f"{path}: object '{name}' has no usable box ({error})") from None
    return [x0 - 1, y0 - 1, x1, y1]


def _pixels(text: str) -> int:
    """A few files have fractions of a pixel, which are dropped."""
    if "_" in text or not text.isascii():  # valid to Python
        raise ValueError(f"{text!r} is not a number")
    return int(float(text))


def _is_hard(thing: ET.Element, path: Path) -> bool:
    marks = {thing.findtext(tag, "0").strip() for tag in ("difficult", "truncated")}
    if odd := marks - {"0", "1", "", "Unspecified"}:
        raise DataError(f"{path}: difficult or truncated is {sorted(odd)[0]!r:.40}, not 0 or 1")
    return "1" in marks


def _size_hw(root: ET.Element) -> tuple[int, int] | None:
    height, width = (root.findtext(f"size/{side}", "") for side in ("height", "width"))
    known = height.isdecimal() and width.isdecimal() and len(height + width) < 20
    return (int(height), int(width)) if known else None


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
        if folder is None or list(splits) != ["train_aug"]:
            return wanted
        return wanted if self.listing(folder, "train_aug", None).absent else wanted[1:]

    def finish(self, folder: Path) -> None:
        """SBD's masks are MATLAB files: write them as PNG, except where VOC has its own."""
        sbd = folder.parent.parent / "benchmark_RELEASE" / "dataset" / "cls"
        if sbd.is_dir():
            write_masks(sbd, folder, self.train_aug())


def write_masks(mats: Path, devkit: Path, names: Sequence[str]) -> None:
    """`SegmentationClassAug` from SBD's .mat files, or from VOC's own mask where it has one."""
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
    also="voc12 voc2012 pascal",
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
