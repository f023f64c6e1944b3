"""Bootstrap over images: how far a score would move with another draw of as many images.

A resample counts each image some number of times; the counts of all images, so weighted, are one
matrix product, and a score is a function of them.
"""

from collections.abc import Callable

import numpy as np

RESAMPLES = 2000
METHOD = "percentile"


def resample_weights(images: int, resamples: int, seed: int) -> np.ndarray:
    """(resamples, images) float64: how often each image is drawn, `images` draws a row."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(images, size=(resamples, images))
    drawn += images * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * images).reshape(resamples, images) * 1.0


def bootstrap(
    counts: np.ndarray, score: Callable[[np.ndarray], np.ndarray], weights: np.ndarray
) -> np.ndarray:
    """(resamples,) scores. counts: (images, …) by image; score: (resamples, …) summed → (…);
    weights: of `resample_weights`, the same for all that is to be compared."""
    flat = counts.reshape(len(counts), -1).astype(np.float64)
    return score((weights @ flat).reshape(len(weights), *counts.shape[1:]))


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of them (percentile method); NaN among them is left out."""
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
