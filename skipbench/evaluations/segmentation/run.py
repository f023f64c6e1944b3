"""What runs of probe, knn and cluster share: images by number, scores kept for resuming, metrics,
and pictures of predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from typing import Protocol as Interface

import numpy as np

from skipbench.engine.progress import Progress, progress
from skipbench.evaluations import pictures
from skipbench.evaluations.data import check_masks
from skipbench.evaluations.resume import Arrays
from skipbench.evaluations.run import Cell, FeatureRun
from skipbench.evaluations.segmentation.tokens import Grid, ImageTokens, TokenMap
from skipbench.features.store import Features
from skipbench.images import Picture, resize_mask
from skipbench.metrics.intervals import (
    RESAMPLES,
    bca_interval,
    bootstrap,
    leave_one_out,
    resample_weights,
)
from skipbench.metrics.segmentation import LEFT_OUT, miou_percent, scores
from skipbench.record_store import read_arrays
from skipbench.records import Result

SomeCell = TypeVar("SomeCell", bound=Cell)


def grid_of(features: Features, image: int, columns: Sequence[str]) -> Grid:
    height, width = features.plan.sizes_hw[image]
    stride = features.stride(columns)
    return Grid(features.grid_hw(image, columns), (height / stride, width / stride))


class Masked(Picture, Interface):
    def mask(self) -> np.ndarray: ...


@dataclass(frozen=True)
class StoredSplit:
    """Images by number, as methods use them; tokens are those of some columns of the features."""

    features: Features
    pictures: Sequence[Masked]
    columns: Sequence[str]
    mask_size: int | None = None  # masks are resized to such a square

    def __len__(self) -> int:
        return len(self.pictures)

    def grid(self, image: int) -> Grid:
        return grid_of(self.features, image, self.columns)

    def tokens(self, image: int, rows: np.ndarray | None = None) -> np.ndarray:
        return self.features.tokens(image, self.columns, rows)

    def image_tokens(self, image: int) -> ImageTokens:
        return ImageTokens([TokenMap(self.grid(image), self.tokens(image))])

    def mask(self, image: int) -> np.ndarray:
        mask, side = self.pictures[image].mask(), self.mask_size
        return resize_mask(mask, (side, side)) if side else mask


class SegmentationRun(FeatureRun):
    """A run whose predictions are class maps."""

    def check_data(self) -> None:
        check_masks(*self.splits.values())

    def split(self, cell: Cell) -> StoredSplit:
        """The scored images, at full size."""
        return StoredSplit(self.val_features, self.val, self.columns(cell))

    def scored(
        self,
        cells: Sequence[SomeCell],
        label: str,
        score: Callable[[Sequence[int], Sequence[SomeCell], Progress], Sequence[Arrays]],
    ) -> Mapping[str, list[Arrays]]:
        """For each cell by id, the arrays of `score`, shard by shard. Resumable.

        score: called with images and the cells without stored arrays for them; it advances by one
        for each image.
        """
        chunks = {cell.id: self.chunks(cell) for cell in cells}
        arrays: dict[str, list[Arrays]] = {cell.id: [] for cell in cells}
        count, size = len(self.val), self.shard_images
        with progress(label, count) as advance, self.timed(self.stages[-1]):
            for shard, start in enumerate(range(0, count, size)):
                images = range(start, min(start + size, count))
                missing = []
                for cell in cells:
                    part = None if self.settings.force else chunks[cell.id].load(shard)
                    if part is None:
                        missing.append(cell)
                    else:
                        arrays[cell.id].append(part)
                if not missing:
                    advance(len(images))
                    continue
                for cell, made in zip(missing, score(images, missing, advance), strict=True):
                    chunks[cell.id].save(shard, made)
                    arrays[cell.id].append(made)
        return arrays

    def predictor(self, cell: Any, arrays: Mapping[str, np.ndarray]) -> pictures.Predict:
        """Predicts class maps of the scored images. arrays: of the cell's record."""
        raise NotImplementedError

    def caption(self, cell: Any) -> str:
        """Of its pictures, beside checkpoint and data."""
        return str(cell.layers)

    def drawn(self) -> list[Any]:
        """With several seeds, only the first."""
        first = self.cells[0].seed
        return [cell for cell in self.cells if self.settings.pictures and cell.seed == first]

    def draw(self, cell: Any, result: Result) -> None:
        folder = self.settings.out / result.id
        arrays = read_arrays(self.settings.out / f"{result.id}.npz")
        predict, number = self.predictor(cell, arrays), self.settings.pictures
        drawing = pictures.Drawing(self.val, self.val, predict, arrays["counts"])
        pictures.draw_record(folder, drawing, number, result, self.caption(cell))


# -- metrics of a record


def segmentation_metrics(
    counts: np.ndarray, names: Sequence[str], absent: str = LEFT_OUT
) -> dict[str, Any]:
    """Of a record. counts: (images, 3, classes); names: of the classes."""
    weights = resample_weights(len(counts), RESAMPLES, seed=0)
    return {"headline": "miou", **of_counts(counts, weights, absent), **by_class(counts, names)}


def of_counts(counts: np.ndarray, weights: np.ndarray, absent: str = LEFT_OUT) -> dict[str, Any]:
    """weights: resamples of the images, the same for all segmentations that are compared."""

    def score(summed: np.ndarray) -> np.ndarray:
        return miou_percent(summed, absent)

    found, interval = scores(counts.sum(0, dtype=np.int64), absent), None
    if len(counts) > 1:  # one image says nothing about the spread over images
        drawn = bootstrap(counts, score, weights)
        interval = list(bca_interval(drawn, found.miou, leave_one_out(counts, score)))
    return {
        "miou": found.miou,
        "interval": interval,
        "pixel_accuracy": found.pixel_accuracy,
        "mean_accuracy": found.mean_accuracy,
        "weighted_iou": found.weighted_iou,
    }


def by_class(counts: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    total = counts.sum(0, dtype=np.int64)
    percent = [None if np.isnan(iou) else 100 * float(iou) for iou in scores(total).iou]
    return {
        "per_class": dict(zip(names, percent, strict=True)),
        "absent_classes": [n for n, true in zip(names, total[2], strict=True) if true == 0],
    }
