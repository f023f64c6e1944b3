"""The outlines of COCO's objects, as one map of object numbers for each image.

0 is not annotated; objects count from 1, the largest (by the annotated area) first, and smaller
ones lie on top. Crowds are -1, below all objects.
"""

from array import array
from collections.abc import Callable
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.datasets.common.coco_annotations import AnnotationIndex, Index, IndexBuilder
from skipbench.errors import DataError
from skipbench.images import read_header, turn

# Runs of fewer pixels take at most 5 characters each. pycocotools reserves 6, without the final
# zero, and does not check.
TOO_MANY_PIXELS = 1 << 24
LONGEST_OUTLINE = 1_000_000  # pixels; pycocotools takes 80 bytes for each, unchecked


class SegmentIndex(AnnotationIndex):
    """Separate from the boxes, so that they do not have to wait for outlines."""

    version = "segments 1"

    def build(self) -> Index:
        return build_segment_index(self.path)

    def reader(self, image: Path) -> Callable[[], np.ndarray]:
        return partial(self.segments, image)

    def segments(self, image: Path) -> np.ndarray:
        """HW int32, for the image as shown. Outlines are rotated by the image's EXIF orientation,
        unless only the rotated image has the size given in the JSON."""
        index, row = self.find(image.name)
        drawn = _drawn(index, row)
        stored_hw, orientation = read_header(image)
        shown_hw = stored_hw[::-1] if orientation >= 5 else stored_hw
        shown = turn(drawn, orientation) if drawn.shape == stored_hw else drawn
        if shown.shape != shown_hw:
            raise DataError(
                f"{self.path}: its size is {drawn.shape[0]}×{drawn.shape[1]}, "
                f"but the image is {shown_hw[0]}×{shown_hw[1]} (height×width): {image}"
            )
        return np.ascontiguousarray(shown)


def _drawn(index: Index, row: int) -> np.ndarray:
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


class _SegmentIndexBuilder(IndexBuilder):
    lists = ("images", "annotations")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rows, self.ids, self.crowds = array("q"), array("q"), array("b")
        self.areas = array("d")
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
        rows, areas = np.array(self.rows, np.int64), np.array(self.areas, np.float64)
        crowds, lengths = np.array(self.crowds, bool), np.array(self.lengths, np.int64)
        order = np.lexsort((-areas, ~crowds, rows))  # by image; crowds first; from large to small
        ends = np.cumsum(lengths)
        parts = [memoryview(self.runs)[ends[i] - lengths[i] : ends[i]] for i in order]
        return {
            "files": np.array(self.files),
            "size_hw": np.array(self.sizes, np.int32).reshape(-1, 2),
            "starts": np.r_[0, np.cumsum(np.bincount(rows, minlength=len(self.files)))],
            "id": np.array(self.ids, np.int64)[order],
            "area": areas[order],
            "crowd": crowds[order],
            "runs": np.frombuffer(b"".join(parts), np.uint8),
            "run_starts": np.r_[0, np.cumsum(lengths[order])],
        }


def build_segment_index(path: Path) -> Index:
    """files, size_hw: by image; id, area, crowd and runs (from run_starts[j]): by outline, those of
    image i from starts[i], in the order in which they are drawn."""
    builder = _SegmentIndexBuilder(path)
    builder.read()
    return builder.packed()


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
