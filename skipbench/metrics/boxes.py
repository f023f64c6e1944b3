"""Overlap of boxes."""

import numpy as np


def box_iou(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n, m) float64, from 0 to 1. boxes, others: (n, 4) and (m, 4) xyxy in half-open pixels.

    A box without area has an IoU of 0 with everything, itself included.
    """
    first, second = (np.asarray(b, np.float64).reshape(-1, 4) for b in (boxes, others))
    corner = np.maximum(first[:, None, :2], second[None, :, :2])
    opposite = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = _area(opposite - corner)
    either = _area(first[:, 2:] - first[:, :2])[:, None] + _area(second[:, 2:] - second[:, :2])
    either = either - shared
    return np.divide(shared, either, out=np.zeros_like(shared), where=either > 0)


def _area(sides: np.ndarray) -> np.ndarray:
    """(…, 2) → (…): 0 where a side is negative."""
    return np.maximum(sides, 0).prod(-1)
