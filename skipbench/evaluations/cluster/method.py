"""Clustering: how well k-means on tokens finds the classes without labels.

k-means on L2-normalised tokens of the validation images. A pixel belongs to the cluster whose
centroid is nearest to the token there, with tokens resized bilinearly to the mask: distances to
centroids are compared by x·c - |c|²/2, which is linear in x, so this is resized instead.

Clusters are matched to classes on the whole split at once: one to one if there are at most as many
as classes (Hungarian, for the highest sum of IoUs); otherwise each takes the majority class of its
pixels.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array, eye_array, vstack

from skipbench.engine.parallel import ahead
from skipbench.evaluations.segmentation.tokens import (
    ImageTokens,
    TokenMap,
    TokensAndMasks,
    normalised,
    predict,
)
from skipbench.metrics.segmentation import IGNORED

TURNS = 50  # of k-means


def nearest_centroid(
    tokens: TokenMap, size_hw: tuple[int, int], centroids: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """(*size_hw) for each clustering: the cluster of every pixel. All have the same number."""
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
    rows: list[list[csr_array]] = [[] for _ in centroids]

    def read(image: int) -> tuple[TokenMap, np.ndarray]:
        return TokenMap(images.grid(image), normalised(images.tokens(image))), images.mask(image)

    for tokens, mask in ahead(read, numbers, most=2):
        for place, clusters in enumerate(nearest_centroid(tokens, mask.shape, centroids)):
            counted = mask != IGNORED
            pairs = clusters[counted].astype(np.int64) * classes + mask[counted]
            pixels = np.bincount(pairs, minlength=size).astype(np.int32)
            rows[place].append(csr_array(pixels[None]))
        advance(1)
    return [csr_array(vstack(images)) for images in rows]


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
    """(images, 3, classes) int32: `class_counts` of each image, with clusters as their classes.

    pairs: of `score`.
    """
    one_hot = eye_array(classes, dtype=np.int64, format="csr")
    predicted = one_hot[np.repeat(matching, classes)]  # (clusters × classes, classes)
    true = one_hot[np.tile(np.arange(classes), len(matching))]
    counts = [pairs @ which for which in (predicted.multiply(true), predicted, true)]
    return np.stack([part.toarray() for part in counts], axis=1).astype(np.int32)
