"""How clear a picture of features is, in numbers: do neighbours agree, and regions?

Both are about the tokens of one image, and both stay the same when features are rotated, moved or
scaled as a whole: they compare models whose features have nothing in common.
"""

import numpy as np


def total_variation(values: np.ndarray, valid: np.ndarray | None = None) -> float:
    """Mean distance between neighbouring tokens, relative to that between any two (root mean
    square). 0: flat; about 1: neighbours have no more in common than any two.

    values: (height, width, channels); valid: (height, width) bool, the tokens that count. NaN where
    nothing varies, or none has a neighbour.
    """
    valid = np.ones(values.shape[:2], bool) if valid is None else valid
    steps = [
        np.linalg.norm(values[1:] - values[:-1], axis=-1)[valid[1:] & valid[:-1]],
        np.linalg.norm(values[:, 1:] - values[:, :-1], axis=-1)[valid[:, 1:] & valid[:, :-1]],
    ]
    lengths, inside = np.concatenate(steps), values[valid]
    scatter = float(((inside - inside.mean(0)) ** 2).sum()) if len(inside) else 0.0
    if not len(lengths) or scatter <= 0:
        return float("nan")
    return float(lengths.mean() / np.sqrt(2 * scatter / (len(inside) - 1)))


def between_share(values: np.ndarray, segments: np.ndarray) -> float:
    """Share of the variance that lies between the means of segments, 0 to 1.

    1: all tokens of a segment are alike; of features that know nothing of k segments (k − 1) /
    (n − 1) on average. values: (tokens, channels); segments: (tokens,) integers, those below 0
    count for nothing. NaN with fewer than two segments, or where nothing varies.
    """
    inside = segments >= 0
    values = values[inside]
    names, places, counts = np.unique(segments[inside], return_inverse=True, return_counts=True)
    if len(names) < 2:
        return float("nan")
    centred = values - values.mean(0)
    whole = float((centred**2).sum())
    if whole <= 0:
        return float("nan")
    member = np.zeros((len(names), len(values)))
    member[places, np.arange(len(values))] = 1
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
