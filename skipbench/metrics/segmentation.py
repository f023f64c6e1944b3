"""Scores of a segmentation, from counts summed over the whole split.

mIoU is not a mean over images: counts are summed first. A class without any pixel in masks and
predictions has no IoU and is left out of the mean (some implementations count it as 0: "zero").
"""

from dataclasses import dataclass

import numpy as np

IGNORED = 255
LEFT_OUT = "left out"


def confusion(prediction: np.ndarray, truth: np.ndarray, classes: int) -> np.ndarray:
    """(classes, classes) int64: pixels by true class (row) and predicted class (column).

    prediction: integers below `classes`; truth: the same or 255, which is not scored.
    """
    counted = truth != IGNORED
    pairs = truth[counted].astype(np.int64) * classes + prediction[counted]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def class_counts(prediction: np.ndarray, truth: np.ndarray, classes: int) -> np.ndarray:
    """(3, classes) int64 of one image: correct, predicted and true pixels."""
    matrix = confusion(prediction, truth, classes)
    return np.stack([np.diag(matrix), matrix.sum(0), matrix.sum(1)])


@dataclass(frozen=True)
class Scores:
    """In percent, except the arrays by class, which are from 0 to 1 with NaN for absent ones."""

    miou: float
    pixel_accuracy: float
    mean_accuracy: float  # over the classes that occur in the masks
    weighted_iou: float  # by the frequency of classes
    iou: np.ndarray  # (classes,)
    accuracy: np.ndarray  # (classes,)


def scores(counts: np.ndarray, absent: str = LEFT_OUT) -> Scores:
    """counts: (3, classes), summed over images."""
    iou, true = class_iou(counts), counts[2]
    accuracy = _share(counts[0], true)
    known = accuracy[~np.isnan(accuracy)]
    weights = true / max(true.sum(), 1)
    return Scores(
        miou=float(miou_percent(counts, absent)),
        pixel_accuracy=100 * float(_share(counts[0].sum(), true.sum())),
        mean_accuracy=100 * float(known.mean()) if len(known) else np.nan,
        weighted_iou=100 * float((weights * np.nan_to_num(iou)).sum()) if true.sum() else np.nan,
        iou=iou,
        accuracy=accuracy,
    )


def miou_percent(counts: np.ndarray, absent: str = LEFT_OUT) -> np.ndarray:
    """(…, 3, classes) → (…): NaN only without any scored pixel."""
    iou = class_iou(counts)
    present = ~np.isnan(iou)
    total = np.where(present, iou, 0).sum(-1)
    count = present.sum(-1)
    return 100 * _share(total, count if absent == LEFT_OUT else np.where(count, iou.shape[-1], 0))


def class_iou(counts: np.ndarray) -> np.ndarray:
    """(…, 3, classes) → (…, classes)."""
    right, predicted, true = counts[..., 0, :], counts[..., 1, :], counts[..., 2, :]
    return _share(right, predicted + true - right)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    whole = np.asarray(whole)
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
