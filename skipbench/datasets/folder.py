"""What a user has at hand, as `folder:PATH`: images with masks and/or boxes, in splits or in one.

    PATH/
      images/[train/]a.jpg …   the sub-folders of images/ are the splits,
      masks/[train/]a.png …    or PATH/train.txt lists the names of one, or all is one split: "all"
      classes.txt              line by line: the class of value 0, 1, 2 …; or value<TAB>name
      boxes.csv                image,xmin,ymin,xmax,ymax[,class] with half-open pixels,
      *.json                   or a COCO annotation file (also in annotations/)

In `classes.txt`, value<TAB>name is for values with gaps; the name `ignore` marks values that do
not count (255 never does).
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from skipbench.datasets._coco_json import LazyIndex
from skipbench.datasets._files import palette, read_list, there
from skipbench.datasets._types import Boxes, Item, Kind, Labels, Listing, Source, Split
from skipbench.errors import DataError, UsageError
from skipbench.images import SUFFIXES

CORNERS = ("xmin", "ymin", "xmax", "ymax")


class Folder(Source):
    title = "a folder"
    licence = "yours"
    places = ()
    tree = (
        "  PATH/                      given as folder:PATH\n"
        "    images/                  a.jpg …     (or images/train/, images/val/)\n"
        "    masks/                   a.png …     (the same sub-folders)\n"
        "    classes.txt              one class a line, for masks\n"
        "    boxes.csv                image,xmin,ymin,xmax,ymax   (or a COCO .json)\n"
        "    train.txt, val.txt       names of images, where there are no sub-folders"
    )
    splits: Mapping[str, Split] = {}

    def is_at(self, folder: Path) -> bool:
        return (folder / "images").is_dir()

    def splits_at(self, folder: Path) -> Mapping[str, Split]:
        images = folder / "images"
        names = sorted(p.name for p in images.iterdir() if p.is_dir() and p.name[0] != ".")
        names = names or sorted(p.stem for p in folder.glob("*.txt") if p.name != "classes.txt")
        kind: Kind = "images"
        if (folder / "masks").is_dir():
            kind = "masks"
        elif (folder / "boxes.csv").exists() or _jsons(folder):
            kind = "boxes"
        return {name: Split(None, kind) for name in names or ["all"]}

    def labels(self, folder: Path, classes: int | None = None) -> Labels | None:
        return read_classes(folder / "classes.txt") if (folder / "masks").is_dir() else None

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        files = self._files(folder / "images", split)
        masks = _stems(folder / "masks")
        wanted = sorted(files)
        if split != "all" and not (folder / "images" / split).is_dir():
            wanted = [_stem(name) for name in read_list(folder / f"{split}.txt")]
        listed, absent = there(wanted, files)
        boxes = _box_reader(folder, split)

        def make(name: str) -> Item:
            path = files[name]
            return Item(
                name,
                path,
                mask_path=masks.get(name, folder / "masks" / f"{name}.png") if labels else None,
                labels=labels,
                read_boxes=partial(boxes, path) if boxes else None,
            )

        lacking = frozenset(listed) - masks.keys() if labels else frozenset()
        return Listing(listed, make, absent, lacking)

    def _files(self, images: Path, split: str) -> dict[str, Path]:
        """By name: the path below images/ without its ending, so that masks have the same."""
        files = _stems(images)
        in_folder = {n: p for n, p in files.items() if n.startswith(f"{split}/")}
        return in_folder if (images / split).is_dir() else files


def _stem(name: str) -> str:
    path = PurePosixPath(name)
    return (path.with_suffix("") if path.suffix.lower() in SUFFIXES else path).as_posix()


def _stems(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.name[0] != ".":
            name = path.relative_to(folder).with_suffix("").as_posix()
            if name in found:
                raise DataError(f"two files have one name: {found[name]} and {path.name}")
            found[name] = path
    return found


def read_classes(path: Path) -> Labels:
    try:
        lines = [line.rstrip() for line in path.read_text().splitlines() if line.strip()]
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: with masks there must be a list of classes, one a line"
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None
    values: dict[int, str] = {}
    for number, line in enumerate(lines):
        value, _, name = line.partition("\t") if "\t" in line else (str(number), "", line)
        if not value.strip().isdecimal() or int(value) > 255 or int(value) in values:
            raise DataError(f"{path}: line {number + 1}, {line!r}: give value<TAB>name, 0 to 255")
        values[int(value)] = name.strip()
    named = {value: name for value, name in values.items() if name.lower() != "ignore"}
    if not named:
        raise DataError(f"{path}: no class in it")
    return Labels(
        classes=tuple(named.values()),
        colours=palette(len(named)),
        table={value: number for number, value in enumerate(named)},
        ignored=frozenset({255, *(values.keys() - named.keys())}) - named.keys(),
    )


def _jsons(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.json"), *(folder / "annotations").glob("*.json")])


def _box_reader(folder: Path, split: str) -> Callable[[Path], Boxes] | None:
    table = folder / "boxes.csv"
    if table.exists():
        boxes = read_boxes_csv(table)

        def from_table(path: Path) -> Boxes:
            below = path.relative_to(folder / "images").as_posix()
            return boxes.get(below) or boxes.get(path.name) or _no_boxes()

        return from_table
    jsons = _jsons(folder)
    chosen = [p for p in jsons if p.stem.endswith(split)] if len(jsons) > 1 else jsons
    if len(jsons) > 1 and len(chosen) != 1:
        raise UsageError(
            f"{folder}: which of {', '.join(p.name for p in jsons)} belongs to {split}? "
            f"Name it …{split}.json"
        )
    if not chosen:
        return None
    index = LazyIndex(chosen[0])
    return lambda path: index.boxes(path.name)


def read_boxes_csv(path: Path) -> dict[str, Boxes]:
    rows: dict[str, list[tuple[list[float], str]]] = {}
    for line, row in _csv_rows(path):
        try:
            corners = [float(row[c]) for c in CORNERS]
            if not (corners[0] < corners[2] and corners[1] < corners[3]):
                raise ValueError("the box is empty")
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: line {line}: no usable box ({error})") from None
        rows.setdefault(row["image"], []).append((corners, row.get("class") or "object"))
    return {
        image: Boxes(
            np.array([corners for corners, _ in boxes]),
            tuple(name for _, name in boxes),
            np.zeros(len(boxes), bool),
        )
        for image, boxes in rows.items()
    }


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = csv.DictReader(file)
            missing = {"image", *CORNERS} - set(rows.fieldnames or ())
            if missing:
                raise DataError(f"{path}: its first line lacks {', '.join(sorted(missing))}")
            for row in rows:
                yield rows.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not a readable table ({error})") from None


def _no_boxes() -> Boxes:
    return Boxes(np.zeros((0, 4)), (), np.zeros(0, bool))


SOURCE = Folder()
