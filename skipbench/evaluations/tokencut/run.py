"""`skipbench tokencut`: object discovery with a checkpoint, on a data set.

images → tokens of every block asked for (one pass) → one object a block → scores → record

Features are not stored: what is found in an image is, shard by shard.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from skipbench.backbones.vit import Backbone
from skipbench.datasets import Dataset
from skipbench.engine.device import is_out_of_memory
from skipbench.engine.progress import Progress, progress
from skipbench.errors import OutOfMemory
from skipbench.evaluations.data import check_labelled
from skipbench.evaluations.resume import Arrays, Chunks
from skipbench.evaluations.segmentation.images import Keeping
from skipbench.evaluations.tokencut import record as written
from skipbench.evaluations.tokencut.lost import lost
from skipbench.evaluations.tokencut.method import tokencut
from skipbench.evaluations.tokencut.objects import Found
from skipbench.evaluations.tokencut.scores import (
    Score,
    Seen,
    gathered,
    score_boxes,
    score_masks,
    stacked,
)
from skipbench.evaluations.tokencut.settings import EPS, TAU, Method
from skipbench.features.layers import parse_layers
from skipbench.features.plan import Plan, make_plan
from skipbench.features.stream import BY_SAFETY, Extractor, FeatureBatch
from skipbench.files import cache_folder, ensure_writable
from skipbench.images import Picture, parse_size
from skipbench.pipeline import Inspection, say_what_is_adapted
from skipbench.records import FeatureSpec, Result
from skipbench.results.store import find_result, relabel, result_id, write_result

log = logging.getLogger("skipbench")

TOKEN_ON_CPU = 4_000  # "bytes": eight images of 900 tokens are a shard


@dataclass(frozen=True)
class Asked:
    """All that object discovery depends on, but for the checkpoint and the data."""

    layers: str = "last"
    feature: str = "keys"
    method: Method = "tokencut"
    tau: float = TAU
    eps: float = EPS
    size: str = "native"
    score: Literal["boxes", "masks"] = "boxes"
    hard: bool = True
    select: Literal["val", "holdout"] = "val"
    precision: str = "auto"
    keeping: Keeping = field(default_factory=Keeping)
    out: Path = Path("results")
    force: bool = False
    pictures: int = 0
    call: Mapping[str, Any] = field(default_factory=dict)  # as it was asked for, for the record


class Finder:
    """A backbone and a method: what they find in pictures."""

    def __init__(self, inspection: Inspection, asked: Asked) -> None:
        self.inspection, self.asked = inspection, asked
        self.backbone: Backbone = inspection.backbone(asked.precision)
        self.blocks = parse_layers(asked.layers, self.backbone.depth)
        size = parse_size(asked.size)
        self.spec = FeatureSpec(blocks=self.blocks, tensors=(asked.feature,), size=size)
        self.seconds = {"features": 0.0, "cutting": 0.0}
        self._one_by_one = False  # once memory has run out

    @property
    def patch(self) -> int:
        return self.backbone.facts.patch

    def plan(self, pictures: Sequence[Picture]) -> Plan:
        """Shards of some seconds of work: what is kept of an image is small."""
        on_cpu = self.backbone.device.type == "cpu"
        weight = TOKEN_ON_CPU if on_cpu else 1
        return make_plan(pictures, self.spec.size, self.patch, weight, self.asked.keeping.workers)

    def look(
        self, pictures: Sequence[Picture], plan: Plan, shards: Sequence[int]
    ) -> Iterator[tuple[int, Seen]]:
        """Number of an image, and what is in it, in the order of the plan."""
        keeping = self.asked.keeping
        extractor = Extractor(self.backbone, self.spec, keeping.batch_size, keeping.workers)
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
        if not self._one_by_one:
            try:
                return self._find(tokens, (height, width))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            log.warning("out of memory with %d graphs at once; going on one by one", len(tokens))
            self._one_by_one = True
            if tokens.device.type == "cuda":
                torch.cuda.empty_cache()
        try:
            return [one for some in tokens for one in self._find(some[None], (height, width))]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"out of memory on {tokens.device} with the graph of {height * width:,} tokens.\n"
                "Use a smaller --size, or another --device; what was done is kept."
            ) from None

    def _find(self, tokens: torch.Tensor, grid_hw: tuple[int, int]) -> list[Found]:
        if self.asked.method == "lost":
            return lost(tokens, grid_hw)
        return tokencut(tokens, grid_hw, self.asked.tau, self.asked.eps)


class Discovery(Finder):
    """The whole run on a data set."""

    def __init__(self, inspection: Inspection, data: Dataset, asked: Asked) -> None:
        super().__init__(inspection, asked)
        self.data, self.facts = data, data.facts()
        self.id = result_id("tokencut", data.name, written.determines(self))
        self.computed = 0
        self.score: Score = (
            score_masks if asked.score == "masks" else partial(score_boxes, hard=asked.hard)
        )

    def run(self) -> Result:
        out = self.asked.out
        ensure_writable(out)
        found = None if self.asked.force else find_result(out, self.id)
        if found:
            log.info("done before (%s); --force does it again", self.id)
            result = relabel(out, found, self.backbone.facts)
            self._chunks().forget()  # left, if it was ended at the very last moment
        else:
            if not self.asked.force and (out / f"{self.id}.json").exists():
                log.warning("the record %s is damaged, and is made anew", self.id)
            result = self._make()
        if self.asked.pictures:
            self._draw(result)
        return result

    def _make(self) -> Result:
        if self.asked.score == "masks":
            check_labelled(self.data)
        say_what_is_adapted(self.backbone, self.spec)
        chunks = self._chunks()
        arrays = self._by_image(chunks)
        honest = written.chosen_on_others(arrays)
        metrics = written.metrics(self, arrays, honest)
        written.say_what_matters(metrics, len(self.data), self.asked)
        result = written.record(self, metrics)
        written.write_table(self.asked.out / result.id / "images.csv", self, arrays, metrics)
        write_result(self.asked.out, result, written.kept_arrays(self, arrays, metrics, honest))
        chunks.forget()
        return result

    def missing_images(self) -> int:
        """That are yet to be looked at."""
        if not self.asked.force and find_result(self.asked.out, self.id):
            return 0
        plan = self.plan(self.data.items)
        done = self._done(plan, self._chunks())
        return len(self.data) - sum(len(plan.shards[shard]) for shard in done)

    def _done(self, plan: Plan, chunks: Chunks) -> dict[int, Arrays]:
        """What earlier runs have left, by shard."""
        shards = () if self.asked.force else range(len(plan.shards))
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
        with progress(self._label(), len(self.data), done=before) as advance:
            scores = [row for part in done.values() for row in part["score"]]
            for shard, part in self._compute(plan, todo, advance, written.SoFar(self, scores)):
                chunks.save(shard, part)
                done[shard] = part
        numbers = [image for shard in sorted(done) for image in plan.shards[shard]]
        return gathered([done[shard] for shard in sorted(done)], numbers)

    def _compute(
        self, plan: Plan, shards: Sequence[int], advance: Progress, so_far: "written.SoFar"
    ) -> Iterator[tuple[int, Arrays]]:
        """Shard by shard; images are decoded ahead across their borders."""
        images: list[Arrays] = []
        waiting = deque(shards)
        for image, seen in self.look(self.data.items, plan, shards):
            kept = {"precision": np.array(BY_SAFETY.index(self.backbone.precision), np.uint8)}
            images.append(seen.arrays() | self.score(self.data[image], seen) | kept)
            self.computed += 1
            advance(1, so_far.add(images[-1]["score"]))
            if len(images) == len(plan.shards[waiting[0]]):
                yield waiting.popleft(), stacked(images)
                images = []

    def _chunks(self) -> Chunks:
        keeping = self.asked.keeping
        return Chunks(None if keeping.in_memory else chunk_folder(keeping.cache) / self.id)

    def _label(self) -> str:
        return f"{self.asked.method} {self.asked.layers}"

    def _draw(self, result: Result) -> None:
        from skipbench.evaluations.tokencut.pictures import draw_found

        draw_found(self, result, self.asked.pictures)


def chunk_folder(cache: str | None) -> Path:
    return cache_folder(cache) / "tokencut"
