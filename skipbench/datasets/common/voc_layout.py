"""PASCAL VOC's layout, which several years share.

Boxes in its XML count pixels from 1 and include both ends: [xmin − 1, xmax) is the same, half-open.
"""

import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from skipbench.datasets.common.files import fact_lines, palette, read_list, stems, there
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
    licence = "images under Flickr's terms of use, for research; host.robots.ox.ac.uk/pascal/VOC"

    def __init__(
        self, year: int, splits: Mapping[str, Split], archives: tuple[Archive, ...]
    ) -> None:
        folder = f"VOC{year}"
        example = "000032" if year == 2007 else "2007_000032"
        self.year = year
        self.title = f"PASCAL VOC{year}"
        self.splits, self.archives = splits, archives
        self.places = tuple(
            f"{parent}{folder}"
            for parent in (
                "VOCdevkit/",
                "",
                "voc/VOCdevkit/",
                "VOC/VOCdevkit/",
                "pascal/VOCdevkit/",
            )
        )
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
            return False  # all years look alike
        return (folder / "JPEGImages").is_dir() and (folder / "ImageSets").is_dir()

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        return LABELS

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images, annotations = folder / "JPEGImages", folder / "Annotations"
        masks = None
        if self.splits[split].labels == "masks":
            masks = folder / ("SegmentationClass" + "Aug" * (split == "train_aug"))
        labelled = stems(masks, ".png") if masks else stems(annotations, ".xml")
        with_xml = annotations.is_dir()

        def make(name: str) -> Item:
            xml = annotations / f"{name}.xml"
            return Item(
                name,
                images / f"{name}.jpg",
                mask_path=masks / f"{name}.png" if masks else None,
                labels=labels if masks else None,
                read_boxes=partial(read_xml, xml) if with_xml else None,
            )

        part = "Segmentation" if masks else "Main"
        file = folder / "ImageSets" / part / f"{split}.txt"
        if split != "train_aug" and not file.exists():
            return Listing([], make, why_empty=f"its list is missing: {file}")
        listed = train_aug() if split == "train_aug" else read_list(file)
        # Some lists have a flag behind the name, some people's have the file's name.
        bare = [PurePosixPath(line.split()[0]).stem for line in listed]
        names, absent = there(bare, stems(images, ".jpg"))
        why = f"none of the images that {file} lists is there" if listed else f"{file} is empty"
        return Listing(names, make, absent, frozenset(names) - labelled, why, listed=True)


def train_aug() -> list[str]:
    """VOC2012 train and the images of SBD, without val: the list everybody uses."""
    names: list[str] = []
    for line in fact_lines("voc_train_aug.txt"):
        if line.startswith("["):
            year = line.strip("[]")
        else:
            names += [f"{year}_{int(number):06d}" for number in line.split()]
    return names


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
    except (ValueError, LookupError) as error:  # an encoding that expat does not know
        raise DataError(f"{path}: not XML that can be read ({error})") from None
    objects = root.findall("object")
    boxes = np.array([_corners(o, path) for o in objects], np.float64).reshape(-1, 4)
    return Boxes(
        xyxy=boxes,
        classes=tuple(o.findtext("name", "?") for o in objects),
        hard=np.array([_is_hard(o) for o in objects], bool),
        drawn_on_hw=_size_hw(root),
    )


def _corners(thing: ET.Element, path: Path) -> list[float]:
    place = thing.find("bndbox")
    try:
        if place is None:
            raise ValueError("no <bndbox>")
        # A few files have fractions of a pixel; they are dropped.
        x0, y0, x1, y1 = (
            int(float(place.findtext(tag, ""))) for tag in ("xmin", "ymin", "xmax", "ymax")
        )
        if x1 < x0 or y1 < y0:
            raise ValueError(f"a box from {x0},{y0} to {x1},{y1}")
    except (ValueError, OverflowError) as error:
        name = thing.findtext("name", "?")
        raise DataError(f"{path}: object '{name}' has no usable box ({error})") from None
    return [x0 - 1, y0 - 1, x1, y1]


def _is_hard(thing: ET.Element) -> bool:
    return any(thing.findtext(tag, "0").strip() == "1" for tag in ("difficult", "truncated"))


def _size_hw(root: ET.Element) -> tuple[int, int] | None:
    height, width = (root.findtext(f"size/{side}", "") for side in ("height", "width"))
    return (int(height), int(width)) if height.isdecimal() and width.isdecimal() else None


# -- SBD (Hariharan et al. 2011): its masks as palette PNG, as VOC's own are


def write_masks(mats: Path, devkit: Path, names: Sequence[str]) -> None:
    """`SegmentationClassAug` from SBD's .mat files; where VOC has a mask, VOC's is taken."""
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
    except Exception as error:  # scipy has exceptions of its own for each way to be damaged
        raise DataError(f"{path}: not one of SBD's masks ({error})") from None
