"""Coverage of the 95 % intervals, and the speed of a comparison.

    python benchmarks/intervals.py coverage   # simulated populations with known true mIoU
    python benchmarks/intervals.py speed      # compared with one resample at a time, and scipy

A simulated population has 20,000 images, each with counts by class: a background, and one or two of
20 classes with exponentially decreasing frequency. Some images are hard for both models. Coverage
is the share of random samples whose interval contains the true value.
"""

import argparse
from statistics import median

import numpy as np
from _shared import divide, seconds
from scipy.stats import bootstrap as scipy_bootstrap

from skipbench.metrics.intervals import (
    bca_interval,
    bootstrap,
    interval,
    leave_one_out,
    p_value,
    resample_weights,
)
from skipbench.metrics.segmentation import miou_percent

POPULATION, CLASSES = 20_000, 21


def population(rng: np.random.Generator, rare: float) -> tuple[np.ndarray, np.ndarray]:
    """(images, 3, classes) of two models. rare: the frequency of the rarest class is exp(-rare)
    times that of the most frequent one."""
    share = np.exp(-np.linspace(0, rare, CLASSES - 1))
    order = np.log(share) + rng.gumbel(size=(POPULATION, CLASSES - 1))
    two = np.argsort(-order, axis=1)[:, :2] + 1
    true = np.zeros((POPULATION, CLASSES))
    rows = np.arange(POPULATION)
    true[rows, two[:, 0]] = rng.lognormal(9, 1, POPULATION)
    second = rng.random(POPULATION) < 0.5
    true[rows[second], two[second, 1]] = rng.lognormal(9, 1, second.sum())
    true[:, 0] = np.maximum(50_000 - true.sum(1), 1000)
    skill = rng.normal(0.8, 0.9, (1, CLASSES)) + rng.normal(0, 0.6, (POPULATION, 1))
    return predictions(rng, true, skill), predictions(rng, true, skill + 0.15)


def predictions(rng: np.random.Generator, true: np.ndarray, skill: np.ndarray) -> np.ndarray:
    """Misclassified object pixels go to the background or a random class, background to a class."""
    correct = true / (1 + np.exp(-skill - rng.normal(0, 0.7, true.shape)))
    wrong = true - correct
    predicted = correct.copy()
    rows = np.arange(len(true))
    objects = wrong[:, 1:].sum(1)
    predicted[:, 0] += 0.7 * objects
    predicted[rows, rng.integers(0, CLASSES, len(true))] += 0.3 * objects
    predicted[rows, rng.integers(1, CLASSES, len(true))] += wrong[:, 0]
    return np.stack([correct, predicted, true], axis=1).round().astype(np.int64)


def coverage(draws: int) -> None:
    print(f"percent of {draws} intervals that contain the true value")
    print("                     one model           difference of two")
    print("rare  images   percentile   BCa    percentile   BCa")
    for rare in (0.5, 3.0):
        rng = np.random.default_rng(0)
        a, b = population(rng, rare)
        truth_a, truth_b = miou_percent(a.sum(0)), miou_percent(b.sum(0))
        for images in (80, 400, 1449, 5000):
            covered = np.zeros(4)
            for draw in range(draws):
                chosen = rng.integers(POPULATION, size=images)
                covered += contains(a[chosen], b[chosen], float(truth_a), float(truth_b), draw)
            one, bca, difference, bca_difference = 100 * covered / draws
            print(
                f"{rare:4.1f}  {images:6d}   {one:10.1f} {bca:5.1f}"
                f"    {difference:10.1f} {bca_difference:5.1f}"
            )


def contains(a: np.ndarray, b: np.ndarray, truth_a: float, truth_b: float, seed: int) -> list[bool]:
    """Whether each of the four intervals contains the true value."""
    weights = resample_weights(len(a), 1000, seed)
    drawn_a, drawn_b = (bootstrap(counts, miou_percent, weights) for counts in (a, b))
    left_a, left_b = (leave_one_out(counts, miou_percent) for counts in (a, b))
    one, other = float(miou_percent(a.sum(0))), float(miou_percent(b.sum(0)))
    found = [
        (interval(drawn_a), truth_a),
        (bca_interval(drawn_a, one, left_a), truth_a),
        (interval(drawn_b - drawn_a), truth_b - truth_a),
        (bca_interval(drawn_b - drawn_a, other - one, left_b - left_a), truth_b - truth_a),
    ]
    return [low <= truth <= high for (low, high), truth in found]


def speed(rounds: int, images: int = 1449, resamples: int = 2000) -> None:
    a, b = (counts[:images] for counts in population(np.random.default_rng(0), 2.0))

    def ours() -> None:
        weights = resample_weights(images, resamples, 0)
        drawn = bootstrap(b, miou_percent, weights) - bootstrap(a, miou_percent, weights)
        interval(drawn), p_value(drawn)

    def one_by_one() -> None:
        rng = np.random.default_rng(0)
        drawn = np.empty(resamples)
        for i in range(resamples):
            chosen = rng.integers(images, size=images)
            drawn[i] = miou_percent(b[chosen].sum(0)) - miou_percent(a[chosen].sum(0))
        np.percentile(drawn, [2.5, 97.5])

    def with_scipy() -> None:
        def difference(chosen: np.ndarray, axis: int = -1) -> np.ndarray:
            return miou_percent(b[chosen].sum(-3)) - miou_percent(a[chosen].sum(-3))

        scipy_bootstrap(
            (np.arange(images),), difference, n_resamples=resamples, batch=50, vectorized=True,
            method="percentile", rng=np.random.default_rng(0),
        )  # fmt: skip

    times: dict[str, list[float]] = {"ours": [], "one by one": [], "scipy": []}
    for _ in range(rounds):
        for name, run in (("ours", ours), ("one by one", one_by_one), ("scipy", with_scipy)):
            times[name].append(seconds(run))
    size = f"{images:,} images × {CLASSES} classes"
    print(f"{resamples:,} resamples of {size}, two models, {rounds} turns")
    print(f"ours {median(times['ours']):.3f} s")
    for name in ("one by one", "scipy"):
        ratios = divide(times[name], times["ours"])
        print(f"{name}: {median(ratios):.0f} × ours ({min(ratios):.0f} to {max(ratios):.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["coverage", "speed"])
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if "coverage" in options.what:
        coverage(options.draws)
    if "speed" in options.what:
        speed(options.rounds)


if __name__ == "__main__":
    main()
