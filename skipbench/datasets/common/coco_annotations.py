"""COCO's annotation files: read once, element by element (the 2014 one has 450 MB), into a compact
index that is cached, so that the second start takes no time."""

import hashlib
import io
import json
import logging
import re
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import takewhile
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import IO, Any, ClassVar

import numpy as np

from skipbench.datasets.common.types import Boxes
from skipbench.engine.progress import MB, Reach, megabytes
from skipbench.errors import DataError, ResourceError
from skipbench.files import cache_folder, ensure_writable, write_whole

log = logging.getLogger("skipbench")

Index = dict[str, np.ndarray]

LONG_TO_READ = 50 * MB  # a larger file gets a progress line
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DEEPEST = 1000  # nested lists opened in one block
ARROW = 40  # column of the arrow in messages of yajl
LAST_READ = 1 << 17  # bytes; ijson reads half as many at a time


class AnnotationIndex(ABC):
    """What a COCO file says about each image; read, or loaded from the cache, at the first use.

    Every index has `files` and `size_hw` by image, and `starts`: the annotations of image i are
    those from starts[i] to starts[i + 1].
    """

    version: ClassVar[str]  # raise it whenever `build` puts something else into the index
    builder: ClassVar[type["IndexBuilder"]]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()  # several threads may ask first

    def build(self) -> Index:
        return self.builder(self.path).read()

    def find(self, file: str, by_name: bool = True) -> tuple[Index, int]:
        """The index, and the row of an image in it.

        file: its path as in the JSON; by_name: its name alone will do, where that is unique.
        """
        with self._lock:
            if isinstance(self._opened, DataError):
                raise self._opened
            index, rows = self._opened
        row = rows.get(file, rows.get(file.rpartition("/")[2], -1) if by_name else -1)
        if row < 0:
            raise DataError(f"{self.path}: no entry for image {file}")
        return index, row

    @cached_property
    def _opened(self) -> tuple[Index, dict[str, int]] | DataError:
        """The index and the row of each image, by path and by unique name."""
        try:
            index = self._load_or_build()
        except DataError as error:
            return error  # cached: a large file is not read again for each of its images
        files = index["files"].tolist()
        names = [file.rpartition("/")[2] for file in files]
        counts = Counter(names)
        unique = {name: row for row, name in enumerate(names) if counts[name] == 1}
        return index, unique | {file: row for row, file in enumerate(files)}

    def _load_or_build(self) -> Index:
        """From the cache, if it belongs to this very file and version; else built and cached."""
        try:
            stat = self.path.stat()
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from None
        about = f"{self.version} {self.path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
        key = hashlib.sha256(about.encode()).hexdigest()[:24]
        cached = cache_folder() / "indexes" / f"{key}.npz"
        if stored := _load(cached):
            return stored
        index = self.build()
        try:
            ensure_writable(cached.parent)
            buffer = io.BytesIO()
            np.savez(buffer, allow_pickle=False, **index)
            write_whole(cached, buffer.getvalue())
        except ResourceError as error:
            reason = str(error).splitlines()[0]
            log.warning("the index of %s is not cached: %s", self.path.name, reason)
        return index


def _load(path: Path) -> Index | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except Exception as error:  # a damaged zip raises exceptions of many kinds
        if path.exists():
            log.warning("%s is damaged (%s); rebuilding it", path, type(error).__name__)
        return None


class IndexBuilder(ABC):
    """Reads one list of the file after another into arrays of plain numbers, images first."""

    lists: ClassVar[tuple[str, ...]]  # the lists to read, by their keys

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: list[str] = []
        self.known: set[str] = set()
        self.sizes = array("q")  # height and width in turn
        self.row_of: dict[int, int] = {}
        # of each annotation: the row of its image, and whether it is around a crowd
        self.rows, self.crowds = array("q"), array("b")

    @abstractmethod
    def add(self, key: str, element: dict[str, Any]) -> None:
        """One element of the list with this key."""

    def packed(self) -> Index:
        counts = np.bincount(np.array(self.rows, np.int64), minlength=len(self.files))
        return {
            "files": np.array(self.files),
            "size_hw": np.array(self.sizes, np.int32).reshape(-1, 2),
            "starts": np.concatenate([[0], np.cumsum(counts)]),
        }

    def add_image(self, element: dict[str, Any]) -> None:
        if element["id"] in self.row_of or element["file_name"] in self.known:
            raise ValueError("listed twice")
        if not isinstance(element["file_name"], str):
            raise TypeError(f"a file name that is {element['file_name']!r}")
        self.row_of[element["id"]] = len(self.files)
        self.known.add(element["file_name"])
        self.files.append(element["file_name"])
        self.sizes.extend((element.get("height") or 0, element.get("width") or 0))

    def read(self) -> Index:
        size = self.path.stat().st_size
        for key in self.lists:
            long = key == "annotations" and size > LONG_TO_READ
            with megabytes(f"reading {self.path.name}, once", size if long else 0) as reach:
                for element in elements(self.path, key, reach):
                    self._add_checked(key, element)
        if not self.files:
            raise DataError(f"{self.path}: no images in it; is it a COCO annotation file?")
        if not self.rows and not _has_list(self.path, "annotations"):
            raise DataError(f"{self.path}: no list of annotations in it")
        return self.packed()

    def _add_checked(self, key: str, element: Any) -> None:
        try:
            self.add(key, element)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{self.path}: not in COCO's format, in {key} ({type(error).__name__}: {error}): "
                f"{json.dumps(element)[:120]}"
            ) from None


def elements(path: Path, key: str, reach: Reach = lambda done: None) -> Iterator[Any]:
    """The elements of one list at the top of a JSON object, with little of the file in memory.

    Each list is one pass over the file: building the elements in C, without the other lists, is
    faster than picking all lists out of one stream of events in Python. Images, which are few and
    come first, are taken from such a stream, so their pass ends with their list.
    """
    import ijson  # type: ignore[import-untyped]

    try:
        with path.open("rb") as file:
            if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
                file.seek(0)
            source: Any = _NotTooDeep(path, file)
            if key == "images":
                events = ijson.parse(source, use_float=True)
                source = takewhile(lambda event: event[:2] != (key, "end_array"), events)
            try:
                for element in ijson.items(source, f"{key}.item", use_float=True):
                    yield element
                    reach(file.tell())
            except ijson.JSONError as error:
                raise DataError(f"{path}: {_json_problem(file, error)}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _has_list(path: Path, key: str) -> bool:
    """Whether it is there, though it may be empty."""
    import ijson

    with path.open("rb") as file:
        return any(event[:2] == (key, "start_array") for event in ijson.parse(file))


class _NotTooDeep:
    """Refuses absurdly nested lists: the memory of ijson grows with the square of the depth."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file

    def read(self, size: int) -> bytes:
        block = self.file.read(size)
        deeper = sum(map(block.count, b"[{")) - sum(map(block.count, b"]}"))
        if deeper > DEEPEST:
            raise DataError(f"{self.path}: not JSON in COCO's format: {deeper:,} nested lists")
        return block


def _json_problem(file: IO[bytes], error: Exception) -> str:
    """yajl reports the problem and quotes the text around it, by which the line is found."""
    message = error.args[0]
    message = message if isinstance(message, bytes) else str(message).encode()
    what, quoted, *_ = [*message.splitlines(), b""]
    size = file.tell()
    file.seek(0)
    text = file.read(size)
    if b"premature EOF" in what:
        return f"not JSON at line {_line(text)}: it ends too early (cut off?)"
    cut = "" if file.read(1) or text.rstrip().endswith(b"}") else " (cut off?)"
    before = re.escape(quoted[:ARROW].strip()).replace(rb"\ ", rb"[ \n\r]")
    found = re.compile(before).search(text, max(size - LAST_READ, 0))
    line = _line(text[: found.end()] if found else text)
    words, near = (part.strip().decode("utf-8", "replace") for part in (what, quoted))
    return f"not JSON at line {line}: {words}{cut} Near «{near}»"


def _line(text: bytes) -> int:
    return text.count(b"\n") + 1


class _BoxIndexBuilder(IndexBuilder):
    lists = ("images", "categories", "annotations")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.names: dict[int, str] = {}
        self.xywh, self.categories = array("d"), array("q")

    def add(self, key: str, element: dict[str, Any]) -> None:
        if key == "images":
            self.add_image(element)
        elif key == "categories":
            if not isinstance(element["name"], str | int):
                raise TypeError(f"a name that is {element['name']!r}")
            self.names[int(element["id"])] = str(element["name"])
        elif "bbox" in element:
            self.add_box(element)

    def add_box(self, element: dict[str, Any]) -> None:
        x, y, width, height = element["bbox"]
        if not {type(side) for side in (x, y, width, height)} <= {int, float}:
            raise TypeError(f"a box of {element['bbox']}")
        if not (width >= 0 and height >= 0 and isfinite(x + y + width + height)):
            raise ValueError(f"a box of {width} × {height} at {x}, {y}")
        if (image := element["image_id"]) not in self.row_of:
            raise DataError(f"{self.path}: a box belongs to image {image}, which is not in images")
        self.rows.append(self.row_of[image])
        self.xywh.extend((x, y, width, height))
        self.categories.append(element.get("category_id", -1))
        self.crowds.append({0: 0, 1: 1}[element.get("iscrowd", 0)])

    def packed(self) -> Index:
        """With xywh, category and crowd of each box; category: a row of `categories`."""
        order = np.argsort(np.array(self.rows, np.int64), kind="stable")
        known = {category: row for row, category in enumerate(sorted(self.names))}
        numbers = [known.get(category, len(known)) for category in self.categories]
        return super().packed() | {
            "xywh": np.array(self.xywh, np.float64).reshape(-1, 4)[order],
            "category": np.array(numbers, np.int32)[order],
            "crowd": np.array(self.crowds, bool)[order],
            "categories": np.array([*(self.names[c] for c in known), "?"]),
        }


class BoxIndex(AnnotationIndex):
    version = "2"
    builder = _BoxIndexBuilder

    def __init__(self, path: Path, round_corners: bool = False) -> None:
        super().__init__(path)
        self.round_corners = round_corners

    def boxes(self, file: str, by_name: bool = True) -> Boxes:
        index, row = self.find(file, by_name)
        span = slice(index["starts"][row], index["starts"][row + 1])
        kept = ~index["crowd"][span]
        x, y, width, height = index["xywh"][span][kept].T
        corners = np.stack([x, y, x + width, y + height], axis=1)
        names = index["categories"]
        image_height, image_width = index["size_hw"][row].tolist()
        return Boxes(
            xyxy=np.rint(corners) if self.round_corners else corners,
            classes=tuple(str(names[c]) for c in index["category"][span][kept]),
            hard=np.zeros(len(corners), bool),
            crowds=int((~kept).sum()),
            drawn_on_hw=(image_height, image_width) if image_height and image_width else None,
        )
