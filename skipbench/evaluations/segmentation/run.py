"""What runs of probe, knn and cluster share: images as they are scored, scores kept for resuming,
and pictures of predictions."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from skipbench.engine.progress import Progress, progress
from skipbench.evaluations.data import check_masks
from skipbench.evaluations.resume import Arrays, in_chunks
from skipbench.evaluations.run import Cell, FeatureRun
from skipbench.evaluations.segmentation.pixels import Grid
from skipbench.evaluations.segmentation.tokens import ImageTokens, TokenMap
from skipbench.features.store import Features
from skipbench.images import Picture, resize_mask
from skipbench.record_store import read_arrays
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.pictures import Predict

SomeCell = TypeVar("SomeCell", bound=Cell)


class Masked(Picture, Protocol):
    def mask(self) -> np.ndarray: ...


def mask_of(picture: Masked, side: int | None) -> np.ndarray:
    """As it is, or resized to a square."""
    mask = picture.mask()
    return resize_mask(mask, (side, side)) if side else mask


def grid_of(features: Features, image: int, columns: Sequence[str]) -> Grid:
    height, width = features.plan.sizes_hw[image]
    stride = features.stride(columns)
    return Grid(features.grid_hw(image, columns), (height / stride, width / stride))


class Split:
    """A data set with its features: tokens and masks, by number of the picture, seen whole."""

    def __init__(
        self,
        features: Features,
        pictures: Sequence[Masked],
        columns: Sequence[str],
        mask_size: int | None = None,
    ) -> None:
        self.features, self.pictures, self.columns = features, pictures, columns
        self.mask_size = mask_size

    def __len__(self) -> int:
        return len(self.pictures)

    def grid(self, image: int) -> Grid:
        return grid_of(self.features, image, self.columns)

    def tokens(self, image: int, rows: np.ndarray | None = None) -> np.ndarray:
        return self.features.tokens(image, self.columns, rows)

    def mask(self, image: int) -> np.ndarray:
        return mask_of(self.pictures[image], self.mask_size)

    def seen(self, image: int) -> ImageTokens:
        return ImageTokens([TokenMap(self.grid(image), self.tokens(image))])


class SegmentationRun(FeatureRun):
    """A run whose predictions are class maps."""

    def check_data(self) -> None:
        check_masks(*self.splits.values())

    def split(self, cell: Cell) -> Split:
        """The scored images, at full size."""
        return Split(self.val_features, self.val, self.columns(cell))

    def scored(
        self,
        cells: Sequence[SomeCell],
        label: str,
        score: Callable[[Sequence[int], Sequence[SomeCell], Progress], Sequence[Arrays]],
    ) -> Mapping[str, list[Arrays]]:
        """By id, what `score` made of the images for each cell, shard by shard. Resumable.

        score: called with images and the cells that lack them; advances by one for each image.
        """
        by_id = {cell.id: cell for cell in cells}
        chunks = {cell.id: self.chunks(cell) for cell in cells}
        with progress(label, len(self.val)) as advance, self.timed(self.stages[-1]):

            def work(numbers: Sequence[int], names: Sequence[str]) -> dict[str, Arrays]:
                found = score(numbers, [by_id[name] for name in names], advance)
                return dict(zip(names, found, strict=True))

            return in_chunks(
                chunks, len(self.val), work, advance, self.settings.force, self.shard_images
            )

    def predictor(self, cell: Any, arrays: Mapping[str, np.ndarray]) -> "Predict":
        """What this cell says of the scored images. arrays: of its record."""
        raise NotImplementedError

    def caption(self, cell: Any) -> str:
        """Of its pictures, beside checkpoint and data."""
        layers: str = cell.layers
        return layers

    def draw(self, cell: Any, result: Result) -> None:
        from skipbench.evaluations.pictures import Drawing, draw_record

        arrays = read_arrays(self.settings.out / f"{result.id}.npz")
        drawing = Drawing(self.val, self.val, self.predictor(cell, arrays), arrays["counts"])
        folder, pictures = self.settings.out / result.id, self.settings.pictures
        draw_record(folder, drawing, pictures, result, self.caption(cell))
