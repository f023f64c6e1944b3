"""IoU of boxes, shares, and the block that is chosen on other images than it is scored on."""

import numpy as np
import pytest
from scipy.stats import binomtest

from skipbench.metrics.intervals import bootstrap, exact_interval, resample_weights
from skipbench.metrics.means import box_iou, cross_chosen, share_percent


def random_boxes(count, seed):
    """Whole pixels on a picture of 24 × 40; some have no area."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.integers(0, 41, (count, 2)), 1)
    y = np.sort(rng.integers(0, 25, (count, 2)), 1)
    return np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1).astype(float)


def test_iou_by_hand():
    boxes = [[0, 0, 10, 4], [5, 2, 15, 6]]
    others = [[0, 0, 10, 4], [10, 0, 20, 4], [0, 0, 5, 4]]
    expected = [[1, 0, 1 / 2], [10 / 70, 10 / 70, 0]]
    found = box_iou(np.array(boxes), np.array(others))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected)


def test_iou_is_that_of_sets_of_pixels():
    boxes, others = random_boxes(12, 0), random_boxes(9, 1)

    def pixels(box):
        inside = np.zeros((24, 40), bool)
        inside[int(box[1]) : int(box[3]), int(box[0]) : int(box[2])] = True
        return inside

    for box, row in zip(boxes, box_iou(boxes, others), strict=True):
        for other, iou in zip(others, row, strict=True):
            a, b = pixels(box), pixels(other)
            assert iou == pytest.approx((a & b).sum() / max((a | b).sum(), 1))


def test_iou_is_pycocotools():
    from pycocotools import mask

    corners = np.random.default_rng(2).uniform(0, 30, (7, 2, 2))
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    xywh = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
    expected = mask.iou(xywh, xywh[:4], [False] * 4)
    np.testing.assert_allclose(box_iou(boxes, boxes[:4]), expected)


def test_iou_of_nothing():
    none = np.zeros((0, 4))
    one = np.array([[1.0, 2, 5, 9]])
    assert box_iou(none, one).shape == (0, 1) and box_iou(one, none).shape == (1, 0)
    assert box_iou([], []).shape == (0, 0)
    points = np.array([[3.0, 3, 3, 3], [3, 3, 3, 7], [5, 9, 1, 2]])  # the last is inside out
    with np.errstate(all="raise"):
        assert (box_iou(points, np.concatenate([points, one])) == 0).all()


def test_iou_of_boxes_below_a_pixel():
    assert box_iou([[0, 0, 0.1, 0.2]], [[0, 0, 0.1, 0.1]]) == pytest.approx(0.5)


def test_shares():
    assert share_percent(np.array([3, 4])) == 75
    assert share_percent(np.array([0, 0])) == 0
    counts = np.array([[[1, 2], [3, 3]], [[0, 5], [0.5, 2]]])
    np.testing.assert_allclose(share_percent(counts), [[50, 100], [0, 25]])


def test_corloc_has_an_interval():
    hits = np.random.default_rng(0).random(200) < 0.6
    counts = np.stack([hits, np.ones(200)], axis=1)
    values = bootstrap(counts, share_percent, resample_weights(200, 500, seed=0))
    assert values.shape == (500,) and abs(values.mean() - 100 * hits.mean()) < 1


@pytest.mark.parametrize(("hits", "ends"), [(0, (0.0, 45.93)), (6, (54.07, 100.0))])
def test_no_interval_of_a_few_images_is_a_point(hits, ends):
    """Clopper and Pearson's, by scipy."""
    low, high = exact_interval(hits, 6)
    theirs = binomtest(hits, 6).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((theirs.low, theirs.high))
    assert (100 * low, 100 * high) == pytest.approx(ends, abs=0.01)


# -- the best block


def written_out(hits, splits, seed):
    """Image by image. The halves are those of the same generator."""
    rng = np.random.default_rng(seed)
    images, blocks = len(hits), len(hits[0])
    sums, chosen = [0.0] * images, [0] * blocks
    for _ in range(splits):
        order = [int(i) for i in rng.permutation(images)]
        one, other = order[: images // 2], order[images // 2 :]
        for here, there in ((one, other), (other, one)):
            means = [sum(float(hits[i][b]) for i in here) / len(here) for b in range(blocks)]
            best = means.index(max(means))
            chosen[best] += 1
            for i in there:
                sums[i] += float(hits[i][best])
    return sums, chosen


@pytest.mark.parametrize("images", [2, 3, 11, 20])
def test_cross_chosen_written_out(images):
    hits = np.random.default_rng(images).random((images, 4)) < 0.5
    found = cross_chosen(hits, splits=7, seed=5)
    sums, chosen = written_out(hits.tolist(), 7, 5)
    assert found.counts.dtype == np.float64 and found.counts.shape == (images, 2)
    np.testing.assert_array_equal(found.counts[:, 0], sums)
    assert (found.counts[:, 1] == 7).all()  # each image once a split
    assert found.chosen.tolist() == chosen and sum(chosen) == 14


def test_of_equals_the_first_is_chosen():
    scores = np.random.default_rng(0).random((9, 1))
    found = cross_chosen(np.repeat(scores, 13, axis=1))
    assert found.chosen.tolist() == [200] + [0] * 12
    np.testing.assert_allclose(found.counts[:, 0] / 100, scores[:, 0])


def test_a_block_that_is_best_everywhere():
    hits = np.zeros((8, 3))
    hits[:, 1] = 1
    found = cross_chosen(hits, splits=4)
    assert found.chosen.tolist() == [0, 8, 0] and share_percent(found.counts.sum(0)) == 100


def test_luck_is_not_scored():
    """Twelve blocks that all hit half of the images by chance: the best of them seems better."""
    hits = np.random.default_rng(1).random((60, 12)) < 0.5
    honest = share_percent(cross_chosen(hits).counts.sum(0))
    assert 100 * hits.mean(0).max() > 58 and abs(honest - 50) < 5


def test_seeds_and_too_few_images():
    hits = np.random.default_rng(3).random((10, 5))
    first, again, other = (cross_chosen(hits, 6, seed).counts for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert cross_chosen(hits[:1]) is None and cross_chosen(hits[:0]) is None


def test_many_images():
    """One split of as many as COCO20k has, written out for all of them at once."""
    hits = np.random.default_rng(0).random((20_000, 12)) < 0.6
    found = cross_chosen(hits, splits=1, seed=0)
    order = np.random.default_rng(0).permutation(20_000)
    one, other = order[:10_000], order[10_000:]
    blocks = [int(hits[half].mean(0).argmax()) for half in (one, other)]
    assert found.chosen.tolist() == np.bincount(blocks, minlength=12).tolist()
    for half, block in ((other, blocks[0]), (one, blocks[1])):
        np.testing.assert_array_equal(found.counts[half, 0], hits[half, block])
