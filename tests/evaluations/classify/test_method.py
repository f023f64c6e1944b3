"""k-NN votes and accuracies, against DINO's definition written out and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score
from sklearn.neighbors import KNeighborsClassifier

from skipbench.engine import vectors
from skipbench.evaluations.classify.method import (
    Vote,
    accuracy,
    accuracy_by_class,
    class_votes,
    knn_ranks,
    ranks_of,
)
from skipbench.evaluations.segmentation.tokens import normalised

CLASSES = 9


@pytest.fixture(scope="module")
def data():
    """Vectors around class centres, under much noise. The classes are not of one size."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, 12))
    shares = np.arange(1, CLASSES + 1) / sum(range(1, CLASSES + 1))
    labels, truth = (rng.choice(CLASSES, n, p=shares) for n in (400, 150))
    train, val = (
        normalised(centres[of] + 1.5 * rng.standard_normal((len(of), 12))) for of in (labels, truth)
    )
    return train, labels, val, truth


def index_of(train):
    return vectors.Flat(lambda: [train], *train.shape)


def found(data, k, temperature=0.07):
    train, labels, val, truth = data
    vote = Vote(k, temperature)
    ranks, predicted = knn_ranks(val, truth, index_of(train), labels, CLASSES, [vote])
    return ranks[0], predicted[0]


def as_dino_defines_it(data, k, temperature):
    """The k largest cosines of each image; the sum of exp(cosine / T) for each class; classes in
    descending order of it."""
    train, labels, val, truth = (torch.from_numpy(part) for part in data)
    cosine, nearest = (val.double() @ train.double().T).topk(k)
    one_hot = torch.nn.functional.one_hot(labels[nearest], CLASSES)
    votes = ((cosine / temperature).exp()[..., None] * one_hot).sum(1)
    right = votes.argsort(1, descending=True) == truth[:, None]
    none = votes.gather(1, truth[:, None])[:, 0] == 0  # their order is arbitrary
    return [100 * float((right[:, :top].any(1) & ~none).double().mean()) for top in (1, 5)]


@pytest.mark.parametrize("temperature", [0.07, 0.02, 10.0])
@pytest.mark.parametrize("k", [1, 10, 20, 100, 200, 400])
def test_as_dino(data, k, temperature):
    ranks, _ = found(data, k, temperature)
    expected = as_dino_defines_it(data, k, temperature)
    assert [accuracy(ranks, 1), accuracy(ranks, 5)] == pytest.approx(expected)
    assert 10 < expected[0] < 90


@pytest.mark.parametrize("k", [5, 20])
def test_as_scikit_learn(data, k):
    """On the unit sphere, cosine = 1 − distance² / 2."""
    train, labels, val, _ = data
    classifier = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d**2 / 2) / 0.07))
    expected = classifier.fit(train.astype(float), labels).predict(val.astype(float))
    assert np.array_equal(found(data, k)[1], expected)


def test_several_votes_share_a_search(data):
    train, labels, val, truth = data
    votes = [Vote(k, t) for k in (1, 20, 150) for t in (0.02, 0.07)]
    ranks, predicted = knn_ranks(val, truth, index_of(train), labels, CLASSES, votes)
    for row, vote in enumerate(votes):
        alone = found(data, vote.k, vote.temperature)
        assert np.array_equal(ranks[row], alone[0]) and np.array_equal(predicted[row], alone[1])


def test_more_neighbours_than_images(data):
    train, labels, val, truth = data
    few = train[:15], labels[:15], val, truth
    ranks, _ = found(few, 200)
    assert accuracy(ranks, 1) == pytest.approx(as_dino_defines_it(few, 15, 0.07)[0])


def test_a_small_temperature_does_not_overflow():
    near, number = np.array([[1, 0.5, 0.5]], np.float32), np.array([[0, 1, 2]])
    votes = class_votes(near, number, np.array([1, 0, 0]), 2, Vote(3, 1e-3))
    assert votes[0] == pytest.approx([0, 1], abs=1e-200)


def test_classes_without_a_vote_are_not_ranked():
    """Else a class with a low number would be among the top five for nothing."""
    train = normalised(np.eye(8, 4, dtype=np.float32) + 0.1)
    labels, truth = np.full(8, 7), np.array([0, 7])
    ranks, predicted = knn_ranks(train[:2], truth, index_of(train), labels, 9, [Vote(3, 0.07)])
    assert ranks.tolist() == [[9, 0]] and predicted.tolist() == [[7, 7]]


def test_ranks_and_accuracies_as_scikit_learn():
    rng = np.random.default_rng(1)
    scores, truth = rng.standard_normal((200, CLASSES)), rng.integers(0, CLASSES, 200)
    ranks = ranks_of(scores, truth)
    for top in (1, 5):
        expected = 100 * top_k_accuracy_score(truth, scores, k=top, labels=range(CLASSES))
        assert accuracy(ranks, top) == pytest.approx(expected)
    by_class = accuracy_by_class(ranks, truth, CLASSES + 1)
    expected = 100 * balanced_accuracy_score(truth, scores.argmax(1))
    assert np.nanmean(by_class) == pytest.approx(expected) and np.isnan(by_class[-1])


def test_of_equal_scores_the_first_class_wins():
    scores = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    assert ranks_of(scores, np.array([2, 1])).tolist() == [1, 1]
    assert ranks_of(scores, np.array([1, 0])).tolist() == [0, 0]
