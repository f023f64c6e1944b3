"""Features on demand: read from the store, computed and stored, or computed and kept in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from skipbench.backbones.base import Backbone
from skipbench.engine.machine import available_bytes
from skipbench.engine.progress import progress
from skipbench.errors import ResourceError
from skipbench.features.build import DTYPES, as_stored
from skipbench.features.cache import DEFAULT_LIMIT
from skipbench.features.store import Features, open_store
from skipbench.features.stream import Extractor, numbers_to_store, plan_for
from skipbench.files import size_text
from skipbench.images import Picture
from skipbench.records import FeatureSpec

MOST_OF_MEMORY = 0.6  # share of the free memory that features may take


@dataclass(frozen=True)
class FeatureSource:
    """Where features are stored, and how they are computed."""

    cache: str | None = None
    in_memory: bool = False
    batch_size: int | None = None
    workers: int = 2
    limit_bytes: int = DEFAULT_LIMIT

    def features(
        self, backbone: Backbone, pictures: Sequence[Picture], spec: FeatureSpec, label: str
    ) -> Features:
        if self.in_memory:
            found = compute(
                backbone, pictures, spec, batch_size=self.batch_size, workers=self.workers,
                label=label, advice="Store them on disk (without --no-cache), or use ",
            )  # fmt: skip
            found.warn_of_constant_features()
            return found
        return open_store(
            backbone, pictures, spec, cache=self.cache, limit_bytes=self.limit_bytes,
            batch_size=self.batch_size, workers=self.workers, label=label,
        )  # fmt: skip


def default_workers() -> int:
    return max(2, min(8, torch.get_num_threads()))


class MemoryFeatures(Features):
    values: dict[str, list[np.ndarray]]  # by column and image

    def read(self, image: int, column: str) -> np.ndarray:
        return self.values[column][image]


def compute(
    backbone: Backbone,
    items: Sequence[Picture],
    spec: FeatureSpec,
    *,
    batch_size: int | None = None,
    workers: int = 2,
    label: str = "features",
    advice: str = "Use ",
) -> MemoryFeatures:
    """The features of these images, in memory. advice: what else helps if they do not fit."""
    itemsize = DTYPES[spec.store_dtype].itemsize
    plan = plan_for(backbone, items, spec, itemsize, workers)
    everything, a_block = range(len(items)), len(spec.columns) // len(spec.blocks)
    need = (
        itemsize
        * a_block
        * sum(
            numbers_to_store(backbone, plan, everything, block, bool(spec.pools))
            for block in spec.blocks
        )
    )
    free = available_bytes()
    if need > MOST_OF_MEMORY * free:
        raise ResourceError(
            f"these features need {size_text(need)} of memory; {size_text(free)} are free.\n"
            f"{advice}fewer --layers or a smaller --size."
        )
    values = {column: [np.empty(0)] * len(items) for column in spec.columns}
    degenerate: dict[str, list[int]] = {column: [] for column in spec.columns}
    with progress(label, len(items)) as advance:
        for batch in Extractor(backbone, spec, batch_size, workers).stream(items, plan):
            for column in spec.columns:
                tokens, same = as_stored(batch, column, spec)
                degenerate[column] += same
                for image, one in zip(batch.images, tokens, strict=True):
                    values[column][image] = one.numpy()
            advance(len(batch.images))
    constant = {column: tuple(sorted(images)) for column, images in degenerate.items()}
    found = MemoryFeatures(plan, backbone, spec, constant)
    found.values, found.computed = values, len(items)
    return found
