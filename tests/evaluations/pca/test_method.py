"""Principal components against scikit-learn's, alignment against scipy's, colours by hand.

Run with -s to see how far components are from scikit-learn's (4e-14 when this was written).
"""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.linalg import orthogonal_procrustes
from scipy.spatial import procrustes
from sklearn.decomposition import PCA

from skipbench.evaluations.pca.method import (
    FLAT,
    Components,
    Moments,
    colours,
    foreground,
    limits,
    principal,
    rotation_onto,
    signs,
)

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 13)  # fewer than the slabs, not a multiple of them, and others
ALIKE = 1e-12  # of components to scikit-learn's, in float64


def orthogonal(width, seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0]


def some_tokens(count, width, seed=0, dtype=np.float64, mean=3.0, decay=0.7):
    """Correlated, around a mean of their own; standard deviations fall off by `decay`."""
    rng = np.random.default_rng(seed)
    around = mean * rng.normal(size=width)
    spread = rng.normal(size=(count, width)) * decay ** np.arange(width)
    return (spread @ orthogonal(width, seed) + around).astype(dtype)


def gathered(*pieces, width=None):
    moments = Moments(pieces[0].shape[1] if width is None else width)
    for piece in pieces:
        moments.add(piece)
    return moments


def fitted(tokens, components=3):
    return principal(gathered(tokens), components)


def distances(ours: Components, tokens: np.ndarray) -> dict[str, float]:
    """From scikit-learn's in float64; axes up to sign."""
    tokens = tokens.astype(np.float64)
    theirs = PCA(ours.axes.shape[1], svd_solver="full").fit(tokens)
    sign = np.sign((ours.axes * theirs.components_.T).sum(0))
    pairs = {
        "axes": (ours.axes * sign, theirs.components_.T),
        "explained": (ours.explained, theirs.explained_variance_ratio_),
        "mean": (ours.mean, theirs.mean_),
        "scores": (ours.scores(tokens) * sign, theirs.transform(tokens)),
    }
    return {name: float(np.abs(a - b).max()) for name, (a, b) in pairs.items()}


# Components


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_against_scikit_learn(width, dtype):
    worst = {}
    for count, seed in product((2, 3, 5, 8, 40), range(4)):
        tokens = some_tokens(count, width, seed, dtype)
        cuts = sorted(np.random.default_rng(seed).integers(0, count + 1, 3))
        ours = principal(gathered(*np.split(tokens, cuts)), min(3, width, count - 1))
        for name, distance in distances(ours, tokens).items():
            worst[name] = max(worst.get(name, 0), distance)
    print(width, dtype.__name__, worst)
    assert max(worst.values()) < ALIKE, worst


def test_wider_than_there_are_tokens():
    tokens = some_tokens(5, 61, decay=0.95)
    ours = fitted(tokens, components=7)
    assert (np.abs(ours.axes).sum(0) > 0).tolist() == [True] * 4 + [False] * 3
    kept = principal(gathered(tokens), 4)
    assert max(distances(kept, tokens).values()) < ALIKE
    np.testing.assert_allclose(ours.axes[:, :4], kept.axes)
    np.testing.assert_allclose(ours.explained.sum(), 1)


def test_all_components_give_tokens_back():
    tokens = some_tokens(50, 7)
    ours = fitted(tokens, components=7)
    np.testing.assert_allclose(ours.scores(tokens) @ ours.axes.T + ours.mean, tokens)
    np.testing.assert_allclose(ours.axes.T @ ours.axes, np.eye(7), atol=1e-12)
    np.testing.assert_allclose(ours.variances, ours.scores(tokens).var(0, ddof=1))


def test_torch_and_numpy_alike():
    tokens = some_tokens(30, 5, dtype=np.float16)
    one, other = fitted(tokens), fitted(torch.from_numpy(tokens))
    np.testing.assert_array_equal(one.axes, other.axes)
    np.testing.assert_array_equal(one.mean, other.mean)


@pytest.mark.parametrize("width", (3, 13))
def test_pieces_and_order_do_not_matter(width):
    tokens = some_tokens(60, width, seed=1)
    whole = fitted(tokens)
    shuffled = tokens[np.random.default_rng(0).permutation(60)]
    for pieces in (
        np.split(tokens, [1, 1, 2, 17, 59]),  # one of them is empty
        np.split(tokens, 60),
        [tokens[40:], tokens[:40]],
        [shuffled],
        np.split(shuffled, [7, 50]),
    ):
        part = principal(gathered(*pieces), 3)
        np.testing.assert_allclose(part.axes, whole.axes, atol=ALIKE)
        np.testing.assert_allclose(part.mean, whole.mean, atol=ALIKE)
        np.testing.assert_allclose(part.explained, whole.explained, atol=ALIKE)


@given(
    count=st.integers(2, 25),
    width=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 25), max_size=5),
    mean=st.sampled_from([0.0, 1.0, 1e3]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_covariance_is_numpys_however_tokens_come(count, width, cuts, mean, seed):
    tokens = some_tokens(count, width, seed, mean=mean)
    moments = gathered(*np.split(tokens, sorted(min(cut, count) for cut in cuts)))
    expected = np.cov(tokens.T).reshape(width, width)
    np.testing.assert_allclose(moments.covariance(), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(moments.mean(), tokens.mean(0), atol=1e-9)
    assert moments.count == count


def test_a_small_spread_beside_a_huge_mean():
    tokens = (1e4 + 1e-2 * some_tokens(200, 13, mean=0, decay=0.9)).astype(np.float64)
    expected = np.cov(tokens.T)
    found = gathered(*np.split(tokens, [3, 80])).covariance()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * expected.max())
    single = tokens.astype(np.float32)
    plain = single.T @ single / 200 - np.outer(single.mean(0), single.mean(0))
    assert np.abs(plain - expected).max() > 100 * expected.max()


def test_float32_covariances_fail_where_ours_does_not():
    tokens = some_tokens(200, 13, mean=1e4).astype(np.float32)
    assert max(distances(fitted(tokens), tokens).values()) < 1e-9
    exact = PCA(3, svd_solver="full").fit(tokens.astype(np.float64)).explained_variance_ratio_
    theirs = PCA(3).fit(tokens)  # on so many tokens from the covariance
    assert theirs.components_.dtype == np.float32
    assert np.abs(theirs.explained_variance_ratio_ - exact).max() > 0.05


def test_channels_of_very_different_scale():
    for seed in range(5):
        tokens = np.random.default_rng(seed).normal(size=(80, 7)) * np.logspace(-3, 3, 7)
        found = distances(fitted(tokens), tokens)
        assert found.pop("scores") < 1e-9  # they are as large as 1e3
        assert max(found.values()) < 1e-11


def test_variances_are_those_of_all_directions():
    tokens = some_tokens(40, 5)
    theirs = PCA(svd_solver="full").fit(tokens)
    ours = fitted(tokens, components=2)
    np.testing.assert_allclose(ours.variances, theirs.explained_variance_, rtol=1e-10)
    assert ours.axes.shape == (5, 2) and ours.explained.shape == (2,)


# What does not vary


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_tokens(count):
    tokens = some_tokens(count, 5)
    ours = fitted(tokens)
    np.testing.assert_array_equal(ours.axes, np.zeros((5, 3)))
    np.testing.assert_array_equal(ours.explained, np.zeros(3))
    np.testing.assert_allclose(ours.mean, tokens[0] if count else np.zeros(5))
    assert ours.scores(tokens).shape == (count, 3)


def test_two_tokens_are_one_direction():
    tokens = some_tokens(2, 5)
    ours = fitted(tokens)
    step = tokens[1] - tokens[0]
    assert abs(ours.axes[:, 0] @ step) == pytest.approx(np.linalg.norm(step))
    np.testing.assert_array_equal(ours.axes[:, 1:], 0)
    np.testing.assert_allclose(ours.explained, [1, 0, 0], atol=1e-12)


@pytest.mark.parametrize("noise", [0, 1e-7])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e4])
def test_tokens_that_are_all_alike(scale, noise):
    rng = np.random.default_rng(0)
    tokens = scale * rng.normal(size=(1, 13)) * (1 + noise * rng.normal(size=(60, 13)))
    for dtype in (np.float32, np.float64):
        ours = fitted(tokens.astype(dtype))
        assert not ours.axes.any() and not ours.variances.any() and not ours.explained.any()
        scores = ours.scores(tokens)
        assert (colours(scores, limits(scores)) == FLAT).all()


def test_what_hardly_varies_is_not_all_alike():
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(1, 13)) * (1 + 1e-4 * rng.normal(size=(60, 13)))
    found = distances(fitted(tokens), tokens)
    assert max(found.values()) < 1e-9


def test_components_beyond_what_varies_are_flat():
    rng = np.random.default_rng(3)
    tokens = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 7)) + 1
    ours = fitted(tokens, components=4)
    assert (np.linalg.norm(ours.axes, axis=0) > 0.5).tolist() == [True, True, False, False]
    scores = ours.scores(tokens)
    shown = colours(scores, limits(scores))
    assert (shown[:, 2:] == FLAT).all() and (np.ptp(shown[:, :2], axis=0) == 1).all()


def test_components_beyond_the_width_are_flat():
    tokens = some_tokens(20, 2)
    ours = fitted(tokens, components=3)
    assert ours.axes.shape == (2, 3) and not ours.axes[:, 2].any()
    np.testing.assert_array_equal(ours.axes[:, :2], fitted(tokens, components=2).axes)


def test_shares_of_components_beyond_the_width():
    assert fitted(some_tokens(20, 2), components=3).explained.shape == (3,)


def test_rounding_of_a_large_mean_is_no_direction():
    """One direction only; the rest is what float32 makes of a mean of 300."""
    rng = np.random.default_rng(0)
    around = 300 * rng.normal(size=16)
    tokens = (rng.normal(size=(200, 1)) * rng.normal(size=16) + around).astype(np.float32)
    assert not fitted(tokens).axes[:, 1:].any()


def test_views_of_tokens():
    tokens = some_tokens(20, 5)
    np.testing.assert_allclose(fitted(tokens[::-1]).axes, fitted(tokens).axes, atol=ALIKE)


# Signs


def test_the_largest_loading_is_positive():
    axes = np.array([[0.6, -0.6, 0.1, 0.0], [-0.8, 0.8, -0.2, 0.0], [0.0, 0.0, -0.97, 0.0]])
    np.testing.assert_array_equal(signs(axes), [-1, 1, -1, 1])


def test_of_equal_loadings_the_first_is_positive():
    half = np.sqrt(0.5)
    assert signs(np.array([[-half], [half]])) == -1 and signs(np.array([[half], [-half]])) == 1
    for off in (-1e-12, 1e-12):  # what rounding does to them
        assert signs(np.array([[-half], [half + off], [0]])) == -1
    assert signs(np.array([[-0.7], [0.7 + 1e-6]])) == 1


@pytest.mark.parametrize("seed", range(5))
def test_signs_are_a_rule(seed):
    tokens = some_tokens(50, 7, seed)
    ours = fitted(tokens, components=4)
    largest = np.take_along_axis(ours.axes, np.abs(ours.axes).argmax(0)[None], 0)
    assert (largest > 0).all()
    np.testing.assert_allclose(fitted(-tokens, components=4).axes, ours.axes, atol=ALIKE)
    theirs = PCA(4, svd_solver="full").fit(tokens).components_.T  # the same rule
    np.testing.assert_allclose(ours.axes, theirs, atol=ALIKE)


def test_signs_of_equal_loadings_do_not_depend_on_the_order():
    """Two channels that mirror each other load alike, up to rounding."""
    rng = np.random.default_rng(0)
    one = rng.normal(size=(50, 1))
    tokens = np.concatenate([one, -one, 0.1 * rng.normal(size=(50, 1))], axis=1)
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(50)
        pieces = np.split(tokens[order], [seed, 2 * seed])
        assert principal(gathered(*pieces), 1).axes[0, 0] > 0.5


# Alignment


def centred(values):
    return values - values.mean(0)


@pytest.mark.parametrize("components", [1, 2, 3, 5])
def test_rotations_are_scipys(components):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        a = rng.normal(size=(30, components)) * 0.5 ** np.arange(components) + 4
        b = a @ orthogonal(components, seed) * 7 + rng.normal(size=a.shape)
        found = rotation_onto(a, b)
        expected, _ = orthogonal_procrustes(centred(b), centred(a))
        np.testing.assert_allclose(found.matrix, expected, atol=1e-10)
        assert found.agreement == pytest.approx(1 - procrustes(a, b)[2], abs=1e-12)
        assert 0 < found.agreement < 1
        identity = np.eye(components)
        np.testing.assert_allclose(found.matrix @ found.matrix.T, identity, atol=1e-12)


def test_a_known_rotation_and_a_reflection():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(20, 3)) * (3, 2, 1)
    turn = orthogonal(3, 1)
    for known in (turn, turn * (1, 1, -1)):  # one of them is a reflection
        found = rotation_onto(a, 0.01 * a @ known.T + 5)
        np.testing.assert_allclose(found.matrix, known, atol=1e-10)
        assert found.agreement == pytest.approx(1, abs=1e-12)


def test_unrelated_scores_hardly_agree():
    a, b = np.random.default_rng(0).normal(size=(2, 4000, 3))
    assert rotation_onto(a, b).agreement < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_turned_features_give_the_same_picture(seed):
    """What a model's features are turned, scaled and moved by makes no difference."""
    tokens = some_tokens(5 * 8, 13, seed)
    turned = 0.3 * tokens @ orthogonal(13, 50 + seed) + np.arange(13)
    a, b = (fitted(one).scores(one) for one in (tokens, turned))
    b = b @ orthogonal(3, seed)  # nor does it that components differ as well
    picture = colours(a, limits(a)).reshape(5, 8, 3)
    before = colours(b, limits(b)).reshape(5, 8, 3)
    aligned = b @ rotation_onto(a, b).matrix
    after = colours(aligned, limits(aligned)).reshape(5, 8, 3)
    np.testing.assert_allclose(after, picture, atol=1e-10)
    assert np.abs(before - picture).max() > 0.3


def test_nothing_to_align():
    scores = np.random.default_rng(0).normal(size=(9, 3))
    none = np.zeros((9, 3))
    for a, b in ((scores, none), (none, scores), (none, none), (scores[:1], scores[1:2])):
        found = rotation_onto(a, b)
        np.testing.assert_array_equal(found.matrix, np.eye(3))
        assert found.agreement is None
    assert rotation_onto(scores[:0], scores[:0]).agreement is None


def test_nothing_to_align_beside_a_constant():
    scores = np.random.default_rng(0).normal(size=(7, 3))
    assert rotation_onto(scores, np.full((7, 3), 0.1)).agreement is None


def test_a_flat_component_stays_out_of_it():
    a = np.random.default_rng(0).normal(size=(20, 3)) * (2, 1, 0)
    found = rotation_onto(a, a @ orthogonal(3, 4))
    assert found.agreement == pytest.approx(1)
    np.testing.assert_allclose(found.matrix @ found.matrix.T, np.eye(3), atol=1e-12)


# Foreground


def with_object(height, width, rows, columns, sign=1.0):
    scores = np.full((height, width), -0.3 * sign)
    scores[rows, columns] = 1.7 * sign
    return scores


@pytest.mark.parametrize("sign", [1, -1])
def test_the_object_is_in_the_middle(sign):
    scores = with_object(5, 8, slice(1, 4), slice(2, 7), sign)
    (found,) = foreground([scores])
    np.testing.assert_array_equal(found, scores * sign > 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_large_object_is_still_the_object(sign):
    """More than half of the tokens, but little of the border."""
    scores = with_object(6, 9, slice(1, 6), slice(1, 8), sign)
    assert (scores * sign > 0).mean() > 0.5
    np.testing.assert_array_equal(foreground([scores])[0], scores * sign > 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_group_of_pictures_has_one_side(sign):
    """In one of them the object fills the picture; the sizes differ."""
    middle = with_object(5, 7, slice(1, 4), slice(2, 5), sign)
    filled = with_object(3, 4, slice(0, 3), slice(0, 3), sign)
    found = foreground([middle, filled, middle])
    for side, scores in zip(found, (middle, filled, middle), strict=True):
        np.testing.assert_array_equal(side, scores * sign > 0)
    np.testing.assert_array_equal(foreground([filled])[0], filled * sign < 0)  # alone it would not


def test_of_equal_borders_the_smaller_side():
    scores = np.ones((4, 6))
    scores[:, 3:] = -1
    scores[1, 1] = -1
    for sign in (1, -1):
        np.testing.assert_array_equal(foreground([sign * scores])[0], scores > 0)
    even = np.where(np.arange(6) < 3, 1.0, -1.0) * np.ones((4, 1))
    np.testing.assert_array_equal(foreground([even])[0], even > 0)  # alike in all: the positive


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (2, 4)])
def test_grids_without_an_inside(shape):
    scores = np.linspace(-1, 3, 7 if 1 in shape else 8).reshape(shape)
    np.testing.assert_array_equal(foreground([scores])[0], scores < 0)


def test_tokens_on_neither_side_are_no_foreground():
    scores = with_object(4, 7, slice(1, 3), slice(2, 6), -1)
    scores[0], scores[1, 3] = 0, 0
    np.testing.assert_array_equal(foreground([scores])[0], scores < 0)
    np.testing.assert_array_equal(foreground([-scores])[0], scores < 0)


def test_no_foreground_is_all():
    pictures = [np.zeros((3, 5)), np.zeros((2, 4))]
    for scores in (pictures, [one + 1 for one in pictures], [one - 1 for one in pictures]):
        found = foreground(scores)
        assert [one.shape for one in found] == [(3, 5), (2, 4)]
        assert all(one.dtype == bool and one.all() for one in found)
    assert foreground([]) == []


# Colours


def test_limits_by_hand():
    scores = np.stack([np.arange(11.0), 5 - 10 * np.arange(11.0)], axis=1)
    order = np.random.default_rng(0).permutation(11)
    np.testing.assert_allclose(limits(scores[order]), [[0.1, -94], [9.9, 4]])
    np.testing.assert_array_equal(limits(np.zeros((0, 3))), np.zeros((2, 3)))
    np.testing.assert_array_equal(limits(np.array([[4.0, 2]])), [[4, 2], [4, 2]])


def test_colours_by_hand():
    ends = np.array([[0.0, -2, 7], [10, 2, 7]])
    scores = np.array([[0.0, -2, 7], [5, 1, 8], [10, 2, -9], [-3, 9, 7]])
    expected = [[0, 0, 0.5], [0.5, 0.75, 0.5], [1, 1, 0.5], [0, 1, 0.5]]
    np.testing.assert_allclose(colours(scores, ends), expected)
    grid = scores.reshape(1, 4, 3)
    np.testing.assert_array_equal(colours(grid, ends)[0], colours(scores, ends))


def test_outliers_do_not_spoil_colours():
    scores = np.linspace(0, 1, 400)[:, None] * (1, 3)
    plain = colours(scores, limits(scores))
    spoilt = scores.copy()
    spoilt[:2], spoilt[-2:] = -1e6, 1e6
    shown = colours(spoilt, limits(spoilt))
    assert (shown[:2] == 0).all() and (shown[-2:] == 1).all()
    np.testing.assert_allclose(shown, plain, atol=1e-9)


numbers = st.floats(-1e6, 1e6, width=32)


@given(
    scores=arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=numbers)
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_colours_are_shares_in_the_order_of_scores(scores):
    shown = colours(scores, limits(scores))
    assert shown.shape == scores.shape and shown.min() >= 0 and shown.max() <= 1
    for column, shades in zip(scores.T, shown.T, strict=True):
        assert (np.diff(shades[np.argsort(column)]) >= 0).all()
        if np.ptp(column) > 0:
            assert np.ptp(shades) == 1
        else:
            assert (shades == FLAT).all()
