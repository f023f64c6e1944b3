"""Dense nearest neighbours: segmentation by what similar training patches are labelled.

No training, no learning rate. Every token of a validation image takes the labels of its k nearest
tokens in a bank of training tokens (inner product of L2-normalised tokens), weighted by the softmax
of similarity / temperature. These maps of class shares are resized bilinearly to the mask; the
class with the largest share is the prediction.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np
import torch
from scipy.sparse import csr_array

from skipbench.evaluations.segmentation.class_map import class_map
from skipbench.evaluations.segmentation.tokens import Grid, TokensAndMasks, ahead, normalised
from skipbench.metrics.segmentation import class_counts

QUERIES = 4096

# As many neighbours are sought as the next of these, so that one search serves several k.
SOUGHT = (30, 100, 300, 1024)


@dataclass(frozen=True)
class Vote:
    """How neighbours become a label."""

    k: int
    temperature: float

    @property
    def sought(self) -> int:
        return next((many for many in SOUGHT if many >= self.k), self.k)


class Index(Interface):
    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(queries, k) similarities, falling, and numbers; -inf and -1 where there is none."""
        ...


def vote(near: np.ndarray, number: np.ndarray, labels: csr_array, how: Vote) -> np.ndarray:
    """(queries, classes) float32: the shares of the k nearest, weighted. near, number: at least k
    of them, as an index gives them."""
    near, number = near[:, : how.k], number[:, : how.k]
    found = number >= 0
    nearest = np.where(found[:, :1], near[:, :1], 0)
    weight = np.exp((near - nearest) / how.temperature, where=found, out=np.zeros_like(near))
    weight /= np.maximum(weight.sum(1, keepdims=True), 1e-30)
    starts = np.arange(0, weight.size + 1, weight.shape[1])
    shape = (len(near), labels.shape[0])
    votes = csr_array((weight.ravel(), np.where(found, number, 0).ravel(), starts), shape=shape)
    return (votes @ labels).toarray()


class Votes:
    """What the neighbours of some queries say, by one search for all votes.

    Which of equally near tokens are found depends on how many are sought, and a figure is not to
    depend on what else was asked for: where the last neighbour that votes has an equal beyond, as
    many are sought as for that vote alone.
    """

    def __init__(
        self, queries: np.ndarray, index: Index, labels: csr_array, votes: Sequence[Vote]
    ) -> None:
        self.labels, self.votes = labels, votes
        most = max(how.sought for how in votes)
        near, number = index.search(queries, min(most, labels.shape[0]))
        self.found = {how.sought: (near, number) for how in votes}
        ends = {how: near[:, how.k - 1 : how.k] == near[:, how.k : how.k + 1] for how in votes}
        for many in {how.sought for how, tied in ends.items() if tied.any()} - {most}:
            self.found[many] = index.search(queries, min(many, labels.shape[0]))

    def maps(self, part: slice, grid_hw: tuple[int, int]) -> torch.Tensor:
        """(votes, classes, height, width) of these queries, which are those of one image."""
        shares = []
        for how in self.votes:
            near, number = self.found[how.sought]
            shares.append(vote(near[part], number[part], self.labels, how).T)
        return torch.from_numpy(np.stack(shares)).unflatten(2, grid_hw)


def segment(maps: torch.Tensor, grid: Grid, size_hw: tuple[int, int]) -> np.ndarray:
    """(votes, *size_hw): the class of every pixel."""
    return class_map(maps, size_hw, grid.extent_hw).numpy()


def score(
    images: TokensAndMasks,
    numbers: Sequence[int],
    index: Index,
    labels: csr_array,
    votes: Sequence[Vote],
    advance: Callable[[int], None] = lambda n: None,
    at_once: int = QUERIES,
) -> np.ndarray:
    """(images, votes, 3, classes) int32: `class_counts` of each image.

    at_once: queries of a search; more, if one image has more.
    """
    classes = labels.shape[1]
    counts = np.zeros((len(numbers), len(votes), 3, classes), np.int32)

    def read(image: int) -> tuple[np.ndarray, np.ndarray, Grid]:
        return normalised(images.tokens(image)), images.mask(image), images.grid(image)

    row = 0
    for group in _groups(ahead(read, numbers, most=4), at_once):
        queries = np.concatenate([tokens for tokens, _, _ in group])
        found, start = Votes(queries, index, labels, votes), 0
        for tokens, mask, grid in group:
            part = slice(start, start + len(tokens))
            maps = found.maps(part, grid.size_hw)
            for place, prediction in enumerate(segment(maps, grid, mask.shape)):
                counts[row, place] = class_counts(prediction, mask, classes)
            start, row = part.stop, row + 1
            advance(1)
    return counts


def _groups(
    images: Iterator[tuple[np.ndarray, np.ndarray, Grid]], at_once: int
) -> Iterator[list[tuple[np.ndarray, np.ndarray, Grid]]]:
    """Images that are sought together."""
    group, queries = [], 0
    for image in images:
        group.append(image)
        queries += len(image[0])
        if queries >= at_once:
            yield group
            group, queries = [], 0
    if group:
        yield group
