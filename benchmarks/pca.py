"""Components of all tokens and scores of every image, against scikit-learn.

    python benchmarks/pca.py [speed] [memory] [--images 40 400] [--rounds 5]

Tokens are made once, as a feature store has them: float16, an array an image, 900 × 384, whose
variance falls off from one direction to the next, around a mean far from zero. Every way fits 3
components to all tokens, then gives the scores of each image and their limits of colour:

    ours          image by image, in float64
    sklearn       PCA(3) on the tokens in one piece; float16 is computed in float64
    sklearn 32    the same, given float32: half the work, and fewer digits
    step 1, 5     IncrementalPCA(3), so many images at a time; an approximation, of few images only

All ways take turns in one process, every other turn in reverse order; a ratio is taken within a
turn, and given as the median over all turns with the quartiles. Differences are from a reference in
float64 (centred first, all eigenvectors): the largest of the components' loadings, up to sign, and
of the shares of variance. Memory is what a fresh process takes at its peak beyond the tokens.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from skipbench.engine.machine import wait_politely

wait_politely()  # as the command does, before torch is loaded

# ruff: noqa: E402
import numpy as np
from scipy.linalg import eigh
from sklearn.decomposition import PCA, IncrementalPCA

from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.pca.method import Moments, limits, principal

TOKENS, WIDTH, COMPONENTS = 900, 384, 3
FEW = 100  # beyond that many images the slow ways are left out
Images = Sequence[np.ndarray]  # (tokens, width) float16 each
Found = tuple[np.ndarray, np.ndarray]  # axes (width, components), shares (components,)


def stored(count: int) -> list[np.ndarray]:
    """Images differ in their means too. The spectrum is that of a power law."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
    mix = (np.arange(1, WIDTH + 1) ** -0.6)[:, None] * turn
    mean = 2 * rng.normal(size=WIDTH)
    made = []
    for _ in range(count):
        spread = rng.normal(size=(TOKENS, WIDTH)) + 0.5 * rng.normal(size=WIDTH)
        made.append((mean + spread @ mix).astype(np.float16))
    return made


def ours(images: Images) -> Found:
    moments = Moments(WIDTH)
    for image in images:
        moments.add(image)
    found = principal(moments, COMPONENTS)
    for image in images:
        limits(found.scores(image))
    return found.axes, found.explained


def sklearn(images: Images) -> Found:
    return told(PCA(COMPONENTS).fit(np.concatenate(images)), images)


def sklearn_32(images: Images) -> Found:
    fitted = PCA(COMPONENTS).fit(np.concatenate(images, dtype=np.float32))
    return told(fitted, (image.astype(np.float32) for image in images))


def in_steps(images: Images, step: int) -> Found:
    fitted = IncrementalPCA(COMPONENTS)
    for start in range(0, len(images), step):
        fitted.partial_fit(np.concatenate(images[start : start + step]))
    return told(fitted, images)


def told(fitted: PCA | IncrementalPCA, images: Images) -> Found:
    for image in images:
        limits(fitted.transform(image))
    return fitted.components_.T, fitted.explained_variance_ratio_


WAYS: dict[str, Callable[[Images], Found]] = {
    "ours": ours,
    "sklearn": sklearn,
    "sklearn 32": sklearn_32,
    "step 1": lambda images: in_steps(images, 1),
    "step 5": lambda images: in_steps(images, 5),
}


def ways(images: int) -> list[str]:
    return [way for way in WAYS if images <= FEW or not way.startswith("step")]


def reference(images: Images) -> Found:
    mean = sum(image.sum(0, dtype=np.float64) for image in images) / (TOKENS * len(images))
    scatter = np.zeros((WIDTH, WIDTH))
    for image in images:
        centred = image.astype(np.float64) - mean
        scatter += centred.T @ centred
    variances, axes = eigh(scatter)
    return axes[:, : -COMPONENTS - 1 : -1], variances[: -COMPONENTS - 1 : -1] / variances.sum()


def difference(found: Found, exact: Found) -> tuple[float, float]:
    sign = np.sign((found[0] * exact[0]).sum(0))
    return (
        float(np.abs(found[0] * sign - exact[0]).max()),
        float(np.abs(found[1] - exact[1]).max()),
    )


def speed(counts: list[int], rounds: int) -> None:
    for count in counts:
        images = stored(count)
        exact = reference(images)
        names = ways(count)
        off = {way: difference(WAYS[way](images), exact) for way in names}  # and a warm-up
        spent: dict[str, list[float]] = {way: [] for way in names}
        for turn in range(rounds):
            for way in names if turn % 2 == 0 else names[::-1]:
                started = time.perf_counter()
                WAYS[way](images)
                spent[way].append(time.perf_counter() - started)
        report(count, spent, off)


def report(count: int, spent: dict[str, list[float]], off: dict[str, tuple[float, float]]) -> None:
    turns = len(spent["ours"])
    print(f"\n{count} images × {TOKENS} tokens × {WIDTH} channels, {turns} turns")
    print(f"{'':12}{'seconds':>24}{'times ours':>24}{'axes off':>11}{'shares off':>12}")
    for way, seconds in spent.items():
        ratios = [theirs / own for theirs, own in zip(seconds, spent["ours"], strict=True)]
        axes, shares = off[way]
        print(
            f"{way:12}{spread(seconds):>24}{spread(ratios):>24}{axes:11.1e}{shares:12.1e}",
            flush=True,
        )


def spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3g}"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def memory(counts: list[int]) -> None:
    """A fresh process for each way: what one has freed another would use again."""
    for count in counts:
        print(f"\n{count} images: peak memory beyond the stored tokens, MB")
        for way in ways(count):
            command = [sys.executable, __file__, "--child", way, str(count)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{way:12}{int(done.stdout) / 1e6:8.0f}", flush=True)


def child(way: str, count: int) -> None:
    WAYS[way](stored(5))  # libraries take their own memory on first use
    images = stored(count)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = peak_bytes()
    WAYS[way](images)
    print(peak_bytes() - before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["speed", "memory"])
    parser.add_argument("--images", type=int, nargs="+", default=[40, 400])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]))
        sys.exit()
    if "speed" in options.parts:
        speed(options.images, options.rounds)
    if "memory" in options.parts:
        memory(options.images)
