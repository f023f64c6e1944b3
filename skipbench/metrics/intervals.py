"""Bootstrap over images: how much a score would change with another sample of as many images.

A resample weights each image by how often it is drawn; the weighted sums of all counts are one
matrix product, and a score is a function of them.

A single mIoU has a BCa interval (bias-corrected and accelerated; Efron 1987): resamples lack rare
classes, so their scores are biased low, and so would be plain percentiles. In the difference of two
models on the same images that cancels, and percentiles have the best coverage.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import bdtr, ndtr, ndtri

RESAMPLES = 2000
METHOD = "BCa"
TAILS = [(1 - 0.95) / 2, (1 + 0.95) / 2]  # quantiles: all intervals are 95 %
EXACT_FLIPS, FLIPS = 12, 10_000  # images for which all signs are tried; else random draws
SIGNIFICANT = 0.06  # of p_value: the edge of a 95 % interval, and a resample or two


def resample_weights(images: int, resamples: int, seed: int) -> np.ndarray:
    """(resamples, images) uint16: how often each image is drawn, `images` draws per row."""
    rng = np.random.default_rng(seed)
    weights = np.empty((resamples, images), np.uint16)
    for rows in _blocks(resamples, images):
        count = rows.stop - rows.start
        drawn = rng.integers(images, size=(count, images))
        drawn += images * np.arange(count)[:, None]
        found = np.bincount(drawn.ravel(), minlength=count * images)
        weights[rows] = found.reshape(count, images)
    return weights


def _blocks(resamples: int, images: int) -> list[slice]:
    """Blocks of resamples that need some 30 MB, whatever the number of images."""
    size = max(1, 4_000_000 // images)
    return [slice(at, min(at + size, resamples)) for at in range(0, resamples, size)]


def bootstrap(
    counts: np.ndarray, score: Callable[[np.ndarray], np.ndarray], weights: np.ndarray
) -> np.ndarray:
    """(resamples,) scores. score: (resamples, …) summed → (…)."""
    return score(resample(counts, weights))


def resample(counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(resamples, …) summed counts. counts: (images, …) by image; weights: of `resample_weights`,
    the same for all models that are compared."""
    flat = counts.reshape(len(counts), -1).astype(np.float64)
    summed = [weights[rows].astype(np.float64) @ flat for rows in _blocks(*weights.shape)]
    return np.concatenate(summed).reshape(len(weights), *counts.shape[1:])


def interval(values: np.ndarray) -> tuple[float, float]:
    """The central 95 % of the values (percentile method); NaN are left out."""
    low, high = np.nanquantile(values, TAILS)
    return float(low), float(high)


def bca_interval(values: np.ndarray, estimate: float, left_out: np.ndarray) -> tuple[float, float]:
    """values: (resamples,) scores; estimate: of all images; left_out: (images,) scores without each
    image in turn. NaN are left out."""
    values, left_out = values[~np.isnan(values)], left_out[~np.isnan(left_out)]
    below = ((values < estimate).mean() + (values <= estimate).mean()) / 2
    if not 0 < below < 1:  # nearly all resamples are equal: there is nothing to correct
        return interval(values)
    bias = ndtri(below)
    apart = left_out.mean() - left_out
    scale = (apart**2).sum() ** 1.5
    acceleration = (apart**3).sum() / (6 * scale) if scale else 0.0
    shifted = bias + ndtri(TAILS)
    low, high = np.quantile(values, ndtr(bias + shifted / (1 - acceleration * shifted)))
    return float(low), float(high)


def leave_one_out(counts: np.ndarray, score: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """(images,) scores, each without one image."""
    return score(total(counts) - counts)


def total(counts: np.ndarray) -> np.ndarray:
    """Summed over images: counts of pixels as integers, scores as floats."""
    return counts.sum(0, dtype=np.float64 if counts.dtype.kind == "f" else np.int64)


def sign_test(a: np.ndarray, b: np.ndarray) -> float:
    """Exact two-sided sign test of two rows of hits, on the images where they differ. (A bootstrap
    of few such images is too confident.)"""
    differ, only_b = int((a != b).sum()), int((b > a).sum())
    return float(min(1.0, 2 * bdtr(min(only_b, differ - only_b), differ, 0.5))) if differ else 1.0


def flip_test(differences: np.ndarray) -> float:
    """Two-sided sign-flip test of the mean of paired differences: how often random signs bring it
    as far from 0. Exact for a few images; NaN are left out."""
    known = differences[~np.isnan(differences) & (differences != 0)]
    if not len(known):
        return 1.0
    exact = len(known) <= EXACT_FLIPS
    if exact:
        signs = np.arange(2 ** len(known))[:, None] >> np.arange(len(known)) & 1
    else:
        signs = np.random.default_rng(0).integers(0, 2, (FLIPS, len(known)), np.int8)
    sums = np.abs((2.0 * signs - 1) @ known)
    as_far = int((sums >= abs(known.sum()) * (1 - 1e-12)).sum())
    return as_far / len(sums) if exact else (1 + as_far) / (1 + FLIPS)


def exact_interval(hits: int, images: int) -> tuple[float, float]:
    """Clopper and Pearson's, for a share of 0 or 1, which is the same in every resample."""
    beyond = TAILS[0] ** (1 / images)
    return (beyond, 1.0) if hits else (0.0, 1 - beyond)


def p_value(differences: np.ndarray) -> float:
    """Two-sided, of bootstrapped differences: how often they are on the other side of 0. Below 0.05
    if the 95 % percentile interval excludes 0 (up to a resample or two at the edge)."""
    known = differences[~np.isnan(differences)]
    tail = min((known <= 0).sum(), (known >= 0).sum())
    return float(min(1.0, 2 * (1 + tail) / (1 + len(known))))


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm's step-down correction (1979): the chance of a single false positive among all stays
    below the level, whatever the dependence between the tests."""
    given = np.asarray(p_values, float)
    order = np.argsort(given, kind="stable")
    steps = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))
    corrected = np.empty_like(given)
    corrected[order] = np.minimum(steps, 1)
    return corrected
