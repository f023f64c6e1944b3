"""Textured shapes, drawn by the package without any files, for the demo and for tests.

Six textures and a background. Colour, outline and position are independent of the class, so
features that encode texture score better than features that do not.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from skipbench.datasets.common import synthetic
from skipbench.datasets.common.types import Boxes, Item, Kind, Labels, Listing, Source, Split
from skipbench.images import resize, target_hw
from skipbench.records import Size

SEED = 0


@dataclass(frozen=True)
class DrawnItem(Item):
    """Drawn on access; its path is only a name, there is no file."""

    split: str = "train"
    index: int = 0

    def read(self, size: Size = None) -> np.ndarray:
        image = self._draw().image
        return resize(image, target_hw(image.shape[:2], size))

    def size_hw(self) -> tuple[int, int]:
        return synthetic.size_of(SEED, self.split, self.index)

    def mark(self) -> str:
        return f"{synthetic.VERSION} {SEED} {self.split} {self.index}"

    def mask(self) -> np.ndarray:
        return _mask(self.split, self.index).copy()

    @property
    def has_boxes(self) -> bool:
        return True

    @property
    def has_segments(self) -> bool:
        return True

    def boxes(self) -> Boxes:
        drawing = self._draw()
        return Boxes(
            drawing.boxes_xyxy.astype(np.float64),
            tuple(synthetic.CLASSES[i] for i in drawing.labels),
            np.zeros(len(drawing.labels), bool),
        )

    def content(self, of: Kind) -> bytes:
        return self.mark().encode()

    def _draw(self) -> synthetic.Drawing:
        return synthetic.draw(SEED, self.split, self.index)


@lru_cache(maxsize=512)
def _mask(split: str, index: int) -> np.ndarray:
    """Cached, because training and scoring use it repeatedly; a few dozen kB each."""
    return synthetic.draw(SEED, split, index).mask


class Shapes(Source):
    title = "textured shapes"
    licence = "made by this package"
    places = ()
    tree = "  (no files)"
    splits = {"train": Split(200, "masks"), "val": Split(100, "masks")}
    on_disk = False

    def is_at(self, folder: Path) -> bool:
        return True

    def labels(self, folder: Path, classes: int | None = None) -> Labels:
        values = range(len(synthetic.CLASSES))
        return Labels(synthetic.CLASSES, synthetic.COLOURS, {v: v for v in values})

    def listing(self, folder: Path, split: str, labels: Labels | None) -> Listing:
        count = self.splits[split].images or 0

        def make(name: str) -> Item:
            return DrawnItem(
                name, Path(f"shapes:{name}"), split=split, index=int(name.rpartition("_")[2])
            )

        return Listing([f"{split}_{i:05d}" for i in range(count)], make)


SOURCE = Shapes()
