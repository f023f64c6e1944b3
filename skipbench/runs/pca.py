"""`skipbench pca`: pictures of the principal components of tokens, for one or more checkpoints.

images → features of each checkpoint (one pass, stored) → block by block: components, aligned with
those of the first checkpoint → a picture each, and figures → sheets, curves, a record each

Stored features are read as often as needed; in memory are the scores of one block at a time, three
numbers for each token.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.backbones.vit import Backbone
from skipbench.datasets import Dataset, Item
from skipbench.engine.parallel import in_parallel
from skipbench.engine.progress import progress
from skipbench.errors import UsageError
from skipbench.evaluations._pca_settings import COMPONENTS, SIZE, Background, Fit, Upsample
from skipbench.evaluations._pixels import Grid
from skipbench.evaluations.pca import (
    Components,
    Moments,
    foreground,
    principal,
    resampled,
    rotation_onto,
)
from skipbench.features.held import Features
from skipbench.features.layers import parse_layers
from skipbench.files import ensure_writable
from skipbench.images import pad_mask, parse_size, resize_mask
from skipbench.metrics.coherence import between_share, effective_rank, majority, total_variation
from skipbench.pipeline import Inspection, say_what_is_adapted
from skipbench.records import FeatureSpec, Result, StoreDtype
from skipbench.runs import _pca_record as written
from skipbench.runs._held import Keeping
from skipbench.runs._pca_pictures import Folder


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
    store_dtype: StoreDtype = "fp16"
    keeping: Keeping = field(default_factory=Keeping)
    out: Path = Path("pca")


@dataclass(frozen=True)
class Painted:
    """One image in the components of one block."""

    scores: np.ndarray = field(repr=False)  # (height, width, components) float32
    shown: np.ndarray = field(repr=False)  # (height, width) bool: not the background

    @property
    def counted(self) -> np.ndarray:
        """(tokens, components): the scores that colours are made for."""
        return self.scores[self.shown]


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
        self.spec = FeatureSpec(
            self.blocks, (asked.feature,), parse_size(asked.size), asked.store_dtype
        )
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
        label = f"features of {self.name}"
        keeping = self.asked.keeping
        self.features = keeping.features(self.backbone, self.data.items, self.spec, label)
        self.seconds["features"] = time.monotonic() - started
        return self.features

    def tokens(self, image: int, place: int) -> np.ndarray:
        """(tokens, width). place: of the block among those asked for."""
        if self._last is None or self._last[0] != (image, place):
            values = self.features.read(image, self.spec.columns[place])
            self._last = (image, place), values
        return self._last[1]

    def grid(self, image: int) -> Grid:
        plan = self.features.plan
        height, width = plan.sizes_hw[image]
        return Grid(plan.grid_hw(image), (height / plan.patch, width / plan.patch))

    def segments(self, image: int) -> np.ndarray:
        """(height, width) of the grid: the segment that most of a token's pixels belong to."""
        at_input = resize_mask(self.data[image].segments(), self.features.plan.sizes_hw[image])
        return majority(pad_mask(at_input, self.patch, fill=-1), self.patch)

    def is_flat(self, image: int, place: int) -> bool:
        """Its tokens are all alike."""
        return image in self.features.degenerate[self.spec.columns[place]]


class Figures:
    """What the pictures of one model are like, in numbers: by block and image."""

    NAMES = ("total_variation", "between", "turned", "colour_variation", "colour_between")

    def __init__(self, blocks: int, images: int, components: int) -> None:
        self.by_image = {name: np.full((images, blocks), np.nan) for name in self.NAMES}
        self.explained = np.full((images, blocks, components), np.nan)  # as the image's fit has it
        self.rank = np.full((images, blocks), np.nan)
        self.agreement = np.full((images, blocks), np.nan)  # with the first checkpoint's colours
        self.flat = np.zeros((images, blocks), bool)


class PcaRun:
    """The whole run. The first checkpoint is the one whose colours the others take."""

    def __init__(
        self,
        inspections: Sequence[Inspection],
        data: Dataset,
        asked: Asked,
        titles: Sequence[str],
        calls: Sequence[Mapping[str, Any]],
        apart: bool = False,
    ) -> None:
        self.data, self.asked = data, asked
        self.models = [
            Model(inspection, data, asked, title, call)
            for inspection, title, call in zip(inspections, titles, calls, strict=True)
        ]
        self.facts = data.facts()
        self.figures = [
            Figures(len(model.blocks), len(data), asked.components) for model in self.models
        ]
        self._segments: dict[tuple[int, int], np.ndarray] = {}  # by patch and image
        self._check()
        self.ids = [written.identity(self, number) for number in range(len(self.models))]
        self.folder = asked.out / self.ids[0] if apart else asked.out

    def _check(self) -> None:
        marks = [(m.backbone.facts.sha256, m.backbone.facts.weights, m.backbone.residual)
                 for m in self.models]  # fmt: skip
        for place, mark in enumerate(marks):
            if mark in marks[:place]:
                raise UsageError(f"{self.models[place].name} is given twice: one column is enough")
        for model in self.models:
            if self.asked.components > model.backbone.facts.width:
                raise UsageError(
                    f"--components {self.asked.components}: tokens of {model.name} have "
                    f"{model.backbone.facts.width} numbers"
                )

    def run(self) -> list[Result]:
        ensure_writable(self.folder)
        with ExitStack() as open_now:
            for model in self.models:
                open_now.enter_context(model.look())
            folder = open_now.enter_context(Folder(self))
            self._paint(folder)
            folder.finish()
            return [self._written(number, folder) for number in range(len(self.models))]

    def _written(self, number: int, folder: Folder) -> Result:
        folder.draw_tiles(number)
        return written.write(self, number)

    def _paint(self, folder: Folder) -> None:
        first = self.models[0]
        total = sum(len(model.blocks) for model in self.models) * len(self.data)
        with progress("components", total, "pictures") as advance:
            for place in range(len(first.blocks)):
                for group in self.groups():
                    reference = self.fitted(0, place, group)
                    folder.draw(0, place, group, reference)
                    advance(len(group))
                    for number, its in self._followers(place):
                        painted = self.fitted(number, its, group)
                        if self.asked.align:
                            painted = self._aligned(reference, painted, number, its, group)
                        folder.draw(number, its, group, painted)
                        advance(len(group))

    def groups(self) -> Iterator[Sequence[int]]:
        """The images that are fitted together."""
        images = range(len(self.data))
        yield from ([image] for image in images) if self.asked.fit == "image" else [images]

    def _followers(self, place: int) -> Iterator[tuple[int, int]]:
        """Model and place of the blocks whose colours follow this block of the first model: the
        same of as many, else at the same share of the depth."""
        whole = len(self.models[0].blocks)
        for number, model in enumerate(self.models[1:], 1):
            count = len(model.blocks)
            for its in range(count):
                if max(round((its + 1) * whole / count), 1) - 1 == place:
                    yield number, its

    # -- one block of one model, on the images of one fit

    def fitted(self, number: int, place: int, group: Sequence[int]) -> list[Painted]:
        model, started = self.models[number], time.monotonic()
        shown = [np.ones(model.features.plan.grid_hw(image), bool) for image in group]
        components = self._components(model, place, group, shown)
        if self.asked.background == "mask":
            firsts = [self._scores(model, place, image, components)[..., 0] for image in group]
            shown = foreground(firsts)
            components = self._components(model, place, group, shown)
        painted = []
        for image, where in zip(group, shown, strict=True):
            scores = self._scores(model, place, image, components)
            painted.append(Painted(scores, where))
            self._measure(number, place, image, components, painted[-1])
        model.seconds["fitting"] += time.monotonic() - started
        return painted

    def _components(
        self, model: Model, place: int, group: Sequence[int], shown: Sequence[np.ndarray]
    ) -> Components:
        device = model.backbone.device
        moments = Moments(
            model.backbone.facts.width, device if device.type == "cuda" else "cpu"
        )  # mps has no float64
        for image, where in zip(group, shown, strict=True):
            if model.is_flat(image, place):
                continue  # what is left of its tokens is rounding noise
            tokens = model.tokens(image, place)
            moments.add(tokens if where.all() else tokens[where.ravel()])
        return principal(moments, self.asked.components)

    def _scores(self, model: Model, place: int, image: int, components: Components) -> np.ndarray:
        """(height, width, components) float32; zero, the colour of nothing, of a flat image."""
        grid_hw = model.features.plan.grid_hw(image)
        if model.is_flat(image, place):
            return np.zeros((*grid_hw, self.asked.components), np.float32)
        scores = components.scores(model.tokens(image, place)).astype(np.float32)
        return scores.reshape(*grid_hw, -1)

    def _measure(
        self, number: int, place: int, image: int, components: Components, painted: Painted
    ) -> None:
        figures, model = self.figures[number], self.models[number]
        figures.flat[image, place] = model.is_flat(image, place)
        if figures.flat[image, place]:
            return
        figures.explained[image, place] = components.explained
        figures.rank[image, place] = effective_rank(components.variances)
        found = {}
        values = model.tokens(image, place).astype(np.float64)
        found["total_variation"] = total_variation(values.reshape(*painted.shown.shape, -1))
        found["colour_variation"] = total_variation(painted.scores, painted.shown)
        if self.data[image].has_segments:
            segments = self._segments_of(model, image)
            coloured = np.where(painted.shown, segments, -1)
            found["between"] = between_share(values, segments.ravel())
            found["turned"] = between_share(values, segments[::-1, ::-1].ravel())
            scores = painted.scores.reshape(len(values), -1)
            found["colour_between"] = between_share(scores, coloured.ravel())
        for name, value in found.items():
            figures.by_image[name][image, place] = value

    def _segments_of(self, model: Model, image: int) -> np.ndarray:
        key = model.patch, image
        if key not in self._segments:
            self._segments[key] = model.segments(image).astype(np.int32)
        return self._segments[key]

    @cached_property
    def segments_mark(self) -> str | None:
        """Names the regions that figures are about, where the data set's fingerprint does not: that
        of masks has them."""
        if self.data.kind == "masks" or not self.data[0].has_segments:
            return None
        digest = hashlib.sha256()
        for segments in in_parallel(Item.segments, self.data, "reading segments"):
            digest.update(repr(segments.shape).encode() + segments.tobytes())
        return digest.hexdigest()

    # -- alignment

    def _aligned(
        self,
        reference: Sequence[Painted],
        painted: Sequence[Painted],
        number: int,
        place: int,
        group: Sequence[int],
    ) -> list[Painted]:
        """Turned onto the colours of the first model, over the tokens that both show."""
        pairs = [
            self._common(one, other, number, image)
            for one, other, image in zip(reference, painted, group, strict=True)
        ]
        a, b = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        turned = rotation_onto(a.astype(np.float64), b.astype(np.float64))
        if turned.agreement is not None:
            self.figures[number].agreement[group, place] = turned.agreement
        matrix = turned.matrix.astype(np.float32)
        return [replace(one, scores=one.scores @ matrix) for one in painted]

    def _common(
        self, reference: Painted, painted: Painted, number: int, image: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, components) of both; where patches differ, at the first model's tokens."""
        if self.models[number].patch == self.models[0].patch:
            both = reference.shown & painted.shown
            return reference.scores[both], painted.scores[both]
        grid, at = self.models[number].grid(image), self.models[0].grid(image)
        scores = resampled(painted.scores, grid, at.size_hw, "bilinear", at.extent_hw)
        shown = resampled(painted.shown, grid, at.size_hw, "nearest", at.extent_hw)
        both = reference.shown & shown
        return reference.scores[both], scores[both]
