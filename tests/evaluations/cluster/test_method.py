"""Clusters as classes: pixels against torch, matching against every matching.

The order of clusters means nothing: labels are compared up to a permutation.
"""

from itertools import permutations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from tokens import ShapesTokens, TokenImages, unit

from skipbench.engine.vectors import k_means
from skipbench.evaluations.cluster.method import (
    TURNS,
    match,
    matched_counts,
    nearest_centroid,
    score,
)
from skipbench.evaluations.segmentation.run import segmentation_metrics
from skipbench.evaluations.segmentation.tokens import HEADS_AT_ONCE, Grid, TokenMap, normalised
from skipbench.metrics.segmentation import class_counts, miou_percent

# -- the cluster of every pixel


def plain_clusters(tokens, grid_hw, size_hw, centroids):
    """Tokens themselves resized, and the distance of each to every centroid."""
    maps = torch.from_numpy(tokens.T.reshape(1, -1, *grid_hw)).double()
    resized = F.interpolate(maps, size_hw, mode="bilinear", align_corners=False)[0]
    pixels = resized.flatten(1).T
    return torch.cdist(pixels, torch.from_numpy(centroids).double()).argmin(1).view(size_hw).numpy()


@pytest.mark.parametrize(("grid_hw", "size_hw"), [((5, 7), (40, 63)), ((7, 4), (33, 50))])
@pytest.mark.parametrize("clusters", [1, 4, 300])
def test_pixels_belong_to_the_nearest_centroid(clusters, grid_hw, size_hw):
    """Centroids of unlike length: the nearest is not that of the highest product."""
    rng = np.random.default_rng(0)
    tokens = unit(grid_hw[0] * grid_hw[1])
    several = [
        (unit(clusters, seed=s) * rng.uniform(0.2, 1.5, (clusters, 1))).astype(np.float32)
        for s in range(3)
    ]
    part = TokenMap(Grid(grid_hw, tuple(map(float, grid_hw))), tokens)
    found = nearest_centroid(part, size_hw, several)
    assert len(found) == 3
    for made, centroids in zip(found, several, strict=True):
        expected = plain_clusters(tokens, grid_hw, size_hw, centroids)
        assert made.shape == size_hw and (made != expected).mean() < 1e-3
        if clusters == 4:
            by_product = plain_clusters(tokens, grid_hw, size_hw, 1e4 * normalised(centroids))
            assert (by_product != expected).mean() > 0.05


def test_pixels_of_a_padded_picture():
    tokens, centroids = unit(48), unit(5, seed=1) / 2
    part = TokenMap(Grid((6, 8), (5.5, 7.4)), tokens)
    (found,) = nearest_centroid(part, (55, 74), [centroids])
    expected = plain_clusters(tokens, (6, 8), (60, 80), centroids)[:55, :74]
    assert (found != expected).mean() < 1e-3


def test_many_clusterings_at_once_are_those_of_one_each():
    several = [unit(6, seed=s) for s in range(2 * HEADS_AT_ONCE + 1)]
    part = TokenMap(Grid((4, 5), (4.0, 5.0)), unit(20))
    found = nearest_centroid(part, (21, 30), several)
    assert len(found) == len(several)
    for made, centroids in zip(found, several, strict=True):
        (alone,) = nearest_centroid(part, (21, 30), [centroids])
        assert (made != alone).mean() < 2e-3


# -- clusters and classes together


@pytest.mark.parametrize("clusters", [3, 300])
def test_pixels_by_cluster_and_class_are_those_of_plain_loops(clusters):
    images, done, numbers = TokenImages(), [], [2, 0, 3]
    images.masks[0][:] = 255
    several = [unit(clusters, seed=s) / 2 for s in range(2)]
    found = score(images, numbers, several, 4, done.append)
    assert len(found) == 2 and done == [1] * 3
    for pairs, centroids in zip(found, several, strict=True):
        assert pairs.shape == (3, clusters * 4) and not pairs[[1]].sum()
        for row, image in enumerate(numbers):
            part = TokenMap(images.grid(image), normalised(images.tokens(image)))
            mask = images.mask(image)
            (where,) = nearest_centroid(part, mask.shape, [centroids])
            expected = np.zeros((clusters, 4), int)
            for cluster, true in zip(where.ravel().tolist(), mask.ravel().tolist(), strict=True):
                if true != 255:
                    expected[cluster, true] += 1
            np.testing.assert_array_equal(pairs[[row]].toarray().reshape(clusters, 4), expected)


# -- matching


def ious(pixels):
    made = np.zeros(pixels.shape)
    for i in range(pixels.shape[0]):
        for j in range(pixels.shape[1]):
            either = pixels[i].sum() + pixels[:, j].sum() - pixels[i, j]
            made[i, j] = pixels[i, j] / either if either else 0
    return made


def some_pixels(clusters, classes, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 90, (clusters, classes)) * (rng.random((clusters, classes)) < 0.6)


@pytest.mark.parametrize(("clusters", "classes"), [(1, 1), (1, 4), (3, 5), (5, 5), (6, 6)])
def test_one_to_one_is_the_best_of_all_matchings(clusters, classes):
    for seed in range(6):
        pixels = some_pixels(clusters, classes, seed)
        found, iou = match(pixels), ious(pixels)
        assert len(found) == clusters == len(set(found.tolist()))  # none twice
        every = permutations(range(classes), clusters)
        best = max(sum(iou[i, j] for i, j in enumerate(way)) for way in every)
        assert sum(iou[i, j] for i, j in enumerate(found)) == pytest.approx(best)


def test_it_is_iou_that_is_matched_not_pixels():
    """By pixels 100 + 0 against 50 + 40; by IoU 100/190 + 0 against 50/150 + 40/140."""
    assert match(np.array([[100, 50], [40, 0]])).tolist() == [1, 0]


@pytest.mark.parametrize(("clusters", "classes"), [(2, 1), (5, 4), (30, 3)])
def test_more_clusters_than_classes_become_what_most_of_them_is(clusters, classes):
    pixels = some_pixels(clusters, classes, 0)
    pixels[0] = 0  # a cluster without a pixel
    expected = [max(range(classes), key=lambda j: (row[j], -j)) for row in pixels.tolist()]
    assert match(pixels).tolist() == expected


def test_fewer_clusters_than_classes_have_one_each():
    pixels = np.array([[50, 1, 0, 2], [60, 30, 0, 1]])
    assert match(pixels).tolist() == [0, 1]


def test_nothing_but_zeros():
    assert sorted(match(np.zeros((3, 3), int)).tolist()) == [0, 1, 2]
    assert match(np.zeros((4, 3), int)).tolist() == [0] * 4


# -- counts


@pytest.mark.parametrize("clusters", [2, 4, 9])
def test_counts_are_those_of_the_renamed_prediction(clusters):
    rng, classes = np.random.default_rng(0), 4
    matching = rng.integers(classes, size=clusters)
    rows, expected = [], []
    for i in range(5):
        where = rng.integers(clusters, size=(13, 17))
        mask = rng.integers(0, classes, (13, 17)).astype(np.uint8)
        mask[rng.random(mask.shape) < (0.2 if i else 1)] = 255  # the first has no label at all
        expected.append(class_counts(matching[where], mask, classes))
        pairs = np.zeros((clusters, classes), np.int32)
        np.add.at(pairs, (where[mask != 255], mask[mask != 255]), 1)
        rows.append(pairs.ravel())
    found = matched_counts(csr_array(np.array(rows)), matching, classes)
    assert found.shape == (5, 3, classes) and found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    assert not found[0].any() and found[1:].any()


def test_counts_of_a_perfect_clustering():
    pairs = csr_array(np.array([[0, 0, 7, 0, 5, 0], [0, 0, 2, 0, 0, 0]]))  # 3 clusters, 2 classes
    found = matched_counts(pairs, match(np.asarray(pairs.sum(0)).reshape(3, 2)), 2)
    assert miou_percent(found.sum(0)) == 100 and found[:, 0].tolist() == [[12, 0], [2, 0]]


# -- on the embedded data set


@pytest.mark.parametrize("clusters", [7, 20])
@pytest.mark.parametrize("shuffled", [False, True])
def test_shapes(shuffled, clusters):
    """Tokens that carry the class score above 90, the same tokens in another order at chance."""
    images = ShapesTokens("val", 10, shuffled)
    tokens, pixels = normalised(np.concatenate(images.values)), np.concatenate(images.counts)
    main, labelled = pixels.argmax(1), pixels.any(1)
    # As many of each class, and many starts: random rows to begin with are not what is tested.
    rows = [tokens[labelled & (main == c)][:60] for c in range(images.classes)]
    centroids, _ = k_means(np.concatenate(rows), clusters, 0, TURNS, redo=60)
    (pairs,) = score(images, range(10), [centroids], images.classes)
    pixels = np.asarray(pairs.sum(0)).reshape(clusters, images.classes)
    assert pixels.sum() == sum(int((mask != 255).sum()) for mask in images.masks)
    counts = matched_counts(pairs, match(pixels), images.classes)
    found = segmentation_metrics(counts, images.data.classes)["miou"]
    if not shuffled:
        assert found > 90
        return
    # Nothing can be known: each class is called as often as if by lot, wherever it is.
    _, called, true = counts.sum(0).astype(float)
    by_lot = called * true / true.sum()
    chance = 100 * np.mean(by_lot / (called + true - by_lot))
    assert found == pytest.approx(chance, abs=1.5) and found < 20
