"""Scores of a segmentation, all from one confusion matrix over the whole split.

A mean over images is not mIoU: counts are summed first. A class with no pixel, neither in the masks
nor in the predictions, has no IoU and is left out of the mean.
"""

import numpy as np

IGNORED = 255


def confusion(prediction: np.ndarray, truth: np.ndarray, classes: int) -> np.ndarray:
    """(classes, classes) int64: pixels by true class (row) and predicted class (column).

    prediction: integers below `classes`; truth: the same or 255, whose pixels do not count.
    """
    counted = truth != IGNORED
    pairs = truth[counted].astype(np.int64) * classes + prediction[counted]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def iou_by_class(matrix: np.ndarray) -> np.ndarray:
    """(classes,) float64 from 0 to 1; NaN for a class that occurs nowhere."""
    both = np.diag(matrix)
    either = matrix.sum(0) + matrix.sum(1) - both
    return np.where(either > 0, both / np.maximum(either, 1), np.nan)


def mean_iou_percent(matrix: np.ndarray) -> float:
    """NaN only where no pixel counts at all."""
    iou = iou_by_class(matrix)
    present = ~np.isnan(iou)
    return float(100 * iou[present].mean()) if present.any() else float("nan")
