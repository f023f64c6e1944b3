"""What was found in each image, by block, and how it agrees with the truth.

By image:             whole_image: the score of the whole image, as though it were the object
By image and block:   boxes (4, in pixels of the image as it is), tokens (size of the object),
                      solver (number in SOLVERS), degenerate, tied, score
with boxes:           ious, ious_of   every IoU with a true box (rows of all images one below
                      another), and how many rows each image has; the score is a hit, 0 or 1
with masks:           accuracy, f_beta and f_beta_curve (255 thresholds); the score is the IoU
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from skipbench.datasets import Boxes, Item
from skipbench.evaluations.resume import Arrays
from skipbench.evaluations.tokencut.method import SOLVERS, Found, enlarged
from skipbench.images import IGNORED, resize_boxes, resize_mask
from skipbench.metrics.means import box_iou
from skipbench.metrics.saliency import f_beta_by_threshold, mask_scores

HIT = 0.5  # IoU


@dataclass(frozen=True)
class Seen:
    """The objects of one image, in its own pixels."""

    found: Sequence[Found]  # by block
    patch: int
    seen_hw: tuple[int, int]  # as the model saw it, before padding
    size_hw: tuple[int, int]  # as it is

    @property
    def boxes(self) -> np.ndarray:
        """(blocks, 4) float64."""
        boxes = np.array([one.box(self.patch, self.seen_hw) for one in self.found], np.float64)
        return resize_boxes(boxes, self.seen_hw, self.size_hw)

    def mask(self, block: int) -> np.ndarray:
        return self._full(self.found[block].mask)

    def map(self, block: int) -> np.ndarray:
        return self._full(self.found[block].map)

    def _full(self, grid: np.ndarray) -> np.ndarray:
        full = enlarged(grid, self.patch, self.seen_hw)
        return full if self.seen_hw == self.size_hw else resize_mask(full, self.size_hw)

    def arrays(self) -> Arrays:
        return {
            "boxes": self.boxes.astype(np.float32),
            "tokens": np.array([one.tokens for one in self.found], np.int32),
            "solver": np.array([SOLVERS.index(one.solver) for one in self.found], np.uint8),
            "degenerate": np.array([one.degenerate for one in self.found]),
            "tied": np.array([one.tied for one in self.found]),
        }


def true_boxes(item: Item, hard: bool) -> Boxes:
    return item.boxes() if hard else item.boxes().without_hard()


def score_boxes(item: Item, seen: Seen, hard: bool = True) -> Arrays:
    """hard: boxes marked difficult or truncated count, too."""
    truth = true_boxes(item, hard)
    ious = box_iou(truth.xyxy, seen.boxes)
    whole = np.array([(0, 0, seen.size_hw[1], seen.size_hw[0])])
    return {
        "score": (ious.max(0) >= HIT).astype(np.float32),
        "whole_image": np.array(box_iou(truth.xyxy, whole).max() >= HIT, np.float32),
        "ious": ious.astype(np.float32),
        "ious_of": np.array(len(ious), np.int32),
    }


def score_masks(item: Item, seen: Seen) -> Arrays:
    """All that is not background is to be found."""
    mask = item.mask()
    truth, counted = mask > 0, mask != IGNORED
    blocks = range(len(seen.found))
    scores = [mask_scores(seen.mask(block), truth, counted) for block in blocks]
    curves = [f_beta_by_threshold(_settled(seen.map(block)), truth, counted) for block in blocks]
    return {
        "score": np.array([one.iou for one in scores], np.float32),
        "whole_image": np.array(mask_scores(truth | True, truth, counted).iou, np.float32),
        "accuracy": np.array([one.accuracy for one in scores], np.float32),
        "f_beta": np.array([one.f_beta for one in scores], np.float32),
        "f_beta_curve": np.array(curves, np.float32),
    }


def _settled(values: np.ndarray) -> np.ndarray:
    """Of which the largest is ±1, and without the last digits: rounding noise is no order."""
    return np.round(values / max(float(np.abs(values).max()), 1e-300), 7)


def stacked(images: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """One array for each name; the images one after another."""
    joined = {name: np.concatenate if name == "ious" else np.stack for name in images[0]}
    return {name: join([one[name] for one in images]) for name, join in joined.items()}


def gathered(parts: Sequence[Mapping[str, np.ndarray]], numbers: Sequence[int]) -> Arrays:
    """Parts of `stacked` as one, in the order of numbers: which image stands at each place."""
    places = np.argsort(np.asarray(numbers))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if "ious" in whole:
        rows = ious_by_image(whole)
        whole["ious"] = np.concatenate([rows[place] for place in places])
    return {name: array if name == "ious" else array[places] for name, array in whole.items()}


def ious_by_image(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """(true boxes, blocks) for each image."""
    return np.split(arrays["ious"], np.cumsum(arrays["ious_of"])[:-1])
