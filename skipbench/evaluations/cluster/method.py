"""Clustering: how far k-means on tokens finds the classes without any label.

k-means on L2-normalised tokens of the validation images. A pixel belongs to the cluster whose
centroid is nearest to the token there, tokens being resized bilinearly to the mask: distances to
centroids are compared by x·c - |c|²/2, which is linear in x, so it is these that are resized.

Clusters become classes on the whole split at once: as many as there are classes, or fewer, are
matched one to one (Hungarian, for the highest sum of IoUs); of more, each becomes the class that
most of its pixels have.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array, csr_array

from skipbench.evaluations.segmentation.tokens import (
    ImageTokens,
    TokenMap,
    TokensAndMasks,
    ahead,
    normalised,
    predict,
)
from skipbench.metrics.segmentation import IGNORED

TURNS = 50  # of k-means


def nearest_centroid(
    tokens: TokenMap, size_hw: tuple[int, int], centroids: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """For each clustering (all of as many clusters), (*size_hw): the cluster of every pixel."""
    weight = torch.from_numpy(np.concatenate(centroids))
    bias = weight.square().sum(1) / -2
    return list(predict(ImageTokens([tokens]), size_hw, weight.T, bias, len(centroids[0])))


def score(
    images: TokensAndMasks,
    numbers: Sequence[int],
    centroids: Sequence[np.ndarray],
    classes: int,
    advance: Callable[[int], None] = lambda n: None,
) -> list[csr_array]:
    """For each clustering, (images, clusters × classes): labelled pixels by cluster and class."""
    size = len(centroids[0]) * classes
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in centroids]

    def read(image: int) -> tuple[TokenMap, np.ndarray]:
        return TokenMap(images.grid(image), normalised(images.tokens(image))), images.mask(image)

    for tokens, mask in ahead(read, numbers, most=2):
        for place, clusters in enumerate(nearest_centroid(tokens, mask.shape, centroids)):
            counted = mask != IGNORED
            pairs = clusters[counted].astype(np.int64) * classes + mask[counted]
            pixels = np.bincount(pairs, minlength=size)
            there = np.flatnonzero(pixels)
            found[place].append((there, pixels[there]))
        advance(1)
    return [_rows(images, size) for images in found]


def _rows(images: Sequence[tuple[np.ndarray, np.ndarray]], size: int) -> csr_array:
    """Of (columns, values) in each row."""
    starts = np.cumsum([0, *(len(there) for there, _ in images)])
    columns = np.concatenate([there for there, _ in images]).astype(np.int32)
    values = np.concatenate([pixels for _, pixels in images]).astype(np.int32)
    return csr_array((values, columns, starts), shape=(len(images), size))


def match(pixels: np.ndarray) -> np.ndarray:
    """(clusters,): the class of each. pixels: (clusters, classes), of the whole split."""
    clusters, classes = pixels.shape
    if clusters > classes:
        return pixels.argmax(1)
    either = pixels.sum(1, keepdims=True) + pixels.sum(0) - pixels
    iou = pixels / np.maximum(either, 1)
    of_cluster, of_class = linear_sum_assignment(iou, maximize=True)
    return of_class[np.argsort(of_cluster)]


def matched_counts(pairs: csr_array, matching: np.ndarray, classes: int) -> np.ndarray:
    """(images, 3, classes) int32, as `class_counts`, with clusters as the classes they became.

    pairs: of `score`."""
    predicted = np.repeat(matching, classes)
    true = np.tile(np.arange(classes), len(matching))
    right = predicted == true
    ways = [(predicted, right), (predicted, np.ones_like(right)), (true, np.ones_like(right))]
    counts = [pairs @ _sums(column, counted, classes) for column, counted in ways]
    return np.stack([part.toarray() for part in counts], axis=1).astype(np.int32)


def _sums(column: np.ndarray, counted: np.ndarray, classes: int) -> csr_array:
    """Adds up those that count, by column."""
    rows = np.flatnonzero(counted)
    ones = np.ones(len(rows), np.int64)
    return coo_array((ones, (rows, column[rows])), shape=(len(column), classes)).tocsr()
