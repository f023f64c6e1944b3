"""Features of a list of images, by image and column: on disk (`store.py`) or in memory
(`source.py`)."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F

from skipbench.features.plan import Plan

log = logging.getLogger("skipbench")


class Features(Sequence[dict[str, torch.Tensor]], ABC):
    """By image and column: features[3]["tokens_norm.11"] is (height, width, channels)."""

    computed = 0  # images that were computed, not found in the store

    def __init__(
        self, plan: Plan, strides: Mapping[str, int], degenerate: dict[str, tuple[int, ...]]
    ) -> None:
        self.plan = plan
        self.strides = strides  # by column: pixels per token
        self.columns = tuple(degenerate)
        self.degenerate = degenerate  # by column: images with constant features

    @abstractmethod
    def read(self, image: int, column: str) -> np.ndarray:
        """(height × width, channels), float16 or float32."""

    def tokens(
        self, image: int, columns: Sequence[str], rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(rows, channels): the columns concatenated; only some rows, where given.

        Coarser columns are resized bilinearly to the finest of them.
        """
        stride = self.stride(columns)
        parts = [self._on_grid(image, column, stride) for column in columns]
        return np.concatenate([p if rows is None else p[rows] for p in parts], axis=1)

    def stride(self, columns: Sequence[str]) -> int:
        """Pixels per token of the finest of these columns."""
        return min(self.strides[column] for column in columns)

    def grid_hw(self, image: int, columns: Sequence[str]) -> tuple[int, int]:
        return self.plan.grid_hw(image, self.stride(columns))

    def token_count(self, image: int, columns: Sequence[str]) -> int:
        """Tokens of an image."""
        height, width = self.grid_hw(image, columns)
        return height * width

    def _on_grid(self, image: int, column: str, stride: int) -> np.ndarray:
        tokens = self.read(image, column)
        if self.strides[column] == stride:
            return tokens
        grid = torch.from_numpy(tokens).float().unflatten(0, self.grid_hw(image, [column]))
        wanted_hw = self.plan.grid_hw(image, stride)
        resized = F.interpolate(grid.permute(2, 0, 1)[None], wanted_hw, mode="bilinear")[0]
        return resized.flatten(1).T.numpy().astype(tokens.dtype)

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
                0, self.grid_hw(image, [column])
            )
            for column in self.columns
        }

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
