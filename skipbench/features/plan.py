"""Which images go through the model together, planned before anything is computed.

Images are sorted by padded size, largest first (a batch that does not fit in memory fails at once,
not after an hour), and cut into shards, the unit of storing and resuming. A batch never crosses a
shard, so a resumed run computes exactly the batches of an uninterrupted one.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

from skipbench.images import Picture, padded, target_hw
from skipbench.records import Side, Size

# The most that an interruption loses: seconds of work even on a slow CPU.
SHARD_BYTES = 32_000_000
SHARD_IMAGES = 32


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
        sizes = [target_hw(size_hw, size) for size_hw in _read_sizes(items, workers)]
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


def _read_sizes(items: Sequence[Picture], workers: int) -> list[tuple[int, int]]:
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        return list(pool.map(lambda item: item.size_hw(), items))
