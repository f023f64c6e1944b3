"""Images in, features out, a batch at a time.

Threads decode and resize the next batches while the model computes this one: Pillow releases the
GIL for both, threads start at once, and Ctrl-C leaves no processes behind. A batch that does not
fit in memory is halved; a batch that overflows in fp16 is computed again in bf16.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from skipbench.backbones.base import Backbone
from skipbench.engine.device import is_out_of_memory
from skipbench.errors import NumbersError, OutOfMemory
from skipbench.features.plan import Plan
from skipbench.images import Picture, normalise, stack
from skipbench.records import FeatureSpec

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("skipbench")

# Tokens in an automatic batch: on two cores, throughput is best at four images of 448 px; a GPU
# starts with 64 of them (and halves if it is a small one).
TOKENS_ON_CPU = 4 * 784
TOKENS_ON_GPU = 64 * 784
BATCHES_AHEAD = 2
BY_SAFETY = ("fp16", "bf16", "fp32")
SAFER = dict(pairwise(BY_SAFETY))


@dataclass(frozen=True)
class FeatureBatch:
    images: tuple[int, ...]  # indices into the items
    columns: dict[str, torch.Tensor]  # (images, height, width, channels), on the model's device


class Extractor:
    """A model with its input pipeline. The batch size shrinks when memory runs out."""

    def __init__(
        self,
        backbone: Backbone,
        spec: FeatureSpec,
        batch_size: int | None = None,
        workers: int = 2,
    ) -> None:
        self.backbone = backbone
        self.spec = spec
        self.batch_size = batch_size  # None: by the token budget
        self.workers = max(workers, 1)
        on_cpu = backbone.device.type == "cpu"
        self.token_budget = TOKENS_ON_CPU if on_cpu else TOKENS_ON_GPU
        self.most: int | None = None  # images per batch, once memory has run out

    def stream(
        self, items: Sequence[Picture], plan: Plan, shards: Sequence[int] | None = None
    ) -> Iterator[FeatureBatch]:
        """The features of these shards (default: all), batch by batch in the plan's order."""
        chosen = range(len(plan.shards)) if shards is None else shards
        batches = [b for s in chosen for b in plan.batches(s, self.batch_size, self.token_budget)]
        for images, pictures in self._decoded(items, batches):
            yield from self.run(
                images, stack(pictures, plan.patch), [plan.sizes_hw[i] for i in images]
            )

    def run(
        self, images: Sequence[int], batch: torch.Tensor, sizes_hw: Sequence[tuple[int, int]]
    ) -> Iterator[FeatureBatch]:
        """The features of one batch of NCHW uint8 images; in parts if it does not fit in memory."""
        waiting = deque([slice(0, len(images))])
        while waiting:
            part = waiting.popleft()
            count = part.stop - part.start
            if self.most is not None and count > self.most:
                middle = part.start + count // 2
                waiting.extendleft([slice(middle, part.stop), slice(part.start, middle)])
                continue
            try:
                columns = self.forward(batch[part], sizes_hw[part])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(count, error)
                waiting.appendleft(part)
                continue
            yield FeatureBatch(tuple(images[part]), columns)

    def forward(
        self, batch: torch.Tensor, sizes_hw: Sequence[tuple[int, int]]
    ) -> dict[str, torch.Tensor]:
        if self.backbone.device.type == "cuda":
            batch = batch.pin_memory().to(self.backbone.device, non_blocking=True)
        pixels = normalise(batch.to(self.backbone.device), sizes_hw, self.backbone.preprocessing)
        while True:
            try:
                features = self.backbone(pixels, self.spec.blocks, self.spec.tensors)
                return {f"{tensor}.{b}": x for (b, tensor), x in features.patches.items()}
            except NumbersError as error:
                safer = SAFER.get(self.backbone.precision)
                if safer is None:
                    raise
                log.warning("%s; switching to %s", error, safer)
                self.backbone.precision = safer

    def _halve(self, count: int, error: Exception) -> None:
        if self.backbone.device.type == "cuda":
            torch.cuda.empty_cache()
        if count == 1:
            raise OutOfMemory(
                f"out of memory on {self.backbone.device} with a single image "
                f"({str(error).splitlines()[0][:80]}).\n"
                "Use a smaller --size, another --device, or fewer --layers."
            )
        self.most = count // 2
        log.warning("out of memory with %d images per batch; using %d", count, self.most)

    def _decoded(
        self, items: Sequence[Picture], batches: Sequence[list[int]]
    ) -> Iterator[tuple[list[int], "list[np.ndarray]"]]:
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")
        ahead: deque[tuple[list[int], list[Future[np.ndarray]]]] = deque()
        size = self.spec.size
        try:
            for images in batches:
                ahead.append((images, [pool.submit(items[i].read, size) for i in images]))
                if len(ahead) > BATCHES_AHEAD:
                    ready, futures = ahead.popleft()
                    yield ready, [future.result() for future in futures]
            for ready, futures in ahead:
                yield ready, [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
