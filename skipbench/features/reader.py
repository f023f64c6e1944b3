"""Features of a list of images, by image and column: on disk (`store.py`) or in memory
(`source.py`)."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch

from skipbench.features.plan import Plan

log = logging.getLogger("skipbench")


class Features(Sequence[dict[str, torch.Tensor]], ABC):
    """By image and column: features[3]["tokens_norm.11"] is (height, width, channels)."""

    computed = 0  # images that were computed, not found in the store

    def __init__(self, plan: Plan, degenerate: dict[str, tuple[int, ...]]) -> None:
        self.plan = plan
        self.columns = tuple(degenerate)
        self.degenerate = degenerate  # by column: images with constant features

    @abstractmethod
    def read(self, image: int, column: str) -> np.ndarray:
        """(height × width, channels), float16 or float32."""

    def tokens(
        self, image: int, columns: Sequence[str], rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(rows, channels): the columns concatenated; only some rows, where given."""
        parts = [self.read(image, column) for column in columns]
        return np.concatenate([p if rows is None else p[rows] for p in parts], axis=1)

    def warn_of_constant_features(self) -> None:
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
