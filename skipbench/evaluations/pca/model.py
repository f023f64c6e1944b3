"""One checkpoint of a PCA run: its features, their components, and measurements of them.

Features are read from the store as often as needed; memory holds the scores of one block at a time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.datasets import Dataset, Item
from skipbench.evaluations.pca.method import (
    Components,
    Moments,
    foreground,
    principal,
    resampled,
    rotation_onto,
    with_signs_of,
)
from skipbench.evaluations.pca.record import Figures, block_row
from skipbench.evaluations.pca.settings import PcaSettings
from skipbench.evaluations.segmentation.run import grid_of
from skipbench.evaluations.segmentation.tokens import Grid
from skipbench.features.layers import parse_layers
from skipbench.features.store import Features
from skipbench.images import Picture, parse_size, resize_mask, target_hw
from skipbench.metrics.coherence import between_share, effective_rank, majority, total_variation
from skipbench.pipeline import Inspection, log_adaptation
from skipbench.records import FeatureSpec, Interpolation, Size


@dataclass(frozen=True)
class Painted:
    """One image in the components of one block."""

    scores: np.ndarray = field(repr=False)  # (height, width, components) float32
    shown: np.ndarray = field(repr=False)  # (height, width) bool: not the background
    flat: bool = False  # its tokens are all alike

    @property
    def counted(self) -> np.ndarray:
        """(tokens, components): the scores that colours are made for."""
        return self.scores[:0, 0] if self.flat else self.scores[self.shown]


@dataclass(frozen=True)
class Resized:
    """An image resized to whole patches: tokens of padding would count as tokens of the image."""

    item: Item
    hw: tuple[int, int]

    @property
    def name(self) -> str:
        return self.item.name

    def read(self, size: Size = None, how: Interpolation = "bilinear") -> np.ndarray:
        return self.item.read(self.hw if size is None else size, how)

    def size_hw(self) -> tuple[int, int]:
        return self.hw

    def mark(self) -> str:
        return f"{self.item.mark()} fitted {self.hw[0]}x{self.hw[1]}"


def in_whole_patches(data: Dataset, size: Size, patch: int) -> tuple[Sequence[Picture], Size]:
    """The images and the size at which they are read: unchanged if all are whole patches already
    (so that stored features are shared), else each resized to the nearest."""
    sizes_hw = [target_hw(item.size_hw(), size) for item in data]
    whole_hw = [tuple(max(1, round(n / patch)) * patch for n in hw) for hw in sizes_hw]
    if sizes_hw == whole_hw:
        return data.items, size
    return [Resized(item, hw) for item, hw in zip(data, whole_hw, strict=True)], None  # type: ignore[arg-type]


class Model:
    id: str  # of its record
    determines: dict[str, Any]  # what the id is the hash of
    folder: Path  # for its pictures
    features: Features

    def __init__(
        self,
        inspection: Inspection,
        data: Dataset,
        settings: PcaSettings,
        title: str,
        segments: dict[tuple[int, tuple[int, int], int], np.ndarray],
    ) -> None:
        """title: above its pictures; segments: cache by stride, size and image, for all models."""
        self.inspection, self.data, self.settings = inspection, data, settings
        self.title, self._segments = title, segments
        self.backbone = inspection.backbone(settings.precision)
        self.name = self.backbone.facts.name
        self.blocks = parse_layers(settings.layers, self.backbone.depth)
        self.pictures, size = in_whole_patches(data, parse_size(settings.size), self.backbone.patch)
        self.spec = FeatureSpec(self.blocks, (settings.feature,), size, settings.store_dtype)
        self.figures = Figures(len(self.blocks), len(data), settings.components)
        self.seconds = {"features": 0.0, "fitting": 0.0, "drawing": 0.0}
        self.tokens = lru_cache(maxsize=1)(self._tokens)  # read several times in a row
        self._axes: dict[int, np.ndarray] = {}  # by block, of the images fitted before

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """By block, once all images are measured."""
        return [block_row(self.figures, *numbered) for numbered in enumerate(self.blocks)]

    def open_features(self) -> Features:
        """The one pass over the images."""
        log_adaptation(self.backbone, self.spec)
        started = time.monotonic()
        label, source = f"features of {self.name}", self.settings.source
        self.features = source.features(self.backbone, self.pictures, self.spec, label)
        self.seconds["features"] = time.monotonic() - started
        return self.features

    def _tokens(self, image: int, place: int) -> np.ndarray:
        """(tokens, width). place: index in self.blocks."""
        return self.features.read(image, self.spec.columns[place])

    def is_flat(self, image: int, place: int) -> bool:
        return image in self.features.degenerate[self.spec.columns[place]]

    def stride(self, place: int) -> int:
        """Pixels per token."""
        return self.backbone.stride(self.blocks[place])

    def grid(self, image: int, place: int) -> Grid:
        return grid_of(self.features, image, [self.spec.columns[place]])

    def segments(self, image: int, place: int) -> np.ndarray:
        """(height, width) of the grid: the segment of most of a token's pixels."""
        key = self.stride(place), self.features.plan.sizes_hw[image], image
        if key not in self._segments:
            at_input = resize_mask(self.data[image].segments(), self.features.plan.sizes_hw[image])
            self._segments[key] = majority(at_input, self.stride(place)).astype(np.int32)
        return self._segments[key]

    def pixels(self, image: int, place: int) -> np.ndarray:
        """(tokens, 3): the mean colour of each token's pixels, as the model sees them."""
        (height, width), stride = self.grid(image, place).size_hw, self.stride(place)
        colours = self.pictures[image].read(self.spec.size).astype(np.float64)
        blocks = colours.reshape(height, stride, width, stride, 3)
        return blocks.mean((1, 3)).reshape(-1, 3)

    def components(
        self, place: int, images: Sequence[int], shown: Sequence[np.ndarray]
    ) -> Components:
        """Of the tokens shown, without flat images: they vary by rounding noise only."""
        device = self.backbone.device if self.backbone.device.type == "cuda" else "cpu"
        moments = Moments(self.backbone.width(self.blocks[place]), device)  # mps has no float64
        for image, where in zip(images, shown, strict=True):
            if not self.is_flat(image, place):
                tokens = self.tokens(image, place)
                moments.add(tokens if where.all() else tokens[where.ravel()])
        return principal(moments, self.settings.components)

    def scores(self, place: int, image: int, components: Components) -> np.ndarray:
        """(height, width, components) float32; zeros of a flat image."""
        grid_hw = self.grid(image, place).size_hw
        if self.is_flat(image, place):
            return np.zeros((*grid_hw, self.settings.components), np.float32)
        scores = components.scores(self.tokens(image, place)).astype(np.float32)
        return scores.reshape(*grid_hw, -1)

    # -- one block, on the images of one fit

    def fitted(self, place: int, group: Sequence[int]) -> list[Painted]:
        started = time.monotonic()
        flat = [self.is_flat(image, place) for image in group]
        shown = [np.ones(self.grid(image, place).size_hw, bool) for image in group]
        components = self.components(place, group, shown)
        if self.settings.background == "mask":
            firsts = [self.scores(place, image, components)[..., 0] for image in group]
            objects = foreground(firsts)
            shown = [all_ if f else o for all_, o, f in zip(shown, objects, flat, strict=True)]
            components = self.components(place, group, shown)
        components = self._consistent(place, components)
        painted = []
        for image, where, is_flat in zip(group, shown, flat, strict=True):
            painted.append(Painted(self.scores(place, image, components), where, is_flat))
            self._measure(place, image, components, painted[-1])
        self.seconds["fitting"] += time.monotonic() - started
        return painted

    def _consistent(self, place: int, components: Components) -> Components:
        """With signs that agree with the image before; zeros agree with anything."""
        before = self._axes.get(place, np.zeros_like(components.axes))
        turned = with_signs_of(components, before)
        self._axes[place] = np.where(turned.axes.any(0), turned.axes, before)
        return turned

    def _measure(self, place: int, image: int, components: Components, painted: Painted) -> None:
        figures, known = self.figures, self.data[image].has_segments
        figures.flat[image, place] = painted.flat
        if known and np.isnan(figures.pixels[image]):
            segments = self.segments(image, place)
            figures.pixels[image] = between_share(self.pixels(image, place), segments.ravel())
        if painted.flat:
            return
        figures.explained[image, place] = components.explained
        figures.deviation[image, place] = components.deviation
        values = self.tokens(image, place).astype(np.float64)
        found = {
            "effective_rank": effective_rank(components.variances),
            "total_variation": total_variation(values.reshape(*painted.shown.shape, -1)),
            "colour_variation": total_variation(painted.scores, painted.shown),
        }
        if known:
            segments = self.segments(image, place)
            scores, seen = painted.scores.reshape(len(values), -1), painted.shown
            found["between"] = between_share(values, segments.ravel())
            found["upside_down"] = between_share(values, segments[::-1, ::-1].ravel())
            found["colour_between"] = between_share(scores, np.where(seen, segments, -1).ravel())
        for name, value in found.items():
            figures.by_image[name][image, place] = value

    def aligned(
        self,
        place: int,
        group: Sequence[int],
        painted: Sequence[Painted],
        onto: "tuple[Model, int]",
        reference: Sequence[Painted],
    ) -> list[Painted]:
        """Rotated onto the components of the first model, over the tokens that both show. onto: it,
        and the place of its block."""
        pairs = [
            self._common((image, place), mine, onto, other)
            for image, mine, other in zip(group, painted, reference, strict=True)
        ]
        a, b = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        turned = rotation_onto(a.astype(np.float64), b.astype(np.float64))
        if turned.agreement is not None:
            self.figures.agreement[group, place] = turned.agreement
        matrix = turned.matrix.astype(np.float32)
        return [replace(one, scores=one.scores @ matrix) for one in painted]

    def _common(
        self, own: tuple[int, int], painted: Painted, onto: "tuple[Model, int]", reference: Painted
    ) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, components) of the first model and of this, on the first one's grid."""
        if reference.flat or painted.flat:
            return reference.counted[:0], painted.counted[:0]
        scores, shown = painted.scores, painted.shown
        image, place = own
        first, at_place = onto
        grid, at = self.grid(image, place), first.grid(image, at_place)
        if grid != at:
            scores = resampled(scores, grid, at.size_hw, "bilinear", at.extent_hw)
            shown = resampled(shown, grid, at.size_hw, "nearest", at.extent_hw)
        both = reference.shown & shown
        return reference.scores[both], scores[both]
