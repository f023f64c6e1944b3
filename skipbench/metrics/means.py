"""Metrics that are means over images: their intervals, and the best block scored without bias.

CorLoc is one of them: the share of images whose predicted box has an IoU (`box_iou`) of at least
0.5 with any true one.

The block with the best score on some images scores too well on these very images. An unbiased
estimate chooses it on one half of the images and scores it on the other (`cross_chosen`).
"""

from dataclasses import dataclass

import numpy as np

from skipbench.metrics.intervals import bca_interval, bootstrap, exact_interval, leave_one_out

SPLITS = 100


def box_iou(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n, m) float64, from 0 to 1. boxes, others: (n, 4) and (m, 4) xyxy in half-open pixels.

    A box without area has an IoU of 0 with everything, itself included.
    """
    first, second = (np.asarray(b, np.float64).reshape(-1, 4) for b in (boxes, others))
    corner = np.maximum(first[:, None, :2], second[None, :, :2])
    opposite = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = _area(opposite - corner)
    either = _area(first[:, 2:] - first[:, :2])[:, None] + _area(second[:, 2:] - second[:, :2])
    either -= shared
    return np.divide(shared, either, out=np.zeros_like(shared), where=either > 0)


def _area(sides: np.ndarray) -> np.ndarray:
    """(…, 2) → (…): 0 where a side is negative."""
    return np.maximum(sides, 0).prod(-1)


def counts_of(score: np.ndarray) -> np.ndarray:
    """(images, 2): (score, 1), as comparisons use them. score: (images,), NaN: none."""
    known = ~np.isnan(score)
    return np.stack([np.where(known, score.astype(np.float64), 0), known], axis=1)


def mean_percent(counts: np.ndarray, weights: np.ndarray) -> tuple[float, list[float]]:
    """In percent, with its 95 % interval over images. counts: (images, 2); weights: resamples."""
    value = float(share_percent(counts.sum(0)))
    if value in (0.0, 100.0) and np.isin(counts[:, 1], (0, 1)).all():
        low, high = exact_interval(round(value), int(counts[:, 1].sum()))
        return value, [100 * low, 100 * high]
    drawn = bootstrap(counts, share_percent, weights)
    return value, list(bca_interval(drawn, value, leave_one_out(counts, share_percent)))


def share_percent(counts: np.ndarray) -> np.ndarray:
    """(…, 2) → (…): the first as a percentage of the second; 0 of 0 is 0.

    Of (score, 1) summed over images, that is the mean over images. For CorLoc the score of an
    image is 0 or 1.
    """
    return 100 * counts[..., 0] / np.maximum(counts[..., 1], 1)


@dataclass(frozen=True)
class CrossChosen:
    counts: np.ndarray  # (images, 2) float64: sum of an image's scores, number of splits
    chosen: np.ndarray  # (blocks,) int64: how often each block was chosen, twice per split
    times: np.ndarray  # (images, blocks) int64: how often an image was scored with each block

    def percent(self, scores: np.ndarray) -> float:
        """Of other scores (images, blocks), with the same choices. NaN as in the first ones."""
        return 100 * float(np.nansum(self.times * scores) / self.times.sum())


def cross_chosen(hits: np.ndarray, splits: int = SPLITS, seed: int = 0) -> CrossChosen | None:
    """The score of the best block, chosen on other images than it is scored on.

    hits: (images, blocks), bool or scores. In each of `splits` random halvings of the images, the
    block with the highest mean on one half (the first one, in a tie) is scored on the other half,
    and vice versa: each image is scored once per split. Images with NaN are left out: their counts
    are 0. None for fewer than two others.
    """
    scores = np.asarray(hits, np.float64)
    known = np.flatnonzero(~np.isnan(scores).any(1))
    if len(known) < 2:
        return None
    rng = np.random.default_rng(seed)
    times, chosen = np.zeros(scores.shape, np.int64), np.zeros(scores.shape[1], np.int64)
    for _ in range(splits):
        order = rng.permutation(known)
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        for chosen_on, scored_on in (halves, halves[::-1]):
            best = scores[chosen_on].mean(0).argmax()
            times[scored_on, best] += 1
            chosen[best] += 1
    counts = np.stack([np.nansum(times * scores, 1), times.sum(1)], axis=1)
    return CrossChosen(counts, chosen, times)
