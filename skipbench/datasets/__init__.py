"""Data sets. This folder is the catalogue: each file is one, its name is the name on the command
line, and it has a `SOURCE`. (Files with a leading underscore serve the others.) Importing the
package imports none of them.

    from skipbench.datasets import open_dataset

    val = open_dataset("voc", "val", root="~/datasets")
    val[0].read(), val[0].mask(), val[0].boxes().xyxy
"""

from skipbench.datasets._catalogue import names, source
from skipbench.datasets._open import (
    Found,
    data_roots,
    decodable,
    find_folder,
    find_split,
    locate,
    open_dataset,
    without_empty,
)
from skipbench.datasets._types import Boxes, Dataset, Item, Items, Labels, Source, Split

__all__ = [
    "Boxes",
    "Dataset",
    "Found",
    "Item",
    "Items",
    "Labels",
    "Source",
    "Split",
    "data_roots",
    "decodable",
    "find_folder",
    "find_split",
    "locate",
    "names",
    "open_dataset",
    "source",
    "without_empty",
]
