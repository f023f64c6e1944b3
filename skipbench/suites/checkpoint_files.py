"""The weights files that a suite names: one, or all that a pattern finds."""

import os
import re
from glob import escape, glob
from pathlib import Path

from skipbench.errors import CheckpointError
from skipbench.files import missing_checkpoint, user_path


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
        raise CheckpointError(f"no file is like {path}")
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
