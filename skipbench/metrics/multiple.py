"""Several tests at once: p-values corrected for how many there are."""

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm's step-down correction (1979): the chance of a single false positive among all stays
    below the level, whatever the dependence between the tests."""
    given = np.asarray(p_values, float)
    order = np.argsort(given, kind="stable")
    steps = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))
    corrected = np.empty_like(given)
    corrected[order] = np.minimum(steps, 1)
    return corrected
