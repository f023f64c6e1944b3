"""How often 95 % intervals hold the truth, and how fast a comparison is.

    python benchmarks/intervals.py coverage   # simulated worlds whose true mIoU is known
    python benchmarks/intervals.py speed      # against one resample after another, and scipy

In a simulated world 20,000 images have counts by class: a background, one or two of 20 classes
whose frequency falls off exponentially. Some images are hard for both models. So many of them are
drawn, again and again.
"""

import argparse
import time
from statistics import median

import numpy as np
from scipy.stats import bootstrap as scipys

from skipbench.metrics.intervals import (
    bca_interval,
    bootstrap,
    interval,
    leave_one_out,
    p_value,
    resample_weights,
)
from skipbench.metrics.segmentation import miou_percent

WORLD, CLASSES = 20_000, 21


def world(rng: np.random.Generator, rare: float) -> tuple[np.ndarray, np.ndarray]:
    """(images, 3, classes) of two models. rare: the rarest class is exp(-rare) as frequent as the
    most frequent one."""
    share = np.exp(-np.linspace(0, rare, CLASSES - 1))
    order = np.log(share) + rng.gumbel(size=(WORLD, CLASSES - 1))
    two = np.argsort(-order, axis=1)[:, :2] + 1
    true = np.zeros((WORLD, CLASSES))
    rows = np.arange(WORLD)
    true[rows, two[:, 0]] = rng.lognormal(9, 1, WORLD)
    second = rng.random(WORLD) < 0.5
    true[rows[second], two[second, 1]] = rng.lognormal(9, 1, second.sum())
    true[:, 0] = np.maximum(50_000 - true.sum(1), 1000)
    skill = rng.normal(0.8, 0.9, (1, CLASSES)) + rng.normal(0, 0.6, (WORLD, 1))
    return tuple(_seen_by(rng, true, skill + gain) for gain in (0.0, 0.15))  # type: ignore[return-value]


def _seen_by(rng: np.random.Generator, true: np.ndarray, skill: np.ndarray) -> np.ndarray:
    """Wrong pixels of objects go to the background or a random class, those of it to a class."""
    right = true / (1 + np.exp(-skill - rng.normal(0, 0.7, true.shape)))
    wrong = true - right
    predicted = right.copy()
    rows = np.arange(len(true))
    objects = wrong[:, 1:].sum(1)
    predicted[:, 0] += 0.7 * objects
    predicted[rows, rng.integers(0, CLASSES, len(true))] += 0.3 * objects
    predicted[rows, rng.integers(1, CLASSES, len(true))] += wrong[:, 0]
    return np.stack([right, predicted, true], axis=1).round().astype(np.int64)


def coverage(draws: int) -> None:
    print(f"share of {draws} intervals that hold the truth, in percent")
    print("                     one model           difference of two")
    print("rare  images   percentile   BCa    percentile   BCa")
    for rare in (0.5, 3.0):
        rng = np.random.default_rng(0)
        a, b = world(rng, rare)
        truth_a, truth_b = miou_percent(a.sum(0)), miou_percent(b.sum(0))
        for images in (80, 400, 1449, 5000):
            held = np.zeros(4)
            for draw in range(draws):
                chosen = rng.integers(WORLD, size=images)
                held += _held(a[chosen], b[chosen], float(truth_a), float(truth_b), draw)
            one, other, third, fourth = 100 * held / draws
            print(
                f"{rare:4.1f}  {images:6d}   {one:10.1f} {other:5.1f}"
                f"    {third:10.1f} {fourth:5.1f}"
            )


def _held(a: np.ndarray, b: np.ndarray, truth_a: float, truth_b: float, seed: int) -> list[bool]:
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
    a, b = (counts[:images] for counts in world(np.random.default_rng(0), 2.0))

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

        scipys(
            (np.arange(images),), difference, n_resamples=resamples, batch=50, vectorized=True,
            method="percentile", rng=np.random.default_rng(0),
        )  # fmt: skip

    times: dict[str, list[float]] = {"ours": [], "one by one": [], "scipy": []}
    for _ in range(rounds):
        for name, run in (("ours", ours), ("one by one", one_by_one), ("scipy", with_scipy)):
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    size = f"{images:,} images × {CLASSES} classes"
    print(f"{resamples:,} resamples of {size}, two models, {rounds} turns")
    print(f"ours {median(times['ours']):.3f} s")
    for name in ("one by one", "scipy"):
        ratios = [x / y for x, y in zip(times[name], times["ours"], strict=True)]
        print(f"{name}: {median(ratios):.0f} times that ({min(ratios):.0f} to {max(ratios):.0f})")


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
