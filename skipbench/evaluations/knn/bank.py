"""Which training patches are remembered, what is known of each, and how they are kept in memory.

The sampling is Hummingbird's. The label of a patch is the share of each class among its labelled
pixels. The memory is shared evenly between the images. Within an image each patch has a score: for
every class in it, in how many patches of the image that class is, summed, times a random number
from 0 to 1. The patches with the lowest scores are taken: rare classes are preferred, none is
certain. A patch without a labelled pixel is never taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_array, vstack

from skipbench.errors import ResourceError
from skipbench.evaluations.segmentation.tokens import randomness
from skipbench.metrics.segmentation import IGNORED

FLAT_ON_CPU = 100_000  # tokens in a bank: more take seconds for each image


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


@dataclass(frozen=True)
class Storage:
    """How a bank is kept in memory: searched whole or in part, and in how many bytes a number."""

    index: Literal["flat", "ivf"]
    numbers: Literal["float32", "float16", "pq"]  # pq: one byte for two numbers

    def bytes(self, tokens: int, width: int) -> int:
        return round(tokens * width * {"float32": 4, "float16": 2, "pq": 0.5}[self.numbers])

    @property
    def words(self) -> str:
        kept = "product-quantised" if self.numbers == "pq" else f"as {self.numbers}"
        return f"{'searched whole' if self.index == 'flat' else 'in lists (ivf)'}, {kept}"


def choose_storage(index: str, tokens: int, width: int, limit_bytes: int, gpus: int = 0) -> Storage:
    """The most exact way that keeps to the limit. auto: whole, where that does not take long."""
    whole = gpus > 0 or tokens <= FLAT_ON_CPU
    ways: list[Storage] = []
    if index == "flat" or (index == "auto" and whole):
        ways += [Storage("flat", "float32"), Storage("flat", "float16")]
    if index != "flat":
        ways += [Storage("ivf", "float16"), Storage("ivf", "pq")]
    fitting = [way for way in ways if way.bytes(tokens, width) <= limit_bytes]
    if not fitting:
        least = ways[-1].bytes(tokens, width)
        other = "" if index != "flat" else ", or --index ivf"
        raise ResourceError(
            f"a bank of {tokens:,} tokens of {width:,} numbers takes {_megabytes(least)} at the "
            f"least, --bank-limit is {_megabytes(limit_bytes)}.\n"
            f"Give a smaller --memory, fewer --layers, a higher --bank-limit{other}."
        )
    return fitting[0]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.3f}".rstrip("0").rstrip(".") + " MB"
