"""What ⇥ offers for the value of an option: the words of its declaration, data sets, files."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from skipbench.files import WEIGHT_SUFFIXES
from skipbench.settings import Option


def completer(flag: str, option: Option) -> Callable[[str], list[str]] | None:
    """None: the shell completes file names."""
    find = BY_FLAG.get(flag)
    if find is None and not option.words:
        return None

    def complete(incomplete: str) -> list[str]:
        return list(find(incomplete) if find else option.words)  # Typer filters them

    return complete


def _datasets(incomplete: str) -> Iterable[str]:
    from skipbench.datasets import names

    return ["folder:" if name == "folder" else name for name in names()]


def _layouts(incomplete: str) -> Iterable[str]:
    from skipbench.results.tables.layouts import LAYOUTS

    return [*LAYOUTS, "plain"]


def _topics(incomplete: str) -> Iterable[str]:
    from skipbench.manual import topics

    return topics()


def _checkpoints(incomplete: str) -> list[str]:
    """Weights files, and folders beside them. None for folders alone, nor for names that need
    quotes: the shell itself does those better."""
    return _files(incomplete, WEIGHT_SUFFIXES)


def _suites(incomplete: str) -> list[str]:
    return _files(incomplete, (".toml",))


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    folder, begun = os.path.split(incomplete)
    try:
        there = sorted(Path(folder or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
    there = [one for one in there if one.name.startswith(begun)]
    if any(re.search(r"[^\w.,@%+=-]", one.name) for one in there):
        return []
    files = [one.name for one in there if one.suffix in suffixes]
    folders = [f"{one.name}/" for one in there if one.is_dir() and not one.name.startswith(".")]
    return [os.path.join(folder, name) for name in [*files, *folders] if files]  # noqa: PTH118


BY_FLAG: dict[str, Callable[[str], Iterable[str]]] = {
    "--ckpt": _checkpoints, "--ckpt-a": _checkpoints, "--ckpt-b": _checkpoints,
    "--dataset": _datasets, "NAME": _datasets, "--layout": _layouts, "SUITE": _suites,
    "TOPIC": _topics,
}  # fmt: skip
