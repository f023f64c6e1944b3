"""The second eigenvector against LAPACK's: convergence, fallback, equal eigenvalues."""

from itertools import product

import cuts
import numpy as np
import pytest
import torch

from skipbench.evaluations.tokencut.graph import CHECKS, Graphs, second_vectors
from skipbench.evaluations.tokencut.method import cut

EPS = 1e-5


def mixed_graphs(grid_hw=(17, 23)):
    """Some converge at once, some late, one not at all."""
    rng, count = np.random.default_rng(0), grid_hw[0] * grid_hw[1]
    links = [
        ~cuts.star(count, 30) | cuts.themselves(count),
        cuts.planted(rng, count, 3, 0.6, 0.2),
        cuts.chain(count),
        cuts.planted(rng, count, 2, 0.9, 0.05),
        cuts.cosines(cuts.blobs(rng, grid_hw, 2, 1.5)) > 0.2,
        cuts.apart(cuts.random_links(rng, 200, 0.3), cuts.random_links(rng, count - 200, 0.3)),
    ]
    return np.stack(links)


def test_graphs_that_converge_at_different_steps():
    links = mixed_graphs()
    graphs = Graphs(torch.from_numpy(links), EPS)
    left = [int(second_vectors(graphs, CHECKS[:steps]).dense.sum()) for steps in range(1, 9)]
    assert len(set(left)) >= 3 and left == sorted(left, reverse=True)
    second = second_vectors(graphs)
    assert second.dense.tolist() == [False, False, True, False, False, False]
    for i, one in enumerate(links):
        affinity = np.where(one, 1, EPS)
        degrees, y = affinity.sum(1), second.vectors[i].numpy()
        residual = degrees * y - affinity @ y - second.values[i].item() * degrees * y
        assert np.abs(residual).max() < 1e-7 * degrees.max()
        assert abs(degrees @ y) < 1e-10 * (degrees @ np.abs(y))
        assert np.abs(y).max() == 1
        exact, gap = cuts.second(one)
        assert min(np.abs(y - exact).max(), np.abs(y + exact).max()) < 1e-8
        assert second.gaps[i].item() == pytest.approx(gap, rel=0.05)


def test_the_dense_solver_takes_over_where_the_iterative_one_fails():
    """Fault 18."""
    graphs, grid_hw = Graphs(torch.from_numpy(mixed_graphs()), EPS), (17, 23)
    before = cut(graphs, grid_hw)
    after = cut(graphs, grid_hw, checks=(7, 8))
    assert [found.solver for found in before].count("dense") == 1
    assert [found.solver for found in after].count("dense") >= 4
    assert after[0].solver == "iterative"  # converged in time, and kept
    assert all(map(cuts.same_found, before, after))
    last = cut(graphs, grid_hw, checks=(2,))
    assert {found.solver for found in last[1:]} == {"dense"}
    assert all(map(cuts.same_found, before, last))


def test_equal_eigenvalues_that_the_degrees_do_not_show():
    """Three copies of a graph: its degrees are alike in all of them, two cuts are equally good."""
    for seed, hub in product(range(3), (0, 48)):
        rng = np.random.default_rng(seed)
        same = [cuts.random_links(rng, 48, 0.3)] * 3
        inner = cuts.random_links(rng, hub, 0.3)
        links = cuts.around_a_hub(rng, same, inner, 0.1) if hub else cuts.apart(*same)
        second = second_vectors(Graphs(torch.from_numpy(links)[None], EPS))
        assert second.gaps.item() < 1e-9


@pytest.mark.parametrize(
    ("grid_hw", "missing", "seed"),
    [
        ((8, 17), 14, 37),
        ((8, 17), 18, 1),
        ((8, 17), 22, 27),
        ((9, 16), 26, 1),
        ((9, 16), 36, 31),
        ((12, 20), 28, 3),
        ((12, 20), 40, 4),
        ((12, 20), 42, 5),
    ],
)
def test_one_of_two_equal_eigenvalues_may_be_found_a_step_before_the_other(grid_hw, missing, seed):
    """Few eigenvalues differ, so the first is exact while the second is still far from it."""
    links = cuts.case(cuts.complete_but, grid_hw, missing, seed=seed)[2]
    assert cuts.second(links)[1] < 1e-12
    (found,) = cut(Graphs(torch.from_numpy(links)[None], EPS), grid_hw)
    assert found.degenerate


@pytest.mark.parametrize("grid_hw", [(12, 20), (15, 20), (17, 23)])
def test_graphs_that_lapack_cannot_solve_in_part(grid_hw):
    """Nearly all eigenvalues are equal; of 300, LAPACK may find none of the three asked for."""
    for linked in (1, 2, 7):
        count = grid_hw[0] * grid_hw[1]
        links = cuts.themselves(count)
        links[:linked, linked] = links[linked, :linked] = True
        (found,) = cut(Graphs(torch.from_numpy(links)[None], EPS), grid_hw, small=10_000)
        assert found.solver == "small"
        assert list(cuts.differences(found, cuts.by_the_rule(links, grid_hw), grid_hw)) == []


def test_few_tokens_are_solved_densely_as_a_matter_of_course():
    (found,) = cut(Graphs(torch.from_numpy(cuts.chain(12))[None], EPS), (3, 4))
    assert found.solver == "small"
