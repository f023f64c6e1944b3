"""Figures of feature pictures: by plain loops, in closed form, against scipy and scikit-learn."""

from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import f_oneway
from sklearn.metrics import r2_score

from skipbench.backbones import health
from skipbench.evaluations.pca.method import Moments, principal
from skipbench.metrics.coherence import between_share, effective_rank, majority, total_variation


def random_values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def moved(values, seed=0):
    """Rotated, scaled and shifted as a whole."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(values.shape[-1],) * 2))[0]
    return 17 * values @ turn + rng.normal(size=values.shape[-1])


# Total variation


def variation_by_loops(values, valid):
    """Every token with the one below and the one to the right; every pair for the scale."""
    height, width = valid.shape
    near = []
    for y in range(height):
        for x in range(width):
            for v, u in ((y + 1, x), (y, x + 1)):
                if v < height and u < width and valid[y, x] and valid[v, u]:
                    near.append(np.sqrt(((values[y, x] - values[v, u]) ** 2).sum()))
    squares = [((a - b) ** 2).sum() for a, b in combinations(values[valid], 2)]
    return np.mean(near) / np.sqrt(np.mean(squares))


@pytest.mark.parametrize("shape", [(4, 7, 3), (5, 2, 1), (1, 6, 4), (6, 1, 2), (1, 2, 3)])
def test_variation_is_that_of_a_double_loop(shape):
    values = random_values(*shape) + np.linspace(0, 3, shape[1])[:, None]
    valid = np.ones(shape[:2], bool)
    assert total_variation(values) == pytest.approx(variation_by_loops(values, valid))
    assert total_variation(values, valid) == total_variation(values)


@pytest.mark.parametrize("seed", range(5))
def test_variation_of_some_tokens(seed):
    rng = np.random.default_rng(seed)
    values, valid = rng.normal(size=(5, 8, 3)), rng.random((5, 8)) < 0.7
    found = total_variation(values, valid)
    assert found == pytest.approx(variation_by_loops(values, valid))
    values[~valid] = 1e6
    assert total_variation(values, valid) == found


@pytest.mark.parametrize("seed", range(3))
def test_variation_stays_when_features_are_turned(seed):
    values = random_values(5, 8, 6, seed=seed)
    expected = total_variation(values)
    assert total_variation(moved(values, seed)) == pytest.approx(expected)
    assert total_variation(values[::-1].swapaxes(0, 1)) == pytest.approx(expected)
    assert total_variation(values * (5, 1, 1, 1, 1, 1)) != pytest.approx(expected, rel=1e-3)


def test_neighbours_of_shuffled_tokens_are_any_two():
    smooth = np.stack(np.meshgrid(*np.ogrid[0:3:12j, 0:3:15j], indexing="ij"), axis=-1)
    waves = np.cos(smooth @ random_values(2, 384) + random_values(384, seed=1))
    shuffled = np.random.default_rng(0).permutation(waves.reshape(180, 384)).reshape(waves.shape)
    assert total_variation(waves) < 0.4
    assert total_variation(shuffled) == pytest.approx(1, abs=0.1)
    assert total_variation(random_values(12, 15, 384)) == pytest.approx(1, abs=0.02)


def test_variation_in_closed_form():
    height, width = 6, 11
    ys, xs = np.mgrid[:height, :width]
    ramp = total_variation(xs[..., None].astype(float))
    sideways, down = height * (width - 1), (height - 1) * width
    variance = (width**2 - 1) / 12 * height * width / (height * width - 1)
    assert ramp == pytest.approx(sideways / (sideways + down) / np.sqrt(2 * variance))
    board = total_variation(((xs + ys) % 2)[..., None].astype(float))
    assert board == pytest.approx(np.sqrt(2 * (1 - 1 / (height * width))))
    assert ramp < 0.2 and board > 1


def test_variation_of_nothing():
    flat, valid = np.ones((3, 5, 2)), np.zeros((3, 5), bool)
    with np.errstate(all="raise"):
        assert np.isnan(total_variation(flat))
    values = random_values(3, 5, 2)
    assert np.isnan(total_variation(values, valid))  # none counts
    valid[1, 2] = True
    assert np.isnan(total_variation(values, valid))  # one alone
    valid[0, 1] = True
    assert np.isnan(total_variation(values, valid))  # corners do not touch
    valid[1, 1] = True
    assert total_variation(values, valid) > 0
    assert np.isnan(total_variation(values[:1, :1]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_variation_of_a_constant_that_rounds(dtype):
    assert np.isnan(total_variation(np.full((5, 7, 3), 0.1, dtype)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [1e-4, 100])
def test_half_precision_is_enough(scale):
    values = (scale * random_values(5, 7, 64)).astype(np.float16)
    segments = np.arange(35) % 3
    exact = values.astype(np.float64)
    assert total_variation(values) == pytest.approx(total_variation(exact), rel=1e-3)
    tokens = values.reshape(35, 64)
    expected = between_share(exact.reshape(35, 64), segments)
    assert between_share(tokens, segments) == pytest.approx(expected, rel=1e-3)


# Variance between segments


def share_by_loops(values, segments):
    values, segments = values[segments >= 0], segments[segments >= 0]
    middle = values.mean(0)
    within = whole = 0.0
    for value, segment in zip(values, segments, strict=True):
        within += ((value - values[segments == segment].mean(0)) ** 2).sum()
        whole += ((value - middle) ** 2).sum()
    return 1 - within / whole


@pytest.mark.parametrize("seed", range(6))
def test_share_is_that_of_plain_loops(seed):
    rng = np.random.default_rng(seed)
    segments = rng.choice([-7, -1, 0, 3, 4, 900], size=40)
    values = rng.normal(size=(40, 5)) + 0.5 * (segments == 3)[:, None] + 10
    found = between_share(values, segments)
    assert found == pytest.approx(share_by_loops(values, segments))
    values[segments < 0] = 1e6
    assert between_share(values, segments) == found


@pytest.mark.parametrize("seed", range(4))
def test_share_is_scikit_learns(seed):
    """How well a token is told from the mean of its segment: R², all channels together."""
    rng = np.random.default_rng(seed)
    segments = rng.integers(0, 4, 50)
    values = rng.normal(size=(50, 6)) * (4, 2, 1, 1, 1, 1) + segments[:, None]
    told = np.stack([values[segments == segment].mean(0) for segment in segments])
    expected = r2_score(values, told, multioutput="variance_weighted")
    assert between_share(values, segments) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_share_of_one_channel_is_an_analysis_of_variance(seed):
    rng = np.random.default_rng(seed)
    segments = np.repeat([0, 1, 2], [4, 9, 20])
    values = rng.normal(size=33) + 0.4 * segments
    f = f_oneway(*(values[segments == segment] for segment in range(3))).statistic
    expected = f * 2 / (f * 2 + 33 - 3)
    assert between_share(values[:, None], segments) == pytest.approx(expected)


def test_share_that_chance_has():
    """Over all orders of the tokens: exactly (k − 1) / (n − 1)."""
    values, segments = random_values(6, 2) * (3, 1), np.array([0, 0, 0, 5, 5, 8])
    shares = [between_share(values[list(order)], segments) for order in permutations(range(6))]
    assert np.mean(shares) == pytest.approx(2 / 5)
    assert min(shares) < 0.1 and max(shares) > 0.7


def test_ends_of_the_share():
    segments = np.array([0, 1, 2, 0, 1, 2])
    alike = random_values(3, 4)[segments]
    assert between_share(alike, segments) == pytest.approx(1)
    mirrored = np.array([[1.0], [1], [1], [-1], [-1], [-1]])
    assert between_share(mirrored, segments) == pytest.approx(0, abs=1e-12)


@given(
    values=arrays(np.float64, (12, 2), elements=st.integers(-20, 20)),
    segments=arrays(np.int16, 12, elements=st.integers(-1, 4)),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_share_is_a_share_or_nothing(values, segments):
    found = between_share(values, segments)
    inside = segments >= 0
    if len(set(segments[inside].tolist())) < 2:
        assert np.isnan(found)
    elif np.ptp(values[inside], axis=0).any():
        assert -1e-12 <= found <= 1 + 1e-12
        assert found == pytest.approx(share_by_loops(values, segments), abs=1e-9)
    else:
        assert np.isnan(found)


@pytest.mark.parametrize("seed", range(3))
def test_share_stays_when_features_are_turned(seed):
    values, segments = random_values(30, 6, seed=seed), np.arange(30) % 4
    expected = between_share(values, segments)
    assert between_share(moved(values, seed), segments) == pytest.approx(expected)
    names = np.array([40, 7, 0, 12])  # what segments are called does not matter
    assert between_share(values, names[segments]) == pytest.approx(expected)
    order = np.random.default_rng(seed).permutation(30)
    assert between_share(values[order], segments[order]) == pytest.approx(expected)


def test_share_of_nothing():
    values = random_values(5, 3)
    for segments in ([2, 2, 2, 2, 2], [-1, -1, -1, -1, -1], [-1, 4, 4, -1, -2]):
        assert np.isnan(between_share(values, np.array(segments)))
    with np.errstate(all="raise"):
        assert np.isnan(between_share(np.ones((5, 3)), np.array([0, 1, 0, 1, 1])))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_share_of_a_constant_that_rounds(dtype):
    assert np.isnan(between_share(np.full((35, 3), 0.1, dtype), np.arange(35) % 3))


# Effective rank


def test_rank_in_closed_form():
    for k in (1, 2, 7):
        assert effective_rank(np.array([3.5] * k + [0.0] * 4)) == pytest.approx(k)
    assert effective_rank(np.array([0.5, 0.25, 0.25])) == pytest.approx(2**1.5)
    variances = np.array([5.0, 3, 0.1, 0])
    assert effective_rank(variances) == pytest.approx(effective_rank(1e-9 * variances[::-1]))
    assert np.isnan(effective_rank(np.zeros(3)))


@pytest.mark.parametrize("count", [60, 6])
def test_rank_is_that_of_the_health_check(count):
    tokens = random_values(count, 9) * 0.6 ** np.arange(9) + 2
    moments = Moments(9)
    moments.add(tokens)
    expected = float(health.effective_rank(torch.from_numpy(tokens)[None])[0])
    assert effective_rank(principal(moments, 1).variances) == pytest.approx(expected, rel=1e-9)


# Segments of tokens


def majority_by_loops(segments, patch):
    height, width = segments.shape[0] // patch, segments.shape[1] // patch
    found = np.full((height, width), -1)
    for y in range(height):
        for x in range(width):
            block = segments[y * patch : (y + 1) * patch, x * patch : (x + 1) * patch]
            if (block >= 0).any():
                found[y, x] = np.bincount(block[block >= 0]).argmax()
    return found


@pytest.mark.parametrize("patch", [1, 2, 3, 4])
def test_majority_is_that_of_plain_loops(patch):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        segments = rng.choice([-1, 0, 2, 3, 50], size=(3 * patch, 5 * patch))
        segments[:patch, :patch] = -1
        expected = majority_by_loops(segments, patch)
        np.testing.assert_array_equal(majority(segments, patch), expected)


def test_majority_by_hand():
    segments = np.array([[4, 4, 2, 9, -1, -1], [1, 4, 9, 2, -1, 7]])
    np.testing.assert_array_equal(majority(segments, 2), [[4, 2, 7]])  # of equal ones the lowest
    np.testing.assert_array_equal(majority(segments[::-1, ::-1], 2), [[7, 2, 4]])


def test_majority_of_nothing():
    np.testing.assert_array_equal(majority(np.full((4, 6), -1), 2), np.full((2, 3), -1))
    mixed = np.full((4, 6), -3)
    mixed[3, 5] = 0
    np.testing.assert_array_equal(majority(mixed, 2), [[-1, -1, -1], [-1, -1, 0]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_majority_of_any_integers(dtype):
    segments = np.random.default_rng(0).integers(0, 256, (2, 3)).astype(dtype)
    found = majority(segments.repeat(2, 0).repeat(2, 1), 2)
    np.testing.assert_array_equal(found, segments.astype(int))
