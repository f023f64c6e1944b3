"""Images in, features out, a batch at a time.

Which images go through the model together is planned before anything is computed. They are sorted
by padded size, largest first (a batch that does not fit in memory fails at once, not after an
hour), and cut into shards, the unit of storing and resuming. A batch never crosses a shard, so a
resumed run computes exactly the batches of an uninterrupted one.

Threads decode and resize the next batches while the model computes this one: Pillow releases the
GIL for both, threads start at once, and Ctrl-C leaves no processes behind. A batch that does not
fit in memory is halved; a batch that overflows in fp16 is computed again in bf16.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise

import torch

from skipbench.backbones.base import Backbone
from skipbench.engine.device import is_out_of_memory
from skipbench.engine.parallel import ahead
from skipbench.errors import NumbersError, OutOfMemory
from skipbench.features.pool import pooled
from skipbench.images import Picture, normalise, padded, stack, target_hw
from skipbench.records import FeatureSpec, Side, Size

log = logging.getLogger("skipbench")

# The most that an interruption loses: seconds of work even on a slow CPU.
SHARD_BYTES = 32_000_000
SHARD_IMAGES = 32
POOLED_IMAGES = 256  # a vector each: fewer files, and little more work lost

# Tokens in an automatic batch: on two cores, throughput is best at four images of 448 px; a GPU
# starts with 64 of them (and halves if it is a small one).
TOKENS_ON_CPU = 4 * 784
TOKENS_ON_GPU = 64 * 784
BATCHES_AHEAD = 2
BY_SAFETY = ("fp16", "bf16", "fp32")
SAFER = dict(pairwise(BY_SAFETY))


# -- plan


@dataclass(frozen=True)
class Plan:
    sizes_hw: tuple[tuple[int, int], ...]  # by image: as it enters the model, before padding
    shards: tuple[tuple[int, ...], ...]  # images by index, in the order of computing
    patch: int  # images are padded to multiples of it

    def grid_hw(self, image: int, stride: int | None = None) -> tuple[int, int]:
        """Tokens of an image, one per `stride` pixels (default: one per patch)."""
        height, width = padded(self.sizes_hw[image], self.patch)
        return height // (stride or self.patch), width // (stride or self.patch)

    def tokens(self, image: int) -> int:
        height, width = self.grid_hw(image)
        return height * width

    def batches(self, shard: int, batch_size: int | None, token_budget: int) -> Iterator[list[int]]:
        """Images of one padded size: `batch_size` of them, or what the token budget allows."""
        for _, group in groupby(self.shards[shard], key=self.grid_hw):
            images = list(group)
            most = batch_size or max(1, token_budget // self.tokens(images[0]))
            for start in range(0, len(images), most):
                yield images[start : start + most]


def plan_for(
    backbone: Backbone,
    items: Sequence[Picture],
    spec: FeatureSpec,
    itemsize: int,
    workers: int = 4,
    shard_bytes: int = SHARD_BYTES,
) -> Plan:
    """itemsize: bytes of a stored number."""
    if spec.pools:
        most = {"bytes_per_patch": 0, "shard_images": POOLED_IMAGES}
    else:
        most = {"bytes_per_patch": itemsize * backbone.most_numbers_per_patch()}
    return make_plan(
        items, spec.size, backbone.patch, workers=workers, shard_bytes=shard_bytes, **most
    )


def numbers_to_store(
    backbone: Backbone, plan: Plan, images: Sequence[int], block: int, pooled: bool
) -> int:
    """Of one tensor of a block, or of one pool of it."""
    if pooled:
        return len(images) * backbone.width(block)
    return backbone.numbers_per_patch(block) * sum(map(plan.tokens, images))


def make_plan(
    items: Sequence[Picture],
    size: Size,
    patch: int,
    bytes_per_patch: int,
    workers: int = 4,
    *,
    shard_bytes: int = SHARD_BYTES,
    shard_images: int = SHARD_IMAGES,
) -> Plan:
    """Shards hold at most so many bytes and images, and at least one image."""
    if size is None or isinstance(size, Side):
        read = ahead(lambda item: item.size_hw(), items, 8 * workers, max(workers, 1))
        sizes = [target_hw(size_hw, size) for size_hw in read]
    else:
        sizes = [size] * len(items)

    def large_first(image: int) -> tuple[int, int, int]:
        height, width = padded(sizes[image], patch)
        return -height * width, height, image

    order = sorted(range(len(items)), key=large_first)
    pixels = sum(h * w for h, w in (padded(size, patch) for size in sizes)) / max(len(sizes), 1)
    bytes_per_image = pixels / patch**2 * bytes_per_patch
    per_shard = int(min(max(shard_bytes // max(bytes_per_image, 1), 1), shard_images))
    shards = [tuple(order[i : i + per_shard]) for i in range(0, len(order), per_shard)]
    return Plan(tuple(sizes), tuple(shards), patch)


# -- features


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
        numbers = [image for images in batches for image in images]
        most = BATCHES_AHEAD * max(map(len, batches), default=0)
        size, how = self.spec.size, self.backbone.preprocessing.interpolation
        pictures = ahead(lambda image: items[image].read(size, how), numbers, most, self.workers)
        for images in batches:
            batch = stack(list(islice(pictures, len(images))), plan.patch)
            yield from self.run(images, batch, [plan.sizes_hw[i] for i in images])

    def run(
        self, images: Sequence[int], batch: torch.Tensor, sizes_hw: Sequence[tuple[int, int]]
    ) -> Iterator[FeatureBatch]:
        """The features of one batch of NCHW uint8 images; in halves if memory runs out."""
        count = len(images)
        if self.most is None or count <= self.most:
            try:
                columns = self.forward(batch, sizes_hw)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(count, error)
            else:
                yield FeatureBatch(tuple(images), columns)
                return
        for half in (slice(count // 2), slice(count // 2, count)):
            yield from self.run(images[half], batch[half], sizes_hw[half])

    def forward(
        self, batch: torch.Tensor, sizes_hw: Sequence[tuple[int, int]]
    ) -> dict[str, torch.Tensor]:
        if self.backbone.device.type == "cuda":
            batch = batch.pin_memory().to(self.backbone.device, non_blocking=True)
        pixels = normalise(batch.to(self.backbone.device), sizes_hw, self.backbone.preprocessing)
        while True:
            try:
                features = self.backbone(pixels, self.spec.blocks, self.spec.tensors)
                if self.spec.pools:
                    return pooled(features, self.spec, sizes_hw, self.backbone)
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
