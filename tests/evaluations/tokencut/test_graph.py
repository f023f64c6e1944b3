"""Links between tokens against cosines in float64; sums over neighbours against exact ones."""

import math

import cuts
import numpy as np
import pytest
import torch

from skipbench.evaluations.tokencut.graph import Graphs, link

EPS = 1e-5


# Links


@pytest.mark.parametrize("tau", [-0.1, 0, 0.2, 0.9])
@pytest.mark.parametrize("rows", [7, 600])
def test_links_are_cosines_above_tau(tau, rows):
    tokens = cuts.images(2, (5, 9))
    links = link(tokens, tau, rows)
    assert torch.equal(links, links.mT)
    for one, ours in zip(tokens.numpy(), links.numpy(), strict=True):
        cosines = cuts.cosines(one)
        clear = np.abs(cosines - tau) > 1e-6
        assert np.array_equal(ours[clear], (cosines > tau)[clear])
        assert clear.mean() > 0.99 and 0.01 < ours.mean() < 0.999


def test_links_of_cosines_that_are_tau_itself_are_symmetric():
    tokens = cuts.images(1, (5, 7))
    unit = torch.nn.functional.normalize(tokens[0], dim=-1)
    for tau in (unit @ unit.T).flatten()[:40].tolist():
        links = link(tokens, tau, rows_at_once=16)
        assert torch.equal(links, links.mT)


def test_zero_tokens_are_linked_to_nothing():
    tokens = cuts.images(1, (4, 5))
    without = link(tokens, 0.1)[0]
    tokens[0, [3, 11]] = 0
    links = link(tokens, 0.1)[0]
    assert not links[[3, 11]].any() and not links[:, [3, 11]].any()
    others = [i for i in range(20) if i not in (3, 11)]
    assert torch.equal(links[others][:, others], without[others][:, others])


def test_the_length_of_a_token_changes_nothing():
    tokens = cuts.images(1, (6, 7))
    lengths = torch.exp2(torch.arange(42).sub(21).float())[:, None]
    assert torch.equal(link(tokens * lengths, 0.2), link(tokens, 0.2))


def test_half_precision_is_taken_as_it_is():
    tokens = cuts.images(1, (6, 7)).half()
    assert torch.equal(link(tokens, 0.2), link(tokens.double(), 0.2))


@pytest.mark.parametrize("length", [1e-30, 1e-13, 1e19, 1e30])
def test_the_length_of_tokens_is_nothing_to_the_links(length):
    tokens = cuts.images(1, (4, 5))
    assert torch.equal(link(tokens * length, 0.2), link(tokens, 0.2))


# Sums


VECTORS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "small": lambda rng, n: 1e-12 * rng.normal(size=n),
    "large": lambda rng, n: 1e12 * rng.normal(size=n),
    "of all scales": lambda rng, n: rng.normal(size=n) * 10 ** rng.uniform(-12, 12, n),
    "one large": lambda rng, n: np.r_[1e9, rng.normal(size=n - 1)],
    "zero": lambda rng, n: np.zeros(n),
    "one": lambda rng, n: np.eye(n)[n // 2],
    "a power of two": lambda rng, n: np.full(n, 2.0**-7),
    "just below": lambda rng, n: np.full(n, np.nextafter(1, 0)),
    "just above": lambda rng, n: np.full(n, np.nextafter(1, 2)),
    "largest digits": lambda rng, n: np.full(n, sum(63 * 2.0 ** -(6 + 7 * i) for i in range(7))),
    "halves of digits": lambda rng, n: np.full(n, sum(64 * 2.0 ** -(6 + 7 * i) for i in range(7))),
    "alternating": lambda rng, n: (-1.0) ** np.arange(n) * (1 - 2.0**-30),
}


def check_sums(links, vectors, exact, **more):
    """Within 2^-53 of the largest entry for each neighbour, of sums that are exactly rounded."""
    graphs = Graphs(links[None], EPS, exact, **more)
    found = graphs.sums(torch.from_numpy(vectors)[None])[0].numpy()
    links = links.numpy()
    for x, ours in zip(vectors, found, strict=True):
        for token in {0, 1, len(x) // 2, len(x) - 1}:
            mine = x[links[token]]
            room = 2.0**-53 * np.abs(x).max() * len(mine) + 1e-15 * np.abs(mine).sum()
            assert abs(ours[token] - math.fsum(mine)) <= room
    return found


@pytest.mark.parametrize("exact", ["int8", "float32"])
@pytest.mark.parametrize("grid_hw", [(3, 4), (9, 14), (17, 23)])
def test_sums_are_exact(grid_hw, exact):
    rng, count = np.random.default_rng(0), grid_hw[0] * grid_hw[1]
    vectors = np.stack([make(rng, count) for make in VECTORS.values()])
    for share in (0.0, 0.4, 1.0):
        check_sums(torch.from_numpy(cuts.random_links(rng, count, share)), vectors, exact)
    assert not check_sums(torch.zeros(count, count, dtype=torch.bool), vectors, exact).any()


@pytest.mark.parametrize("exact", ["int8", "float32"])
def test_sums_over_thousands_that_are_all_linked_do_not_overflow(exact):
    count = 4200
    vectors = np.stack([make(np.random.default_rng(0), count) for make in VECTORS.values()])
    found = check_sums(torch.ones(count, count, dtype=torch.bool), vectors, exact)
    assert np.ptp(found, axis=1).max() == 0


def test_int8_and_float32_give_the_same():
    rng = np.random.default_rng(0)
    links = torch.from_numpy(np.stack([cuts.random_links(rng, 391, p) for p in (0.1, 0.9)]))
    x = torch.from_numpy(rng.random((2, 3, 391)))  # no sum is small by cancelling
    one, other = (Graphs(links, EPS, exact) for exact in ("int8", "float32"))
    torch.testing.assert_close(one.sums(x), other.sums(x), rtol=1e-15, atol=0)
    assert torch.equal(one.neighbours, other.neighbours)
    assert torch.equal(one.degrees, other.degrees)


@pytest.mark.parametrize("exact", ["int8", "float32"])
def test_sums_of_whole_numbers_are_whole(exact):
    rng = np.random.default_rng(0)
    links = cuts.random_links(rng, 1000, 0.5)
    x = rng.integers(-(2**40), 2**40, (3, 1000))
    found = Graphs(torch.from_numpy(links)[None], EPS, exact).sums(torch.from_numpy(x * 1.0)[None])
    assert np.array_equal(found[0].numpy(), x @ links.astype(np.int64))


@pytest.mark.parametrize("bits", [8, 13, 20])
def test_fewer_bits_are_more_digits(bits):
    """As for more tokens than a test has room for."""
    rng = np.random.default_rng(0)
    vectors = np.stack([make(rng, 35) for make in VECTORS.values()])
    links = torch.from_numpy(cuts.random_links(rng, 35, 0.6))
    check_sums(links, vectors, "float32", float_bits=bits)


@pytest.mark.parametrize("eps", [1e-5, 0.0, 0.3])
def test_degrees_and_products_are_those_of_the_affinity_matrix(eps):
    rng = np.random.default_rng(0)
    links = np.stack([cuts.random_links(rng, 35, share) for share in (0.1, 0.8)])
    affinity, x = np.where(links, 1, eps), rng.normal(size=(2, 3, 35))
    graphs = Graphs(torch.from_numpy(links), eps)
    np.testing.assert_allclose(graphs.degrees, affinity.sum(1), rtol=1e-14)
    np.testing.assert_array_equal(graphs.neighbours, links.sum(1))
    np.testing.assert_allclose(graphs.times_affinity(torch.from_numpy(x)), x @ affinity, atol=1e-13)


def test_graphs_without_some_are_the_others():
    rng = np.random.default_rng(0)
    links = torch.from_numpy(np.stack([cuts.random_links(rng, 35, 0.4) for _ in range(5)]))
    x = torch.randn(5, 2, 35, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    which = torch.tensor([True, False, True, True, False])
    again = torch.tensor([False, True, True])
    for exact in ("int8", "float32"):
        graphs = Graphs(links, EPS, exact)
        some = graphs.only(which).only(again)
        assert (len(some), some.tokens) == (2, 35)
        assert torch.equal(some.degrees, graphs.degrees[2:4])
        assert torch.equal(some.times_affinity(x[2:4]), graphs.times_affinity(x)[2:4])
