"""Spatial coherence of features: do neighbouring tokens agree, and tokens of one region?

Both are about the tokens of one image, and both are invariant to rotating, shifting or scaling the
features, so they compare models with unrelated feature spaces.
"""

import numpy as np

ALIKE = 1e-6  # deviation relative to the norm; less is rounding


def total_variation(values: np.ndarray, valid: np.ndarray | None = None) -> float:
    """Mean distance between neighbouring tokens, relative to that between any two (root mean
    square). 0: constant; about 1: neighbours are no more alike than any two.

    values: (height, width, channels); valid: (height, width) bool, the tokens to use. NaN if the
    features are constant, or no token has a neighbour.
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
    """(tokens, channels) without their mean, and the sum of squares; 0 if that is rounding."""
    if not len(values):
        return values, 0.0
    centred = values - values.mean(0)
    scatter = float((centred**2).sum())
    return centred, scatter if scatter > ALIKE**2 * float((values**2).sum()) else 0.0


def between_share(values: np.ndarray, segments: np.ndarray) -> float:
    """Share of the variance that lies between the means of segments, 0 to 1.

    1: all tokens of a segment are equal; features independent of the k segments have (k − 1) /
    (n − 1) on average. values: (tokens, channels); segments: (tokens,) integers, negative ones are
    ignored. NaN with fewer than two segments, or for constant features.
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
    """exp of the entropy of their shares: the number of directions that the variance uses."""
    share = variances[variances > 0]
    if not len(share):
        return float("nan")
    share = share / share.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def majority(segments: np.ndarray, patch: int) -> np.ndarray:
    """(height, width) integers in pixels, whole patches → the most frequent one of each patch.

    Negative ones are ignored; a patch with nothing else is -1. The lowest one wins a tie.
    """
    height, width = (side // patch for side in segments.shape)
    blocks = segments.reshape(height, patch, width, patch)
    names = np.unique(segments[segments >= 0])
    if not len(names):
        return np.full((height, width), -1)
    counts = np.stack([(blocks == name).sum((1, 3)) for name in names])
    return np.where(counts.max(0) > 0, names[counts.argmax(0)], -1)
