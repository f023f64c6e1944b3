"""Which training patches are remembered, and what is known of each: Hummingbird's sampling.

The label of a patch is the share of each class among its labelled pixels. The memory is shared
evenly between the images. Within an image each patch has a score: for every class in it, in how
many patches of the image that class is, summed, times a random number from 0 to 1. The patches with
the lowest scores are taken: rare classes are preferred, none is certain. A patch without a labelled
pixel is never taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, vstack

from skipbench.evaluations.segmentation.tokens import randomness
from skipbench.metrics.segmentation import IGNORED


def patch_counts(
    mask: np.ndarray, grid_hw: tuple[int, int], patch: int, classes: int
) -> np.ndarray:
    """(patches, classes) int64: labelled pixels by class. mask: HW at the size the model saw, of
    which the last patches may reach beyond."""
    rows, columns = (np.arange(side) // patch for side in mask.shape)
    place = rows[:, None] * grid_hw[1] + columns
    counted = mask != IGNORED
    codes = place[counted] * classes + mask[counted]
    patches = grid_hw[0] * grid_hw[1]
    return np.bincount(codes, minlength=patches * classes).reshape(patches, classes)


def choose_patches(counts: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Patches in order, `most` of them or as many as have a label. counts: of `patch_counts`."""
    there = counts > 0
    in_patches = there.sum(0)  # of each class
    score = (there @ in_patches) * rng.random(len(counts))
    labelled = there.any(1)
    score[~labelled] = np.inf
    lowest = np.argsort(score, kind="stable")[: min(most, int(labelled.sum()))]
    return np.sort(lowest)


@dataclass(frozen=True)
class Bank:
    rows: tuple[np.ndarray, ...]  # of each image: which of its patches
    labels: csr_array  # (tokens, classes) float32: shares, one in all for each token
    whole: bool  # whether every patch with a label is in it

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def class_shares(self) -> np.ndarray:
        """(classes,): of the bank."""
        return np.asarray(self.labels.sum(0)).ravel() / max(len(self), 1)


Part = tuple[np.ndarray, csr_array, bool]  # as in `Bank`, of one image


def remember(counts: np.ndarray, most: int, seed: int, image: int) -> Part:
    rows = choose_patches(counts, most, randomness("bank", seed, image))
    kept = counts[rows]
    shares = kept / kept.sum(1, keepdims=True)
    whole = len(rows) == int(counts.any(1).sum())
    return rows, csr_array(shares.astype(np.float32)), whole


def joined(parts: Sequence[Part]) -> Bank:
    rows, labels, whole = zip(*parts, strict=True)
    return Bank(rows, csr_array(vstack(labels)), all(whole))
