"""Dense nearest neighbours: segmentation by the labels of similar training patches.

No training, no learning rate. Every token of a validation image takes the labels of its k nearest
tokens in a bank of training tokens (inner product of L2-normalised tokens), weighted by the softmax
of similarity / temperature. These maps of class shares are resized bilinearly to the mask; the
class with the largest share is the prediction.

The bank is sampled as in Hummingbird. The label of a patch is the share of each class among its
labelled pixels. The bank is divided evenly between the images. Within an image each patch has a
score: for every class in it, the number of patches of the image with that class, summed, times a
random number from 0 to 1. The patches with the lowest scores are taken: rare classes are preferred,
none is certain. A patch without a labelled pixel is never taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from skipbench.engine.parallel import ahead
from skipbench.engine.vectors import Index
from skipbench.errors import ResourceError
from skipbench.evaluations.segmentation.class_map import class_map
from skipbench.evaluations.segmentation.tokens import Grid, TokensAndMasks, normalised, randomness
from skipbench.metrics.segmentation import IGNORED, class_counts

FLAT_ON_CPU = 100_000  # tokens in a bank: searching more takes seconds per image
QUERIES = 4096

# As many neighbours are searched for as the next of these, so that one search serves several k.
SEARCHED_K = (30, 100, 300, 1024)

Image = tuple[np.ndarray, np.ndarray, Grid]  # tokens, mask, grid


# -- the bank


def patch_counts(
    mask: np.ndarray, grid_hw: tuple[int, int], patch: int, classes: int
) -> np.ndarray:
    """(patches, classes) int64: labelled pixels by class. mask: HW at the size the model saw; the
    last patches may extend beyond it."""
    rows, columns = (np.arange(side) // patch for side in mask.shape)
    place = rows[:, None] * grid_hw[1] + columns
    counted = mask != IGNORED
    codes = place[counted] * classes + mask[counted]
    patches = grid_hw[0] * grid_hw[1]
    return np.bincount(codes, minlength=patches * classes).reshape(patches, classes)


def choose_patches(counts: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted patches, `most` of them or as many as have a label. counts: of `patch_counts`."""
    present = counts > 0
    patches_with_class = present.sum(0)
    score = (present @ patches_with_class) * rng.random(len(counts))
    labelled = present.any(1)
    score[~labelled] = np.inf
    lowest = np.argsort(score, kind="stable")[: min(most, int(labelled.sum()))]
    return np.sort(lowest)


@dataclass(frozen=True)
class Bank:
    rows: tuple[np.ndarray, ...]  # by image: its patches in the bank
    labels: csr_array  # (tokens, classes) float32: shares, which sum to 1 for each token
    whole: bool  # it has every labelled patch

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def class_shares(self) -> np.ndarray:
        """(classes,): mean over the bank."""
        return np.asarray(self.labels.sum(0)).ravel() / max(len(self), 1)


Part = tuple[np.ndarray, csr_array, bool]  # as in `Bank`, of one image


def part_of_bank(counts: np.ndarray, most: int, seed: int, image: int) -> Part:
    """At most `most` patches of an image. counts: of `patch_counts`."""
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
    """How a bank is kept in memory: searched exhaustively or in part, and the type of numbers."""

    index: Literal["flat", "ivf"]
    numbers: Literal["float32", "float16", "pq"]  # pq: one byte for two numbers

    def bytes(self, tokens: int, width: int) -> int:
        return round(tokens * width * {"float32": 4, "float16": 2, "pq": 0.5}[self.numbers])

    @property
    def words(self) -> str:
        kept = "product-quantised" if self.numbers == "pq" else f"as {self.numbers}"
        return f"{'searched whole' if self.index == 'flat' else 'in lists (ivf)'}, {kept}"


def choose_storage(index: str, tokens: int, width: int, limit_bytes: int, gpus: int = 0) -> Storage:
    """The most exact one within the limit. auto: flat, where that is fast enough."""
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
            f"a bank of {tokens:,} tokens of {width:,} numbers takes at least "
            f"{_megabytes(least)}; --bank-limit is {_megabytes(limit_bytes)}.\n"
            f"Use a smaller --memory, fewer --layers, a higher --bank-limit{other}."
        )
    return fitting[0]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.3f}".rstrip("0").rstrip(".") + " MB"


# -- votes


@dataclass(frozen=True)
class Vote:
    k: int
    temperature: float

    @property
    def searched_k(self) -> int:
        return next((many for many in SEARCHED_K if many >= self.k), self.k)


def vote(near: np.ndarray, number: np.ndarray, labels: csr_array, how: Vote) -> np.ndarray:
    """(queries, classes) float32: the shares of the k nearest, weighted. near, number: of an index,
    at least k, or all there are."""
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
    """Votes on some queries, by one search for all of them.

    Which of equally near tokens are found depends on how many are searched for, and a result must
    not depend on what else is evaluated: if the last neighbour that votes ties with the next one,
    the search is repeated as for that vote alone.
    """

    def __init__(
        self, queries: np.ndarray, index: Index, labels: csr_array, votes: Sequence[Vote]
    ) -> None:
        self.labels, self.votes = labels, votes
        most = max(how.searched_k for how in votes)
        near, number = index.search(queries, min(most, labels.shape[0]))
        self.found = {how.searched_k: (near, number) for how in votes}
        ends = {how: near[:, how.k - 1 : how.k] == near[:, how.k : how.k + 1] for how in votes}
        for many in {how.searched_k for how, tied in ends.items() if tied.any()} - {most}:
            self.found[many] = index.search(queries, min(many, labels.shape[0]))

    def maps(self, part: slice, grid_hw: tuple[int, int]) -> torch.Tensor:
        """(votes, classes, height, width) of these queries, all tokens of one image."""
        shares = []
        for how in self.votes:
            near, number = self.found[how.searched_k]
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

    def read(image: int) -> Image:
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


def _groups(images: Iterator[Image], at_once: int) -> Iterator[list[Image]]:
    """Images that are searched together."""
    group, queries = [], 0
    for image in images:
        group.append(image)
        queries += len(image[0])
        if queries >= at_once:
            yield group
            group, queries = [], 0
    if group:
        yield group
