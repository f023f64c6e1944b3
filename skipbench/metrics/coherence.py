"""How clear a picture of features is, in numbers: do neighbours agree, and regions?

Both are about the tokens of one image, and both stay the same when features are rotated, moved or
scaled as a whole: they compare models whose features have nothing in common.
"""

import numpy as np

ALIKE = 1e-6  # deviation relative to the norm: below it, what varies is rounding


def total_variation(values: np.ndarray, valid: np.ndarray | None = None) -> float:
    """Mean distance between neighbouring tokens, relative to that between any two (root mean
    square). 0: flat; about 1: neighbours have no more in common than any two.

    values: (height, width, channels); valid: (height, width) bool, the tokens that count. NaN where
    nothing varies, or none has a neighbour.
    """
    values = np.asarray(values, np.float64)
    valid = np.ones(values.shape[:2], bool) if valid is None else valid
    steps = [
        np.linalg.norm(values[1:] - values[:-1], axis=-1)[valid[1:] & valid[:-1]],
        np.linalg.norm(values[:, 1:] - values[:, :-1], axis=-1)[valid[:, 1:] & valid[:, :-1]],
    ]
    lengths = np.concatenate(steps)
    centred, scatter = _centred(values[valid])
    if not len(lengths) or not scatter:
        return float("nan")
    return float(lengths.mean() / np.sqrt(2 * scatter / (len(centred) - 1)))


def _centred(values: np.ndarray) -> tuple[np.ndarray, float]:
    """(tokens, channels) without their mean, and the sum of squares; 0 where it is rounding."""
    if not len(values):
        return values, 0.0
    centred = values - values.mean(0)
    scatter = float((centred**2).sum())
    return centred, scatter if scatter > ALIKE**2 * float((values**2).sum()) else 0.0


def between_share(values: np.ndarray, segments: np.ndarray) -> float:
    """Share of the variance that lies between the means of segments, 0 to 1.

    1: all tokens of a segment are alike; of features that know nothing of k segments (k − 1) /
    (n − 1) on average. values: (tokens, channels); segments: (tokens,) integers, those below 0
    count for nothing. NaN with fewer than two segments, or where nothing varies.
    """
    inside = segments >= 0
    names, places, counts = np.unique(segments[inside], return_inverse=True, return_counts=True)
    if len(names) < 2:
        return float("nan")
    centred, whole = _centred(np.asarray(values[inside], np.float64))
    if not whole:
        return float("nan")
    member = np.zeros((len(names), len(centred)))
    member[places, np.arange(len(centred))] = 1
    sums = member @ centred
    return float((sums**2 / counts[:, None]).sum() / whole)


def effective_rank(variances: np.ndarray) -> float:
    """exp of the entropy of their shares: over how many directions variance is spread."""
    share = variances[variances > 0]
    if not len(share):
        return float("nan")
    share = share / share.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def majority(segments: np.ndarray, patch: int) -> np.ndarray:
    """(height, width) integers in pixels, whole patches → the most frequent one of each patch.

    Those below 0 count for nothing; a patch of nothing else is -1. Of equal ones the lowest.
    """
    height, width = (side // patch for side in segments.shape)
    blocks = segments.reshape(height, patch, width, patch)
    names = np.unique(segments[segments >= 0])
    if not len(names):
        return np.full((height, width), -1)
    counts = np.stack([(blocks == name).sum((1, 3)) for name in names])
    return np.where(counts.max(0) > 0, names[counts.argmax(0)], -1)
