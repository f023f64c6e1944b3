"""`skipbench pca`: pictures of the principal components of tokens, for one or more checkpoints.

images → features of each checkpoint (one pass, stored) → block by block: components, aligned to the
first checkpoint's → pictures and measurements → sheets, curves, a record per checkpoint
"""

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import numpy as np

from skipbench.datasets import Dataset, Item
from skipbench.engine.parallel import in_parallel
from skipbench.engine.progress import progress
from skipbench.errors import UsageError
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.pca import EVALUATION
from skipbench.evaluations.pca import record as written
from skipbench.evaluations.pca.model import Model
from skipbench.evaluations.pca.pictures import Folder, claim, folder_names
from skipbench.evaluations.pca.settings import PcaSettings
from skipbench.evaluations.pictures import keep_originals
from skipbench.evaluations.run import Arrays, Cell, Need, Run
from skipbench.files import unlike
from skipbench.pipeline import Inspection
from skipbench.record_store import result_id
from skipbench.records import FeatureSpec, Result

log = logging.getLogger("skipbench")

# Deviation relative to the mean below which float16 rounding may be an eighth of the variation
COARSE = 8 * 2.0**-11


class PcaRun(Run):
    """A cell is one checkpoint; colours are aligned to the first one's."""

    evaluation = EVALUATION
    settings: PcaSettings
    always = True
    stage, advice = "fitting components", "Use a smaller --size, or fewer --layers"

    def __init__(
        self, inspections: Sequence[Inspection], data: Sequence[Dataset], settings: PcaSettings
    ) -> None:
        (self.data,), self.settings = data, settings
        titles = titles_of(settings, inspections)
        segments: dict[tuple[int, tuple[int, int], int], np.ndarray] = {}
        self.models = [
            Model(inspection, self.data, settings, title, segments)
            for inspection, title in zip(inspections, titles, strict=True)
        ]
        self.facts = self.data.facts()
        for model in self.models:
            model.determines = written.determines(self, model)
            model.id = result_id("pca", self.data.name, model.determines)
        self.cells = [Cell(one.id, settings.layers, one.blocks, 0) for one in self.models]
        self.backbone = self.models[0].backbone  # in a suite there is no other
        self.folder = settings.out / self.cells[0].id if settings.own_folder else settings.out
        self.folders = [self.folder / name for name in folder_names(titles)]
        for model, folder in zip(self.models, self.folders, strict=True):
            model.folder = folder
        self._check()

    def _check(self) -> None:
        for place, model in enumerate(self.models):
            if model.id in [one.id for one in self.models[:place]]:
                raise UsageError(f"{model.name} is given twice: one column is enough")
        for model in self.models:
            width = min(map(model.backbone.width, model.blocks))
            if self.settings.components > width:
                raise UsageError(
                    f"--components {self.settings.components}: tokens of {model.name} have "
                    f"{width} numbers"
                )
        keep_originals(self.data, [self.folder, *self.folders])

    def spec(self, cells: Sequence[Cell]) -> FeatureSpec:
        return self.models[0].spec

    def groups(self) -> Iterator[list[Cell]]:
        yield self.cells

    def open_features(self, stack: ExitStack, todo: Sequence[Cell], drawn: Sequence[Cell]) -> None:
        claim(self.folder, self.folders)
        for model in self.models:
            stack.enter_context(model.open_features())

    def compute(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Result, Arrays]]:
        """Pictures are drawn block by block as components are fitted; records come last."""
        with Folder(self) as folder:
            self._paint(folder)
            folder.finish()
            self._log_remarks()
            for cell, model in zip(cells, self.models, strict=True):
                folder.draw_tiles(model)
                yield cell, *written.record(self, model)

    def needs(self) -> list[Need]:
        model, source = self.models[0], self.settings.source
        if source.in_memory:
            return []
        split = self.data.split
        return [Need(model.backbone, model.pictures, model.spec, source, split, lambda: None)]

    def estimate(self, cells: Sequence[Cell]) -> Estimate:
        """Of the first checkpoint. Pictures are drawn again; stored features are reused."""
        model = self.models[0]
        few = model.pictures[:TRIAL_IMAGES]
        trial = Trial(self, few, cells)  # type: ignore[arg-type]
        model.features = trial.features
        started = time.monotonic()
        for image in range(len(few)):
            model.fitted(0, [image])
        seconds = (time.monotonic() - started) / len(few) * len(self.data) * len(model.blocks)
        return trial.estimate([model.pictures], seconds, 0, "components")  # type: ignore[list-item]

    def _log_remarks(self) -> None:
        if self.settings.store_dtype == "fp32":
            return
        for model in self.models:
            deviation = model.figures.deviation
            if coarse := int((deviation < COARSE).sum()):
                log.warning(
                    "%s: %d of %d pictures vary by less than %.1g of their mean and may show "
                    "rounding of float16; --store-dtype fp32 keeps more digits",
                    model.name, coarse, deviation.size, COARSE,
                )  # fmt: skip

    def _paint(self, folder: Folder) -> None:
        blocks, first = [len(model.blocks) for model in self.models], self.models[0]
        images: Sequence[int] = range(len(self.data))
        groups = [[image] for image in images] if self.settings.fit == "image" else [images]
        with progress("components", sum(blocks) * len(images), "pictures") as advance:
            for place in range(blocks[0]):
                for group in groups:
                    for number, block in [(0, place), *followers(blocks, place)]:
                        model = self.models[number]
                        painted = model.fitted(block, group)
                        if number == 0:
                            reference = painted
                        elif self.settings.align:
                            painted = model.aligned(
                                block, group, painted, (first, place), reference
                            )
                        folder.draw(model, block, group, painted)
                        advance(len(group))

    @cached_property
    def segments_mark(self) -> str | None:
        """Digest of the segments; None where the data set's fingerprint covers them."""
        if self.data.kind == "masks" or not self.data[0].has_segments:
            return None
        digest = hashlib.sha256()
        for segments in in_parallel(Item.segments, self.data, "reading segments"):
            digest.update(repr(segments.shape).encode() + segments.tobytes())
        return digest.hexdigest()


def titles_of(settings: PcaSettings, inspections: Sequence[Inspection]) -> list[str]:
    """The user's names, or file name and variant; with the folder, if two would be the same."""
    if settings.names:
        return list(settings.names)
    variants = [one.choice.residual if one.choice else "" for one in inspections]
    files = [one.model.facts.name for one in inspections]
    plain = list(zip(files, variants, strict=True))
    titles = []
    for path, (file, variant) in zip(settings.ckpts, plain, strict=True):
        same = plain.count((file, variant)) > 1
        folder = f"{Path(path).resolve().parent.name}/" if same else ""
        titles.append(f"{folder}{file} ({variant})")
    return unlike(titles, form="{} ({})")


def followers(blocks: Sequence[int], place: int) -> Iterator[tuple[int, int]]:
    """Model and place of the blocks that are aligned to this block of the first model: the same
    place, or with another number of blocks the same relative depth. blocks: number per model."""
    for number, count in enumerate(blocks[1:], 1):
        for other in range(count):
            nearest = (2 * (other + 1) * blocks[0] + count) // (2 * count)  # rounded
            if max(nearest, 1) - 1 == place:
                yield number, other
