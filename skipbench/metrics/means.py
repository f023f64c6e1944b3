"""Figures that are means over images, with their intervals."""

import numpy as np

from skipbench.metrics.boxes import share_percent
from skipbench.metrics.intervals import bca_interval, bootstrap, exact_interval, leave_one_out


def counts_of(score: np.ndarray) -> np.ndarray:
    """(images, 2): score and one, as comparisons take them. score: (images,), NaN: it has none."""
    known = ~np.isnan(score)
    return np.stack([np.where(known, score.astype(np.float64), 0), known], axis=1)


def mean_percent(counts: np.ndarray, weights: np.ndarray) -> tuple[float, list[float]]:
    """In percent, with its 95 % interval over images. counts: (images, 2); weights: resamples."""
    value = float(share_percent(counts.sum(0)))
    if value in (0.0, 100.0) and np.isin(counts[:, 1], (0, 1)).all():
        low, high = exact_interval(round(value), int(counts[:, 1].sum()))
        return value, [100 * low, 100 * high]
    drawn = bootstrap(counts, share_percent, weights)
    return value, list(bca_interval(drawn, value, leave_one_out(counts, share_percent)))
