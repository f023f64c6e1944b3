"""Scores on arrays small enough to count by hand."""

import numpy as np

from skipbench.metrics.segmentation import confusion, iou_by_class, mean_iou_percent


def by_sets(predictions, truths, classes):
    """IoU written out: sets of pixels, over all images."""
    ious = []
    for c in range(classes):
        inside = either = 0
        for p, t in zip(predictions, truths, strict=True):
            counted = t != 255
            inside += ((p == c) & (t == c) & counted).sum()
            either += (((p == c) | (t == c)) & counted).sum()
        ious.append(inside / either if either else np.nan)
    return np.array(ious)


def random_pairs(seed=0, images=5, classes=6, absent=()):
    random = np.random.default_rng(seed)
    allowed = [c for c in range(classes) if c not in absent]
    for _ in range(images):
        truth = random.choice([*allowed, 255], (7, 11)).astype(np.uint8)
        yield random.choice(allowed, (7, 11)).astype(np.uint8), truth


def test_against_sets_of_pixels():
    pairs = list(random_pairs())
    matrix = sum(confusion(p, t, 6) for p, t in pairs)
    assert matrix.sum() == sum((t != 255).sum() for _, t in pairs)
    np.testing.assert_allclose(iou_by_class(matrix), by_sets(*zip(*pairs, strict=True), 6))


def test_by_hand():
    truth = np.array([[0, 0, 1, 1, 255]])
    prediction = np.array([[0, 1, 1, 1, 0]])
    matrix = confusion(prediction, truth, 3)
    assert matrix.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    np.testing.assert_allclose(iou_by_class(matrix), [1 / 2, 2 / 3, np.nan])
    assert np.isclose(mean_iou_percent(matrix), 100 * (1 / 2 + 2 / 3) / 2)


def test_a_class_that_occurs_nowhere_is_left_out():
    pairs = list(random_pairs(1, absent=(2, 5)))
    matrix = sum(confusion(p, t, 6) for p, t in pairs)
    ious = iou_by_class(matrix)
    assert np.isnan(ious[[2, 5]]).all() and not np.isnan(ious[[0, 1, 3, 4]]).any()
    assert np.isclose(mean_iou_percent(matrix), 100 * ious[[0, 1, 3, 4]].mean())
    # predicted, though it never occurs: that is an error of the prediction, and counts as 0
    prediction, truth = pairs[0]
    wrong = np.where(truth == 0, 5, prediction).astype(np.uint8)
    assert iou_by_class(matrix + confusion(wrong, truth, 6))[5] == 0


def test_all_ignored_counts_for_nothing():
    pairs = list(random_pairs(2))
    matrix = sum(confusion(p, t, 6) for p, t in pairs)
    ignored = np.full((7, 11), 255, np.uint8)
    assert confusion(pairs[0][0], ignored, 6).sum() == 0
    assert mean_iou_percent(matrix + confusion(pairs[0][0], ignored, 6)) == mean_iou_percent(matrix)
    assert np.isnan(mean_iou_percent(confusion(pairs[0][0], ignored, 6)))
