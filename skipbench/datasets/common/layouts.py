"""Layouts that several data sets share, lists of files, read fast, and palettes."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from skipbench.datasets.common.types import Colour, Item, Labels, Listing, Source, Split
from skipbench.errors import DataError
from skipbench.images import walk_images

FACTS = Path(__file__).parents[1] / "facts"


def stems(folder: Path, suffix: str) -> set[str]:
    """The names of the files with this suffix, without it. No file is opened."""
    try:
        found = os.listdir(folder)  # noqa: PTH208 - 118,287 names, no Path for each
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from None
    return {name[: -len(suffix)] for name in found if name.endswith(suffix) and name[0] != "."}


def by_stem(folder: Path, deep: bool = True) -> dict[str, str]:
    """The image files of a folder, by their relative paths without the suffix. deep: including
    sub-folders."""
    found: dict[str, str] = {}
    for file in walk_images(folder) if folder.is_dir() else ():
        stem = file.rpartition(".")[0]
        if "/" in file and not deep:
            continue
        if stem in found:
            raise DataError(f"{folder}: two files have the same name, {found[stem]} and {file}")
        found[stem] = file
    return found


def pairs(images: Path, masks: Path, labels: Labels | None) -> Listing:
    """Each JPEG of one folder with the PNG of the same name in another."""
    names = sorted(stems(images, ".jpg"))

    def make(name: str) -> Item:
        return Item(name, images / f"{name}.jpg", masks / f"{name}.png", labels)

    return Listing(names, make, without_label=frozenset(names) - stems(masks, ".png"))


def with_other_masks(
    listing: Listing, masks: Path, ending: str, found: Collection[str], labels: Labels | None
) -> Listing:
    """Images without a mask use a file of another ending, if found; labels: of its values."""
    others = listing.without_label & frozenset(found)

    def make(name: str) -> Item:
        item = listing.make(name)
        if name not in others:
            return item
        return replace(item, mask_path=masks / f"{name}{ending}", labels=labels)

    return replace(listing, make=make, without_label=listing.without_label - others)


def first_folder(root: Path, *candidates: str) -> Path:
    """The first that exists; the first of all if none does."""
    for candidate in candidates:
        if (root / candidate).is_dir():
            return root / candidate
    return root / candidates[0]


def read_text(path: Path) -> str:
    """As UTF-8, whatever the locale."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None


def read_list(path: Path) -> list[str]:
    """The lines that are not empty, without duplicates."""
    lines = read_text(path).splitlines()
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def split_found(names: Sequence[str], found: Collection[str]) -> tuple[list[str], list[str]]:
    """Names that were found and names that were not, in the order given."""
    return [n for n in names if n in found], [n for n in names if n not in found]


def fact_lines(name: str) -> list[str]:
    lines = read_text(FACTS / name).splitlines()
    return [line for line in lines if not line.startswith("#")]


def fact_rows(name: str) -> list[list[str]]:
    return [line.split("\t") for line in fact_lines(name)]


def fact_labels(rows: Iterable[Sequence[str]]) -> Labels:
    """rows: value, name and colour of each class."""
    values, names, colours = zip(*rows, strict=True)
    table = {int(value): number for number, value in enumerate(values)}
    return Labels(names, tuple(map(colour, colours)), table)


def colour(text: str) -> Colour:
    """ "ff8000" → (255, 128, 0)."""
    red, green, blue = bytes.fromhex(text)
    return red, green, blue


def distinct_colours(count: int, besides: Sequence[Colour] = ()) -> tuple[Colour, ...]:
    """Each as far as possible, in CIELAB, from those before it, from `besides`, from white, and
    from the light grey of unlabelled pixels. Without `besides`, the first is black."""
    from skimage.color import rgb2lab

    levels = np.linspace(0, 255, 9).round()
    rgb = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    lab = rgb2lab(rgb / 255)
    taken = rgb2lab(np.array([(255, 255, 255), (224, 224, 224), *besides]) / 255)
    distance = np.linalg.norm(lab[:, None] - taken, axis=-1).min(1)
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(0 if not (chosen or besides) else int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(lab - lab[chosen[-1]], axis=-1))
    return _as_colours(rgb[chosen])


def palette(count: int) -> tuple[Colour, ...]:
    """PASCAL VOC's colours: the bits of a number, three at a time, from the highest bit down."""
    rgb = np.zeros((count, 3), int)
    for bit in range(8):
        for channel in range(3):
            rgb[:, channel] |= (np.arange(count) >> 3 * bit + channel & 1) << 7 - bit
    return _as_colours(rgb)


def _as_colours(rgb: np.ndarray) -> tuple[Colour, ...]:
    return tuple((int(r), int(g), int(b)) for r, g, b in rgb)


# Saliency data sets: images with a mask of the salient object. Masks are grey: values from 128 are
# salient, 255 included, and nothing is ignored. Most files contain only 0 and 255; some are JPEG,
# or have soft edges. The official folders are recognised by their names. Repacked, all these data
# sets look alike (img/ and gt/), so such folders count only inside a folder that has the name of
# the data set.

IMAGES = ("img", "imgs", "Imgs", "image", "images", "Image", "Images")
MASKS = ("gt", "GT", "mask", "masks", "Mask", "Masks", "ground_truth_mask")


class Greys(Labels):
    def decode(self, stored: np.ndarray, path: Path) -> np.ndarray:
        """Files of one bit, and some others, use 0 and 1 for black and white."""
        return super().decode(stored * 255 if stored.max() <= 1 else stored, path)


LABELS = Greys(
    classes=("background", "salient"),
    colours=palette(2),
    table={grey: int(grey >= 128) for grey in range(256)},
    ignored=frozenset(),
)


@dataclass(frozen=True)
class Part(Split):
    """A split, and where its images are."""

    official: tuple[tuple[str, str], ...] = ()  # folders of images and of masks
    named: tuple[str, ...] = ()  # folders that contain it repacked; letters and digits only
    below: tuple[str, ...] = ()  # such folders inside the data set's folder


@dataclass(eq=False)
class Saliency(Source):
    title: str
    licence: str
    places: tuple[str, ...]
    tree: str
    splits: Mapping[str, Part]
    also: str = ""

    def is_at(self, folder: Path) -> bool:
        return any(self._folders(folder, split) for split in self.splits)

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        return LABELS

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        found = self._folders(folder, split)
        if found is None:
            return Listing([], lambda name: Item(name, folder / name))
        images, masks = found
        files, mask_files = (by_stem(f, deep=False) for f in found)

        def make(name: str) -> Item:
            mask = masks / mask_files.get(name, f"{name}.png")
            return Item(name, images / files[name], mask, labels)

        return Listing(sorted(files), make, without_label=frozenset(files) - mask_files.keys())

    def _folders(self, folder: Path, split: str) -> tuple[Path, Path] | None:
        """Of images and of masks, if both exist."""
        found = self._candidates(folder, self.splits[split])
        return next((pair for pair in found if all(f.is_dir() for f in pair)), None)

    def _candidates(self, folder: Path, part: Part) -> Iterator[tuple[Path, Path]]:
        for images, masks in part.official:
            yield folder / images, folder / masks
        for place in (folder, *(folder / name for name in part.below)):
            if _names(place) & set(part.named):
                yield first_folder(place, *IMAGES), first_folder(place, *MASKS)


def _names(folder: Path) -> set[str]:
    """Its name, and that of a link's target: "DUT-OMRON" → "dutomron"."""
    called = {folder.absolute().name, folder.resolve().name}
    return {re.sub(r"[^a-z0-9]", "", name.lower()) for name in called}
