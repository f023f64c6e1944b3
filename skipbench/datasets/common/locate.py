"""Which data sets there are, and where one is on disk.

Every file in `skipbench/datasets/` is a data set; this folder holds what they share.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from skipbench.datasets.common.types import Kind, Source
from skipbench.errors import DataError, UsageError, did_you_mean
from skipbench.files import is_folder, user_path

# Other common names, for suggestions only.
ALSO = {
    "voc12": "voc",
    "voc2012": "voc",
    "pascal": "voc",
    "voc2007": "voc07",
    "ade": "ade20k",
    "ade150": "ade20k",
    "coco-stuff": "cocostuff",
    "coco_stuff": "cocostuff",
    "stuff": "cocostuff",
    "coco2017": "coco",
    "duts-te": "duts",
    "dut-omron": "dutomron",
    "dut": "dutomron",
    "omron": "dutomron",
}


def names() -> tuple[str, ...]:
    files = Path(__file__).parents[1].glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_")))


def names_with(labels: Kind) -> list[str]:
    """The data sets that have such labels, and a folder of one's own."""
    named = [name for name in names() if name != "folder"]
    splits = {name: source(name).splits.values() for name in named}
    return [*(n for n in named if any(s.labels == labels for s in splits[n])), "folder:PATH"]


def source(name: str) -> Source:
    """The data set of this name; `folder:PATH` is a folder."""
    stem = name.partition(":")[0]
    if name in ("folder", "folder:"):
        raise UsageError("give the folder, as folder:PATH")
    if stem not in names() or (":" in name and stem != "folder"):
        near = did_you_mean(ALSO.get(name.lower(), name.lower()), names())
        raise UsageError(f"no data set {name!r}.{near} Known: {', '.join(names())}")
    found: Source = import_module(f"skipbench.datasets.{stem}").SOURCE
    return found


@dataclass(frozen=True)
class Location:
    folder: Path | None  # None: not found
    roots: tuple[Path, ...]
    places: tuple[str, ...]  # below each of them

    def looked_in(self) -> list[str]:
        """One line for each root."""
        below = f"/{{{', '.join(self.places)}}} and itself" if self.places else ""
        return [
            f"{root}{below}" if is_folder(root) else f"{root} (no such folder)"
            for root in self.roots
        ]


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
        return Location(Path(), (), ())
    if name.startswith("folder:"):
        roots: tuple[Path, ...] = (user_path(name.removeprefix("folder:")),)
    else:
        roots = data_roots(root)
    for folder in [r / place for r in roots for place in (*kind.places, ".")]:
        with suppress(OSError):  # no permission, or not a valid file name
            if folder.is_dir() and kind.is_at(folder):
                return Location(folder, roots, kind.places)
    return Location(None, roots, kind.places)


def find_folder(name: str, root: str | Path | None = None) -> Path:
    """Its folder; if not found, an error that shows the expected layout."""
    kind, found = source(name), locate(name, root)
    if found.folder is not None:
        return found.folder
    if name.startswith("folder:"):
        what = "has no images/ folder" if is_folder(found.roots[0]) else "is not a folder"
        raise DataError(f"{found.roots[0]} {what}. Expected layout:\n{kind.tree}")
    near = [r / p for r in found.roots for p in kind.places if is_folder(r / p)]
    almost = f"\n{near[0]} exists, but has another layout." if near else ""
    fetch = f", or download it: skipbench data download {name}" if kind.archives else ""
    raise DataError(
        f"{kind.title} ({name}) was not found. Looked in\n"
        + "\n".join(f"  {place}" for place in found.looked_in())
        + f"{almost}\nExpected layout:\n{kind.tree}\n"
        f"Set its location with --data-root DIR or SKIPBENCH_DATA{fetch}."
    )


def find_split(name: str, splits: Iterable[str], asked: str | None) -> str:
    known = list(splits)
    if asked is None:
        return "val" if "val" in known else known[0]
    if asked not in known:
        near = did_you_mean({"validation": "val", "training": "train"}.get(asked, asked), known)
        raise UsageError(f"{name} has no split {asked!r}.{near} Known: {', '.join(known)}")
    return asked
