"""Scores of saliency segmentation, as in TokenCut's published evaluation.

Every score of a data set is a mean over the scores of its images: a small object weighs as much as
a large one. That is unlike mIoU (`segmentation`), whose counts are summed first.

    F-beta = (1 + β²) · precision · recall / (β² · precision + recall),   β² = 0.3

A soft map is binarised at 255 thresholds. Max F-beta of a data set is the highest of 255 means over
images, one threshold for all images; it is not the mean of each image's highest value.

Where the published code is undefined: an empty prediction where nothing is salient is right, so its
IoU, precision and recall are 1. An image without scored pixels has NaN everywhere.
"""

from typing import NamedTuple

import numpy as np

from skipbench.metrics.means import share_percent

BETA_SQUARED = 0.3
THRESHOLDS = np.arange(255) / 255  # 0, 1/255, …, 254/255; values above are predicted


class MaskScores(NamedTuple):
    """Of one image, from 0 to 1. A list of them is an array (images, 5)."""

    iou: float
    accuracy: float
    precision: float  # 1 where nothing is predicted
    recall: float  # 1 where nothing is salient
    f_beta: float


def mask_scores(
    prediction: np.ndarray, truth: np.ndarray, counted: np.ndarray | None = None
) -> MaskScores:
    """prediction, truth, counted: HW bool; counted: the pixels to score (default: all)."""
    predicted, true = _counted(np.asarray(prediction, bool), truth, counted)
    if not true.size:
        return MaskScores(*[float("nan")] * len(MaskScores._fields))
    right = int((predicted & true).sum())
    either = int((predicted | true).sum())
    precision, recall = _share(right, predicted.sum()), _share(right, true.sum())
    return MaskScores(
        iou=right / either if either else 1.0,
        accuracy=float((predicted == true).mean()),
        precision=float(precision),
        recall=float(recall),
        f_beta=float(f_beta(precision, recall)),
    )


def _share(part: np.ndarray | int, whole: np.ndarray | int) -> np.ndarray:
    """(…): precision where nothing is predicted, and recall where nothing is true, are 1."""
    return np.where(np.asarray(whole) > 0, part / np.maximum(whole, 1), 1.0)


def f_beta(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    """(…), from 0 to 1; 0 where both are 0."""
    above = (1 + BETA_SQUARED) * precision * recall
    below = BETA_SQUARED * precision + recall
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def f_beta_by_threshold(
    soft: np.ndarray, truth: np.ndarray, counted: np.ndarray | None = None, *, scale: bool = True
) -> np.ndarray:
    """(255,) float64 of one image: F-beta of the pixels above each threshold.

    soft: HW of any range; truth, counted: HW bool, as for `mask_scores`. The scored values are
    scaled to 0 … 1 by their minimum and maximum; if these are equal, nothing is predicted.
    scale=False: they are from 0 to 1 already, as in the published code.
    """
    values, true = _counted(soft, truth, counted)
    if not true.size:
        return np.full(len(THRESHOLDS), np.nan)
    if not np.isfinite(values).all():
        raise ValueError("a soft map with NaN or Inf")
    values = min_max(values) if scale else values
    # A value is above its first `level` thresholds, so one histogram holds all 255 cuts.
    level = np.searchsorted(THRESHOLDS, values)
    right = _above(level[true])
    return f_beta(_share(right, _above(level)), _share(right, int(true.sum())))


def _above(level: np.ndarray) -> np.ndarray:
    """(n,) number of thresholds below each pixel → (255,) pixels above each threshold."""
    histogram = np.bincount(level, minlength=len(THRESHOLDS) + 1)
    return histogram[::-1].cumsum()[::-1][1:]


def min_max(values: np.ndarray) -> np.ndarray:
    """float64 of the same shape, scaled to 0 … 1; all 0 if all values are equal."""
    values = np.asarray(values, np.float64)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def max_f_beta_percent(counts: np.ndarray) -> np.ndarray:
    """(…, 255, 2) → (…): the highest mean over images, in percent.

    counts: (F-beta, 1) by threshold, summed over images; so a bootstrap can sum them too, and every
    resample has its own best threshold.
    """
    return share_percent(counts).max(-1)


def _counted(
    prediction: np.ndarray, truth: np.ndarray, counted: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """(pixels,) of each: the scored ones."""
    if prediction.shape != truth.shape:
        raise ValueError(f"a prediction of {prediction.shape} for a mask of {truth.shape}")
    which = np.ones(truth.shape, bool) if counted is None else np.asarray(counted, bool)
    return prediction[which], np.asarray(truth, bool)[which]
