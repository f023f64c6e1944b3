"""Scores on arrays small enough to count by hand, and against other libraries."""

import numpy as np
import pytest
from scipy.stats import permutation_test

from skipbench.metrics.intervals import bootstrap, flip_test, interval, resample_weights
from skipbench.metrics.segmentation import class_counts, confusion, miou_percent, scores


def random_pairs(seed=0, images=5, classes=6, absent=()):
    random = np.random.default_rng(seed)
    allowed = [c for c in range(classes) if c not in absent]
    for _ in range(images):
        truth = random.choice([*allowed, 255], (7, 11)).astype(np.uint8)
        yield random.choice(allowed, (7, 11)).astype(np.uint8), truth


def summed(pairs, classes=6):
    return sum(class_counts(p, t, classes) for p, t in pairs)


def by_sets(pairs, classes):
    """IoU written out: sets of pixels, over all images."""
    ious = []
    for c in range(classes):
        inside = either = 0
        for p, t in pairs:
            counted = t != 255
            inside += ((p == c) & (t == c) & counted).sum()
            either += (((p == c) | (t == c)) & counted).sum()
        ious.append(inside / either if either else np.nan)
    return np.array(ious)


def test_against_sets_of_pixels():
    pairs = list(random_pairs())
    np.testing.assert_allclose(scores(summed(pairs)).iou, by_sets(pairs, 6))


def test_against_scikit_learn():
    from sklearn import metrics

    pairs = list(random_pairs(3))
    truth = np.concatenate([t[t != 255] for _, t in pairs])
    guess = np.concatenate([p[t != 255] for p, t in pairs])
    matrix = sum(confusion(p, t, 6) for p, t in pairs)
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(truth, guess))
    found = scores(summed(pairs))
    assert np.isclose(found.miou, 100 * metrics.jaccard_score(truth, guess, average="macro"))
    weighted = metrics.jaccard_score(truth, guess, average="weighted")
    assert np.isclose(found.weighted_iou, 100 * weighted)
    assert np.isclose(found.pixel_accuracy, 100 * metrics.accuracy_score(truth, guess))
    balanced = metrics.balanced_accuracy_score(truth, guess)
    assert np.isclose(found.mean_accuracy, 100 * balanced)


def test_by_hand():
    truth = np.array([[0, 0, 1, 1, 255]])
    prediction = np.array([[0, 1, 1, 1, 0]])
    assert confusion(prediction, truth, 3).tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    counts = class_counts(prediction, truth, 3)
    assert counts.tolist() == [[1, 2, 0], [1, 3, 0], [2, 2, 0]]
    found = scores(counts)
    np.testing.assert_allclose(found.iou, [1 / 2, 2 / 3, np.nan])
    assert np.isclose(found.miou, 100 * (1 / 2 + 2 / 3) / 2)
    assert np.isclose(found.pixel_accuracy, 75) and np.isclose(found.mean_accuracy, 75)


def test_a_mean_over_images_is_something_else():
    pairs = list(random_pairs(4, images=2))
    alone = np.mean([scores(summed([pair])).miou for pair in pairs])
    assert abs(alone - scores(summed(pairs)).miou) > 0.1


def test_a_class_that_occurs_nowhere_is_left_out():
    pairs = list(random_pairs(1, absent=(2, 5)))
    found = scores(summed(pairs))
    assert np.isnan(found.iou[[2, 5]]).all() and not np.isnan(found.iou[[0, 1, 3, 4]]).any()
    assert np.isclose(found.miou, 100 * found.iou[[0, 1, 3, 4]].mean())
    assert np.isnan(found.accuracy[2])
    # predicted, though it never occurs: that is an error of the prediction, and counts as 0
    prediction, truth = pairs[0]
    wrong = np.where(truth == 0, 5, prediction).astype(np.uint8)
    assert scores(summed([*pairs, (wrong, truth)])).iou[5] == 0


def test_all_ignored_counts_for_nothing():
    pairs = list(random_pairs(2))
    ignored = np.full((7, 11), 255, np.uint8)
    nothing = class_counts(pairs[0][0], ignored, 6)
    assert nothing.sum() == 0
    assert scores(summed(pairs) + nothing).miou == scores(summed(pairs)).miou
    empty = scores(nothing)
    assert np.isnan([empty.miou, empty.pixel_accuracy, empty.weighted_iou]).all()


def test_many_at_once():
    stacked = np.stack([summed(random_pairs(seed, absent=(seed,))) for seed in range(4)])
    alone = [scores(counts).miou for counts in stacked]
    np.testing.assert_allclose(miou_percent(stacked), alone)


# -- intervals


def test_weights_are_draws():
    weights = resample_weights(7, 500, seed=0)
    assert weights.shape == (500, 7) and (weights.sum(1) == 7).all()
    assert abs(weights.mean() - 1) < 1e-12 and abs(weights.var() - (1 - 1 / 7)) < 0.05
    assert not np.array_equal(weights, resample_weights(7, 500, seed=1))


def test_bootstrap_is_resampling_written_out():
    counts = np.stack([class_counts(p, t, 6) for p, t in random_pairs(5, images=9)])
    values = bootstrap(counts, miou_percent, resample_weights(9, 50, seed=3))
    for value, weights in zip(values, resample_weights(9, 50, seed=3), strict=True):
        drawn = np.repeat(np.arange(9), weights.astype(int))
        assert np.isclose(value, scores(counts[drawn].sum(0)).miou)


def test_interval_agrees_with_scipy():
    from scipy.stats import bootstrap as theirs

    values = np.random.default_rng(0).normal(10, 3, 60)
    mine = interval(
        bootstrap(values[:, None], lambda s: s[:, 0] / 60, resample_weights(60, 20_000, seed=0))
    )
    other = theirs((values,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    low, high = other.confidence_interval
    assert mine == pytest.approx((low, high), abs=0.05)
    assert mine == pytest.approx(
        (
            values.mean() - 1.96 * values.std() / 60**0.5,
            values.mean() + 1.96 * values.std() / 60**0.5,
        ),
        abs=0.1,
    )


@pytest.mark.parametrize("count", [1, 2, 5, 9, 40])
def test_flips_against_scipy(count):
    rng = np.random.default_rng(count)
    differences = rng.normal(0.4, 1, count)
    found = flip_test(np.concatenate([differences, [0.0, np.nan]]))  # these two say nothing
    if count == 1:
        assert found == 1.0
        return
    theirs = permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=20_000, rng=1
    ).pvalue
    assert found == pytest.approx(theirs, abs=1e-12 if count <= 9 else 0.015)


def test_a_handful_of_images_is_never_sure():
    assert flip_test(np.full(6, 3.0)) == 2 / 2**6
    assert flip_test(np.zeros(6)) == flip_test(np.array([])) == 1.0
    assert flip_test(np.full(30, 3.0)) < 1e-3
