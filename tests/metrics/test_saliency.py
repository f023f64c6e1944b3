"""Saliency scores: by hand, against a plain loop over thresholds, and against scikit-learn."""

import numpy as np
import pytest

from skipbench.metrics.intervals import bootstrap, resample_weights
from skipbench.metrics.means import share_percent
from skipbench.metrics.saliency import (
    THRESHOLDS,
    f_beta,
    f_beta_by_threshold,
    mask_scores,
    max_f_beta_percent,
    min_max,
)

NOTHING, ALL = np.zeros((5, 8), bool), np.ones((5, 8), bool)


def random_mask(seed, share=0.4):
    return np.random.default_rng(seed).random((7, 11)) < share


def test_by_hand():
    truth = np.array([[1, 1, 1, 0, 0, 0]], bool)
    prediction = np.array([[0, 1, 1, 1, 0, 0]], bool)
    found = mask_scores(prediction, truth)
    assert found.iou == 2 / 4 and found.accuracy == pytest.approx(4 / 6)
    assert found.precision == found.recall == pytest.approx(2 / 3) == found.f_beta
    lopsided = mask_scores(np.array([[1, 0, 0, 0, 0, 0]], bool), truth)
    assert (lopsided.precision, lopsided.recall) == (1, pytest.approx(1 / 3))
    assert lopsided.f_beta == pytest.approx(1.3 * (1 / 3) / (0.3 + 1 / 3))


@pytest.mark.parametrize("seed", range(4))
def test_against_scikit_learn(seed):
    from sklearn import metrics

    prediction, truth = random_mask(seed, 0.2 + 0.2 * seed), random_mask(10 + seed)
    counted = random_mask(20 + seed, 0.8)
    for which in (None, counted):
        t, p = (m.ravel() if which is None else m[which] for m in (truth, prediction))
        found = mask_scores(prediction, truth, which)
        precision, recall, fbeta, _ = metrics.precision_recall_fscore_support(
            t, p, beta=0.3**0.5, average="binary"
        )
        expected = [
            metrics.jaccard_score(t, p),
            metrics.accuracy_score(t, p),
            precision,
            recall,
            fbeta,
        ]
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("prediction", "truth", "expected"),
    [
        (NOTHING, NOTHING, [1, 1, 1, 1, 1]),
        (NOTHING, ALL, [0, 0, 1, 0, 0]),
        (ALL, NOTHING, [0, 0, 0, 1, 0]),
        (ALL, ALL, [1, 1, 1, 1, 1]),
    ],
)
def test_what_is_empty(prediction, truth, expected):
    with np.errstate(all="raise"):
        assert list(mask_scores(prediction, truth)) == expected


def test_both_wrong_is_zero_not_nan():
    truth = np.zeros((5, 8), bool)
    truth[:2] = True
    with np.errstate(all="raise"):
        assert mask_scores(~truth, truth)[2:] == (0, 0, 0)
    assert f_beta(np.zeros(2), np.array([0, 0.5])).tolist() == [0, 0]


def test_no_pixel_counts():
    assert np.isnan(mask_scores(ALL, ALL, NOTHING)).all()
    assert np.isnan(f_beta_by_threshold(np.ones((5, 8)), ALL, NOTHING)).all()


def test_pixels_that_do_not_count_change_nothing():
    prediction, truth, counted = random_mask(0), random_mask(1), random_mask(2, 0.7)
    soft = np.random.default_rng(3).random((7, 11))
    before = mask_scores(prediction, truth, counted), f_beta_by_threshold(soft, truth, counted)
    wild = np.where(counted, soft, 100.0)  # nor the range of what does
    flipped = prediction ^ ~counted, truth ^ ~counted
    assert mask_scores(*flipped, counted) == before[0]
    np.testing.assert_array_equal(f_beta_by_threshold(wild, flipped[1], counted), before[1])


def test_a_turned_mask_is_an_error():
    with pytest.raises(ValueError, match=r"\(8, 5\) for a mask of \(5, 8\)"):
        mask_scores(ALL.T, ALL)
    with pytest.raises(ValueError, match="for a mask of"):
        f_beta_by_threshold(np.ones((8, 5)), ALL)


# -- soft maps


def by_loop(soft, truth):
    """255 times over all pixels, the figures written out."""
    low, high = soft.min(), soft.max()
    scaled = (soft - low) / (high - low)
    found = []
    for i in range(255):
        predicted = scaled > i / 255
        right = (predicted & truth).sum()
        precision = right / predicted.sum() if predicted.sum() else 1.0
        recall = right / truth.sum() if truth.sum() else 1.0
        below = 0.3 * precision + recall
        found.append(1.3 * precision * recall / below if below else 0.0)
    return np.array(found)


def soft_map(seed, kind):
    rng = np.random.default_rng(seed)
    if kind == "steps":  # values that lie on the thresholds
        return np.append(rng.integers(0, 256, 75), [0, 255]).reshape(7, 11) / 255
    return rng.normal(3, 20, (7, 11)).astype(kind)


@pytest.mark.parametrize("kind", ["float32", "float64", "steps", "int16"])
def test_against_a_loop_over_thresholds(kind):
    for seed in range(5):
        soft, truth = soft_map(seed, kind), random_mask(seed)
        found = f_beta_by_threshold(soft, truth)
        np.testing.assert_allclose(found, by_loop(soft.astype(float), truth), rtol=1e-12)
        assert len(found) == len(THRESHOLDS) == 255


def test_thresholds_against_scikit_learn():
    from sklearn.metrics import fbeta_score

    soft, truth = soft_map(0, "float64"), random_mask(0)
    found = f_beta_by_threshold(soft, truth)
    for i in (0, 1, 100, 254):
        cut = (min_max(soft) > i / 255).ravel()
        theirs = fbeta_score(truth.ravel(), cut, beta=0.3**0.5)
        assert found[i] == pytest.approx(theirs)


def test_a_value_on_a_threshold_is_not_above_it():
    soft = np.array([[0.0, 10 / 255, 1.0]])
    found = f_beta_by_threshold(soft, np.array([[False, True, False]]))
    one_of_two = 1.3 * 0.5 / (0.3 * 0.5 + 1)
    np.testing.assert_allclose(found, [one_of_two] * 10 + [0] * 245)


def test_a_mask_is_the_same_at_every_threshold():
    prediction, truth = random_mask(4), random_mask(5)
    found = f_beta_by_threshold(prediction, truth)
    np.testing.assert_allclose(found, mask_scores(prediction, truth).f_beta)


def test_maps_that_are_flat_and_maps_without_a_range():
    truth = random_mask(0)
    assert (f_beta_by_threshold(np.full((7, 11), 3.0), truth) == 0).all()
    flat = f_beta_by_threshold(np.full((7, 11), 0.5), truth, scale=False)
    everything = mask_scores(np.ones((7, 11), bool), truth).f_beta
    np.testing.assert_allclose(flat, [everything] * 128 + [0] * 127)
    for wrong in (np.nan, np.inf):
        soft = np.random.default_rng(0).random((7, 11))
        soft[2, 3] = wrong
        for scale in (True, False):
            with pytest.raises(ValueError, match="NaN or Inf"):
                f_beta_by_threshold(soft, truth, scale=scale)


def test_values_without_scaling():
    """As the published code takes a map that is from 0 to 1; what lies beyond is cut off."""
    soft = np.array([[-0.5, 0.2, 0.6, 1.5]])
    truth = np.array([[False, False, True, True]])
    found = f_beta_by_threshold(soft, truth, scale=False)
    assert found[0] == pytest.approx(1.3 * (2 / 3) / (0.3 * (2 / 3) + 1))
    assert found[60] == 1 and found[254] == pytest.approx(1.3 * 0.5 / (0.3 + 0.5))


# -- of a data set


def test_figures_are_means_over_images():
    """A large object that is found and a small one that is not count the same."""
    truths, predictions = np.zeros((2, 5, 8), bool), np.zeros((2, 5, 8), bool)
    truths[0], truths[1, 0, 0] = True, True
    predictions[0], predictions[1, 4, 7] = True, True
    each = np.array([mask_scores(p, t) for p, t in zip(predictions, truths, strict=True)])
    assert each.shape == (2, 5)
    counts = np.stack([each, np.ones_like(each)], axis=-1).sum(0)
    assert share_percent(counts)[0] == 50
    together = mask_scores(predictions.reshape(10, 8), truths.reshape(10, 8))
    assert together.iou > 0.9


def test_max_f_beta_has_one_threshold_for_all_images():
    pairs = [(soft_map(seed, "float64"), random_mask(seed)) for seed in range(6)]
    each = np.stack([f_beta_by_threshold(soft, truth) for soft, truth in pairs])
    counts = np.stack([each, np.ones_like(each)], axis=-1)
    found = max_f_beta_percent(counts.sum(0))
    means = np.mean([by_loop(soft, truth) for soft, truth in pairs], axis=0)
    assert found == pytest.approx(100 * means.max())
    assert found < 100 * each.max(1).mean()
    values = bootstrap(counts, max_f_beta_percent, resample_weights(6, 20, seed=0))
    for value, weights in zip(values, resample_weights(6, 20, seed=0), strict=True):
        drawn = np.repeat(np.arange(6), weights.astype(int))
        assert value == pytest.approx(100 * each[drawn].mean(0).max())
