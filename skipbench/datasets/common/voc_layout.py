"""PASCAL VOC's layout, which several years share.

Boxes in its XML count pixels from 1 and include both ends: half-open, that is [xmin − 1, xmax).
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from skipbench.datasets.common.files import palette, read_list, stems, there
from skipbench.datasets.common.types import Boxes, Item, Labels, Listing, Source, Split
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
            return False  # all years have the same layout
        return (folder / "JPEGImages").is_dir() and (folder / "ImageSets").is_dir()

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        return LABELS

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images, annotations = folder / "JPEGImages", folder / "Annotations"
        masks = self.mask_folder(folder, split)
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

        file, listed = self.list_file(folder, split), self.listed(folder, split)
        if listed is None:
            return Listing([], make, why_empty=f"its list is missing: {file}")
        # Some lists have a flag after the name, in some copies it is the file's name.
        bare = [PurePosixPath(line.split()[0]).stem for line in listed]
        names, absent = there(bare, stems(images, ".jpg"))
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
        hard=np.array([_is_hard(o) for o in objects], bool),
        drawn_on_hw=_size_hw(root),
    )


def _corners(thing: ET.Element, path: Path) -> list[float]:
    place = thing.find("bndbox")
    try:
        if place is None:
            raise ValueError("no <bndbox>")
        # A few files have fractions of a pixel, which are dropped.
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
