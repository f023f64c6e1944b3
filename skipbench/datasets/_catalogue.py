"""Which data sets there are: the files of this folder."""

from importlib import import_module
from pathlib import Path

from skipbench.datasets._types import Source
from skipbench.errors import UsageError, did_you_mean

# What people also say; for suggestions only.
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
    files = Path(__file__).parent.glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_")))


def source(name: str) -> Source:
    """By name; `folder:PATH` is a folder."""
    stem = name.partition(":")[0]
    if name in ("folder", "folder:"):
        raise UsageError("which folder? Give folder:PATH")
    if stem not in names() or (":" in name and stem != "folder"):
        near = did_you_mean(ALSO.get(name.lower(), name.lower()), names())
        raise UsageError(f"no data set {name!r}.{near} Known: {', '.join(names())}")
    found: Source = import_module(f"skipbench.datasets.{stem}").SOURCE
    return found
