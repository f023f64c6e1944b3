"""What is said of a segmentation: mIoU with its interval over images, and its companions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from skipbench.metrics.intervals import (
    RESAMPLES,
    bca_interval,
    bootstrap,
    leave_one_out,
    resample_weights,
)
from skipbench.metrics.segmentation import LEFT_OUT, miou_percent, scores


def figures(counts: np.ndarray, names: Sequence[str], absent: str = LEFT_OUT) -> dict[str, Any]:
    """Of one segmentation. counts: (images, 3, classes); names: of the classes."""
    weights = resample_weights(len(counts), RESAMPLES, seed=0)
    return {"headline": "miou", **of_counts(counts, weights, absent), **by_class(counts, names)}


def of_counts(counts: np.ndarray, weights: np.ndarray, absent: str = LEFT_OUT) -> dict[str, Any]:
    """weights: resamples of the images, the same for all that is to be compared."""
    found = scores(counts.sum(0, dtype=np.int64), absent)
    known = len(counts) > 1  # a single image says nothing of how far others would be
    return {
        "miou": found.miou,
        "interval": _interval(counts, found.miou, weights, absent) if known else None,
        "pixel_accuracy": found.pixel_accuracy,
        "mean_accuracy": found.mean_accuracy,
        "weighted_iou": found.weighted_iou,
    }


def by_class(counts: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    total = counts.sum(0, dtype=np.int64)
    iou = scores(total).iou
    return {
        "per_class": dict(zip(names, map(_percent, iou), strict=True)),
        "absent_classes": [n for n, true in zip(names, total[2], strict=True) if true == 0],
    }


def _interval(counts: np.ndarray, miou: float, weights: np.ndarray, absent: str) -> list[float]:
    def score(summed: np.ndarray) -> np.ndarray:
        return miou_percent(summed, absent)

    drawn = bootstrap(counts, score, weights)
    return list(bca_interval(drawn, miou, leave_one_out(counts, score)))


def _percent(share: float) -> float | None:
    return None if np.isnan(share) else 100 * float(share)
