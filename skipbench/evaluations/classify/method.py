"""k-NN classification of images by one vector each, and what classifiers are scored by.

Every image takes the classes of its k nearest training images by cosine, each with a weight of
exp(cosine / temperature); the class with the largest sum is the prediction. This is DINO's protocol
(Caron et al. 2021), which is that of Wu et al. (2018).

A classifier is scored by the rank of the true class of each image, from 0.
"""

from dataclasses import dataclass

import numpy as np

from skipbench.engine.vectors import Index

SEARCHED_K = (200, 1000)


@dataclass(frozen=True)
class Vote:
    k: int
    temperature: float

    @property
    def searched_k(self) -> int:
        """As many neighbours are searched for as the next of these: which of equally near ones are
        found must not depend on what else is evaluated."""
        return next(many for many in SEARCHED_K if many >= self.k)


def class_votes(
    near: np.ndarray, number: np.ndarray, labels: np.ndarray, classes: int, how: Vote
) -> np.ndarray:
    """(queries, classes) float64, the largest weight being 1. near, number: of an index, at least k
    or all there are; labels: (training images,)."""
    near, number = near[:, : how.k].astype(np.float64), number[:, : how.k]
    weight = np.exp((near - near[:, :1]) / how.temperature)
    codes = np.arange(len(near))[:, None] * classes + labels[number]
    votes = np.bincount(codes.ravel(), weight.ravel(), minlength=len(near) * classes)
    return votes.reshape(len(near), classes)


def knn_ranks(
    queries: np.ndarray,
    truth: np.ndarray,
    index: Index,
    labels: np.ndarray,
    classes: int,
    votes: list[Vote],
) -> tuple[np.ndarray, np.ndarray]:
    """(votes, queries) each: rank of the true class, and the class predicted. queries: of length 1;
    truth: (queries,). A class without a vote is not ranked: its rank is the number of classes."""
    most = min(max(how.searched_k for how in votes), len(labels))
    near, number = index.search(queries, most)
    ranks, predicted = [], []
    for how in votes:
        found = class_votes(near, number, labels, classes, how)
        voted = found[np.arange(len(truth)), truth] > 0
        ranks.append(np.where(voted, ranks_of(found, truth), classes))
        predicted.append(found.argmax(1))
    return np.stack(ranks), np.stack(predicted)


def ranks_of(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(images,): number of classes before the true one. Of equal scores, the first class wins.
    scores: (images, classes)."""
    own = scores[np.arange(len(truth)), truth][:, None]
    earlier = np.arange(scores.shape[1]) < truth[:, None]
    return ((scores > own) | ((scores == own) & earlier)).sum(1)


def accuracy(ranks: np.ndarray, top: int) -> float:
    """In percent."""
    return 100 * float((ranks < top).mean())


def accuracy_by_class(ranks: np.ndarray, truth: np.ndarray, classes: int) -> np.ndarray:
    """(classes,) in percent; NaN without an image."""
    images = np.bincount(truth, minlength=classes)
    right = np.bincount(truth[ranks == 0], minlength=classes)
    return np.divide(100.0 * right, images, out=np.full(classes, np.nan), where=images > 0)
