"""Nearest neighbours and k-means by faiss, against scikit-learn and torch."""

import faiss
import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors
from tokens import groups_of, of_length_one, unit

from skipbench.engine.vectors import (
    PIECE,
    RECALL,
    Flat,
    Lists,
    k_means,
    lists_to_search,
    sample_rows,
)
from skipbench.errors import UsageError

TURNS = 50


def in_pieces(bank, *cuts):
    return lambda: np.split(bank, cuts)


def flat(bank, *cuts, **more):
    return Flat(in_pieces(bank, *cuts), *bank.shape, **more)


# -- the whole bank


def plain_neighbours(queries, bank, k):
    near, number = (
        torch.from_numpy(queries).double() @ torch.from_numpy(bank.astype(np.float64)).T
    ).topk(min(k, len(bank)), dim=1)
    return near.numpy(), number.numpy()


@pytest.mark.parametrize("cuts", [(), (1,), (0, 40, 40, 119)])
def test_neighbours_are_those_of_scikit_learn(cuts):
    bank, queries = unit(120), unit(31, seed=1)
    near, number = flat(bank, *cuts).search(queries, 9)
    theirs = NearestNeighbors(n_neighbors=9, algorithm="brute", metric="cosine").fit(bank)
    distance, expected = theirs.kneighbors(queries)
    np.testing.assert_array_equal(number, expected)
    np.testing.assert_allclose(near, 1 - distance, atol=1e-6)
    assert near.dtype == np.float32 and number.dtype == np.int64


def test_neighbours_are_by_inner_product():
    """Not by distance: of tokens that are not normalised, long ones are nearer."""
    bank, queries = 3 * np.random.default_rng(0).normal(size=(2, 50, 5)).astype(np.float32)
    near, number = flat(bank).search(queries, 7)
    expected = plain_neighbours(queries, bank, 7)
    np.testing.assert_array_equal(number, expected[1])
    np.testing.assert_allclose(near, expected[0], rtol=1e-5)


@pytest.mark.parametrize("piece", [1, 7, 50, 64, 1000])
def test_half_precision_is_compared_piece_by_piece(piece):
    bank, queries = unit(50, seed=2), unit(9, seed=3)
    index = flat(bank, 20, dtype="float16", rows_at_once=piece)
    assert index.bank.dtype == np.float16
    near, number = index.search(queries, 11)
    expected = plain_neighbours(queries, bank.astype(np.float16), 11)
    np.testing.assert_array_equal(number, expected[1])
    np.testing.assert_allclose(near, expected[0], atol=1e-6)
    assert (np.diff(near) <= 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_fewer_tokens_than_neighbours(dtype):
    bank = unit(3)
    near, number = flat(bank, dtype=dtype, rows_at_once=2).search(bank, 30)
    assert number.shape == (3, 3) and number[:, 0].tolist() == [0, 1, 2]
    assert np.sort(number).tolist() == [[0, 1, 2]] * 3
    near, number = flat(bank[:1], dtype=dtype, rows_at_once=2).search(bank, 30)
    assert number.tolist() == [[0]] * 3
    np.testing.assert_allclose(near, bank @ bank[:1].T, atol=1e-3)
    assert flat(bank, dtype=dtype, rows_at_once=2).search(bank[:0], 2)[1].shape == (0, 2)


def test_equal_tokens_are_all_neighbours():
    """However many are alike, none is found twice."""
    bank = np.repeat(unit(2), 5, axis=0)
    _, number = flat(bank, dtype="float16", rows_at_once=4).search(bank[[0, 9]], 10)
    assert np.sort(number).tolist() == [list(range(10))] * 2
    assert set(number[0, :5]) == set(range(5)) and set(number[1, :5]) == set(range(5, 10))


# -- the bank in lists


def lists_of(bank, *cuts, probes=None, k=5, usual_k=5, **more):
    if probes is None:
        probes = groups_of(40, bank.shape[1], seed=7)
    return Lists(in_pieces(bank, *cuts), *bank.shape, probes=probes, k=k, usual_k=usual_k, **more)


def share_found(found, queries, bank, k):
    """Of the k nearest that scikit-learn knows."""
    theirs = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="cosine").fit(bank)
    exact = theirs.kneighbors(queries, return_distance=False)
    pairs = zip(exact.tolist(), found.tolist(), strict=True)
    return np.mean([len(set(a) & set(b)) / k for a, b in pairs])


def found_for_probes(index, bank):
    """By the probes that decide how many lists are searched."""
    probes = index.probes[::2]
    return share_found(index.search(probes, 5)[1], probes, bank, 5)


def test_all_lists_hold_the_exact_neighbours():
    bank, queries = groups_of(600), groups_of(30, seed=1)
    index = lists_of(bank, 100, 450)
    index.set_searched(index.lists)
    near, number = index.search(queries, 8)
    expected = plain_neighbours(queries, bank, 8)
    np.testing.assert_allclose(near, expected[0], atol=2e-3)  # kept in half precision
    np.testing.assert_allclose((queries[:, None] * bank[number]).sum(2), near, atol=2e-3)
    assert share_found(number, queries, bank, 8) > 0.97


@pytest.mark.parametrize("k", [1, 5, 12])
def test_recall_is_that_of_probes_which_settled_nothing(k):
    bank, probes = unit(2000, 16), unit(61, 16, seed=7)
    index = lists_of(bank, 700, probes=probes, k=12)
    index.set_searched(4)
    others = probes[1::2]
    found = index.search(others, k)[1]
    assert index.recall(k) == pytest.approx(share_found(found, others, bank, k))
    assert 0.1 < index.recall(k) < 0.98
    index.set_searched(index.lists)
    assert index.recall(k) > 0.98


def test_as_many_lists_are_searched_as_are_needed():
    """Few where tokens lie together; all, or nearly, where they are everywhere."""
    close, apart = groups_of(2000, 16, groups=60, spread=0.05), unit(2000, 16)
    easy = lists_of(close, probes=groups_of(40, 16, groups=60, spread=0.05, seed=7))
    hard = lists_of(apart, probes=unit(40, 16, seed=7))
    assert easy.lists == hard.lists == 64 and easy.searched == 8 < hard.searched
    for index, bank in ((easy, close), (hard, apart)):
        assert found_for_probes(index, bank) >= RECALL
        assert index.index.nprobe == index.searched
    hard.set_searched(hard.searched // 2)  # half as many were not enough
    assert found_for_probes(hard, apart) < RECALL


def test_what_is_searched_does_not_depend_on_how_many_neighbours_are_sought():
    bank, probes = unit(2000, 16), unit(40, 16, seed=7)
    one, other = (lists_of(bank, probes=probes, k=k, usual_k=10) for k in (1, 300))
    assert one.searched == other.searched
    assert one.recall(10) == other.recall(10)
    np.testing.assert_array_equal(one.search(probes, 9)[1], other.search(probes, 9)[1])
    assert set(one.exact) == {10} and set(other.exact) == {10, 300}
    np.testing.assert_array_equal(one.exact[10], other.exact[10])


def test_the_lists_are_the_same_however_the_bank_comes():
    bank, queries = groups_of(900), groups_of(20, seed=1)
    one, other = lists_of(bank), lists_of(bank, 1, 333, 333, 870)
    for a, b in zip(one.search(queries, 5), other.search(queries, 5), strict=True):
        np.testing.assert_array_equal(a, b)
    for many, exact in one.exact.items():
        np.testing.assert_array_equal(exact, other.exact[many])


@pytest.mark.parametrize("count", [1, 2, 7, 8, 17, 30])
def test_tiny_banks_in_lists(count):
    bank = unit(count)
    index = lists_of(bank, count // 2, probes=unit(9, seed=7), k=30, usual_k=30)
    assert 1 <= index.searched <= index.lists <= max(1, count // 8)
    near, number = index.search(bank, 31)
    assert np.sort(number[:, :count]).tolist() == [list(range(count))] * count
    assert (number[:, count:] == -1).all() and np.isneginf(near[:, count:]).all()
    np.testing.assert_allclose(near[:, 0], 1, atol=2e-3)
    assert near.dtype == np.float32 and index.recall(30) == 1


def test_a_single_probe():
    index = lists_of(groups_of(300), probes=groups_of(1, seed=7))
    index.set_searched(index.lists)
    assert index.recall(5) == 1


@pytest.mark.parametrize("width", [2, 7, 8])
def test_quantised(width):
    """Half a byte for a number where that is possible, one else; coarse, but about right."""
    bank, queries = groups_of(700, width, spread=1), groups_of(50, width, seed=1, spread=1)
    index = lists_of(bank, 300, probes=groups_of(40, width, seed=7, spread=1), quantised=True)
    assert index.index.code_size == (width if width % 2 else width // 2)
    index.set_searched(index.lists)
    near, number = index.search(queries, 10)
    true = np.take_along_axis(queries @ bank.T, number, 1)
    assert np.abs(near - true).max() < 0.2 and share_found(number, queries, bank, 10) > 0.6


@pytest.mark.parametrize("count", [1, 255])
def test_tiny_banks_are_not_quantised(count):
    """faiss needs 256 tokens for it."""
    with pytest.raises(UsageError, match=f"{count} tokens are too few .* higher --bank-limit"):
        lists_of(unit(count), probes=unit(9, seed=7), quantised=True)
    index = lists_of(unit(256), probes=unit(9, seed=7), quantised=True)
    assert index.search(unit(2), 1)[1].shape == (2, 1)


def test_too_few_bytes_do_not_become_more_by_looking_at_all_lists():
    """Where the codes are too coarse, it is not looked on for what they cannot tell."""
    bank, probes = unit(1000, 16), unit(40, 16, seed=7)
    index = lists_of(bank, probes=probes, quantised=True)
    assert index.lists == 64
    assert found_for_probes(index, bank) < RECALL


@pytest.mark.parametrize(
    ("lists", "found", "expected"),
    [
        (64, {8: 0.5, 16: 0.6, 32: 0.6019}, 32),
        (64, {8: 0.5, 16: 0.6, 32: 0.6021, 64: 0.61}, 64),
        (50, {8: 0.1, 16: 0.3, 32: 0.5, 50: 0.9}, 50),
        (64, {8: 0.5, 16: 0.98}, 16),
        (64, {8: 0.0, 16: 0.0, 32: 0.7, 64: 0.9}, 64),
        (5, {5: 0.3}, 5),
    ],
)
@pytest.mark.parametrize("on_gpus", [False, True])
def test_how_many_lists_are_tried(on_gpus, lists, found, expected):
    tried = []
    assert lists_to_search(lists, on_gpus, lambda n: tried.append(n) or found[n]) == expected
    assert tried == list(found)


@pytest.mark.parametrize(("on_gpus", "expected"), [(False, 5000), (True, 2048)])
def test_gpus_search_at_most_2048_lists(on_gpus, expected):
    assert lists_to_search(5000, on_gpus, lambda n: 0.05 * np.log2(n)) == expected


def test_lists_are_learnt_from_some_rows_at_random():
    bank = np.arange(500.0)[:, None] * np.ones(3)
    whole = sample_rows(in_pieces(bank), 500, 3, 60, 0)
    chosen = whole[:, 0].tolist()
    assert len(set(chosen)) == 60 and chosen == sorted(chosen) and max(chosen) > 450
    in_parts = sample_rows(in_pieces(bank, 0, 3, 3, 400), 500, 3, 60, 0)
    np.testing.assert_array_equal(whole, in_parts)
    assert sample_rows(in_pieces(bank), 500, 3, 60, 1)[:, 0].tolist() != chosen
    for most in (500, 501):
        np.testing.assert_array_equal(sample_rows(in_pieces(bank, 9), 500, 3, most, 0), bank)
    often = np.zeros(500)
    for seed in range(300):
        often[sample_rows(in_pieces(bank), 500, 3, 60, seed)[:, 0].astype(int)] += 1
    assert often.mean() == 36 and abs(often[:250].sum() / often.sum() - 0.5) < 0.02
    assert often.min() > 10 and often.max() < 65


# -- on GPUs, with a stand-in


class CpuGpus:
    """What a faiss for GPUs has more, on the CPU; parts of a bank are where GPUs would be."""

    def __init__(self):
        self.options, self.nprobe = None, []

    def index_cpu_to_all_gpus(self, index, co=None):
        self.options = co
        if not isinstance(index, faiss.IndexFlat):
            return index
        whole = index.reconstruct_n(0, index.ntotal)
        self.parts = [faiss.IndexFlatIP(index.d) for _ in range(2)]
        shards = faiss.IndexShards(index.d, True, True)
        for part, rows in zip(self.parts, np.array_split(whole, 2), strict=True):
            part.add(rows)
            shards.add_shard(part)
        return shards


@pytest.fixture
def gpus(monkeypatch):
    made = CpuGpus()

    class Options:
        shard = useFloat16 = None  # noqa: N815

    class Space(faiss.ParameterSpace):
        def set_index_parameter(self, index, name, value):
            made.nprobe.append((name, value))
            super().set_index_parameter(index, name, value)

    monkeypatch.setattr(faiss, "GpuMultipleClonerOptions", Options, raising=False)
    monkeypatch.setattr(faiss, "GpuParameterSpace", Space, raising=False)
    monkeypatch.setattr(
        faiss, "index_cpu_to_all_gpus", made.index_cpu_to_all_gpus, raising=False
    )  # fmt: skip
    return made


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_flat_on_gpus(gpus, dtype):
    bank, queries = unit(90), unit(20, seed=1)
    index = flat(bank, 10, 60, dtype=dtype, on_gpus=2)
    assert gpus.options.shard is True and gpus.options.useFloat16 is (dtype == "float16")
    assert not index.bank.size  # it is not kept twice
    near, number = index.search(queries, 7)
    expected = flat(bank).search(queries, 7)
    np.testing.assert_array_equal(number, expected[1])
    np.testing.assert_allclose(near, expected[0], atol=1e-6)


def test_fewer_tokens_on_gpus_than_neighbours(gpus):
    bank, queries = unit(3), unit(20, seed=1)
    near, number = flat(bank, on_gpus=2).search(queries, 9)
    expected = flat(bank).search(queries, 9)
    np.testing.assert_array_equal(number[:, :3], expected[1])
    np.testing.assert_allclose(near[:, :3], expected[0], atol=1e-6)
    assert (number[:, 3:] == -1).all() and np.isneginf(near[:, 3:]).all()


def test_lists_on_gpus(gpus):
    bank, queries = groups_of(900), groups_of(20, seed=1)
    index, plain = lists_of(bank, 500, on_gpus=2), lists_of(bank, 500)
    assert gpus.options.shard is True and gpus.options.useFloat16 is True
    assert gpus.nprobe[-1] == ("nprobe", index.searched) and index.searched == plain.searched
    for a, b in zip(index.search(queries, 6), plain.search(queries, 6), strict=True):
        np.testing.assert_array_equal(a, b)
    assert index.recall(5) == plain.recall(5)


def test_quantised_lists_stay_on_the_cpu(gpus):
    index = lists_of(groups_of(700), quantised=True, on_gpus=2)
    assert gpus.options is None and not gpus.nprobe
    assert index.search(groups_of(3), 2)[1].shape == (3, 2)


# -- k-means


def apart(count=300, groups=5, width=6, spread=0.1, seed=0):
    """Tokens of length 1 around middles far apart, and to which each belongs."""
    rng = np.random.default_rng(seed)
    middles = np.concatenate([np.eye(width), -np.eye(width)])[:groups]
    which = np.arange(count) % groups
    return of_length_one(middles[which] + spread * rng.normal(size=(count, width))), which


def distances(rows, centroids):
    return ((rows[:, None].astype(np.float64) - centroids) ** 2).sum(2)


def inertia(rows, centroids):
    return distances(rows, centroids).min(1).sum()


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
    rows = unit()
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
    rows = unit(500, 8)
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
    rows = unit()
    found = [k_means(rows, 7, 0, turns)[1] for turns in (1, 2, 4, 8, TURNS)]
    assert (np.diff(found) <= 1e-4 * found[0]).all() and found[-1] < 0.97 * found[0]


@pytest.mark.parametrize("turns", [1, 3])
def test_the_inertia_is_that_of_the_centroids(turns):
    """faiss's own sums are those from before each turn; and rows are taken in pieces."""
    rows = unit(PIECE + 4000)
    centroids, found = k_means(rows, 7, 0, turns)
    assert found == pytest.approx(inertia(rows, centroids) / len(rows), rel=1e-4)


def test_of_several_starts_the_tightest_is_taken():
    rows = apart(300, 9, spread=0.05)[0]
    once = [k_means(rows, 9, seed, TURNS)[1] for seed in range(6)]
    often = [k_means(rows, 9, seed, TURNS, redo=8)[1] for seed in range(6)]
    assert np.mean(often) < 0.9 * np.mean(once) and min(often) <= min(once) + 1e-6


def test_the_same_seed_gives_the_same_centroids_another_one_others():
    rows = unit(40)
    made = [k_means(rows, 7, seed, TURNS)[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(distances(made[0], made[2]).min(1)).max() > 1e-3


def test_as_many_clusters_as_rows():
    rows = unit(7)
    centroids, found = k_means(rows, 7, 0, 5)
    assert distances(rows, centroids).min(1).max() < 1e-10 and found == pytest.approx(0, abs=1e-6)
    with pytest.raises(UsageError, match="8 clusters of 7 tokens: give fewer --clusters"):
        k_means(rows, 8, 0, 5)
    with pytest.raises(UsageError, match="1 clusters of 0 tokens"):
        k_means(rows[:0], 1, 0, 5)


def test_rows_that_are_all_alike():
    rows = np.repeat(unit(2), 15, axis=0)
    centroids, found = k_means(rows, 6, 0, 10)
    assert np.isfinite(centroids).all() and centroids.shape == (6, 6)
    assert inertia(rows, centroids) < 1e-3 and np.isfinite(found)


def test_rows_in_half_precision_and_from_every_other_place():
    rows = unit(80).astype(np.float16)
    ours, plain = (
        k_means(one, 3, 0, TURNS)[0]
        for one in (rows[::2], np.ascontiguousarray(rows[::2], np.float32))
    )
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("on_gpus", [0, 2])
def test_gpus_are_handed_on(monkeypatch, on_gpus):
    asked = []
    kmeans = faiss.Kmeans

    def on_cpu(*sizes, gpu, **more):
        asked.append(gpu)
        return kmeans(*sizes, **more)

    monkeypatch.setattr(faiss, "Kmeans", on_cpu)
    made = k_means(unit(), 3, 0, 5, on_gpus=on_gpus)[0]
    assert asked == [on_gpus or False] and type(asked[0]) is (int if on_gpus else bool)
    np.testing.assert_array_equal(made, k_means(unit(), 3, 0, 5)[0])
