"""`skipbench pca`: pictures of the principal components of tokens, for one or more checkpoints.

images → features of each checkpoint (one pass, stored) → block by block: components, aligned with
those of the first checkpoint → a picture each, and figures → sheets, curves, a record each

Stored features are read as often as needed; in memory are the scores of one block at a time, three
numbers for each token.
"""

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.backbones.vit import Backbone
from skipbench.datasets import Dataset, Item
from skipbench.engine.parallel import in_parallel
from skipbench.engine.progress import progress
from skipbench.errors import UsageError
from skipbench.evaluations.pca import EVALUATION
from skipbench.evaluations.pca import record as written
from skipbench.evaluations.pca.method import Components, foreground, resampled, rotation_onto
from skipbench.evaluations.pca.model import Model, Painted
from skipbench.evaluations.pca.pictures import Folder, claim, folder_names
from skipbench.evaluations.pca.record import Figures
from skipbench.evaluations.pca.settings import PcaSettings
from skipbench.evaluations.pictures import keep_originals
from skipbench.evaluations.run import Arrays, Cell, Need, Run
from skipbench.files import unlike
from skipbench.metrics.coherence import between_share, effective_rank, total_variation
from skipbench.pipeline import Inspection
from skipbench.records import Result

if TYPE_CHECKING:
    pass

log = logging.getLogger("skipbench")

# Deviation relative to the mean: below it, an eighth of what varies may be rounding of float16.
COARSE = 8 * 2.0**-11


class PcaRun(Run):
    """A cell is one checkpoint; the colours of the others are aligned to the first one's."""

    evaluation = EVALUATION
    settings: PcaSettings
    always = True  # pictures are drawn whenever they are asked for
    stage, advice = "fitting components", "Use a smaller --size, or fewer --layers"

    def __init__(
        self, inspections: Sequence[Inspection], data: Sequence[Dataset], settings: PcaSettings
    ) -> None:
        (self.data,), self.settings = data, settings
        titles = titles_of(settings, inspections)
        self.models = [
            Model(inspection, self.data, settings, title, settings.call_of(number))
            for number, (inspection, title) in enumerate(zip(inspections, titles, strict=True))
        ]
        self.facts = self.data.facts()
        self.figures = [
            Figures(len(model.blocks), len(self.data), settings.components) for model in self.models
        ]
        self._segments: dict[tuple[int, int], np.ndarray] = {}  # by patch and image
        self.cells = [
            Cell(written.identity(self, number), settings.layers, model.blocks, 0)
            for number, model in enumerate(self.models)
        ]
        self.ids = [cell.id for cell in self.cells]
        self.folder = settings.out / self.ids[0] if settings.own_folder else settings.out
        self.folders = [self.folder / name for name in folder_names(titles)]
        self._check()

    def _check(self) -> None:
        for place, identity in enumerate(self.ids):
            if identity in self.ids[:place]:
                raise UsageError(f"{self.models[place].name} is given twice: one column is enough")
        for model in self.models:
            if self.settings.components > model.backbone.facts.width:
                raise UsageError(
                    f"--components {self.settings.components}: tokens of {model.name} have "
                    f"{model.backbone.facts.width} numbers"
                )
        keep_originals(self.data, [self.folder, *self.folders])

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        """Of the first checkpoint; in a suite there is no other."""
        return self.models[0].backbone

    def groups(self) -> Iterator[list[Cell]]:
        yield self.cells

    def open_features(self, stack: ExitStack, todo: Sequence[Cell], drawn: Sequence[Cell]) -> None:
        claim(self.folder, self.folders)
        for model in self.models:
            stack.enter_context(model.look())

    def compute(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Result, Arrays]]:
        """Pictures are drawn block by block as components are fitted; records come last."""
        with Folder(self) as folder:
            self._paint(folder)
            folder.finish()
            self._log_remarks()
            for number, cell in enumerate(cells):
                folder.draw_tiles(number)
                yield cell, *written.record(self, number)

    def needs(self) -> list[Need]:
        model, source = self.models[0], self.settings.source
        if source.in_memory:
            return []
        what = self.data.split
        return [Need(model.backbone, model.pictures, model.spec, source, what, lambda: None)]

    @cached_property
    def rows(self) -> list[list[dict[str, Any]]]:
        """By model and block, once all is painted."""
        return [written.rows(self, number) for number in range(len(self.models))]

    def _log_remarks(self) -> None:
        if self.settings.store_dtype == "fp32":
            return
        for model, figures in zip(self.models, self.figures, strict=True):
            if coarse := int((figures.deviation < COARSE).sum()):
                log.warning(
                    "%s: %d of %d pictures vary by less than %.1g of their mean: what they show "
                    "may be rounding of float16; --store-dtype fp32 keeps more digits",
                    model.name, coarse, figures.deviation.size, COARSE,
                )  # fmt: skip

    def _paint(self, folder: Folder) -> None:
        blocks = [len(model.blocks) for model in self.models]
        with progress("components", sum(blocks) * len(self.data), "pictures") as advance:
            for place in range(blocks[0]):
                for group in self.fitted_together():
                    reference = self.fitted(0, place, group)
                    folder.draw(0, place, group, reference)
                    advance(len(group))
                    for number, its in followers(blocks, place):
                        painted = self.fitted(number, its, group)
                        if self.settings.align:
                            painted = self._aligned(reference, painted, number, its, group)
                        folder.draw(number, its, group, painted)
                        advance(len(group))

    def fitted_together(self) -> Iterator[Sequence[int]]:
        """The images that are fitted together."""
        images = range(len(self.data))
        yield from ([image] for image in images) if self.settings.fit == "image" else [images]

    # -- one block of one model, on the images of one fit

    def fitted(self, number: int, place: int, group: Sequence[int]) -> list[Painted]:
        model, started = self.models[number], time.monotonic()
        flat = [model.is_flat(image, place) for image in group]
        shown = [np.ones(model.features.plan.grid_hw(image), bool) for image in group]
        components = model.components(place, group, shown)
        if self.settings.background == "mask":
            firsts = [model.scores(place, image, components)[..., 0] for image in group]
            objects = foreground(firsts)
            shown = [all_ if f else o for all_, o, f in zip(shown, objects, flat, strict=True)]
            components = model.components(place, group, shown)
        painted = []
        for image, where, is_flat in zip(group, shown, flat, strict=True):
            scores = model.scores(place, image, components)
            painted.append(Painted(scores, where, is_flat))
            self._measure(number, place, image, components, painted[-1])
        model.seconds["fitting"] += time.monotonic() - started
        return painted

    def _measure(
        self, number: int, place: int, image: int, components: Components, painted: Painted
    ) -> None:
        figures, model = self.figures[number], self.models[number]
        figures.flat[image, place] = painted.flat
        known = self.data[image].has_segments
        if known and np.isnan(figures.pixels[image]):
            segments = self._segments_of(model, image)
            figures.pixels[image] = between_share(model.pixels(image), segments.ravel())
        if painted.flat:
            return
        figures.explained[image, place] = components.explained
        figures.rank[image, place] = effective_rank(components.variances)
        figures.deviation[image, place] = components.deviation
        values = model.tokens(image, place).astype(np.float64)
        found = {
            "total_variation": total_variation(values.reshape(*painted.shown.shape, -1)),
            "colour_variation": total_variation(painted.scores, painted.shown),
        }
        if known:
            segments = self._segments_of(model, image)
            scores, seen = painted.scores.reshape(len(values), -1), painted.shown
            found["between"] = between_share(values, segments.ravel())
            found["upside_down"] = between_share(values, segments[::-1, ::-1].ravel())
            found["colour_between"] = between_share(scores, np.where(seen, segments, -1).ravel())
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
        if reference.flat or painted.flat:
            return reference.counted[:0], painted.counted[:0]
        if self.models[number].patch == self.models[0].patch:
            both = reference.shown & painted.shown
            return reference.scores[both], painted.scores[both]
        grid, at = self.models[number].grid(image), self.models[0].grid(image)
        scores = resampled(painted.scores, grid, at.size_hw, "bilinear", at.extent_hw)
        shown = resampled(painted.shown, grid, at.size_hw, "nearest", at.extent_hw)
        both = reference.shown & shown
        return reference.scores[both], scores[both]


def titles_of(settings: PcaSettings, inspections: Sequence[Inspection]) -> list[str]:
    """Above the pictures: the name the user gave, or file name and variant; with the folder, if
    two would otherwise be the same."""
    if settings.names:
        return list(settings.names)
    variants = [one.choice.residual if one.choice else "" for one in inspections]
    files = [one.checkpoint.facts.name for one in inspections]
    plain = list(zip(files, variants, strict=True))
    titles = []
    for path, (file, variant) in zip(settings.ckpts, plain, strict=True):
        same = plain.count((file, variant)) > 1
        folder = f"{Path(path).resolve().parent.name}/" if same else ""
        titles.append(f"{folder}{file} ({variant})")
    return unlike(titles, form="{} ({})")


def followers(blocks: Sequence[int], place: int) -> Iterator[tuple[int, int]]:
    """Model and place of the blocks whose colours follow this block of the first model: the same
    of as many, else at the same share of the depth. blocks: how many each model has."""
    for number, count in enumerate(blocks[1:], 1):
        for its in range(count):
            nearest = (2 * (its + 1) * blocks[0] + count) // (2 * count)  # rounded
            if max(nearest, 1) - 1 == place:
                yield number, its
