"""What PCA pictures are made of: a checkpoint with its features, and one image in components."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.backbones.vit import Backbone
from skipbench.datasets import Dataset, Item
from skipbench.evaluations.pca.method import Components, Moments, principal
from skipbench.evaluations.pca.settings import COMPONENTS, SIZE, Background, Fit, Upsample
from skipbench.evaluations.segmentation.images import Keeping, grid_of
from skipbench.evaluations.segmentation.pixels import Grid
from skipbench.features.held import Features
from skipbench.features.layers import parse_layers
from skipbench.images import Picture, parse_size, resize_mask, target_hw
from skipbench.metrics.coherence import majority
from skipbench.pipeline import Inspection, say_what_is_adapted
from skipbench.records import FeatureSpec, Size, StoreDtype


@dataclass(frozen=True)
class Asked:
    """All that the pictures depend on, but for the checkpoints and the images."""

    layers: str = "last"
    feature: str = "tokens_norm"
    fit: Fit = "image"
    components: int = COMPONENTS
    upsample: Upsample = "nearest"
    background: Background = "keep"
    align: bool = True
    size: str = SIZE
    precision: str = "auto"
    store_dtype: StoreDtype = "fp32"
    keeping: Keeping = field(default_factory=Keeping)
    out: Path = Path("pca")

    @property
    def fitted_to(self) -> list[str]:
        """In words."""
        found = ["fitted to each image" if self.fit == "image" else "fitted to all images"]
        return [*found, "foreground alone"] if self.background == "mask" else found


@dataclass(frozen=True)
class Painted:
    """One image in the components of one block."""

    scores: np.ndarray = field(repr=False)  # (height, width, components) float32
    shown: np.ndarray = field(repr=False)  # (height, width) bool: not the background
    flat: bool = False  # its tokens are all alike: there is nothing to see

    @property
    def counted(self) -> np.ndarray:
        """(tokens, components): the scores that colours are made for."""
        return self.scores[:0, 0] if self.flat else self.scores[self.shown]


@dataclass(frozen=True)
class Fitted:
    """A picture resized to whole patches: tokens of padding would have colours, and count."""

    item: Item
    hw: tuple[int, int]

    @property
    def name(self) -> str:
        return self.item.name

    def read(self, size: Size = None) -> np.ndarray:
        return self.item.read(self.hw if size is None else size)

    def size_hw(self) -> tuple[int, int]:
        return self.hw

    def mark(self) -> str:
        return f"{self.item.mark()} fitted {self.hw[0]}x{self.hw[1]}"


def fitted(data: Dataset, size: Size, patch: int) -> tuple[Sequence[Picture], Size]:
    """The pictures, and the size at which they are read: as they are, where that is in whole
    patches (then others may have stored their features), else each at the nearest."""
    sizes_hw = [target_hw(item.size_hw(), size) for item in data]
    whole_hw = [tuple(max(1, round(n / patch)) * patch for n in hw) for hw in sizes_hw]
    if sizes_hw == whole_hw:
        return data.items, size
    return [Fitted(item, hw) for item, hw in zip(data, whole_hw, strict=True)], None  # type: ignore[arg-type]


class Model:
    """A checkpoint, and its features of the pictures."""

    def __init__(
        self,
        inspection: Inspection,
        data: Dataset,
        asked: Asked,
        title: str,
        call: Mapping[str, Any],
    ) -> None:
        """title: above its pictures; call: as it was asked for, for the record."""
        self.inspection, self.data, self.asked = inspection, data, asked
        self.title, self.call = title, call
        self.backbone: Backbone = inspection.backbone(asked.precision)
        self.blocks = parse_layers(asked.layers, self.backbone.depth)
        self.pictures, size = fitted(data, parse_size(asked.size), self.patch)
        self.spec = FeatureSpec(self.blocks, (asked.feature,), size, asked.store_dtype)
        self.features: Features
        self.seconds = {"features": 0.0, "fitting": 0.0, "drawing": 0.0}
        self._last: tuple[tuple[int, int], np.ndarray] | None = None

    @property
    def name(self) -> str:
        return self.backbone.facts.name

    @property
    def patch(self) -> int:
        return self.backbone.facts.patch

    def look(self) -> Features:
        """The one pass over the images."""
        say_what_is_adapted(self.backbone, self.spec)
        started = time.monotonic()
        label, keeping = f"features of {self.name}", self.asked.keeping
        self.features = keeping.features(self.backbone, self.pictures, self.spec, label)
        self.seconds["features"] = time.monotonic() - started
        return self.features

    def tokens(self, image: int, place: int) -> np.ndarray:
        """(tokens, width). place: of the block among those asked for."""
        if self._last is None or self._last[0] != (image, place):
            values = self.features.read(image, self.spec.columns[place])
            self._last = (image, place), values
        return self._last[1]

    def is_flat(self, image: int, place: int) -> bool:
        """Its tokens are all alike."""
        return image in self.features.degenerate[self.spec.columns[place]]

    def grid(self, image: int) -> Grid:
        return grid_of(self.features.plan, image)

    def segments(self, image: int) -> np.ndarray:
        """(height, width) of the grid: the segment that most of a token's pixels belong to."""
        at_input = resize_mask(self.data[image].segments(), self.features.plan.sizes_hw[image])
        return majority(at_input, self.patch)

    def pixels(self, image: int) -> np.ndarray:
        """(tokens, 3): the mean colour of each patch, as the model sees it."""
        height, width = self.features.plan.grid_hw(image)
        colours = self.pictures[image].read(self.spec.size).astype(np.float64)
        blocks = colours.reshape(height, self.patch, width, self.patch, 3)
        return blocks.mean((1, 3)).reshape(-1, 3)

    def components(
        self, place: int, images: Sequence[int], shown: Sequence[np.ndarray]
    ) -> Components:
        """Of the tokens that are shown. What is left of flat images is rounding noise."""
        device = self.backbone.device if self.backbone.device.type == "cuda" else "cpu"
        moments = Moments(self.backbone.facts.width, device)  # mps has no float64
        for image, where in zip(images, shown, strict=True):
            if not self.is_flat(image, place):
                tokens = self.tokens(image, place)
                moments.add(tokens if where.all() else tokens[where.ravel()])
        return principal(moments, self.asked.components)

    def scores(self, place: int, image: int, components: Components) -> np.ndarray:
        """(height, width, components) float32; zeros of a flat image."""
        grid_hw = self.features.plan.grid_hw(image)
        if self.is_flat(image, place):
            return np.zeros((*grid_hw, self.asked.components), np.float32)
        scores = components.scores(self.tokens(image, place)).astype(np.float32)
        return scores.reshape(*grid_hw, -1)
