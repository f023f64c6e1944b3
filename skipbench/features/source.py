"""Features on demand: read from the store, computed and stored, or computed and kept in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from skipbench.backbones.vit import Backbone
from skipbench.features.cache import DEFAULT_LIMIT
from skipbench.features.held import Features, compute
from skipbench.features.store import open_store
from skipbench.images import Picture
from skipbench.records import FeatureSpec


@dataclass(frozen=True)
class FeatureSource:
    """Where features are kept, and how they are computed."""

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
                label=label,
            )  # fmt: skip
            found.warn_of_constant_ones()
            return found
        return open_store(
            backbone, pictures, spec, cache=self.cache, limit_bytes=self.limit_bytes,
            batch_size=self.batch_size, workers=self.workers, label=label,
        )  # fmt: skip


def default_workers() -> int:
    return max(2, min(8, torch.get_num_threads()))
