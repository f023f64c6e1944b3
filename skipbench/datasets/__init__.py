"""Data sets: find one on disk, open a split or a part of it, check that what is used is complete.

This folder is the registry: each file is one data set, its name is the name on the command line,
and it has a `SOURCE`. What they share is in `common/`; importing the package imports no data set.

    from skipbench.datasets import open_dataset

    val = open_dataset("voc", "val", root="~/datasets")
    val[0].read(), val[0].mask(), val[0].boxes().xyxy
"""

import logging
import os
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from skipbench.datasets.common.classes import class_folders, has_images
from skipbench.datasets.common.types import Boxes as Boxes
from skipbench.datasets.common.types import Dataset, Item, Items, Kind, Listing, Source
from skipbench.datasets.common.types import Labels as Labels
from skipbench.engine.parallel import in_parallel
from skipbench.errors import DataError, UsageError, count_of, did_you_mean, some_of
from skipbench.files import is_folder, user_path
from skipbench.images import ImageItem, broken_link, read_mask

log = logging.getLogger("skipbench")

AnItem = TypeVar("AnItem", bound=ImageItem)


def names() -> tuple[str, ...]:
    files = Path(__file__).parent.glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_")))


def names_with(labels: Kind) -> list[str]:
    """The data sets that have such labels, and `folder:PATH`."""
    named = [name for name in names() if name != "folder"]
    having = [n for n in named if any(s.labels == labels for s in source(n).splits.values())]
    return [*having, "folder:PATH"]


def source(name: str) -> Source:
    """The data set of this name; `folder:PATH` is a folder."""
    stem = name.partition(":")[0]
    if name in ("folder", "folder:"):
        raise UsageError("give the folder, as folder:PATH")
    if stem not in names() or (":" in name and stem != "folder"):
        word = name.lower()
        meant = next((n for n in names() if word in _source(n).also.split()), word)
        near = did_you_mean(meant, names())
        if is_folder(name):
            near = f" For your own images: folder:{name}."
        raise UsageError(f"no data set {name!r}.{near} Known: {', '.join(names())}")
    return _source(stem)


def _source(name: str) -> Source:
    found: Source = import_module(f"skipbench.datasets.{name}").SOURCE
    return found


def short_name(name: str) -> str:
    """For tables: "VOC2012". The name itself if there is no such data set here."""
    if name == "folder" or name not in names():
        return name
    return _source(name).short or _source(name).title


@dataclass(frozen=True)
class Location:
    folder: Path | None  # None: not found
    roots: tuple[Path, ...]  # that were searched


def data_roots(given: str | Path | None = None) -> tuple[Path, ...]:
    """`--data-root`, else SKIPBENCH_DATA (several, separated as in PATH), else the defaults."""
    if given is not None:
        return (user_path(given),)
    if listed := os.environ.get("SKIPBENCH_DATA"):
        return tuple(user_path(part) for part in listed.split(os.pathsep) if part)
    return Path("data"), Path.home() / "datasets"


def locate(name: str, root: str | Path | None = None) -> Location:
    """Its folder: below a data root under one of its common names, or the data root itself."""
    kind = source(name)
    if not kind.on_disk:
        return Location(Path(), ())
    if name.startswith("folder:"):
        roots: tuple[Path, ...] = (user_path(name.removeprefix("folder:")),)
    else:
        roots = data_roots(root)
    for folder in [r / place for r in roots for place in (*kind.places, ".")]:
        with suppress(OSError):  # no permission, or not a valid file name
            if folder.is_dir() and kind.is_at(folder):
                return Location(folder, roots)
    return Location(None, roots)


def find_folder(name: str, root: str | Path | None = None) -> Path:
    """Its folder; if not found, an error that shows the expected layout."""
    kind, found = source(name), locate(name, root)
    if found.folder is not None:
        return found.folder
    if name.startswith("folder:"):
        folder = found.roots[0]
        there = is_folder(folder)
        what = f"has no images/ folder.{_links(folder)}" if there else "is not a folder."
        what += _unsplit(folder) if there else ""
        raise DataError(f"{folder} {what} Expected layout:\n{kind.tree}")
    near = [r / p for r in found.roots for p in kind.places if is_folder(r / p)]
    almost = f"\n{near[0]} exists, but has another layout.{_links(near[0])}" if near else ""
    how = how_to_download(name, root)
    fetch = f", or download it: {how}" if how else ""
    below = f"/{{{', '.join(kind.places)}}} and itself"
    searched = (f"  {r}{below if is_folder(r) else ' (no such folder)'}\n" for r in found.roots)
    raise DataError(
        f"{kind.title} ({name}) was not found. Looked in\n"
        + "".join(searched).rstrip("\n")
        + f"{almost}\nExpected layout:\n{kind.tree}\n"
        f"Set its location with --data-root DIR or SKIPBENCH_DATA{fetch}."
    )


def _links(folder: Path) -> str:
    """ " images is a broken link to /mnt/x.", for each broken one in a folder."""
    with suppress(OSError):
        paths = sorted(folder.iterdir())
        return "".join(f" {path.name} is {link}." for path in paths if (link := broken_link(path)))
    return ""


def _unsplit(folder: Path) -> str:
    """What is missing where folders of classes are not divided into splits."""
    names = [name for name in class_folders(folder) if has_images(folder / name)]
    if not names:
        return ""
    return (
        f"\nIf {some_of(names, 3)} {'are classes' if len(names) > 1 else 'is a class'}: divide the "
        "images between train/ and val/, each with a folder for each class."
    )


def download_command(name: str, root: str | Path | None, *splits: str) -> str:
    """As one types it. root: `--data-root`, if given."""
    parts = [part for split in splits for part in ("--split", split)]
    where = ["--data-root", str(root)] if root else []
    return shlex.join(["skipbench", "data", "download", name, *parts, *where])


def how_to_download(name: str, root: str | Path | None, *splits: str) -> str:
    """The command, or what to download by hand."""
    kind = source(name)
    return download_command(name, root, *splits) if kind.archives else kind.manual_download


def find_split(name: str, splits: Iterable[str], asked: str | None) -> str:
    known = list(splits)
    if asked is None:
        return "val" if "val" in known else known[0]
    if asked not in known:
        near = did_you_mean({"validation": "val", "training": "train"}.get(asked, asked), known)
        raise UsageError(f"{name} has no split {asked!r}.{near} Known: {', '.join(known)}")
    return asked


def open_dataset(
    name: str,
    split: str | None = None,
    *,
    root: str | Path | None = None,
    limit: int | None = None,
    train_images: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    classes: int | None = None,
    skip_bad: int = 0,
) -> Dataset:
    """One split of a data set (default: val, or the only one).

    limit         use at most the first N images; missing ones are no error then
    sample        use at most N images drawn at random; missing ones are no error then
    train_images  a random subset of N images that is the whole split for a protocol
    seed          of random subsets, which are the same on every machine; of two, the smaller is
                  part of the larger
    classes       which set of classes, where there are several (COCO-Stuff: 171 or 27)
    skip_bad      leave out up to N images or masks that cannot be decoded (all are tried)
    """
    kind = source(name)
    kind.check_classes(classes)
    given = {"--limit": limit, "--sample": sample, "--train-images": train_images}
    for option, number in given.items():
        if number is not None and number < 1:
            raise UsageError(f"{option} {number}: expected an integer of at least 1")
    if limit is not None and sample is not None:
        raise UsageError(f"--sample {sample}: not together with --limit {limit}")
    folder = find_folder(name, root)
    splits = kind.splits_at(folder)
    split = find_split(name, splits, split)
    labels = kind.labels(folder, classes)
    listing = kind.listing(folder, split, labels)
    official = splits[split].images
    dataset = Dataset(
        name=f"folder:{folder.resolve().name}" if name.startswith("folder:") else name,
        split=split,
        folder=folder if kind.on_disk else None,
        items=Items(listing.names, listing.make),
        labels=labels if splits[split].labels == "masks" else None,
        kind=splits[split].labels,
        image_classes=kind.image_classes(folder) if splits[split].labels == "classes" else (),
        official=official,
        partial=bool(listing.absent) or official not in (None, len(listing)),
    )
    download = how_to_download(name, root, split)
    _check_count(dataset, listing, download, whole=limit is sample is None)
    for most in (train_images, sample):
        if most is not None and most >= len(dataset):
            log.info("%s %s has %d images; using all of them", name, split, len(dataset))
    if train_images is not None:
        dataset = dataset.sampled(train_images, seed)
    part = _part(dataset, limit, sample, seed)
    if train_images is not None and part.chosen:
        flag, counts = "--limit" if limit else "--sample", (len(part), len(dataset))
        log.info("%s applies to training images, too: %d of %d are used", flag, *counts)
    _check_labels(part, listing, download)
    return without_bad(part, skip_bad) if skip_bad else part


def _part(dataset: Dataset, limit: int | None, sample: int | None, seed: int) -> Dataset:
    if limit is not None and limit < len(dataset):
        return dataset.only(dataset.names[:limit], partial=True, chosen="first")
    if sample is not None:
        return dataset.sampled(sample, seed, partial=True, chosen="random")
    return dataset


def _check_count(dataset: Dataset, listing: Listing, download: str, *, whole: bool) -> None:
    """download: how; whole: neither `--limit` nor `--sample` was given."""
    what, found = f"{dataset.name} {dataset.split}", len(dataset)
    if found == 0:
        raise DataError(f"{what}: {listing.why_empty} ({dataset.folder})")
    wanted = dataset.official or found + len(listing.absent)
    if whole and found < wanted:
        first = f" Missing: {some_of(listing.absent, 3)}." if listing.absent else ""
        remedy = f"Download the rest ({download})" if download else "Download the rest"
        if listing.listed and not download:
            remedy = f"Take the missing names out of {dataset.folder}/{dataset.split}.txt"
        raise DataError(
            f"{what}: only {found:,} of {wanted:,} images were found ({dataset.folder}).{first}\n"
            f"{remedy}, or use what was found: --limit {wanted} omits none of it. The result is "
            "then marked as partial."
        )
    if found != wanted:
        log.warning(f"{what}: {found:,} of {wanted:,} images; marked as partial")


def _check_labels(dataset: Dataset, listing: Listing, download: str) -> None:
    """Every image that is used has its mask (or XML): checked now, not after an hour."""
    lacking = [n for n in dataset.names if n in listing.without_label]
    if lacking:
        item = listing.make(lacking[0])
        what = "mask" if dataset.kind == "masks" else "annotation"
        where = f" ({item.mask_path})" if item.mask_path else ""
        count = count_of(len(lacking), "image has", "images have")
        raise DataError(
            f"{dataset.name} {dataset.split}: {count} no {what}; the first: {item.path}{where}"
            + (f"\nDownload what is missing: {download}" if download else "")
        )


def without_bad(dataset: Dataset, most: int) -> Dataset:
    """Without the images that cannot be decoded, or whose mask cannot; at most `most` of them."""
    kept = [item.name for item in decodable(dataset, most, f"{dataset.name} {dataset.split}")]
    bad = tuple(sorted(set(dataset.names) - set(kept)))
    return dataset.only(kept, bad=bad, partial=dataset.partial or bool(bad))


def decodable(items: Sequence[AnItem], most: int, what: str) -> list[AnItem]:
    """The items that can be decoded. The others are logged; more than `most` are an error.

    An item whose mask is missing, of another size or has unknown labels is never left out: that is
    a fault of the data set as a whole, not of one file.
    """
    checked = list(zip(items, in_parallel(_problem, items, "decoding images"), strict=True))
    problems = [problem for _, problem in checked if problem]
    if len(problems) > most:
        raise DataError(
            f"{what}: {len(problems)} images cannot be decoded, --skip-bad allows {most}.\n"
            f"The first: {problems[0]}"
        )
    if items and len(problems) == len(items):
        raise DataError(f"{what}: no readable images remain. The first: {problems[0]}")
    for problem in problems:
        log.warning("left out: %s", problem)
    return [item for item, problem in checked if not problem]


def _problem(item: ImageItem) -> str | None:
    mask = item.mask_path if isinstance(item, Item) else None
    try:
        item.read()
        if mask is not None and mask.exists():
            read_mask(mask)
    except DataError as error:
        return str(error).splitlines()[0]
    return None


def without_empty(dataset: Dataset, hard: bool = True) -> Dataset:
    """Without the images that have no box. hard: difficult and truncated boxes count too."""
    kept: list[str] = []
    empty: list[str] = []
    for item in dataset:
        boxes = item.read_boxes() if item.read_boxes else item.boxes()
        some = len(boxes.xyxy if hard else boxes.without_hard().xyxy)
        (kept if some else empty).append(item.name)
    if empty:
        log.info("%d images without a box are left out", len(empty))
    return dataset.only(kept, empty=tuple(empty))
