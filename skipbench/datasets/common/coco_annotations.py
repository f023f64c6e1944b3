"""COCO's annotation files: read once, element by element (the 2014 one has 450 MB), into a compact
index that is kept in the cache folder, so that a second start takes no time."""

import hashlib
import io
import json
import logging
import re
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from skipbench.datasets.common.types import Boxes
from skipbench.engine.progress import MB, Reach, megabytes
from skipbench.errors import DataError, ResourceError
from skipbench.files import cache_folder, ensure_writable, write_whole
from skipbench.records import Archive

log = logging.getLogger("skipbench")

Index = dict[str, np.ndarray]

INDEX_VERSION = "2"
CHUNK = 1 << 22  # characters read at once
LONG_TO_READ = 50 * MB  # a larger file gets a progress line
SPACE = re.compile(r"[ \t\r\n]*")
ENDS = frozenset(",:]} \t\r\n")  # what may stand behind a value

COCO_PLACES = ("coco", "COCO", "coco2017", "mscoco", "MSCOCO")
COCO_LICENCE = "images under Flickr's terms of use; annotations CC BY 4.0 (cocodataset.org)"
_COCO = "http://images.cocodataset.org"


def image_archive(folder: str) -> Archive:
    """train2017 and so on: JPEG in a zip, as large as when unpacked."""
    size, sha256 = {
        "train2017": (
            19_336_861_798,
            "69a8bb58ea5f8f99d24875f21416de2e9ded3178e903f1f7603e283b9e06d929",
        ),
        "val2017": (
            815_585_330,
            "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05",
        ),
        "train2014": (
            13_510_573_713,
            "ede4087e640bddba550e090eae701092534b554b42b05ac33f0300b984b31775",
        ),
    }[folder]
    return Archive(
        f"{_COCO}/zips/{folder}.zip", f"sha256:{sha256}", size, size, "coco", (folder[:-4],)
    )


ANNOTATIONS_2017 = Archive(
    f"{_COCO}/annotations/annotations_trainval2017.zip",
    "sha256:113a836d90195ee1f884e704da6304dfaaecff1f023f49b6ca93c4aaae470268",
    bytes=252_907_541,
    unpacked_bytes=820_000_000,
    into="coco",
)
ANNOTATIONS_2014 = Archive(
    f"{_COCO}/annotations/annotations_trainval2014.zip",
    "sha256:031296bbc80c45a1d1f76bf9a90ead27e94e99ec629208449507a4917a3bf009",
    bytes=252_872_794,
    unpacked_bytes=820_000_000,
    into="coco",
)


class Lazy(ABC):
    """An index of a COCO file, by image; opened at the first question."""

    version: str  # another one wherever `make` puts something else into it

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()  # the first question may come from several threads at once

    @abstractmethod
    def make(self) -> Index:
        """With `files`, the images in the order of its rows."""

    def find(self, file: str, by_name: bool = True) -> tuple[Index, int]:
        """The index, and the row of an image in it.

        file: its path as the JSON has it; by_name: or the name alone, where that is clear.
        """
        with self._lock:
            index, rows = self._index, self._rows
        row = rows.get(file, rows.get(file.rpartition("/")[2], -1) if by_name else -1)
        if row < 0:
            raise DataError(f"{self.path}: says nothing about {file}")
        return index, row

    @cached_property
    def _opened(self) -> Index | DataError:
        try:
            return open_index(self.path, self.make, self.version)
        except DataError as error:
            return error  # kept: a large file is not read again for each of its images

    @property
    def _index(self) -> Index:
        if isinstance(self._opened, DataError):
            raise self._opened
        return self._opened

    @cached_property
    def _rows(self) -> dict[str, int]:
        files = self._index["files"].tolist()
        bare = [file.rpartition("/")[2] for file in files]
        times = Counter(bare)
        unique = {name: row for row, name in enumerate(bare) if times[name] == 1}
        return unique | {file: row for row, file in enumerate(files)}


class LazyIndex(Lazy):
    """The boxes."""

    version = INDEX_VERSION

    def __init__(self, path: Path, round_corners: bool = False) -> None:
        super().__init__(path)
        self.round_corners = round_corners

    def make(self) -> Index:
        return make_index(self.path)

    def reader(self, file: str) -> Callable[[], Boxes]:
        return partial(self.boxes, file)

    def boxes(self, file: str, by_name: bool = True) -> Boxes:
        index, row = self.find(file, by_name)
        mine = slice(index["starts"][row], index["starts"][row + 1])
        kept = ~index["crowd"][mine]
        x, y, width, height = index["xywh"][mine][kept].T
        corners = np.stack([x, y, x + width, y + height], axis=1)
        names = index["categories"]
        height_, width_ = index["size_hw"][row].tolist()
        return Boxes(
            xyxy=np.rint(corners) if self.round_corners else corners,
            classes=tuple(str(names[c]) for c in index["category"][mine][kept]),
            hard=np.zeros(len(corners), bool),
            crowds=int((~kept).sum()),
            drawn_on_hw=(height_, width_) if height_ and width_ else None,
        )


def open_index(path: Path, make: Callable[[], Index], version: str) -> Index:
    """From the cache, if it is of this very file and version; else made, and kept there."""
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    about = f"{version} {path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    key = hashlib.sha256(about.encode()).hexdigest()[:24]
    kept = cache_folder() / "indexes" / f"{key}.npz"
    if stored := _load(kept):
        return stored
    index = make()
    try:
        ensure_writable(kept.parent)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **index)
        write_whole(kept, buffer.getvalue())
    except ResourceError as error:
        log.warning("the index is not kept: %s", str(error).splitlines()[0])
    return index


def _load(path: Path) -> Index | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except Exception as error:  # a damaged zip raises all sorts of things; it is made anew
        if path.exists():
            log.warning("%s is damaged (%s) and made anew", path, type(error).__name__)
        return None


class Gathered(ABC):
    """What an index is made of, as it comes, in arrays of plain numbers."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.known: set[str] = set()
        self.sizes = array("q")  # height and width in turn
        self.row_of: dict[int, int] = {}

    @abstractmethod
    def add(self, key: str, element: dict[str, Any]) -> None:
        """One element of the list of this name."""

    def add_image(self, element: dict[str, Any]) -> None:
        if element["id"] in self.row_of or element["file_name"] in self.known:
            raise ValueError("this image is there twice")
        self.row_of[element["id"]] = len(self.files)
        self.known.add(element["file_name"])
        self.files.append(element["file_name"])
        self.sizes.extend((element.get("height") or 0, element.get("width") or 0))


class _Boxes(Gathered):
    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self.owners, self.categories = array("q"), array("q")
        self.xywh, self.crowds = array("d"), array("b")

    def add(self, key: str, element: dict[str, Any]) -> None:
        if key == "images":
            self.add_image(element)
        elif key == "categories":
            self.names[int(element["id"])] = str(element["name"])
        elif key == "annotations" and "bbox" in element:
            x, y, width, height = map(float, element["bbox"])
            if not (width >= 0 and height >= 0 and isfinite(x + y + width + height)):
                raise ValueError(f"a box of {width} × {height} at {x}, {y}")
            self.owners.append(element["image_id"])
            self.xywh.extend((x, y, width, height))
            self.categories.append(element.get("category_id", -1))
            self.crowds.append({0: 0, 1: 1}[element.get("iscrowd", 0)])


def gather(path: Path, gathered: Gathered) -> None:
    """Hands it every element of the file; what is wrong is told with the file's name."""
    size = path.stat().st_size
    with megabytes(f"reading {path.name}, once", size if size > LONG_TO_READ else 0) as reach:
        for key, element in elements(path, reach):
            try:
                gathered.add(key, element)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise DataError(
                    f"{path}: not as COCO writes it, in {key} ({type(error).__name__}: {error}): "
                    f"{json.dumps(element)[:120]}"
                ) from None
    if not gathered.files:
        raise DataError(f"{path}: no images in it; is it a COCO annotation file?")


def make_index(path: Path) -> Index:
    """files, size_hw: by image; xywh, category, crowd: by box, those of image i from starts[i]."""
    gathered = _Boxes()
    gather(path, gathered)
    for image in gathered.owners:
        if image not in gathered.row_of:
            raise DataError(f"{path}: a box belongs to image {image}, which is not in its list")
    return _packed(gathered)


def _packed(gathered: _Boxes) -> Index:
    rows = np.array([gathered.row_of[image] for image in gathered.owners], np.int64)
    order = np.argsort(rows, kind="stable")
    known = {category: number for number, category in enumerate(sorted(gathered.names))}
    numbers = [known.get(category, len(known)) for category in gathered.categories]
    counts = np.bincount(rows, minlength=len(gathered.files))
    return {
        "files": np.array(gathered.files),
        "size_hw": np.array(gathered.sizes, np.int32).reshape(-1, 2),
        "starts": np.concatenate([[0], np.cumsum(counts)]),
        "xywh": np.array(gathered.xywh, np.float64).reshape(-1, 4)[order],
        "category": np.array(numbers, np.int32)[order],
        "crowd": np.array(gathered.crowds, bool)[order],
        "categories": np.array([*(gathered.names[c] for c in known), "?"]),
    }


def elements(path: Path, reach: Reach = lambda done: None) -> Iterator[tuple[str, Any]]:
    """(key, element) for every element of the lists at the top of a JSON object, in order.

    Only a few megabytes of the file are in memory at a time.
    """
    try:
        file = path.open(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    with file:
        text = _Text(path, file, reach)
        text.expect("{")
        for key in text.values("}"):
            text.expect(":")
            if text.skip("["):
                for element in text.values("]"):
                    yield key, element
            else:
                text.value()


class _Text:
    """A window onto a long JSON text. It grows while a value does not fit, and moves on."""

    def __init__(self, path: Path, file: io.TextIOWrapper, reach: Reach) -> None:
        self.path, self.file, self.reach = path, file, reach
        self.window, self.at = "", 0
        self.done = 0
        self.lines = 1  # of the window's first character
        self.decode = json.JSONDecoder().raw_decode

    def value(self) -> Any:
        self._to_next()
        size = CHUNK
        while True:
            try:
                value, end = self.decode(self.window, self.at)
                # A number may go on in what has not been read: "-2500" of "-2500.5".
                if self.window[end : end + 1] in ENDS or not self._more(size):
                    self.at = end
                    return value
            except json.JSONDecodeError as error:
                if not self._more(size):
                    raise self._wrong(error.msg, error.pos) from None
            except (ValueError, RecursionError) as error:  # too many digits, too deep
                raise self._wrong(str(error), self.at) from None
            size *= 2

    def values(self, end: str) -> Iterator[Any]:
        """Separated by commas, up to the end mark."""
        if self.skip(end):
            return
        while True:
            yield self.value()
            if self.skip(end):
                return
            self.expect(",")

    def skip(self, mark: str) -> bool:
        self._to_next()
        if self.window.startswith(mark, self.at):
            self.at += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.skip(mark):
            raise self._wrong(f"expected {mark!r}", self.at)

    def _to_next(self) -> None:
        """Past white space, with something to read ahead."""
        while True:
            self.at = SPACE.match(self.window, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.window) or not self._more(CHUNK):
                return

    def _more(self, count: int) -> bool:
        try:
            more = self.file.read(count)
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}: not UTF-8 text ({error.reason})") from None
        if more:
            self.done += len(more)  # characters; as many as bytes, in all but a few names
            self.reach(self.done)
            self.lines += self.window.count("\n", 0, self.at)
            self.window = self.window[self.at :] + more
            self.at = 0
        return bool(more)

    def _wrong(self, what: str, position: int) -> DataError:
        line = self.lines + self.window.count("\n", 0, position)
        near = self.window[max(0, position - 20) : position + 20].replace("\n", " ")
        cut = "" if self.window.rstrip().endswith("}") else " (cut off?)"
        return DataError(f"{self.path}: not JSON at line {line}: {what}{cut}, near «{near}»")
