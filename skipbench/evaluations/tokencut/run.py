"""`skipbench tokencut`: object discovery with a checkpoint, on a data set.

images → tokens of every block asked for (one pass) → one object a block → scores → record

Features are not stored: what is found in an image is, shard by shard.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from skipbench.backbones.base import Backbone
from skipbench.datasets import Dataset, Item
from skipbench.engine.device import is_out_of_memory
from skipbench.engine.progress import Progress, progress
from skipbench.errors import OutOfMemory
from skipbench.evaluations.data import check_labelled
from skipbench.evaluations.resume import Arrays, Chunks
from skipbench.evaluations.run import Cell, Run
from skipbench.evaluations.tokencut import EVALUATION
from skipbench.evaluations.tokencut import record as written
from skipbench.evaluations.tokencut.method import Found, lost, tokencut
from skipbench.evaluations.tokencut.scores import Seen, gathered, score_boxes, score_masks, stacked
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
from skipbench.metrics.means import counts_of
from skipbench.pipeline import Inspection, log_adaptation
from skipbench.record_store import result_id
from skipbench.records import FeatureSpec, Result

log = logging.getLogger("skipbench")

TOKEN_ON_CPU = 4_000  # "bytes": eight images of 900 tokens are a shard


class Finder:
    """A backbone and a method: what they find in pictures."""

    shard_images = SHARD_IMAGES  # at most: they are kept together

    def __init__(self, inspection: Inspection, settings: TokencutSettings) -> None:
        self.inspection, self.settings = inspection, settings
        self.backbone: Backbone = inspection.backbone(settings.precision)
        self.blocks = parse_layers(settings.layers, self.backbone.depth)
        size = parse_size(settings.size)
        self.spec = FeatureSpec(blocks=self.blocks, tensors=(settings.feature,), size=size)
        self.seconds = {"features": 0.0, "cutting": 0.0}
        self._at_once = 2**31  # graphs; 1 once memory has run out

    @property
    def patch(self) -> int:
        return self.backbone.patch

    def plan(self, pictures: Sequence[Picture]) -> Plan:
        """Shards of some seconds of work: what is kept of an image is small."""
        on_cpu = self.backbone.device.type == "cpu"
        weight = TOKEN_ON_CPU if on_cpu else 1
        return make_plan(
            pictures, self.spec.size, self.patch, weight, self.settings.source.workers,
            shard_images=self.shard_images,
        )  # fmt: skip

    def look(
        self, pictures: Sequence[Picture], plan: Plan, shards: Sequence[int]
    ) -> Iterator[tuple[int, Seen]]:
        """Number of an image, and what is in it, in the order of the plan."""
        source = self.settings.source
        extractor = Extractor(self.backbone, self.spec, source.batch_size, source.workers)
        started = time.monotonic()
        for batch in extractor.stream(pictures, plan, shards):
            self.seconds["features"] += time.monotonic() - started
            started = time.monotonic()
            found = self._objects(batch)
            self.seconds["cutting"] += time.monotonic() - started
            for place, image in enumerate(batch.images):
                mine = found[place * len(self.blocks) : (place + 1) * len(self.blocks)]
                size_hw = pictures[image].size_hw()
                yield image, Seen(mine, self.patch, plan.sizes_hw[image], size_hw)
            started = time.monotonic()

    def _objects(self, batch: FeatureBatch) -> list[Found]:
        """Image by image, those of all its blocks."""
        columns = [batch.columns[name] for name in self.spec.columns]
        height, width = columns[0].shape[1:3]
        tokens = torch.stack(columns, dim=1).flatten(0, 1).flatten(1, 2)
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
            arrays = self._by_image(self.chunks(self.cells[0]))
            unbiased = written.chosen_on_others(arrays)
            metrics = written.metrics(self, arrays, unbiased)
            written.log_remarks(metrics, len(self.data), self.settings)
            result = written.record(self, metrics)
            written.write_table(self.settings.out / result.id / "images.csv", self, arrays, metrics)
            yield cell, result, written.kept_arrays(self, arrays, metrics, unbiased)

    def score(self, item: Item, seen: Seen) -> Arrays:
        if self.kind == "masks":
            return score_masks(item, seen)
        return score_boxes(item, seen, self.settings.hard)

    def drawn(self) -> list[Cell]:
        return self.cells if self.settings.pictures else []

    def draw(self, cell: Cell, result: Result) -> None:
        from skipbench.evaluations.tokencut.pictures import draw_found

        draw_found(self, result, self.settings.pictures)

    def tidy(self, cell: Cell) -> None:
        self.chunks(self.cells[0]).forget()

    def missing_images(self) -> int:
        """Images without a result yet."""
        if not self.missing():
            return 0
        plan = self.plan(self.data.items)
        done = self._done(plan, self.chunks(self.cells[0]))
        return len(self.data) - sum(len(plan.shards[shard]) for shard in done)

    def _done(self, plan: Plan, chunks: Chunks) -> dict[int, Arrays]:
        """What earlier runs have left, by shard."""
        shards = () if self.settings.force else range(len(plan.shards))
        left = {shard: chunks.load(shard) for shard in shards}
        return {shard: part for shard, part in left.items() if part is not None}

    def _by_image(self, chunks: Chunks) -> Arrays:
        plan = self.plan(self.data.items)
        done = self._done(plan, chunks)
        todo = [shard for shard in range(len(plan.shards)) if shard not in done]
        for part in done.values():  # fp16 may have overflowed: it goes on as it would have
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
        numbers = [image for shard in sorted(done) for image in plan.shards[shard]]
        return gathered([done[shard] for shard in sorted(done)], numbers)

    def _compute(
        self, plan: Plan, shards: Sequence[int], advance: Progress, counts: np.ndarray
    ) -> Iterator[tuple[int, Arrays]]:
        """Shard by shard; images are decoded ahead across their borders. counts: of `so_far`."""
        images: list[Arrays] = []
        waiting = deque(shards)
        for image, seen in self.look(self.data.items, plan, shards):
            kept = {"precision": np.array(BY_SAFETY.index(self.backbone.precision), np.uint8)}
            images.append(seen.arrays() | self.score(self.data[image], seen) | kept)
            self.computed += 1
            counts += counts_of(images[-1]["score"])
            advance(1, written.so_far(self, counts))
            if len(images) == len(plan.shards[waiting[0]]):
                yield waiting.popleft(), stacked(images)
                images = []
