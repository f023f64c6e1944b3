"""Your own images, as `folder:PATH`: with masks or boxes or both, in one split or several.

    PATH/
      images/[train/]a.jpg …   splits are sub-folders, if every image is in one; or lists of names
      masks/[train/]a.png …    (PATH/train.txt); otherwise there is one split, "all"
      classes.txt              line by line: the class of value 0, 1, 2 …; or value<TAB>name;
                               or value<TAB>name<TAB>colour
      boxes.csv                image,xmin,ymin,xmax,ymax[,class] in half-open pixels,
      *.json                   or a COCO annotation file (also in annotations/)

or with a class for each whole image, if there is no images/:

    PATH/
      train/CLASS/a.jpg …      one folder for each class
      val/CLASS/b.jpg …        the same classes; or test/

In `classes.txt`, value<TAB>name is for values with gaps; the name `ignore` marks values that are
not scored (255 never is); a colour is #rrggbb or r g b. Links to folders are followed. Boxes of an
image with an EXIF orientation refer to the pixels as stored, unless the COCO file gives the size of
the rotated image.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from skipbench.datasets.common.classes import by_class, class_splits, classes_of
from skipbench.datasets.common.coco_annotations import BoxIndex
from skipbench.datasets.common.layouts import (
    by_stem,
    colour,
    distinct_colours,
    read_list,
    read_text,
    split_found,
)
from skipbench.datasets.common.types import (
    Boxes,
    Colour,
    Item,
    Kind,
    Labels,
    Listing,
    Source,
    Split,
)
from skipbench.errors import DataError, UsageError
from skipbench.images import IGNORED, SUFFIXES

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
        "    train.txt, val.txt       names of images, where there are no sub-folders\n"
        "  or, for `classify`:\n"
        "    train/CLASS/             a.jpg …     a folder for each class\n"
        "    val/CLASS/               b.jpg …     (or test/)"
    )
    splits: Mapping[str, Split] = {}

    def is_at(self, folder: Path) -> bool:
        return (folder / "images").is_dir() or bool(class_splits(folder))

    def image_classes(self, folder: Path) -> tuple[str, ...]:
        return () if (folder / "images").is_dir() else classes_of(folder / "train")

    def splits_at(self, folder: Path) -> Mapping[str, Split]:
        if not (folder / "images").is_dir():
            return {name: Split(None, "classes") for name in class_splits(folder)}
        kind: Kind = "images"
        if (folder / "masks").is_dir():
            kind = "masks"
        elif (folder / "boxes.csv").exists() or _jsons(folder):
            kind = "boxes"
        files = by_stem(folder / "images")
        names = _sub_folders(files) or _lists(folder, files) or ["all"]
        return {name: Split(None, kind) for name in names}

    def labels(self, folder: Path, classes: int | None = None) -> Labels | None:
        masked = (folder / "images").is_dir() and (folder / "masks").is_dir()
        return read_classes(folder / "classes.txt") if masked else None

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        if not (folder / "images").is_dir():
            return by_class(folder / split)
        files = by_stem(folder / "images")
        masks = by_stem(folder / "masks") if labels else {}
        wanted = sorted(files)
        if split in _sub_folders(files):
            wanted = [name for name in wanted if name.startswith(f"{split}/")]
        elif split != "all":
            wanted = [_stem(name) for name in read_list(folder / f"{split}.txt")]
        listed, absent = split_found(wanted, files)
        boxes = _box_reader(folder, split, files)

        def make(name: str) -> Item:
            mask = folder / "masks" / masks.get(name, f"{name}.png")
            return Item(
                name,
                folder / "images" / files[name],
                mask_path=mask if labels else None,
                labels=labels,
                read_boxes=partial(boxes, files[name]) if boxes else None,
            )

        lacking = frozenset(listed) - masks.keys() if labels else frozenset()
        by_list = (folder / f"{split}.txt").exists()
        why = f"{folder / split}.txt is empty" if by_list and not wanted else "no images found"
        return Listing(listed, make, absent, lacking, why, by_list)


def _stem(name: str) -> str:
    """ "./train/a.jpg" → "train/a"."""
    path = PurePosixPath(name)
    return (path.with_suffix("") if path.suffix.lower() in SUFFIXES else path).as_posix()


def _sub_folders(files: Mapping[str, str]) -> list[str]:
    """The splits, if every image is in a sub-folder."""
    if not all("/" in name for name in files):
        return []
    return sorted({name.partition("/")[0] for name in files})


def _lists(folder: Path, files: Mapping[str, str]) -> list[str]:
    """The .txt files that list images."""
    texts = [p for p in sorted(folder.glob("*.txt")) if p.name != "classes.txt"]
    lists = {p.stem: read_list(p) for p in texts}
    return [n for n, lines in lists.items() if not lines or any(_stem(x) in files for x in lines)]


def read_classes(path: Path) -> Labels:
    if not path.exists():
        raise DataError(f"{path} is missing: masks need a list of classes, one per line")
    values: dict[int, str] = {}
    lines = read_text(path).replace("<TAB>", "\t").rstrip("\r\n ").splitlines()
    without_tab = [line for line in lines if re.match(r"\s*\d+[ ,:;]", line)]
    ignoring = [line for line in without_tab if re.search(r"\W(?i:ignore)\s*$", line)]
    if ignoring or (lines and len(without_tab) == len(lines)):
        line = (ignoring or lines)[0]
        raise DataError(f"{path}: {line!r}: expected a TAB between a value and its class")
    given: dict[int, Colour] = {}
    for number, line in enumerate(lines):
        columns = line if "\t" in line else f"{number}\t{line}"
        text, name, shade = map(str.strip, (*columns.split("\t", 2), "")[:3])
        value = int(text) if text.isdecimal() else IGNORED + 1
        if not name or value in values or value > IGNORED - (name.lower() != "ignore"):
            raise DataError(
                f"{path}: line {number + 1}, {line!r}: expected a class, or value<TAB>class (and "
                "<TAB>colour) with a value from 0 to 254; 255 is always ignored"
            )
        values[value] = name
        if shade:
            given[value] = _parse_colour(shade, f"{path}: line {number + 1}")
    named = {value: name for value, name in values.items() if name.lower() != "ignore"}
    if not named:
        raise DataError(f"{path}: no classes in it")
    if twice := [name for name, count in Counter(named.values()).items() if count > 1]:
        raise DataError(f"{path}: class {twice[0]!r} is listed twice")
    shades = [given[value] for value in named if value in given]
    others = iter(distinct_colours(len(named) - len(shades), shades))
    return Labels(
        classes=tuple(named.values()),
        colours=tuple(given.get(value) or next(others) for value in named),
        table={value: number for number, value in enumerate(named)},
        ignored=frozenset({IGNORED, *(values.keys() - named.keys())}),
        listed_in=path,
    )


def _parse_colour(text: str, place: str) -> Colour:
    """ "#ff8000", "255 128 0" or "255,128,0"."""
    try:
        if text.startswith("#"):
            return colour(text[1:])
        red, green, blue = bytes(map(int, text.replace(",", " ").split()))
    except ValueError:
        what = "expected a colour such as #ff8000 or 255 128 0"
        raise DataError(f"{place}: {text!r}: {what}") from None
    return red, green, blue


def _jsons(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.json"), *(folder / "annotations").glob("*.json")])


def _box_reader(
    folder: Path, split: str, files: Mapping[str, str]
) -> Callable[[str], Boxes] | None:
    """A function from an image's path below images/ to its boxes."""
    if (folder / "boxes.csv").exists():
        boxes = _matched(folder / "boxes.csv", files)
        return lambda file: boxes.get(file) or _boxes([])
    jsons = _jsons(folder)
    if not jsons:
        return None
    chosen = [p for p in jsons if p.stem.endswith(split)] if len(jsons) > 1 else jsons
    if len(chosen) != 1:
        raise UsageError(
            f"{folder}: which of {', '.join(p.name for p in jsons)} has the boxes of {split}? "
            f"Its name, and no other, must end in {split}.json"
        )
    index, counts = BoxIndex(chosen[0]), Counter(file.rpartition("/")[2] for file in files.values())
    return lambda file: index.boxes(file, by_name=counts[file.rpartition("/")[2]] == 1)


def _matched(table: Path, files: Mapping[str, str]) -> dict[str, Boxes]:
    """By the path below images/. A row gives that path or, where it is unique, the file's name,
    with or without its suffix; a row for an image that does not exist is an error."""
    names = defaultdict[str, list[str]](list)
    for stem, file in files.items():
        for name in {stem, stem.rpartition("/")[2]}:
            names[name].append(file)
    found: dict[str, Boxes] = {}
    for image, boxes in read_boxes_csv(table).items():
        places = names[_stem(image)]
        if len(places) != 1:
            what = f"{len(places)} images have this name" if places else "no such image"
            raise DataError(f"{table}: {image!r}: {what} in images/")
        if places[0] in found:
            raise DataError(f"{table}: {places[0]} is named in several ways, one is {image!r}")
        found[places[0]] = boxes
    return found


def read_boxes_csv(path: Path) -> dict[str, Boxes]:
    found = defaultdict[str, list[tuple[list[float], str]]](list)
    table = csv.DictReader(read_text(path).splitlines())
    try:
        if missing := {"image", *CORNERS} - set(table.fieldnames or ()):
            raise DataError(
                f"{path}: its first line must be image,{','.join(CORNERS)}[,class]; "
                f"missing: {', '.join(sorted(missing))}"
            )
        for row in table:
            corners = [float(row[c]) for c in CORNERS]
            if not (corners[0] < corners[2] and corners[1] < corners[3]):
                raise ValueError("the box is empty")
            found[row["image"]].append((corners, row.get("class") or "object"))
    except (TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: line {table.line_num}: no usable box ({error})") from None
    return {image: _boxes(boxes) for image, boxes in found.items()}


def _boxes(rows: list[tuple[list[float], str]]) -> Boxes:
    """Of corners and classes."""
    corners = np.array([corners for corners, _ in rows], np.float64).reshape(-1, 4)
    return Boxes(corners, tuple(name for _, name in rows), np.zeros(len(rows), bool))


SOURCE = Folder()
