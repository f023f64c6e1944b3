"""COCO 2017: images, and with `annotations/instances_*.json` the boxes and outlines of objects.

The outlines become one map of object numbers for each image. 0 is not annotated; objects count from
1, the largest (by the annotated area) first, and smaller ones lie on top. Crowds are -1, below all
objects.
"""

from array import array
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.datasets.common.coco_annotations import (
    AnnotationIndex,
    BoxIndex,
    Index,
    IndexBuilder,
)
from skipbench.datasets.common.layouts import first_folder, stems
from skipbench.datasets.common.types import Item, Labels, Listing, Source, Split
from skipbench.errors import DataError
from skipbench.images import as_shown
from skipbench.records import Archive

COCO_PLACES = ("coco", "COCO", "coco2017", "mscoco", "MSCOCO")
COCO_LICENCE = "images under Flickr's terms of use; annotations CC BY 4.0 (cocodataset.org)"

# Runs of fewer pixels take at most 5 characters each. pycocotools reserves 6, without the final
# zero, and does not check.
TOO_MANY_PIXELS = 1 << 24
LONGEST_OUTLINE = 1_000_000  # pixels; pycocotools takes 80 bytes for each, unchecked


def image_archive(folder: str, size: int, sha256: str) -> Archive:
    """train2017 and so on: JPEG in a zip, as large as when unpacked."""
    url = f"http://images.cocodataset.org/zips/{folder}.zip"
    return Archive(url, f"sha256:{sha256}", size, size, "coco", (folder[:-4],))


def annotation_archive(year: int, size: int, sha256: str) -> Archive:
    url = f"http://images.cocodataset.org/annotations/annotations_trainval{year}.zip"
    return Archive(url, f"sha256:{sha256}", size, unpacked_bytes=820_000_000, into="coco")


TRAIN_2017 = image_archive(
    "train2017", 19_336_861_798, "69a8bb58ea5f8f99d24875f21416de2e9ded3178e903f1f7603e283b9e06d929"
)
VAL_2017 = image_archive(
    "val2017", 815_585_330, "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05"
)
ANNOTATIONS_2017 = annotation_archive(
    2017, 252_907_541, "113a836d90195ee1f884e704da6304dfaaecff1f023f49b6ca93c4aaae470268"
)


class Coco(Source):
    title, short = "COCO 2017", "COCO"
    also = "coco2017"
    licence = COCO_LICENCE
    places = COCO_PLACES
    tree = (
        "  DIR/coco/\n"
        "    val2017/                 000000000139.jpg …  (or images/val2017/)\n"
        "    train2017/               000000000009.jpg …\n"
        "    annotations/             instances_val2017.json …  (boxes, segments)"
    )
    splits = {"val": Split(5_000, "images"), "train": Split(118_287, "images", extra=True)}
    archives = (VAL_2017, TRAIN_2017, ANNOTATIONS_2017)

    def is_at(self, folder: Path) -> bool:
        return any(self._images(folder, split).is_dir() for split in self.splits)

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        images, json = self._images(folder, split), self._json(folder, split)
        boxes, segments = BoxIndex(json), SegmentIndex(json)
        annotated = json.exists()

        def make(name: str) -> Item:
            path = images / f"{name}.jpg"
            return Item(
                name,
                path,
                read_boxes=partial(boxes.boxes, path.name) if annotated else None,
                read_segments=partial(segments.segments, path) if annotated else None,
            )

        return Listing(sorted(stems(images, ".jpg")), make)

    def is_complete(self, folder: Path, split: str) -> bool:
        return super().is_complete(folder, split) and self._json(folder, split).exists()

    def _images(self, folder: Path, split: str) -> Path:
        return first_folder(folder, f"{split}2017", f"images/{split}2017")

    def _json(self, folder: Path, split: str) -> Path:
        return folder / "annotations" / f"instances_{split}2017.json"


class _SegmentIndexBuilder(IndexBuilder):
    lists = ("images", "annotations")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ids, self.areas = array("q"), array("d")
        self.runs, self.lengths = bytearray(), array("q")

    def add(self, key: str, element: dict[str, Any]) -> None:
        if key == "images":
            self.add_image(element)
            height, width = self.sizes[-2:]
            if not (min(height, width) > 0 and height * width < TOO_MANY_PIXELS):
                raise ValueError(f"height {height}, width {width}")
        else:
            self.add_outline(element)

    def add_outline(self, element: dict[str, Any]) -> None:
        number, image = element.get("id"), element["image_id"]
        row = self.row_of.get(image)
        if row is None:
            raise DataError(
                f"{self.path}: annotation {number} belongs to image {image}, which is not in images"
            )
        try:
            runs, area, crowd = _checked(element, (self.sizes[2 * row], self.sizes[2 * row + 1]))
            self.ids.append(element["id"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{self.path}: annotation {number} of {self.files[row]} (image {image}): "
                f"{f'no {error}' if isinstance(error, KeyError) else error}"
            ) from None
        self.rows.append(row)
        self.areas.append(area)
        self.crowds.append(crowd)
        self.runs += runs
        self.lengths.append(len(runs))

    def packed(self) -> Index:
        """With id, area, crowd and runs (from run_starts[j]) of each outline, in drawing order."""
        rows, areas = np.array(self.rows, np.int64), np.array(self.areas, np.float64)
        crowds, lengths = np.array(self.crowds, bool), np.array(self.lengths, np.int64)
        order = np.lexsort((-areas, ~crowds, rows))  # by image; crowds first; from large to small
        ends = np.cumsum(lengths)
        parts = [memoryview(self.runs)[ends[i] - lengths[i] : ends[i]] for i in order]
        return super().packed() | {
            "id": np.array(self.ids, np.int64)[order],
            "area": areas[order],
            "crowd": crowds[order],
            "runs": np.frombuffer(b"".join(parts), np.uint8),
            "run_starts": np.r_[0, np.cumsum(lengths[order])],
        }


class SegmentIndex(AnnotationIndex):
    """Separate from the boxes, so that they do not have to wait for outlines."""

    version = "segments 1"
    builder = _SegmentIndexBuilder

    def segments(self, image: Path) -> np.ndarray:
        """HW int32, for the image as shown. Outlines are rotated by the image's EXIF orientation,
        unless only the rotated image has the size given in the JSON."""
        index, row = self.find(image.name)
        shown = as_shown(_draw(index, row), image, f"{self.path}: its size is")
        return np.ascontiguousarray(shown)


def _draw(index: Index, row: int) -> np.ndarray:
    """HW int32, as annotated."""
    rle, size_hw = _rle(), index["size_hw"][row].tolist()
    drawn = np.zeros(size_hw, np.int32)
    number = 0
    for i in range(index["starts"][row], index["starts"][row + 1]):
        runs = index["runs"][index["run_starts"][i] : index["run_starts"][i + 1]].tobytes()
        number += not index["crowd"][i]
        inside = rle.decode({"size": size_hw, "counts": runs}).astype(bool)
        drawn[inside] = -1 if index["crowd"][i] else number
    return drawn


def _checked(element: dict[str, Any], size_hw: tuple[int, int]) -> tuple[bytes, float, bool]:
    """Its compressed runs, its area, and whether it is a crowd."""
    crowd = element.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise ValueError(f"iscrowd is {crowd!r}")
    runs = compressed(element["segmentation"], size_hw)
    area = element.get("area")
    if area is None:
        area = _rle().area({"size": size_hw, "counts": runs})
    if not (isfinite(area) and area >= 0):
        raise ValueError(f"an area of {area}")
    return runs, float(area), bool(crowd)


def compressed(outline: Any, size_hw: tuple[int, int]) -> bytes:
    """COCO's polygons or run lengths → pycocotools' compressed runs.

    Everything is checked first: its C code does not check, and would access memory out of bounds.
    """
    rle = _rle()
    if isinstance(outline, dict):
        runs = _run_lengths(outline, size_hw)
        return rle.frPyObjects({"size": size_hw, "counts": runs}, *size_hw)["counts"]
    if not (isinstance(outline, list) and outline):
        raise ValueError(f"neither polygons nor run lengths, but {outline!r:.40}")
    return rle.merge(rle.frPyObjects([_polygon(p) for p in outline], *size_hw))["counts"]


def _rle() -> Any:
    from pycocotools import mask  # type: ignore[import-untyped]

    return mask


def _run_lengths(outline: dict[str, Any], size_hw: tuple[int, int]) -> np.ndarray:
    """Background and object in turn, column by column."""
    if outline["size"] != list(size_hw):
        raise ValueError(f"run lengths for {outline['size']}, in an image of {list(size_hw)}")
    counts = outline["counts"]
    runs = np.array(unpacked(counts) if isinstance(counts, str) else counts)
    if runs.ndim != 1 or runs.dtype.kind not in "iu":
        raise ValueError("run lengths that are not a list of integers")
    pixels = size_hw[0] * size_hw[1]
    if runs.min() < 0 or runs.max() > pixels or runs.sum() != pixels:
        raise ValueError(f"run lengths that do not add up to the {pixels} pixels of the image")
    return runs


def _polygon(points: Any) -> np.ndarray:
    """(2 · corners,) float64, x and y in turn."""
    if not isinstance(points, list) or len(points) < 6 or len(points) % 2:
        raise ValueError("a polygon that is not a list of at least three pairs of numbers")
    numbers = np.array(points)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise ValueError("a polygon that is not made of numbers")
    corners = numbers.astype(np.float64).reshape(-1, 2)
    if not (np.abs(corners) < LONGEST_OUTLINE).all():
        raise ValueError("a polygon with a corner that is NaN or far from any image")
    if np.abs(corners - np.roll(corners, 1, axis=0)).max(axis=1).sum() > LONGEST_OUTLINE:
        raise ValueError(f"a polygon that is more than {LONGEST_OUTLINE} pixels long")
    return corners.ravel()


def unpacked(text: str) -> list[int]:
    """The run lengths in COCO's compressed string: 5 bits a character, lowest first; the sixth bit
    says that the number continues. From the fourth number on, differences to the last but one."""
    counts: list[int] = []
    number = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 30:
            raise ValueError("run lengths in an invalid string")
        number |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            number -= (bits & 16) << shift - 4  # the sign
            counts.append(number + (counts[-2] if len(counts) > 2 else 0))
            number = shift = 0
    if shift:
        raise ValueError("run lengths in a truncated string")
    return counts


SOURCE = Coco()
