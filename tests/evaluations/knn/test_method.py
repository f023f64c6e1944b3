"""Nearest neighbours: bank, search and votes against scikit-learn, torch and plain loops."""

import random

import faiss
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from sklearn.neighbors import NearestNeighbors

from skipbench.datasets import open_dataset
from skipbench.engine import vectors
from skipbench.engine.vectors import Flat, Lists
from skipbench.errors import ResourceError, UsageError
from skipbench.evaluations.knn import method as knn
from skipbench.evaluations.knn import settings
from skipbench.evaluations.knn.bank import (
    choose_patches,
    joined,
    patch_counts,
    remember,
    shares_of,
)
from skipbench.evaluations.knn.method import Vote, Votes, normalised, score, segment, vote
from skipbench.evaluations.knn.settings import (
    Storage,
    check_sample,
    choose_storage,
    parse_clusters,
    parse_how_many_seeds,
    parse_ks,
    parse_temperatures,
)
from skipbench.evaluations.segmentation.pixels import Grid
from skipbench.evaluations.segmentation.scores import figures
from skipbench.metrics.segmentation import class_counts, miou_percent

WIDTH = 6


def unit(count, width=WIDTH, seed=0):
    return normalised(np.random.default_rng(seed).normal(size=(count, width)))


def groups_of(count, width=WIDTH, groups=12, spread=0.4, seed=0):
    """Tokens that lie together, as those of pictures do."""
    rng = np.random.default_rng(seed)
    middles = np.random.default_rng(99).normal(size=(groups, width))
    around = middles[rng.integers(groups, size=count)]
    return normalised(around + spread * rng.normal(size=(count, width)))


def in_pieces(bank, *cuts):
    return lambda: np.split(bank, cuts)


def flat(bank, *cuts, **more):
    return Flat(in_pieces(bank, *cuts), *bank.shape, **more)


def some_mask(size_hw, classes, seed=0, ignored=0.15):
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, classes, size_hw).astype(np.uint8)
    mask[rng.random(size_hw) < ignored] = 255
    return mask


# -- what is known of a patch


@pytest.mark.parametrize("size_hw", [(12, 20), (11, 18), (9, 17), (1, 1)])  # 4 × 4 patches, or less
def test_pixels_by_class_are_those_of_plain_loops(size_hw):
    grid_hw = (-(-size_hw[0] // 4), -(-size_hw[1] // 4))
    mask = some_mask(size_hw, 5)
    expected = np.zeros((grid_hw[0] * grid_hw[1], 5), int)
    for y in range(size_hw[0]):
        for x in range(size_hw[1]):
            if mask[y, x] != 255:
                expected[y // 4 * grid_hw[1] + x // 4, mask[y, x]] += 1
    found = patch_counts(mask, grid_hw, 4, 5)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int64


def test_what_is_ignored_is_no_class():
    mask = np.full((8, 12), 255, np.uint8)
    mask[0, 0] = 2
    found = patch_counts(mask, (2, 3), 4, 3)
    assert found.sum() == 1 and found[0, 2] == 1
    for classes in (1, 254, 255):
        assert patch_counts(np.full((8, 12), 255, np.uint8), (2, 3), 4, classes).sum() == 0


def test_a_patch_at_the_rim_counts_what_there_is_of_it():
    found = patch_counts(np.ones((5, 9), np.uint8), (2, 3), 4, 2)
    assert found[:, 1].tolist() == [16, 16, 4, 4, 4, 1]


# -- which patches are taken


def plain_choice(counts, most, draw):
    """The rule in plain Python. draw(): a number from 0 to 1."""
    patches = [[c for c, pixels in enumerate(row) if pixels] for row in counts.tolist()]
    in_how_many = {}
    for classes in patches:
        for c in classes:
            in_how_many[c] = in_how_many.get(c, 0) + 1
    scored = []
    for i, classes in enumerate(patches):
        luck = draw()
        if classes:
            scored.append((sum(in_how_many[c] for c in classes) * luck, i))
    return sorted(i for _, i in sorted(scored)[:most])


def some_counts(patches=12, classes=4, seed=3):
    """Classes from frequent to rare, several in a patch, and two patches without any."""
    rng = np.random.default_rng(seed)
    there = rng.random((patches, classes)) < np.linspace(0.7, 0.1, classes)
    counts = there * rng.integers(1, 17, there.shape)
    counts[[2, patches - 1]] = 0
    return counts


@pytest.mark.parametrize("most", [0, 1, 5, 10, 11, 100])
def test_the_choice_is_that_of_plain_loops(most):
    for seed in range(20):
        counts = some_counts(seed=seed)
        found = choose_patches(counts, most, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        assert found.tolist() == plain_choice(counts, most, rng.random)
        assert len(found) == min(most, (counts.sum(1) > 0).sum())


def test_patches_without_a_label_are_never_taken():
    counts = some_counts(60)
    labelled = np.flatnonzero(counts.sum(1))
    assert 2 not in labelled
    for seed in range(5):
        found = choose_patches(counts, 1000, np.random.default_rng(seed))
        assert found.tolist() == labelled.tolist()
    assert len(choose_patches(np.zeros((4, 3), int), 2, np.random.default_rng(0))) == 0


def test_each_patch_is_taken_as_often_as_the_rule_says():
    """Against a simulation of it that has nothing in common with the code but the rule."""
    counts, most, times = np.zeros((17, 4), int), 5, 3000
    counts[:13, 0], counts[10:14, 1], counts[14:16, 2], counts[15, 3] = 9, 5, 16, 2
    found, expected = np.zeros((2, len(counts)))
    rng, draw = np.random.default_rng(0), random.Random(1).random
    for _ in range(times):
        found[choose_patches(counts, most, rng)] += 1
        expected[plain_choice(counts, most, draw)] += 1
    assert found.sum() == expected.sum() == most * times
    assert found[16] == 0
    allowed = 4.5 * times * (2 * 0.25 / times) ** 0.5
    assert np.abs(found - expected).max() < allowed
    assert np.abs(found[:16] - most * times / 16).max() > 5 * allowed  # uniform it is not


def test_one_of_two_patches():
    """Class a is in both, b in one: scores of 2 and 3. The lower of 2 u and 3 v is the first one in
    two thirds of the cases."""
    counts = np.array([[7, 0], [2, 9]])
    rng, times = np.random.default_rng(0), 4000
    first = sum(choose_patches(counts, 1, rng)[0] == 0 for _ in range(times))
    assert first / times == pytest.approx(2 / 3, abs=4.5 * (2 / 9 / times) ** 0.5)


def test_rare_classes_are_preferred_but_not_certain():
    counts = np.zeros((100, 2), int)
    counts[:90, 0] = counts[90:, 1] = 16
    taken = np.zeros((300, 100), bool)
    for seed, row in enumerate(taken):
        row[choose_patches(counts, 10, np.random.default_rng(seed))] = True
    rare = taken[:, 90:].sum(1)
    # Scores are below s for s/10 of 10 and for s/90 of 90 patches: 5 of each among the lowest 10.
    assert rare.mean() == pytest.approx(5, abs=0.4)  # 1, if all patches were alike
    assert rare.min() < 5 < rare.max() and not taken.all(0).any() and taken.any(0).sum() > 95


@pytest.mark.parametrize(("memory", "images"), [(1000, 7), (21, 7), (6, 7), (0, 3), (5, 1)])
def test_memory_is_shared_evenly(memory, images):
    made = [shares_of(memory, images, seed) for seed in range(30)]
    for shares in made:
        assert shares.sum() == memory and len(shares) == images
        assert set(shares.tolist()) <= {memory // images, -(-memory // images)}
    np.testing.assert_array_equal(made[0], shares_of(memory, images, 0))
    if memory % images:  # what is left over goes to others with other seeds
        assert (np.ptp(made, axis=0) == 1).all()


def test_a_bank_of_several_images():
    counts = [some_counts(12, 4, seed) for seed in range(4)]
    parts = [
        remember(c, most, 0, i)
        for i, (c, most) in enumerate(zip(counts, (3, 0, 5, 99), strict=True))
    ]
    bank = joined(parts)
    assert [len(rows) for rows in bank.rows] == [3, 0, 5, (counts[3].sum(1) > 0).sum()]
    assert len(bank) == sum(map(len, bank.rows)) and bank.labels.shape == (len(bank), 4)
    expected = [
        [pixels / sum(counts[i][row]) for pixels in counts[i][row]]
        for i, rows in enumerate(bank.rows)
        for row in rows
    ]
    np.testing.assert_allclose(bank.labels.toarray(), expected, rtol=1e-6)
    np.testing.assert_allclose(bank.labels.toarray().sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(bank.class_shares(), np.mean(expected, 0), rtol=1e-5)
    assert bank.labels.dtype == np.float32


def test_a_bank_without_tokens():
    bank = joined([remember(some_counts(), 0, 0, 0), remember(np.zeros((5, 4), int), 9, 0, 1)])
    assert len(bank) == 0 and bank.class_shares().tolist() == [0] * 4


def test_what_is_remembered_of_an_image_depends_on_it_and_on_the_seed_alone():
    counts = some_counts(60)

    def rows(seed, image):
        return remember(counts, 20, seed, image)[0].tolist()

    assert rows(0, 3) == rows(0, 3)
    assert len({tuple(rows(seed, image)) for seed in range(3) for image in range(3)}) == 9


# -- the length of tokens


def test_tokens_of_length_one():
    given = np.random.default_rng(0).normal(size=(30, 5)) * np.logspace(-3, 3, 30)[:, None]
    given[4] = 0
    for dtype in (np.float16, np.float32, np.float64):
        tokens = given.astype(dtype)
        kept = tokens.copy()
        found = normalised(tokens)
        expected = F.normalize(torch.from_numpy(kept).double(), dim=1).float().numpy()
        np.testing.assert_allclose(found, expected, atol=2e-7)
        assert found.dtype == np.float32 and not found[4].any()
        np.testing.assert_array_equal(tokens, kept)  # and what was given is as it was


def test_large_tokens_have_a_length_too():
    found = normalised(np.array([[3e30, 4e30], [3e4, -4e4]], np.float32))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.6, -0.8]], rtol=1e-6)
    assert normalised(np.zeros((0, 3), np.float16)).shape == (0, 3)


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
def test_half_precision_is_compared_piece_by_piece(monkeypatch, piece):
    monkeypatch.setattr(vectors, "PIECE", piece)
    bank, queries = unit(50, seed=2), unit(9, seed=3)
    index = flat(bank, 20, dtype="float16")
    assert index.bank.dtype == np.float16
    near, number = index.search(queries, 11)
    expected = plain_neighbours(queries, bank.astype(np.float16), 11)
    np.testing.assert_array_equal(number, expected[1])
    np.testing.assert_allclose(near, expected[0], atol=1e-6)
    assert (np.diff(near) <= 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_fewer_tokens_than_neighbours(dtype, monkeypatch):
    monkeypatch.setattr(vectors, "PIECE", 2)
    bank = unit(3)
    near, number = flat(bank, dtype=dtype).search(bank, 30)
    assert number.shape == (3, 3) and number[:, 0].tolist() == [0, 1, 2]
    assert np.sort(number).tolist() == [[0, 1, 2]] * 3
    near, number = flat(bank[:1], dtype=dtype).search(bank, 30)
    assert number.tolist() == [[0]] * 3
    np.testing.assert_allclose(near, bank @ bank[:1].T, atol=1e-3)
    assert flat(bank, dtype=dtype).search(bank[:0], 2)[1].shape == (0, 2)


def test_equal_tokens_are_all_neighbours(monkeypatch):
    """However many are alike, none is found twice."""
    monkeypatch.setattr(vectors, "PIECE", 4)
    bank = np.repeat(unit(2), 5, axis=0)
    _, number = flat(bank, dtype="float16").search(bank[[0, 9]], 10)
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


def test_all_lists_hold_the_exact_neighbours():
    bank, queries = groups_of(600), groups_of(30, seed=1)
    index = lists_of(bank, 100, 450)
    index._search_so_many(index.lists)
    near, number = index.search(queries, 8)
    expected = plain_neighbours(queries, bank, 8)
    np.testing.assert_allclose(near, expected[0], atol=2e-3)  # kept in half precision
    np.testing.assert_allclose((queries[:, None] * bank[number]).sum(2), near, atol=2e-3)
    assert share_found(number, queries, bank, 8) > 0.97


@pytest.mark.parametrize("k", [1, 5, 12])
def test_recall_is_that_of_probes_which_settled_nothing(k):
    bank, probes = unit(2000, 16), unit(61, 16, seed=7)
    index = lists_of(bank, 700, probes=probes, k=12)
    index._search_so_many(4)
    others = probes[1::2]
    found = index.search(others, k)[1]
    assert index.recall(k) == pytest.approx(share_found(found, others, bank, k))
    assert 0.1 < index.recall(k) < 0.98
    index._search_so_many(index.lists)
    assert index.recall(k) > 0.98


def test_as_many_lists_are_searched_as_are_needed():
    """Few where tokens lie together; all, or nearly, where they are everywhere."""
    probes = groups_of(40, 16, groups=60, spread=0.05, seed=7)
    easy = lists_of(groups_of(2000, 16, groups=60, spread=0.05), probes=probes)
    hard = lists_of(unit(2000, 16), probes=unit(40, 16, seed=7))
    assert easy.lists == hard.lists == 64 and easy.searched == 8 < hard.searched
    for index in (easy, hard):
        assert index._found_of(slice(0, None, 2), 5) >= vectors.RECALL
        assert index.index.nprobe == index.searched
    hard._search_so_many(hard.searched // 2)  # half as many were not enough
    assert hard._found_of(slice(0, None, 2), 5) < vectors.RECALL


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
    index._search_so_many(index.lists)
    assert index.recall(5) == 1


@pytest.mark.parametrize("width", [2, 7, 8])
def test_quantised(width):
    """Half a byte for a number where that is possible, one else; coarse, but about right."""
    bank, queries = groups_of(700, width, spread=1), groups_of(50, width, seed=1, spread=1)
    index = lists_of(bank, 300, probes=groups_of(40, width, seed=7, spread=1), quantised=True)
    assert index.index.code_size == (width if width % 2 else width // 2)
    index._search_so_many(index.lists)
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
    assert index._found_of(slice(0, None, 2), 5) < vectors.RECALL


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
def test_how_many_lists_are_tried(monkeypatch, lists, found, expected):
    looked_at = []
    index = object.__new__(Lists)
    index.lists, index.on_gpus = lists, False
    monkeypatch.setattr(index, "_search_so_many", looked_at.append, raising=False)
    monkeypatch.setattr(index, "_found_of", lambda which, k: found[looked_at[-1]], raising=False)
    assert index._settle(5) == expected and looked_at == list(found)
    index.on_gpus = True
    monkeypatch.setattr(vectors, "MOST_ON_GPU", 16)
    assert index._settle(5) == min(expected, 16)


def test_lists_are_learnt_from_some_rows_at_random():
    bank = np.arange(500.0)[:, None] * np.ones(3)
    whole = vectors._some_rows(in_pieces(bank), 500, 3, 60, 0)
    chosen = whole[:, 0].tolist()
    assert len(set(chosen)) == 60 and chosen == sorted(chosen) and max(chosen) > 450
    in_parts = vectors._some_rows(in_pieces(bank, 0, 3, 3, 400), 500, 3, 60, 0)
    np.testing.assert_array_equal(whole, in_parts)
    assert vectors._some_rows(in_pieces(bank), 500, 3, 60, 1)[:, 0].tolist() != chosen
    for most in (500, 501):
        np.testing.assert_array_equal(vectors._some_rows(in_pieces(bank, 9), 500, 3, most, 0), bank)
    often = np.zeros(500)
    for seed in range(300):
        often[vectors._some_rows(in_pieces(bank), 500, 3, 60, seed)[:, 0].astype(int)] += 1
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


@pytest.mark.filterwarnings("ignore:overflow")
def test_votes_of_a_bank_on_gpus_that_is_smaller_than_k(gpus):
    bank, queries = unit(3), unit(20, seed=1)
    labels = csr_array(np.eye(3, dtype=np.float32))
    found, expected = (
        vote(*flat(bank, on_gpus=on_gpus).search(queries, 9), labels, Vote(9, 0.1))
        for on_gpus in (2, 0)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


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


# -- votes


def some_labels(tokens=40, classes=4, seed=0):
    shares = np.random.default_rng(seed).dirichlet([0.3] * classes, tokens)
    shares[shares < 0.05] = 0
    return csr_array((shares / shares.sum(1, keepdims=True)).astype(np.float32))


def plain_vote(near, number, labels, k, temperature):
    """Softmax over what was found, query by query."""
    made = torch.zeros(len(near), labels.shape[1], dtype=torch.float64)
    dense = torch.from_numpy(labels.toarray()).double()
    for query, (similarity, which) in enumerate(zip(near, number, strict=True)):
        pairs = [(s, w) for s, w in zip(similarity[:k], which[:k], strict=True) if w >= 0]
        if pairs:
            weight = torch.softmax(torch.tensor([s for s, _ in pairs]).double() / temperature, 0)
            made[query] = sum(w * dense[n] for w, (_, n) in zip(weight, pairs, strict=True))
    return made.numpy()


def some_neighbours(queries=9, k=10, tokens=40, seed=0):
    rng = np.random.default_rng(seed)
    near = -np.sort(-rng.uniform(-1, 1, (queries, k)).astype(np.float32), axis=1)
    number = np.stack([rng.permutation(tokens)[:k] for _ in range(queries)])
    return near, number


@pytest.mark.parametrize("temperature", [0.02, 0.07, 1.0, 100.0])
@pytest.mark.parametrize("k", [1, 3, 10, 25])
def test_votes_are_a_softmax_over_the_nearest(k, temperature):
    near, number = some_neighbours()
    found = vote(near, number, some_labels(), Vote(k, temperature))
    expected = plain_vote(near, number, some_labels(), k, temperature)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    assert found.dtype == np.float32 and found.shape == (9, 4)


@pytest.mark.filterwarnings("ignore:overflow")
def test_neighbours_that_are_missing_have_no_vote():
    near, number = some_neighbours()
    for query, found in enumerate((10, 4, 1, 0)):
        near[query, found:], number[query, found:] = -np.inf, -1
    made = vote(near, number, some_labels(), Vote(10, 0.1))
    expected = plain_vote(near, number, some_labels(), 10, 0.1)
    np.testing.assert_allclose(made, expected, atol=1e-6)
    assert not made[3].any()
    near[near == -np.inf] = -3.4e38  # as faiss has it
    np.testing.assert_array_equal(vote(near, number, some_labels(), Vote(10, 0.1)), made)


def test_a_cold_vote_is_that_of_the_nearest():
    near, number = some_neighbours()
    labels = some_labels()
    for temperature in (1e-4, 1e-12):
        found = vote(near, number, labels, Vote(10, temperature))
        np.testing.assert_allclose(found, labels.toarray()[number[:, 0]], atol=1e-6)


def test_votes_of_equal_neighbours_are_their_mean():
    near, number = some_neighbours()
    labels = some_labels()
    found = vote(np.full_like(near, -0.3), number, labels, Vote(6, 0.02))
    np.testing.assert_allclose(found, labels.toarray()[number[:, :6]].mean(1), atol=1e-6)


# -- maps and scores


class Images:
    """Images that are arrays: tokens, masks with holes, and pictures that end within a patch."""

    def __init__(self, count=5, classes=4, seed=0, grid_hw=(4, 6), patch=5):
        rng = np.random.default_rng(seed)
        self.grids, self.values, self.masks = [], [], []
        for i in range(count):
            height, width = grid_hw[0] + i % 2, grid_hw[1]
            size_hw = height * patch - i % 3, width * patch - 2 * (i % 2)
            self.grids.append(Grid((height, width), (size_hw[0] / patch, size_hw[1] / patch)))
            values = rng.normal(size=(height * width, WIDTH)) * rng.uniform(1, 9)
            self.values.append(values.astype(np.float16))
            self.masks.append(some_mask((2 * size_hw[0], 2 * size_hw[1]), classes, seed + i))

    def grid(self, image):
        return self.grids[image]

    def tokens(self, image):
        return self.values[image]

    def mask(self, image):
        return self.masks[image]


def plain_maps(images, image, bank, labels, k, temperature):
    """(1, classes, height, width), by scikit-learn and torch."""
    tokens = F.normalize(torch.from_numpy(images.tokens(image)).float(), dim=1).numpy()
    k = min(k, len(bank))
    theirs = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="cosine").fit(bank)
    distance, number = theirs.kneighbors(tokens)
    shares = plain_vote(1 - distance, number, labels, k, temperature)
    return torch.from_numpy(shares.T.reshape(1, -1, *images.grid(image).size_hw)).float()


def plain_segmentation(images, image, *more):
    """Resized with all its padding, then cut to the picture."""
    grid, (height, width) = images.grid(image), images.mask(image).shape
    whole = [
        round(tokens * side / extent)
        for tokens, side, extent in zip(grid.size_hw, (height, width), grid.extent_hw, strict=True)
    ]
    maps = plain_maps(images, image, *more)
    resized = F.interpolate(maps, whole, mode="bilinear", align_corners=False)
    return resized[..., :height, :width].argmax(1)[0].numpy()


VOTES = [Vote(7, 0.1), Vote(1, 0.02), Vote(25, 0.5)]


def test_maps_of_several_votes_are_those_of_one_each():
    images, bank, labels = Images(), unit(40, seed=5), some_labels()
    for image in range(2):
        tokens, grid = normalised(images.tokens(image)), images.grid(image)
        maps = Votes(tokens, flat(bank), labels, VOTES).maps(slice(None), grid.size_hw)
        assert maps.shape == (3, 4, *grid.size_hw)
        for found, how in zip(maps, VOTES, strict=True):
            expected = plain_maps(images, image, bank, labels, how.k, how.temperature)[0]
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
        predicted = segment(maps, grid, images.mask(image).shape)
        assert predicted.shape == (3, *images.mask(image).shape)


@pytest.mark.parametrize("queries", [1, 30, 60, 4096])
def test_scores_are_those_of_other_libraries(monkeypatch, queries):
    """However many images are sought at once, in any order."""
    monkeypatch.setattr(knn, "QUERIES", queries)
    images, bank, labels, done = Images(), unit(40, seed=5), some_labels(), []
    numbers = [3, 0, 4, 1]
    searches = []

    class Counted:
        def search(self, tokens, k):
            searches.append((len(tokens), k))
            return flat(bank).search(tokens, k)

    counts = score(images, numbers, Counted(), labels, VOTES, done.append)
    assert counts.shape == (4, 3, 3, 4) and counts.dtype == np.int32 and done == [1] * 4
    assert len(searches) == {1: 4, 30: 3, 60: 2, 4096: 1}[queries]
    assert {k for _, k in searches} == {30} and sum(n for n, _ in searches) == 30 + 24 + 24 + 30
    for row, image in enumerate(numbers):
        for place, how in enumerate(VOTES):
            expected = plain_segmentation(images, image, bank, labels, how.k, how.temperature)
            expected = class_counts(expected, images.mask(image), 4)
            # Pixels between two classes that are as likely may fall to either.
            assert np.abs(counts[row, place] - expected).max() <= 3


def test_more_neighbours_than_there_are_tokens():
    images, bank, labels = Images(), unit(6, seed=5), some_labels(6)
    found = score(images, [1], flat(bank), labels, [Vote(30, 0.1), Vote(6, 0.1), Vote(1000, 0.1)])
    assert (found[0, 0] == found[0, 1]).all() and (found[0, 0] == found[0, 2]).all()
    tokens = normalised(images.tokens(0))
    maps = Votes(tokens, flat(bank), labels, [Vote(30, 0.1)]).maps(slice(None), (4, 6))
    expected = plain_maps(images, 0, bank, labels, 30, 0.1)[0]
    torch.testing.assert_close(maps[0], expected, atol=1e-4, rtol=0)


def test_a_bank_of_one_token():
    """Everything is what that token is."""
    images, labels = Images(), csr_array(np.array([[0, 0, 0.7, 0.3]], np.float32))
    found = score(images, [0, 1], flat(unit(1)), labels, [Vote(30, 0.02)])
    for row in (0, 1):
        true = [(images.mask(row) == c).sum() for c in range(4)]
        assert found[row, 0].tolist() == [[0, 0, true[2], 0], [0, 0, sum(true), 0], true]


def test_an_image_without_labels():
    images = Images()
    images.masks[1][:] = 255
    found = score(images, [0, 1], flat(unit(40)), some_labels(), [Vote(5, 0.02)])
    assert found[0].any() and not found[1].any()


def test_an_error_while_reading_is_raised():
    class Torn(Images):
        def tokens(self, image):
            raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        score(Torn(), [0], flat(unit(40)), some_labels(), [Vote(5, 0.02)])


# -- on the embedded data set


class Shapes:
    """`shapes` with tokens that carry the main class of their patch, and noise."""

    patch = 4

    def __init__(self, split, count, shuffled=False):
        self.data = open_dataset("shapes", split, limit=count)
        self.classes = len(self.data.classes)
        self.masks = [item.mask() for item in self.data]
        self.sizes = [mask.shape for mask in self.masks]
        rng = np.random.default_rng(len(split))
        codes = np.random.default_rng(99).normal(size=(self.classes, 10))
        self.counts = [
            patch_counts(mask, self.grid(i).size_hw, self.patch, self.classes)
            for i, mask in enumerate(self.masks)
        ]
        every = codes[np.concatenate(self.counts).argmax(1)]
        every = every + 0.3 * rng.normal(size=every.shape)
        if shuffled:  # over all images: within one they would still tell which classes it has
            every = rng.permutation(every)
        ends = np.cumsum([len(counts) for counts in self.counts])
        self.values = np.split(every.astype(np.float16), ends[:-1])

    def __len__(self):
        return len(self.masks)

    def grid(self, image):
        height, width = self.sizes[image]
        tokens_hw = -(-height // self.patch), -(-width // self.patch)
        return Grid(tokens_hw, (height / self.patch, width / self.patch))

    def tokens(self, image, rows=None):
        return self.values[image] if rows is None else self.values[image][rows]

    def mask(self, image):
        return self.masks[image]


def remembered(train, memory, seed=0):
    shares = shares_of(memory, len(train), seed)
    bank = joined([remember(c, int(shares[i]), seed, i) for i, c in enumerate(train.counts)])
    assert [len(rows) for rows in bank.rows] == shares.tolist()  # evenly, to the token
    return bank, np.concatenate(
        [normalised(train.tokens(i, rows)) for i, rows in enumerate(bank.rows)]
    )


@pytest.mark.parametrize("kind", ["flat", "lists", "shuffled"])
def test_shapes(kind):
    """Tokens that carry the class score above 90, the same tokens in another order at chance."""
    train, val = (Shapes(split, 10, kind == "shuffled") for split in ("train", "val"))
    bank, tokens = remembered(train, 3001)
    assert len(bank) == 3001
    index = flat(tokens) if kind != "lists" else lists_of(tokens, probes=tokens[::20])
    counts = score(val, range(10), index, bank.labels, [Vote(30, 0.02)])[:, 0]
    found = miou_percent(counts.sum(0))
    if kind != "shuffled":
        assert found > 90 and figures(counts, val.data.classes)["miou"] == pytest.approx(found)
        return
    # Nothing can be known: each class is called as often as if by lot, wherever it is.
    _, called, true = counts.sum(0).astype(float)
    by_lot = called * true / true.sum()
    chance = 100 * np.mean(by_lot / (called + true - by_lot))
    assert found == pytest.approx(chance, abs=1.5) and found < 20


def test_the_bank_of_shapes_prefers_rare_classes():
    train = Shapes("train", 10)
    bank, _ = remembered(train, 1000)
    every = np.concatenate([c / np.maximum(c.sum(1, keepdims=True), 1) for c in train.counts])
    uniform = every.sum(0) / every.sum()
    assert uniform.argmax() == 0  # background
    ratio = bank.class_shares() / uniform
    assert ratio[0] < 0.8 and (ratio[1:] > 1.2).all()
    assert bank.class_shares().sum() == pytest.approx(1)


# -- figures


def test_figures_are_those_of_plain_loops():
    rng = np.random.default_rng(0)
    true = rng.integers(5, 50, (6, 3))
    right = rng.integers(0, 5, (6, 3))
    called = right + rng.integers(0, 9, (6, 3))
    counts = np.stack([right, called, true], axis=1)
    counts[:, :, 2] = 0  # a class that is nowhere
    found = figures(counts, ["a", "b", "c"])
    iou = {}
    for c, name in enumerate("ab"):
        r, p, t = counts[:, :, c].sum(0)
        iou[name] = 100 * r / (p + t - r)
    assert found["per_class"] == pytest.approx({**iou, "c": None})
    assert found["absent_classes"] == ["c"] and found["headline"] == "miou"
    assert found["miou"] == pytest.approx(sum(iou.values()) / 2)
    assert figures(counts, "abc", "zero")["miou"] == pytest.approx(sum(iou.values()) / 3)
    low, high = found["interval"]
    assert low < found["miou"] < high
    total = counts.sum(0)
    assert found["pixel_accuracy"] == pytest.approx(100 * total[0].sum() / total[2].sum())
    assert found["mean_accuracy"] == pytest.approx(
        np.mean([100 * total[0, c] / total[2, c] for c in range(2)])
    )
    assert found["weighted_iou"] == pytest.approx(
        sum(total[2, c] * iou["ab"[c]] for c in range(2)) / total[2].sum()
    )
    assert figures(counts[:1], "abc")["interval"] is None


def test_a_class_that_is_only_called():
    counts = np.array([[[4, 0], [4, 6], [10, 0]]] * 2)
    found = figures(counts, ["a", "b"])
    assert found["absent_classes"] == ["b"] and found["per_class"] == {"a": 40.0, "b": 0.0}
    assert found["miou"] == 20


# -- settings


def test_how_a_bank_is_kept():
    gigabyte = 10**9
    for index, tokens, gpus, limit, expected in (
        ("auto", 100_000, 0, 4, ("flat", "float32")),
        ("auto", 100_001, 0, 4, ("ivf", "float16")),
        ("auto", 1_024_000, 2, 4, ("flat", "float32")),
        ("auto", 1_024_000, 2, 3.1, ("flat", "float16")),
        ("auto", 1_024_000, 2, 1.5, ("ivf", "pq")),
        ("auto", 1_024_000, 0, 1.5, ("ivf", "pq")),
        ("flat", 1_024_000, 0, 4, ("flat", "float32")),
        ("flat", 1_024_000, 0, 3.1, ("flat", "float16")),
        ("ivf", 1000, 0, 4, ("ivf", "float16")),
        ("ivf", 1_024_000, 2, 1.5, ("ivf", "pq")),
    ):
        way = choose_storage(index, tokens, 768, round(limit * gigabyte), gpus)
        assert (way.index, way.numbers) == expected, (index, tokens, gpus, limit)
        assert way.bytes(tokens, 768) <= limit * gigabyte


def test_bytes_are_those_that_are_kept():
    bank = unit(300, 8)
    assert flat(bank).bank.nbytes == Storage("flat", "float32").bytes(300, 8)
    assert flat(bank, dtype="float16").bank.nbytes == Storage("flat", "float16").bytes(300, 8)
    half, quantised = lists_of(bank), lists_of(bank, quantised=True)
    assert half.index.code_size * 300 == Storage("ivf", "float16").bytes(300, 8)
    assert quantised.index.code_size * 300 == Storage("ivf", "pq").bytes(300, 8)


def test_words_for_how_a_bank_is_kept():
    assert Storage("flat", "float16").words == "searched whole, as float16"
    assert Storage("ivf", "pq").words == "in lists (ivf), product-quantised"


@pytest.mark.parametrize(
    ("index", "least", "advice"),
    [("flat", "1,572.864", "--index ivf"), ("auto", "393.216", "--memory")],
)
def test_a_bank_that_does_not_fit(index, least, advice):
    with pytest.raises(ResourceError) as raised:
        choose_storage(index, 1_024_000, 768, 10**8)
    message = str(raised.value)
    assert f"{least} MB" in message and "--bank-limit is 100 MB" in message and advice in message
    assert ("--index ivf" in message) == (index == "flat")
    at_the_limit = 1_024_000 * 768 // 2
    assert choose_storage("auto", 1_024_000, 768, at_the_limit).numbers == "pq"
    with pytest.raises(ResourceError):
        choose_storage("auto", 1_024_000, 768, at_the_limit - 1)


def test_settings():
    assert parse_ks("30, 10,30") == (10, 30) and parse_ks(7) == (7,) and parse_ks([3, 1]) == (1, 3)
    assert parse_ks(str(settings.MOST_K)) == (settings.MOST_K,)
    assert parse_temperatures("0.07,2e-2") == (0.02, 0.07)
    assert parse_temperatures(1e-4) == (1e-4,) and parse_temperatures((1, 0.5)) == (0.5, 1)
    assert parse_clusters("classes,500, classes") == ("classes", 500)
    assert parse_clusters([500, "classes"]) == (500, "classes") and parse_clusters(3) == (3,)
    assert parse_how_many_seeds(3) == parse_how_many_seeds(" 3 ") == (0, 1, 2)
    assert parse_how_many_seeds("3,") == parse_how_many_seeds([3]) == (3,)
    assert parse_how_many_seeds("7,0,7") == parse_how_many_seeds([7, 0]) == (7, 0)
    assert len(parse_how_many_seeds(1000)) == 1000
    assert parse_how_many_seeds(0) == parse_how_many_seeds("0") == (0,)  # as in other commands
    check_sample(500, ("classes", 500, 20))
    check_sample(1, ("classes",))


@pytest.mark.parametrize(
    ("parse", "option", "values"),
    [
        (parse_ks, "--k", ["0", "-3", "2.5", "a", "", ",", "1025", "3,0", [], 0, True, "٣"]),
        (
            parse_temperatures,
            "--temperature",
            ["0", "-1", "nan", "inf", "1e-50", "", "warm", "1,0", 0, []],
        ),
        (parse_clusters, "--clusters", ["0", "10001", "all", "", "-2", "classes,0", 2.5, [True]]),
        (parse_how_many_seeds, "--seeds", [-1, 1001, "1001", "", "a", "1,-2", True, [], "1.5"]),
    ],
)
def test_wrong_settings(parse, option, values):
    for value in values:
        with pytest.raises(UsageError, match=f"^{option} ") as raised:
            parse(value)
        assert str(value) in str(raised.value)


def test_a_sample_that_is_smaller_than_the_clusters():
    with pytest.raises(UsageError, match="--sample 499: fewer tokens than --clusters 500"):
        check_sample(499, ("classes", 20, 500))


def test_the_protocol_is_the_published_one():
    """Value by value, as Hummingbird's evaluation has them."""
    assert (settings.K, settings.TEMPERATURE, settings.MEMORY) == (30, 0.02, 1_024_000)
