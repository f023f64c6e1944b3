"""Holm's correction against the principle it follows from, and against numbers worked by hand."""

from itertools import combinations

import numpy as np
import pytest

from skipbench.metrics.intervals import holm


def by_closed_testing(p_values):
    """A hypothesis falls if Bonferroni's test rejects every intersection that it is part of."""
    number = len(p_values)
    sets = [s for size in range(1, number + 1) for s in combinations(range(number), size)]
    tests = {s: min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets}
    return [max(p for s, p in tests.items() if i in s) for i in range(number)]


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9])
def test_holm_is_the_closure_of_bonferroni(number):
    rng = np.random.default_rng(number)
    for p_values in (rng.random(number) ** 3, rng.choice([0.001, 0.01, 0.2], number)):
        assert holm(p_values) == pytest.approx(by_closed_testing(p_values))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []
