"""Check a data set on disk: counts, pairs, sizes, labels, and whether files decode."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.datasets import find_folder, find_split, source
from skipbench.datasets.common.types import (
    Item,
    Items,
    Kind,
    Labels,
    Listing,
    Split,
    UnknownLabelError,
)
from skipbench.engine.parallel import cores, in_parallel
from skipbench.engine.progress import progress
from skipbench.errors import DataError, ResourceError, UsageError, count_of, some_of
from skipbench.images import IGNORED

SAMPLE = 64  # images of a split that are decoded, without `full`
PROCESSES_FROM = 500  # images; starting processes takes longer than checking fewer of them
OUTSIDE = 1.0  # pixels by which a box may stick out: COCO's do, by rounding


@dataclass(frozen=True)
class SplitReport:
    split: str
    images: int  # found
    official: int | None
    looked_into: int  # decoded
    damaged: tuple[str, ...]  # what is wrong, file by file
    missing: tuple[str, ...]  # images of the split or of its list
    causes: tuple[str, ...]  # the same, each cause once, with how to fix it
    notes: tuple[str, ...] = ()  # unusual, but no fault

    @property
    def problems(self) -> tuple[str, ...]:
        return self.damaged + self.missing


@dataclass(frozen=True)
class Report:
    dataset: str
    folder: str
    full: bool
    splits: tuple[SplitReport, ...]
    absent: dict[str, str]  # splits without any image, and why

    @property
    def sound(self) -> bool:
        return bool(self.splits) and not any(split.problems for split in self.splits)

    def to_json(self) -> dict[str, Any]:
        return {"sound": self.sound, **asdict(self)}


def verify(
    name: str,
    split: str | None = None,
    *,
    root: str | Path | None = None,
    classes: int | None = None,
    full: bool = False,
    processes_from: int = PROCESSES_FROM,
) -> Report:
    """Check every split that was found, or the one named.

    full: decode every file, not a sample; processes_from: number of images from which the work is
    shared between processes instead of threads.
    """
    kind = source(name)
    kind.check_classes(classes)
    folder = find_folder(name, root)
    known = kind.splits_at(folder)
    labels = kind.labels(folder, classes)
    reports, absent = [], {}
    for part in [find_split(name, known, split)] if split else known:
        try:
            listing = kind.listing(folder, part, labels)
        except (DataError, UsageError) as error:
            problem = (str(error),)
            reports.append(SplitReport(part, 0, known[part].images, 0, problem, (), problem))
            continue
        begun = listing.names or listing.absent or listing.listed
        optional = not begun or known[part].extra
        if listing.missing and optional and not split:
            absent[part] = listing.missing
            continue
        chosen, of, label = _chosen(listing, full), known[part].labels, f"checking {part}"
        if len(chosen) < processes_from:
            checks = list(in_parallel(partial(check_image, kind=of), chosen, label))
        else:
            check_image(chosen[0], of)  # builds an index of boxes once, not in each process
            where = [name, str(folder), part, classes, full]
            checks = list(_by_processes(where, len(chosen), label))
        reports.append(_report(part, known[part], listing, labels, checks))
    place = str(folder) if kind.on_disk else "drawn by the package"
    return Report(name, place, full, tuple(reports), absent)


def _chosen(listing: Listing, full: bool) -> Items:
    """Images to decode, evenly spaced; those without a label are reported anyway."""
    labelled = [n for n in listing.names if n not in listing.without_label]
    count = len(labelled) if full else min(SAMPLE, len(labelled))
    return Items([labelled[i * len(labelled) // count] for i in range(count)], listing.make)


def _report(
    name: str,
    split: Split,
    listing: Listing,
    labels: Labels | None,
    checks: "Sequence[ImageCheck]",
) -> SplitReport:
    found, official = len(listing), split.images
    unlabelled = [_without_label(listing.make(n)) for n in sorted(listing.without_label)]
    if unlabelled and len(unlabelled) == found:
        unlabelled = [f"none of its images has a label; {unlabelled[0]}"]
    damaged = {check.problem: check.cause for check in checks if check.problem}
    damaged |= dict.fromkeys(unlabelled, "label")
    missing = {} if found else {listing.why_empty: "empty"}
    if official is not None and found != official:
        cause = "" if found + len(listing.absent) == official else "count"
        missing[f"{found:,} images; the official split has {official:,}"] = cause
    missing |= {f"image is missing: {name}": "image" for name in listing.absent}
    causes = (*_unknown_labels(checks, labels), *_once_each(damaged | missing))
    notes = tuple(_notes(split.labels, checks, labels, found))
    return SplitReport(
        name, found, official, len(checks), tuple(damaged), tuple(missing), causes, notes
    )


def _unknown_labels(checks: "Sequence[ImageCheck]", labels: Labels | None) -> Iterator[str]:
    for value in sorted(set[int]().union(*(check.unknown for check in checks))):
        masks = [check.problem for check in checks if value in check.unknown]
        first = str(masks[0]).partition(": ")[0]
        count = count_of(len(labels.classes) if labels else 0, "class", "classes")
        advice = labels.advice(value) if labels else ""
        yield (
            f"label {value} in {count_of(len(masks), 'mask')} (first: {first}) is not one of the "
            f"{count}" + (f"; to {advice}" if advice else "")
        )


def _once_each(causes: Mapping[str, str]) -> Iterator[str]:
    """causes: of each message; empty if another one says it."""
    by_cause: dict[str, list[str]] = {}
    for message, cause in causes.items():
        if cause:
            by_cause.setdefault(cause, []).append(message)
    for first, *others in by_cause.values():
        yield first + (f" (the same in {len(others):,} more)" if others else "")


def _without_label(item: Item) -> str:
    wanted = f": {item.mask_path}" if item.mask_path else ""
    return f"{item.path}: its {'mask' if wanted else 'XML'} is missing{wanted}"


@dataclass(frozen=True)
class ImageCheck:
    """What was found in one image and its labels."""

    problem: str | None = None
    cause: str = ""  # the problem without file and numbers
    unknown: list[int] = field(default_factory=list)  # values in its mask that are no classes
    present: list[int] = field(default_factory=list)  # classes in its mask
    boxes: int = 0
    crowds: int = 0


def check_image(item: Item, kind: Kind) -> ImageCheck:
    """Decode it. With masks: of the image's size, with known labels; with boxes: inside it."""
    try:
        return _found_in(item, kind)
    except UnknownLabelError as error:
        return ImageCheck(str(error).splitlines()[0], unknown=list(error.values))
    except DataError as error:
        problem = str(error).splitlines()[0]  # without advice for another command
    except Exception as error:  # one odd file must not end a check of thousands
        problem = f"{item.path}: {type(error).__name__}: {error}"
    cause = problem.replace(str(item.mask_path), "").replace(str(item.path), "")
    return ImageCheck(problem, re.sub(r"\d|\S*/\S*", "", cause.replace(item.path.name, "")))


def _found_in(item: Item, kind: Kind) -> ImageCheck:
    height, width = item.read().shape[:2]
    if kind == "masks":
        counts = np.bincount(item.mask().ravel(), minlength=IGNORED + 1)
        return ImageCheck(present=np.flatnonzero(counts[:IGNORED]).tolist())
    if kind == "classes" or (kind == "images" and item.read_boxes is None):
        return ImageCheck()
    boxes = item.boxes()
    if boxes.drawn_on_hw not in (None, (height, width)):
        drawn = "×".join(map(str, boxes.drawn_on_hw or ()))
        raise DataError(f"{item.path}: {height}×{width} pixels, its boxes are for {drawn}")
    beyond = (boxes.xyxy < -OUTSIDE) | (boxes.xyxy > np.array([width, height] * 2) + OUTSIDE)
    if beyond.any():
        worst = boxes.xyxy[beyond.any(1)][0].tolist()
        raise DataError(f"{item.path}: a box {worst} outside its {width}×{height} pixels")
    return ImageCheck(boxes=len(boxes.xyxy), crowds=boxes.crowds)


def _by_processes(where: Sequence[Any], images: int, label: str) -> Iterator[ImageCheck]:
    """Each process takes every n-th image and answers with one line for each. (Threads decode in
    parallel, but the GIL serialises everything else.)

    where: the arguments of `_serve` but the last two.
    """
    count = cores()
    workers = [_start([*where, first, count]) for first in range(count)]
    try:
        with progress(label, images) as advance:
            for i in range(images):
                answer = workers[i % count].stdout.readline()  # type: ignore[union-attr]
                if not answer:
                    raise ResourceError("a process that checks images died; see above")
                yield ImageCheck(**json.loads(answer))
                advance(1)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _start(arguments: Sequence[Any]) -> "subprocess.Popen[str]":
    """A new Python process in a session of its own, so that Ctrl-C reaches only the parent."""
    return subprocess.Popen(
        [sys.executable, "-m", "skipbench.datasets.common.verify", json.dumps(arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def _serve(
    name: str, place: str, split: str, classes: int | None, full: bool, first: int, count: int
) -> None:
    """In the new process: a line for each of its images."""
    kind, folder = source(name), Path(place)
    listing = kind.listing(folder, split, kind.labels(folder, classes))
    of = kind.splits_at(folder)[split].labels
    try:
        for image in _chosen(listing, full)[first::count]:
            print(json.dumps(asdict(check_image(image, of))), flush=True)
    except BrokenPipeError:  # the reader is gone
        os._exit(0)


def _notes(
    kind: Kind, checks: Sequence[ImageCheck], labels: Labels | None, images: int
) -> Iterator[str]:
    checks = [check for check in checks if not check.problem]
    if kind == "masks" and labels and checks:
        if ignored := sum(not check.present for check in checks):
            yield f"masks with no labelled pixel, which are not scored: {ignored:,}"
        present = set[int]().union(*(check.present for check in checks))
        never = [name for i, name in enumerate(labels.classes) if i not in present]
        if never and len(checks) == images:
            yield f"no pixel of {some_of(never)}: left out of means"
    if kind == "boxes":
        if crowds := sum(check.crowds for check in checks):
            yield f"boxes around crowds, which are left out: {crowds:,}"
        if empty := sum(check.boxes == 0 for check in checks):
            yield f"images without a box, which object discovery leaves out: {empty:,}"


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))
