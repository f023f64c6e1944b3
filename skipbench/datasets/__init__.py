"""Data sets. This folder is the registry: each file is one data set, its name is the name on the
command line, and it has a `SOURCE`. What they share is in `common/`; importing the package imports
no data set.

    from skipbench.datasets import open_dataset

    val = open_dataset("voc", "val", root="~/datasets")
    val[0].read(), val[0].mask(), val[0].boxes().xyxy
"""

from skipbench.datasets.common.opening import (
    Location,
    data_roots,
    decodable,
    find_folder,
    find_split,
    locate,
    names,
    names_with,
    open_dataset,
    source,
    without_empty,
)
from skipbench.datasets.common.types import Boxes, Dataset, Item, Items, Labels, Source, Split

__all__ = [
    "Boxes",
    "Dataset",
    "Item",
    "Items",
    "Labels",
    "Location",
    "Source",
    "Split",
    "data_roots",
    "decodable",
    "find_folder",
    "find_split",
    "locate",
    "names",
    "names_with",
    "open_dataset",
    "source",
    "without_empty",
]
