"""Nearest neighbours: votes, maps and scores against scikit-learn, torch and plain loops."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from sklearn.neighbors import NearestNeighbors
from tokens import ShapesTokens, TokenImages, unit

from skipbench.engine.vectors import Flat, Lists
from skipbench.evaluations.knn.method import Vote, Votes, joined, part_of_bank, score, segment, vote
from skipbench.evaluations.segmentation.run import segmentation_metrics
from skipbench.evaluations.segmentation.tokens import even_shares, normalised
from skipbench.metrics.segmentation import class_counts, miou_percent


def flat(bank):
    return Flat(lambda: [bank], *bank.shape)


def lists_of(bank):
    return Lists(lambda: [bank], *bank.shape, probes=bank[::20], k=5, usual_k=5)


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
    images, bank, labels = TokenImages(), unit(40, seed=5), some_labels()
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
def test_scores_are_those_of_other_libraries(queries):
    """However many images are searched at once, in any order."""
    images, bank, labels, done = TokenImages(), unit(40, seed=5), some_labels(), []
    numbers = [3, 0, 4, 1]
    searches = []

    class Counted:
        def search(self, tokens, k):
            searches.append((len(tokens), k))
            return flat(bank).search(tokens, k)

    counts = score(images, numbers, Counted(), labels, VOTES, done.append, queries)
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
    images, bank, labels = TokenImages(), unit(6, seed=5), some_labels(6)
    found = score(images, [1], flat(bank), labels, [Vote(30, 0.1), Vote(6, 0.1), Vote(1000, 0.1)])
    assert (found[0, 0] == found[0, 1]).all() and (found[0, 0] == found[0, 2]).all()
    tokens = normalised(images.tokens(0))
    maps = Votes(tokens, flat(bank), labels, [Vote(30, 0.1)]).maps(slice(None), (4, 6))
    expected = plain_maps(images, 0, bank, labels, 30, 0.1)[0]
    torch.testing.assert_close(maps[0], expected, atol=1e-4, rtol=0)


def test_a_bank_of_one_token():
    """Everything is what that token is."""
    images, labels = TokenImages(), csr_array(np.array([[0, 0, 0.7, 0.3]], np.float32))
    found = score(images, [0, 1], flat(unit(1)), labels, [Vote(30, 0.02)])
    for row in (0, 1):
        true = [(images.mask(row) == c).sum() for c in range(4)]
        assert found[row, 0].tolist() == [[0, 0, true[2], 0], [0, 0, sum(true), 0], true]


def test_an_image_without_labels():
    images = TokenImages()
    images.masks[1][:] = 255
    found = score(images, [0, 1], flat(unit(40)), some_labels(), [Vote(5, 0.02)])
    assert found[0].any() and not found[1].any()


def test_an_error_while_reading_is_raised():
    class Torn(TokenImages):
        def tokens(self, image):
            raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        score(Torn(), [0], flat(unit(40)), some_labels(), [Vote(5, 0.02)])


# -- on the embedded data set


def remembered(train, memory, seed=0):
    shares = even_shares(memory, len(train), seed)
    bank = joined([part_of_bank(c, int(shares[i]), seed, i) for i, c in enumerate(train.counts)])
    assert [len(rows) for rows in bank.rows] == shares.tolist()  # evenly, to the token
    return bank, np.concatenate(
        [normalised(train.tokens(i, rows)) for i, rows in enumerate(bank.rows)]
    )


@pytest.mark.parametrize("kind", ["flat", "lists", "shuffled"])
def test_shapes(kind):
    """Tokens that carry the class score above 90, the same tokens in another order at chance."""
    train, val = (ShapesTokens(split, 10, kind == "shuffled") for split in ("train", "val"))
    bank, tokens = remembered(train, 3001)
    assert len(bank) == 3001
    index = flat(tokens) if kind != "lists" else lists_of(tokens)
    counts = score(val, range(10), index, bank.labels, [Vote(30, 0.02)])[:, 0]
    found = miou_percent(counts.sum(0))
    if kind != "shuffled":
        assert found > 90 and segmentation_metrics(counts, val.data.classes)[
            "miou"
        ] == pytest.approx(found)
        return
    # Nothing can be known: each class is called as often as if by lot, wherever it is.
    _, called, true = counts.sum(0).astype(float)
    by_lot = called * true / true.sum()
    chance = 100 * np.mean(by_lot / (called + true - by_lot))
    assert found == pytest.approx(chance, abs=1.5) and found < 20


def test_the_bank_of_shapes_prefers_rare_classes():
    train = ShapesTokens("train", 10)
    bank, _ = remembered(train, 1000)
    every = np.concatenate([c / np.maximum(c.sum(1, keepdims=True), 1) for c in train.counts])
    uniform = every.sum(0) / every.sum()
    assert uniform.argmax() == 0  # background
    ratio = bank.class_shares() / uniform
    assert ratio[0] < 0.8 and (ratio[1:] > 1.2).all()
    assert bank.class_shares().sum() == pytest.approx(1)
