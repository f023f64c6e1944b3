"""PASCAL VOC2007."""

from skipbench.datasets.common.types import Split
from skipbench.datasets.voc import Devkit
from skipbench.records import Archive

SOURCE = Devkit(
    year=2007,
    also="voc2007",
    splits={
        "train": Split(209, "masks"),
        "val": Split(213, "masks"),
        "trainval": Split(5_011, "boxes"),
    },
    archives=(
        Archive(
            "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/VOCtrainval_06-Nov-2007.tar",
            "md5:c52e279531787c972589f7e41ab4ae64",
            bytes=460_032_000,
            unpacked_bytes=460_032_000,
        ),
    ),
)
