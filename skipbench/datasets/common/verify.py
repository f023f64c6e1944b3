"""Is a data set what it should be? Counts, pairs, sizes, labels, and whether files decode."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.datasets import find_folder, find_split, source
from skipbench.datasets.common.types import Item, Kind, Labels, Listing, Split
from skipbench.engine.parallel import cores, in_parallel
from skipbench.engine.progress import progress
from skipbench.errors import DataError, ResourceError, some_of
from skipbench.images import IGNORED

SAMPLE = 64  # images of a split that are looked into, without `full`
FEW = 500  # fewer images are not worth another process
OUTSIDE = 1.0  # pixels by which a box may stick out: COCO's do, by rounding


@dataclass(frozen=True)
class SplitReport:
    split: str
    images: int  # found
    official: int | None
    looked_into: int
    damaged: tuple[str, ...]  # what is wrong, file by file
    missing: tuple[str, ...]  # what is not there, of the split or of its list
    notes: tuple[str, ...]  # what is odd, but no fault

    @property
    def offenders(self) -> tuple[str, ...]:
        return self.damaged + self.missing


@dataclass(frozen=True)
class Report:
    dataset: str
    folder: str
    full: bool
    splits: tuple[SplitReport, ...]
    absent: dict[str, str]  # splits of which nothing is there, and why

    @property
    def sound(self) -> bool:
        return bool(self.splits) and not any(split.offenders for split in self.splits)

    def to_json(self) -> dict[str, Any]:
        return {"sound": self.sound, **asdict(self)}


def verify(
    name: str,
    split: str | None = None,
    *,
    root: str | Path | None = None,
    classes: int | None = None,
    full: bool = False,
) -> Report:
    """Look at every split that is there, or at the one named. `full` decodes every file."""
    kind = source(name)
    kind.check_classes(classes)
    folder = find_folder(name, root)
    known = kind.splits_at(folder)
    labels = kind.labels(folder, classes)
    reports, absent = [], {}
    for part in [find_split(name, known, split)] if split else known:
        try:
            listing = kind.listing(folder, part, labels)
        except DataError as error:
            reports.append(SplitReport(part, 0, known[part].images, 0, (str(error),), (), ()))
            continue
        begun = listing.names or listing.absent or listing.listed
        optional = not begun or known[part].extra
        if listing.missing and optional and not split:
            absent[part] = listing.missing
        else:
            where = Where(name, str(folder), part, classes, known[part].labels)
            reports.append(_look_at(where, known[part], listing, labels, full))
    place = str(folder) if kind.on_disk else "drawn by the package"
    return Report(name, place, full, tuple(reports), absent)


def _look_at(
    where: "Where", split: Split, listing: Listing, labels: Labels | None, full: bool
) -> SplitReport:
    found, official = len(listing), split.images
    labelled = [n for n in listing.names if n not in listing.without_label]
    count = len(labelled) if full else min(SAMPLE, len(labelled))
    chosen = [labelled[i * len(labelled) // count] for i in range(count)]
    looks = _looks(where, listing, chosen)
    damaged = list(dict.fromkeys(look.problem for look in looks if look.problem))
    bare = sorted(listing.without_label)
    if bare and not labelled:
        damaged.append(f"none of its images has a label; {_without_label(listing.make(bare[0]))}")
    else:
        damaged += [_without_label(listing.make(name)) for name in bare]
    missing = [] if found else [listing.why_empty]
    if official is not None and found != official:
        missing.append(f"{found:,} images, where the official split has {official:,}")
    missing += [f"image is missing: {name}" for name in listing.absent]
    fine = [look for look in looks if not look.problem]
    notes: Iterator[str] = iter(())
    if split.labels == "masks" and labels:
        notes = _mask_notes(fine, labels, all_seen=len(fine) == found)
    elif split.labels == "boxes":
        notes = _box_notes(fine)
    return SplitReport(
        where.split, found, official, count, tuple(damaged), tuple(missing), tuple(notes)
    )


def _without_label(item: Item) -> str:
    wanted = f": {item.mask_path}" if item.mask_path else ""
    return f"{item.path}: its {'mask' if wanted else 'XML'} is missing{wanted}"


@dataclass(frozen=True)
class Look:
    """What one image and its labels are like."""

    problem: str | None = None
    present: frozenset[int] = frozenset()  # classes in its mask
    boxes: int = 0
    crowds: int = 0


def look_into(item: Item, kind: Kind) -> Look:
    """Decode it. With masks: of the image's size, with known labels; with boxes: inside it."""
    try:
        height, width = item.read().shape[:2]
        if kind == "masks":
            counts = np.bincount(item.mask().ravel(), minlength=IGNORED + 1)
            return Look(present=frozenset(np.flatnonzero(counts[:IGNORED]).tolist()))
        if kind == "images" and item.read_boxes is None:
            return Look()
        boxes = item.boxes()
        if boxes.drawn_on_hw not in (None, (height, width)):
            drawn = "×".join(map(str, boxes.drawn_on_hw or ()))
            return Look(f"{item.path}: {height}×{width} pixels, but its boxes are for {drawn}")
        beyond = (boxes.xyxy < -OUTSIDE) | (boxes.xyxy > np.array([width, height] * 2) + OUTSIDE)
        if beyond.any():
            worst = boxes.xyxy[beyond.any(1)][0].tolist()
            return Look(f"{item.path}: a box {worst} outside its {width}×{height} pixels")
        return Look(boxes=len(boxes.xyxy), crowds=boxes.crowds)
    except DataError as error:
        return Look(str(error).splitlines()[0])  # without advice for another command
    except Exception as error:  # one strange file does not end a check of thousands
        return Look(f"{item.path}: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Where:
    """What another process needs to find the same images."""

    dataset: str
    folder: str
    split: str
    classes: int | None
    kind: Kind


def _looks(where: Where, listing: Listing, names: Sequence[str]) -> list[Look]:
    """In the order of the names. Many are shared out between processes: threads decode side by
    side, but take turns at all that lies between."""
    label = f"checking {where.split}"
    if len(names) < FEW:
        return list(in_parallel(lambda n: look_into(listing.make(n), where.kind), names, label))
    look_into(listing.make(names[0]), where.kind)  # an index of boxes is made once, not by each
    return list(_by_processes(where, names, label))


def _by_processes(where: Where, names: Sequence[str], label: str) -> Iterator[Look]:
    """Each process takes every n-th name and answers with a line for each."""
    count = cores()
    workers = [_start(where, names[first::count]) for first in range(count)]
    try:
        with progress(label, len(names)) as advance:
            for i in range(len(names)):
                answer = workers[i % count].stdout.readline()  # type: ignore[union-attr]
                if not answer:
                    raise ResourceError("a process that checks images died; see above")
                look = json.loads(answer)
                yield Look(**look | {"present": frozenset(look["present"])})
                advance(1)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _start(where: Where, names: Sequence[str]) -> "subprocess.Popen[str]":
    """A new Python of our own, away from Ctrl-C, which is for this one."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "skipbench.datasets.common.verify"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    assert worker.stdin
    with suppress(BrokenPipeError), worker.stdin as asked:  # it died: said when its answer is due
        json.dump({"where": asdict(where), "names": list(names)}, asked)
    return worker


def _serve() -> None:
    """The other end: reads where and which, writes a line for each."""
    asked = json.loads(sys.stdin.buffer.read())
    where = Where(**asked["where"])
    kind, folder = source(where.dataset), Path(where.folder)
    listing = kind.listing(folder, where.split, kind.labels(folder, where.classes))
    try:
        for name in asked["names"]:
            look = look_into(listing.make(name), where.kind)
            sys.stdout.write(json.dumps(asdict(look) | {"present": sorted(look.present)}) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:  # the one who asked is gone
        os._exit(0)


def _mask_notes(looks: Sequence[Look], labels: Labels, all_seen: bool) -> Iterator[str]:
    if not looks:
        return
    if ignored := sum(not look.present for look in looks):
        yield f"masks that are ignored altogether, and count for nothing: {ignored:,}"
    seen = frozenset[int]().union(*(look.present for look in looks))
    never = [name for i, name in enumerate(labels.classes) if i not in seen]
    if never and all_seen:
        yield f"no pixel of {some_of(never)}: left out of means"


def _box_notes(looks: Sequence[Look]) -> Iterator[str]:
    if crowds := sum(look.crowds for look in looks):
        yield f"boxes around crowds, which are left out: {crowds:,}"
    if empty := sum(look.boxes == 0 for look in looks):
        yield f"images without a box to find, which object discovery leaves out: {empty:,}"


if __name__ == "__main__":
    _serve()
