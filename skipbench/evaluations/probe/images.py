"""The images of a probe: scored whole or through sliding windows, trained on whole or as crops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from skipbench.datasets import Dataset, Item
from skipbench.evaluations.probe.views import View, windows
from skipbench.evaluations.segmentation.run import Masked, Split, mask_of
from skipbench.evaluations.segmentation.tokens import ImageTokens, TokenMap
from skipbench.features import cache as feature_cache
from skipbench.features.store import Features, FeatureStore


class Windows:
    """Images seen through overlapping windows."""

    def __init__(self, split: Split, pictures: Sequence[Masked], first: Sequence[int]) -> None:
        """split: the windows, one after another; first: the first one of each picture, and the
        end."""
        self.split, self.pictures, self.first = split, pictures, first

    def __len__(self) -> int:
        return len(self.pictures)

    def mask(self, image: int) -> np.ndarray:
        return mask_of(self.pictures[image], self.split.mask_size)

    def seen(self, image: int) -> ImageTokens:
        numbers = range(self.first[image], self.first[image + 1])
        views = [self.split.pictures[i] for i in numbers]
        parts = [
            TokenMap(self.split.grid(i), self.split.tokens(i), view.box)  # type: ignore[attr-defined]
            for i, view in zip(numbers, views, strict=True)
        ]
        return ImageTokens(parts, views[0].resized_hw)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ScoredImages:
    """Images to be scored, with their features: whole, or through windows."""

    pictures: Sequence[Masked]
    features: Features
    windows: Sequence[View] = ()
    first: Sequence[int] = ()  # window of each picture, and the end

    def scenes(self, columns: Sequence[str], mask_size: int | None) -> Split | Windows:
        if not self.windows:
            return Split(self.features, self.pictures, columns, mask_size)
        split = Split(self.features, self.windows, columns, mask_size)
        return Windows(split, self.pictures, self.first)


def cut_windows(data: Sequence[Item], size: int, stride: int) -> tuple[list[View], list[int]]:
    """All windows, and where those of each picture begin."""
    views: list[View] = []
    first = [0]
    for item in data:
        views += windows(item, size, stride)
        first.append(len(views))
    return views, first


class EpochCrops:
    """Random crops of the training images: new ones in every epoch, or `different` in turn.

    Features of an epoch that will not be seen again are removed once it is over.
    """

    def __init__(
        self,
        data: Dataset,
        crop: Callable[[Item, int], View],
        extract: Callable[[Sequence[View]], Features],
        different: int | None,
    ) -> None:
        self.data, self.crop, self.different = data, crop, different
        self.extract = extract
        self._now: int | None = None
        self._features: Features | None = None
        self._pictures: list[View] = []

    def at(self, epoch: int) -> tuple[Features, list[View]]:
        number = epoch % self.different if self.different else epoch
        if number != self._now or self._features is None:
            self._end(remove=True)
            self._pictures = [self.crop(item, number) for item in self.data]
            self._features, self._now = self.extract(self._pictures), number
        return self._features, self._pictures

    def _end(self, remove: bool) -> None:
        if self._features is None:
            return
        self._features.close()
        if remove and self.different is None and isinstance(self._features, FeatureStore):
            feature_cache.remove(self._features.folder)
        self._features = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Interrupted, the features of this epoch are kept for the next run."""
        self._end(remove=kind is None)
