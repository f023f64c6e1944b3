"""Features at hand, by image: on disk (`store.py`) or in memory."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch

from skipbench.backbones.vit import Backbone
from skipbench.engine.machine import available_bytes
from skipbench.engine.progress import progress
from skipbench.errors import ResourceError
from skipbench.features.build import DTYPES, constant_images, in_store_dtype
from skipbench.features.plan import Plan, make_plan
from skipbench.features.stream import Extractor
from skipbench.files import size_text
from skipbench.images import Picture
from skipbench.records import FeatureSpec

log = logging.getLogger("skipbench")

MOST_OF_MEMORY = 0.6  # what features may take of the memory that is free


class Features(Sequence[dict[str, torch.Tensor]], ABC):
    """By image and column: features[3]["tokens_norm.11"] is (height, width, channels)."""

    computed = 0  # images that were computed for it, not found

    def __init__(self, plan: Plan, degenerate: dict[str, tuple[int, ...]]) -> None:
        self.plan = plan
        self.columns = tuple(degenerate)
        self.degenerate = degenerate  # by column: images whose tokens are all alike

    @abstractmethod
    def read(self, image: int, column: str) -> np.ndarray:
        """(height × width, channels), float16 or float32."""

    def tokens(
        self, image: int, columns: Sequence[str], rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(rows, channels): the columns side by side; only the rows asked for."""
        parts = [self.read(image, column) for column in columns]
        return np.concatenate([p if rows is None else p[rows] for p in parts], axis=1)

    def warn_of_constant_ones(self) -> None:
        for column, images in self.degenerate.items():
            if images:
                log.warning(
                    "%s: %d of %d images have constant features", column, len(images), len(self)
                )

    def __len__(self) -> int:
        return len(self.plan.sizes_hw)

    def __getitem__(self, image: int) -> dict[str, torch.Tensor]:  # type: ignore[override]
        if not -len(self) <= image < len(self):
            raise IndexError(image)
        image %= len(self)
        return {
            column: torch.from_numpy(self.read(image, column)).unflatten(
                0, self.plan.grid_hw(image)
            )
            for column in self.columns
        }

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class MemoryFeatures(Features):
    def __init__(self, plan: Plan, columns: dict[str, list[np.ndarray]], **rest: dict) -> None:
        super().__init__(plan, **rest)
        self._columns = columns

    def read(self, image: int, column: str) -> np.ndarray:
        return self._columns[column][image]


def compute(
    backbone: Backbone,
    items: Sequence[Picture],
    spec: FeatureSpec,
    *,
    batch_size: int | None = None,
    workers: int = 2,
    label: str = "features",
) -> MemoryFeatures:
    """The features of these images, kept in memory."""
    per_token = DTYPES[spec.store_dtype].itemsize * backbone.facts.width
    plan = make_plan(items, spec.size, backbone.facts.patch, per_token, workers)
    need = per_token * len(spec.columns) * sum(map(plan.tokens, range(len(items))))
    free = available_bytes()
    if need > MOST_OF_MEMORY * free:
        raise ResourceError(
            f"these features need {size_text(need)} of memory, {size_text(free)} are free.\n"
            "Let them be stored (without --no-cache), or take fewer --layers or a smaller --size."
        )
    columns: dict[str, list[np.ndarray]] = {c: [np.empty(0)] * len(items) for c in spec.columns}
    degenerate: dict[str, list[int]] = {column: [] for column in spec.columns}
    with progress(label, len(items)) as advance:
        for batch in Extractor(backbone, spec, batch_size, workers).stream(items, plan):
            for column in spec.columns:
                tokens = batch.columns[column].flatten(1, 2)
                degenerate[column] += constant_images(batch.images, tokens)
                for image, values in zip(
                    batch.images, in_store_dtype(tokens, column, spec.store_dtype), strict=True
                ):
                    columns[column][image] = values.numpy()
            advance(len(batch.images))
    found = MemoryFeatures(
        plan, columns, degenerate={c: tuple(sorted(found)) for c, found in degenerate.items()}
    )
    found.computed = len(items)
    return found
