"""Which data sets there are: the files of this folder."""

from importlib import import_module
from pathlib import Path

from skipbench.datasets._types import Source
from skipbench.errors import UsageError, did_you_mean


def names() -> tuple[str, ...]:
    files = Path(__file__).parent.glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_")))


def source(name: str) -> Source:
    """By name; `folder:PATH` is a folder."""
    stem = name.partition(":")[0]
    if name == "folder":
        raise UsageError("which folder? Give folder:PATH")
    if stem not in names() or (":" in name and stem != "folder"):
        near = did_you_mean(name, names())
        raise UsageError(f"no data set {name!r}.{near} Known: {', '.join(names())}")
    found: Source = import_module(f"skipbench.datasets.{stem}").SOURCE
    return found
