"""`skipbench tokencut`: object discovery with a checkpoint, on a data set.

images → tokens of every block asked for (one pass) → one object a block → scores → record

Features are not stored; the objects found are, shard by shard.
"""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import torch

from skipbench.backbones.base import Backbone
from skipbench.datasets import Dataset, Item
from skipbench.engine.device import is_out_of_memory
from skipbench.engine.machine import peak_bytes
from skipbench.engine.progress import Progress, progress
from skipbench.errors import OutOfMemory, UsageError
from skipbench.evaluations.data import check_labelled
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate
from skipbench.evaluations.resume import Arrays, Chunks
from skipbench.evaluations.run import Cell, Run
from skipbench.evaluations.tokencut import EVALUATION
from skipbench.evaluations.tokencut import record as written
from skipbench.evaluations.tokencut.method import Found, lost, tokencut
from skipbench.evaluations.tokencut.record import (
    ImageObjects,
    gathered,
    score_boxes,
    score_masks,
    stacked,
)
from skipbench.evaluations.tokencut.settings import TokencutSettings
from skipbench.features.layers import parse_layers
from skipbench.features.stream import (
    BY_SAFETY,
    SHARD_IMAGES,
    Extractor,
    FeatureBatch,
    Plan,
    make_plan,
)
from skipbench.images import Picture, parse_size
from skipbench.metrics.means import counts_of, cross_chosen
from skipbench.pipeline import Inspection, log_adaptation
from skipbench.record_store import result_id
from skipbench.records import FeatureSpec, Result

log = logging.getLogger("skipbench")

TOKEN_ON_CPU = 4_000  # "bytes": eight images of 900 tokens are a shard


class Finder:
    """Finds objects in pictures with a backbone and a method."""

    shard_images = SHARD_IMAGES  # at most

    def __init__(self, inspection: Inspection, settings: TokencutSettings) -> None:
        self.inspection, self.settings = inspection, settings
        self.backbone: Backbone = inspection.backbone(settings.precision)
        self.blocks = parse_layers(settings.layers, self.backbone.depth)
        if settings.feature not in self.backbone.tensors:
            facts, there = self.backbone.facts, " or ".join(self.backbone.tensors)
            raise UsageError(
                f"{facts.name} ({facts.layout}) has no {settings.feature}: use --feature {there}"
            )
        size = parse_size(settings.size)
        self.spec = FeatureSpec(blocks=self.blocks, tensors=(settings.feature,), size=size)
        self.seconds = {"features": 0.0, "cutting": 0.0}
        self.strides = [self.backbone.stride(block) for block in self.blocks]
        self._at_once = 2**31  # graphs; 1 once memory has run out

    def plan(self, pictures: Sequence[Picture]) -> Plan:
        """Shards of a few seconds of work each."""
        weight = TOKEN_ON_CPU if self.backbone.device.type == "cpu" else 1
        return make_plan(
            pictures, self.spec.size, self.backbone.patch, weight, self.settings.source.workers,
            shard_images=self.shard_images,
        )  # fmt: skip

    def find(
        self, pictures: Sequence[Picture], plan: Plan, shards: Sequence[int]
    ) -> Iterator[tuple[int, ImageObjects]]:
        """Number and objects of each image of these shards, in the order of the plan."""
        source = self.settings.source
        extractor = Extractor(self.backbone, self.spec, source.batch_size, source.workers)
        started = time.monotonic()
        for batch in extractor.stream(pictures, plan, shards):
            self.seconds["features"] += time.monotonic() - started
            started = time.monotonic()
            found = self._find_all(batch)
            self.seconds["cutting"] += time.monotonic() - started
            for place, image in enumerate(batch.images):
                mine = found[place * len(self.blocks) : (place + 1) * len(self.blocks)]
                size_hw = pictures[image].size_hw()
                yield image, ImageObjects(mine, self.strides, plan.sizes_hw[image], size_hw)
            started = time.monotonic()

    def _find_all(self, batch: FeatureBatch) -> list[Found]:
        """Image by image, the objects of all blocks."""
        columns = [batch.columns[name] for name in self.spec.columns]
        alike = defaultdict[torch.Size, list[int]](list)  # blocks by grid and width
        for place, tokens in enumerate(columns):
            alike[tokens.shape].append(place)
        found: dict[tuple[int, int], Found] = {}  # by image and block
        for places in alike.values():
            together = torch.stack([columns[place] for place in places], dim=1)
            numbers = product(range(len(batch.images)), places)
            found.update(zip(numbers, self._find_in(together.flatten(0, 1)), strict=True))
        return [found[number] for number in product(range(len(batch.images)), range(len(columns)))]

    def _find_in(self, grids: torch.Tensor) -> list[Found]:
        """grids: (any number, height, width, channels)."""
        height, width = grids.shape[1:3]
        tokens = grids.flatten(1, 2)
        if tokens.device.type == "mps":  # it has no float64
            tokens = tokens.cpu()
        while True:
            try:
                parts = tokens.split(self._at_once)
                return [one for part in parts for one in self._find(part, (height, width))]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self._at_once == 1:
                    raise OutOfMemory(
                        f"out of memory on {tokens.device} with the graph of {height * width:,} "
                        "tokens.\nUse a smaller --size, or another --device; what was done is kept."
                    ) from None
            log.warning("out of memory with %d graphs at once; going on one by one", len(tokens))
            self._at_once = 1
            torch.cuda.empty_cache()

    def _find(self, tokens: torch.Tensor, grid_hw: tuple[int, int]) -> list[Found]:
        if self.settings.method == "lost":
            return lost(tokens, grid_hw)
        return tokencut(tokens, grid_hw, self.settings.threshold, self.settings.weak_link)


class TokencutRun(Run, Finder):
    """Object discovery on a data set: one cell, for all blocks together."""

    evaluation = EVALUATION
    settings: TokencutSettings
    cells: list[Cell]

    def __init__(
        self, inspections: Sequence[Inspection], data: Sequence[Dataset], settings: TokencutSettings
    ) -> None:
        Finder.__init__(self, inspections[0], settings)
        (self.data,) = data
        self.facts = self.data.facts()
        self.kind = "boxes" if self.data.kind == "boxes" else "masks"
        self.determines = written.determines(self)
        self.id = result_id("tokencut", self.data.name, self.determines)
        self.cells = [Cell(self.id, settings.layers, self.blocks, 0)]
        self.computed = 0

    def describe(self, cell: Cell) -> str:
        return f"{self.settings.method} {cell.layers}"

    def check_data(self) -> None:
        if self.kind == "masks":
            check_labelled(self.data)

    def compute(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Result, Arrays]]:
        for cell in cells:
            log_adaptation(self.backbone, self.spec)
            arrays = self._by_image(self.chunks(cell))
            holdout = cross_chosen(arrays["score"]) if len(self.blocks) > 1 else None
            metrics = written.metrics(self, arrays, holdout)
            written.log_remarks(metrics, len(self.data), self.settings)
            written.write_table(self, arrays, metrics)
            kept = written.kept_arrays(self, arrays, metrics, holdout)
            yield cell, written.record(self, metrics), kept

    def score(self, item: Item, objects: ImageObjects) -> Arrays:
        if self.kind == "masks":
            return score_masks(item, objects)
        return score_boxes(item, objects, self.settings.hard)

    def drawn(self) -> list[Cell]:
        return self.cells if self.settings.pictures else []

    def draw(self, cell: Cell, result: Result) -> None:
        from skipbench.evaluations.tokencut.pictures import draw_found

        draw_found(self, result, self.settings.pictures)

    def tidy(self, cell: Cell) -> None:
        self.chunks(cell).forget()

    def estimate(self, cells: Sequence[Cell]) -> Estimate:
        """What is written to disk is negligible."""
        kept = self._stored(self.plan(self.data.items)).values()
        done = sum(len(part["score"]) for part in kept) if self.missing() else len(self.data)
        left, few = len(self.data) - done, self.data[:TRIAL_IMAGES]
        self._trial_seconds(few[:1])  # the first pass is slower
        before = self.seconds["features"]
        whole = self._trial_seconds(few)
        features = self.seconds["features"] - before
        return Estimate(
            images=left,
            stored=done,
            features_seconds=features / len(few) * left,
            training_seconds=0.0,
            scoring_seconds=(whole - features) / len(few) * left,
            disk_bytes=0,
            memory_bytes=peak_bytes(),
        )

    def _trial_seconds(self, items: Sequence[Item]) -> float:
        plan, started = self.plan(items), time.monotonic()
        for image, objects in self.find(items, plan, range(len(plan.shards))):
            self.score(items[image], objects)
        return time.monotonic() - started

    def _stored(self, plan: Plan) -> dict[int, Arrays]:
        """Results of earlier runs, by shard."""
        chunks = self.chunks(self.cells[0])
        shards = () if self.settings.force else range(len(plan.shards))
        loaded = {shard: chunks.load(shard) for shard in shards}
        return {shard: part for shard, part in loaded.items() if part is not None}

    def _by_image(self, chunks: Chunks) -> Arrays:
        plan = self.plan(self.data.items)
        done = self._stored(plan)
        todo = [shard for shard in range(len(plan.shards)) if shard not in done]
        for part in done.values():  # after an overflow of fp16, the safer precision stays
            now = BY_SAFETY.index(self.backbone.precision)
            self.backbone.precision = BY_SAFETY[max(now, int(part["precision"].max()))]
        before = sum(len(plan.shards[shard]) for shard in done)
        if before:
            log.info("%d of %d images were done before", before, len(self.data))
        with progress(self.describe(self.cells[0]), len(self.data), done=before) as advance:
            counts = np.zeros((len(self.blocks), 2))
            for part in done.values():
                counts += counts_of(part["score"]).sum(0).T
            for shard, part in self._compute(plan, todo, advance, counts):
                chunks.save(shard, part)
                done[shard] = part
        numbers = [image for shard in done for image in plan.shards[shard]]
        return gathered(list(done.values()), numbers)

    def _compute(
        self, plan: Plan, shards: Sequence[int], advance: Progress, counts: np.ndarray
    ) -> Iterator[tuple[int, Arrays]]:
        """Shard by shard; decoding runs ahead across shards. counts: of `running_score`."""
        images: list[Arrays] = []
        waiting = deque(shards)
        for image, objects in self.find(self.data.items, plan, shards):
            precision = np.array(BY_SAFETY.index(self.backbone.precision), np.uint8)
            scores = self.score(self.data[image], objects)
            images.append({**objects.arrays(), **scores, "precision": precision})
            self.computed += 1
            counts += counts_of(scores["score"])
            advance(1, written.running_score(self, counts))
            if len(images) == len(plan.shards[waiting[0]]):
                yield waiting.popleft(), stacked(images)
                images = []
