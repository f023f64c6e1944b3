"""The weights files that a suite names: found, checked against their hashes, and opened."""

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING

from skipbench.errors import CheckpointError
from skipbench.files import missing_checkpoint, user_path
from skipbench.suites.problems import Problems

if TYPE_CHECKING:
    from skipbench.pipeline import Inspection, Reading
    from skipbench.suites.read import CheckpointEntry

log = logging.getLogger("skipbench")


def checkpoint_files(text: str, base: Path) -> tuple[list[str], bool]:
    """(absolute paths, whether it is a pattern); in the order of the numbers in their names."""
    if text.startswith("timm:"):
        return [text], False
    path = base / user_path(text)
    if path.exists():  # also where its name has a bracket in it
        return [str(path)], False
    if not re.search(r"[*?\[]", text):
        raise CheckpointError(missing_checkpoint(path))
    pattern = str(user_path(text))
    if not Path(pattern).is_absolute():
        pattern = str(Path(escape(str(base))) / pattern)  # the folder's own brackets are no pattern
    found = sorted(glob(pattern, recursive=True), key=_by_number)  # noqa: PTH207 - any pattern
    if not found:
        raise CheckpointError(f"no file matches {path}")
    return found, True


def _by_number(path: str) -> list[tuple[int, str]]:
    """checkpoint9 before checkpoint10."""
    parts = re.split(r"(\d+)", path)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def names_of(files: list[str], group: str | None, is_pattern: bool) -> list[str]:
    """Of one file: as it is called. Of a pattern: its group and what tells the files apart."""
    if not is_pattern:
        return [group or (files[0] if files[0].startswith("timm:") else Path(files[0]).name)]
    own = [Path(file).stem for file in files]
    if len(set(own)) < len(own):
        folder = os.path.commonpath(files)
        own = [str(Path(file).relative_to(folder).with_suffix("")) for file in files]
    return [f"{group}-{name}" if group else name for name in own]


def epochs_in(files: list[str]) -> list[int | None]:
    """The number in each name: checkpoint0200.pth → 200. A number that several files share (the
    16 of vit_s16) is no epoch."""
    found = [_number(Path(file).stem) for file in files]
    numbers = [number for number in found if number is not None]
    return found if len(set(numbers)) == len(numbers) else [None] * len(files)


def _number(stem: str) -> int | None:
    told = re.search(r"(?<![A-Za-z])ep(?:och)?s?[^0-9A-Za-z]?(\d+)", stem, re.IGNORECASE)
    last = re.search(r"(\d+)\D*$", stem)
    found = told or last
    return int(found[1]) if found and len(found[1]) < 10 else None


# -- their contents


@dataclass(frozen=True)
class Opened:
    """A checkpoint, read once for all of its cells."""

    reading: "Reading"
    inspection: "Inspection"


def check_hashes(suite: Path, entries: "Iterable[CheckpointEntry]") -> None:
    """Before anything runs, so that a wrong file is not found hours later."""
    from skipbench.checkpoints.files import sha256_of

    problems = Problems(suite)
    for entry in dict.fromkeys(entries):
        if entry.sha256 and Path(entry.path).is_file():
            try:
                _compare_hash(entry, sha256_of(Path(entry.path)))
            except CheckpointError as error:
                problems.add(f"{entry.table}.sha256", error)
    problems.raise_if_any()


def _compare_hash(entry: "CheckpointEntry", sha256: str) -> None:
    if entry.sha256 and not sha256.startswith(entry.sha256):
        raise CheckpointError(
            f"{entry.path}: not the expected file\nsha256 {sha256}\nexpected {entry.sha256}"
        )


def open_entry(entry: "CheckpointEntry", device: str) -> Opened:
    """The checkpoint, with what the suite says of it."""
    from skipbench.checkpoints import Expected
    from skipbench.pipeline import inspect, labelled

    whole = entry.sha256 if entry.sha256 and len(entry.sha256) == 64 else None
    reading: Reading = {
        "residual": entry.residual,
        "weights": entry.weights,
        "expected": Expected(depth=entry.depth, heads=entry.heads, sha256=whole),
        "position_rule": entry.position_rule,
        "device": device,
        "labels": entry.labels,
    }
    inspection = inspect(entry.path, **reading)
    model = inspection.model
    _compare_hash(entry, model.facts.sha256)
    told, named = model.facts.epoch, entry.name_epoch
    if told is not None and named is not None and abs(told - named) > 1:  # DINO counts from both
        log.warning("%s says epoch %s, its name %s: using the file's", entry.name, told, named)
    if model.facts.epoch is None and entry.name_epoch is not None:
        labels = {"epoch": entry.name_epoch}
        inspection = replace(inspection, model=labelled(model, labels))
    return Opened(reading, inspection)
