"""Clusters: k-means against scikit-learn's, pixels against torch, matching against every matching.

The order of clusters means nothing: labels are compared up to a permutation.
"""

from itertools import permutations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from test_neighbours import Images, Shapes

from skipbench.engine import vectors
from skipbench.engine.vectors import k_means
from skipbench.errors import UsageError
from skipbench.evaluations.cluster.method import (
    TURNS,
    match,
    matched_counts,
    nearest_centroid,
    score,
)
from skipbench.evaluations.knn.method import normalised
from skipbench.evaluations.probe import method as probe
from skipbench.evaluations.probe.method import Part
from skipbench.evaluations.segmentation.pixels import Grid
from skipbench.evaluations.segmentation.scores import figures
from skipbench.metrics.segmentation import class_counts, miou_percent


def apart(count=300, groups=5, width=6, spread=0.1, seed=0):
    """Tokens of length 1 around middles far apart, and to which each belongs."""
    rng = np.random.default_rng(seed)
    middles = np.concatenate([np.eye(width), -np.eye(width)])[:groups]
    which = np.arange(count) % groups
    return normalised(middles[which] + spread * rng.normal(size=(count, width))), which


def spread_out(count=300, width=6, seed=0):
    return normalised(np.random.default_rng(seed).normal(size=(count, width)))


def distances(rows, centroids):
    return ((rows[:, None].astype(np.float64) - centroids) ** 2).sum(2)


def inertia(rows, centroids):
    return distances(rows, centroids).min(1).sum()


# -- k-means


@pytest.mark.parametrize("seed", range(3))
def test_groups_far_apart_are_found_as_by_scikit_learn(seed):
    """From random rows k-means may miss a group; the best of some seeds does not, for either."""
    rows, which = apart(seed=seed)
    made = [k_means(rows, 5, other, TURNS)[0] for other in range(8)]
    ours = min(made, key=lambda centroids: inertia(rows, centroids))
    theirs = KMeans(5, n_init=5, random_state=0).fit(rows)
    assert inertia(rows, ours) == pytest.approx(theirs.inertia_, rel=1e-4)
    labels = distances(rows, ours).argmin(1)
    assert adjusted_rand_score(labels, theirs.labels_) == 1
    assert adjusted_rand_score(labels, which) == 1
    nearest = distances(theirs.cluster_centers_, ours).min(1)
    assert nearest.max() < 1e-8 and ours.dtype == np.float32 and ours.shape == (5, 6)


@pytest.mark.parametrize("clusters", [1, 2, 7, 20])
def test_centroids_stay_where_they_are(clusters):
    """Each is the mean of the rows nearest to it, as scikit-learn's step has it too."""
    rows = spread_out()
    centroids, found = k_means(rows, clusters, 0, 200)
    nearest = distances(rows, centroids).argmin(1)
    for cluster in range(clusters):
        np.testing.assert_allclose(
            centroids[cluster], rows[nearest == cluster].mean(0, dtype=np.float64), atol=1e-5
        )
    step = KMeans(clusters, init=centroids, n_init=1, max_iter=1).fit(rows)
    np.testing.assert_allclose(step.cluster_centers_, centroids, atol=1e-5)
    assert found == pytest.approx(inertia(rows, centroids) / len(rows), rel=1e-5)


def test_as_close_as_scikit_learn_where_nothing_lies_apart():
    rows = spread_out(500, 8)
    ours = min(inertia(rows, k_means(rows, 10, seed, TURNS)[0]) for seed in range(3))
    theirs = KMeans(10, n_init=3, init="random", random_state=0).fit(rows).inertia_
    assert ours == pytest.approx(theirs, rel=0.03)
    single = inertia(rows, rows.mean(0)[None])
    assert ours < 0.75 * single  # which is not to say much of so many directions


def test_no_row_is_left_out():
    """faiss takes 256 rows for a centroid, if it is not told otherwise."""
    rows = np.concatenate([apart(2999, 1, spread=0.02)[0], -np.eye(6, dtype=np.float32)[:1]])
    centroids, _ = k_means(rows, 1, 0, 5)
    np.testing.assert_allclose(centroids[0], rows.mean(0, dtype=np.float64), atol=1e-6)


def test_turns_never_make_it_worse():
    rows = spread_out()
    found = [k_means(rows, 7, 0, turns)[1] for turns in (1, 2, 4, 8, TURNS)]
    assert (np.diff(found) <= 1e-4 * found[0]).all() and found[-1] < 0.97 * found[0]


@pytest.mark.parametrize("turns", [1, 3])
def test_the_inertia_is_that_of_the_centroids(turns, monkeypatch):
    """faiss's own sums are those from before each turn; and rows are taken in pieces."""
    monkeypatch.setattr(vectors, "PIECE", 37)
    rows = spread_out()
    centroids, found = k_means(rows, 7, 0, turns)
    assert found == pytest.approx(inertia(rows, centroids) / len(rows), rel=1e-4)


def test_of_several_starts_the_tightest_is_taken():
    rows = apart(300, 9, spread=0.05)[0]
    once = [k_means(rows, 9, seed, TURNS)[1] for seed in range(6)]
    often = [k_means(rows, 9, seed, TURNS, redo=8)[1] for seed in range(6)]
    assert np.mean(often) < 0.9 * np.mean(once) and min(often) <= min(once) + 1e-6


def test_the_same_seed_gives_the_same_centroids_another_one_others():
    rows = spread_out(40)
    made = [k_means(rows, 7, seed, TURNS)[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(distances(made[0], made[2]).min(1)).max() > 1e-3


def test_as_many_clusters_as_rows():
    rows = spread_out(7)
    centroids, found = k_means(rows, 7, 0, 5)
    assert distances(rows, centroids).min(1).max() < 1e-10 and found == pytest.approx(0, abs=1e-6)
    with pytest.raises(UsageError, match="8 clusters of 7 tokens: give fewer --clusters"):
        k_means(rows, 8, 0, 5)
    with pytest.raises(UsageError, match="1 clusters of 0 tokens"):
        k_means(rows[:0], 1, 0, 5)


def test_rows_that_are_all_alike():
    rows = np.repeat(spread_out(2), 15, axis=0)
    centroids, found = k_means(rows, 6, 0, 10)
    assert np.isfinite(centroids).all() and centroids.shape == (6, 6)
    assert inertia(rows, centroids) < 1e-3 and np.isfinite(found)


def test_rows_in_half_precision_and_from_every_other_place():
    rows = spread_out(80).astype(np.float16)
    ours, plain = (
        k_means(one, 3, 0, TURNS)[0]
        for one in (rows[::2], np.ascontiguousarray(rows[::2], np.float32))
    )
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("on_gpus", [0, 2])
def test_gpus_are_handed_on(monkeypatch, on_gpus):
    asked = []
    kmeans = vectors.load().Kmeans

    def on_cpu(*sizes, gpu, **more):
        asked.append(gpu)
        return kmeans(*sizes, **more)

    monkeypatch.setattr(vectors.load(), "Kmeans", on_cpu)
    made = k_means(spread_out(), 3, 0, 5, on_gpus=on_gpus)[0]
    assert asked == [on_gpus or False] and type(asked[0]) is (int if on_gpus else bool)
    np.testing.assert_array_equal(made, k_means(spread_out(), 3, 0, 5)[0])


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
    tokens = spread_out(grid_hw[0] * grid_hw[1])
    several = [
        (spread_out(clusters, seed=s) * rng.uniform(0.2, 1.5, (clusters, 1))).astype(np.float32)
        for s in range(3)
    ]
    part = Part(Grid(grid_hw, tuple(map(float, grid_hw))), tokens)
    found = nearest_centroid(part, size_hw, several)
    assert len(found) == 3
    for made, centroids in zip(found, several, strict=True):
        expected = plain_clusters(tokens, grid_hw, size_hw, centroids)
        assert made.shape == size_hw and (made != expected).mean() < 1e-3
        if clusters == 4:
            by_product = plain_clusters(tokens, grid_hw, size_hw, 1e4 * normalised(centroids))
            assert (by_product != expected).mean() > 0.05


def test_pixels_of_a_padded_picture():
    tokens, centroids = spread_out(48), spread_out(5, seed=1) / 2
    part = Part(Grid((6, 8), (5.5, 7.4)), tokens)
    (found,) = nearest_centroid(part, (55, 74), [centroids])
    expected = plain_clusters(tokens, (6, 8), (60, 80), centroids)[:55, :74]
    assert (found != expected).mean() < 1e-3


def test_many_clusterings_at_once_are_those_of_one_each():
    several = [spread_out(6, seed=s) for s in range(2 * probe.HEADS_AT_ONCE + 1)]
    part = Part(Grid((4, 5), (4.0, 5.0)), spread_out(20))
    found = nearest_centroid(part, (21, 30), several)
    assert len(found) == len(several)
    for made, centroids in zip(found, several, strict=True):
        (alone,) = nearest_centroid(part, (21, 30), [centroids])
        assert (made != alone).mean() < 2e-3


# -- clusters and classes together


@pytest.mark.parametrize("clusters", [3, 300])
def test_pixels_by_cluster_and_class_are_those_of_plain_loops(clusters):
    images, done, numbers = Images(), [], [2, 0, 3]
    images.masks[0][:] = 255
    several = [spread_out(clusters, seed=s) / 2 for s in range(2)]
    found = score(images, numbers, several, 4, done.append)
    assert len(found) == 2 and done == [1] * 3
    for pairs, centroids in zip(found, several, strict=True):
        assert pairs.shape == (3, clusters * 4) and not pairs[[1]].sum()
        for row, image in enumerate(numbers):
            part = Part(images.grid(image), normalised(images.tokens(image)))
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
    images = Shapes("val", 10, shuffled)
    tokens, pixels = normalised(np.concatenate(images.values)), np.concatenate(images.counts)
    main, labelled = pixels.argmax(1), pixels.any(1)
    # As many of each class, and many starts: random rows to begin with are not what is tested.
    rows = [tokens[labelled & (main == c)][:60] for c in range(images.classes)]
    centroids, _ = k_means(np.concatenate(rows), clusters, 0, TURNS, redo=60)
    (pairs,) = score(images, range(10), [centroids], images.classes)
    pixels = np.asarray(pairs.sum(0)).reshape(clusters, images.classes)
    assert pixels.sum() == sum(int((mask != 255).sum()) for mask in images.masks)
    counts = matched_counts(pairs, match(pixels), images.classes)
    found = figures(counts, images.data.classes)["miou"]
    if not shuffled:
        assert found > 90
        return
    # Nothing can be known: each class is called as often as if by lot, wherever it is.
    _, called, true = counts.sum(0).astype(float)
    by_lot = called * true / true.sum()
    chance = 100 * np.mean(by_lot / (called + true - by_lot))
    assert found == pytest.approx(chance, abs=1.5) and found < 20
