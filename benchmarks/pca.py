"""Principal components of all tokens and scores of every image, compared with scikit-learn.

    python benchmarks/pca.py [speed] [memory] [--images 40 400] [--rounds 5]

The tokens are synthetic, in the layout of a feature store: one float16 array of 900 × 384 per
image, with a power-law spectrum and a mean far from zero. Every variant fits 3 components to all
tokens, then computes the scores of each image and their colour range:

    ours          image by image, in float64
    sklearn       PCA(3) on one array of all tokens; it converts float16 to float64
    sklearn 32    the same, given float32: half the work, less precise
    step 1, 5     IncrementalPCA(3), 1 or 5 images at a time: an approximation, up to 100 images

The variants take turns in one process, every other turn in reverse order. Ratios are computed
within a turn; reported is the median over all turns, with quartiles. Errors are relative to a
float64 reference (centred first, full eigendecomposition): the largest error of a loading, up to
sign, and of an explained-variance ratio. Memory is the peak of a fresh process, less the tokens.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from skipbench.engine.machine import wait_politely

wait_politely()  # before torch is loaded, as the command does

# ruff: noqa: E402
import numpy as np
from _shared import divide, quartiles, seconds
from scipy.linalg import eigh
from sklearn.decomposition import PCA, IncrementalPCA

from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.pca.method import Moments, limits, principal

TOKENS, WIDTH, COMPONENTS = 900, 384, 3
FEW = 100  # images; beyond it, the slow variants are left out
Images = Sequence[np.ndarray]  # (tokens, width) float16 each
Found = tuple[np.ndarray, np.ndarray]  # axes (width, components), explained (components,)


def make_tokens(count: int) -> list[np.ndarray]:
    """The mean differs from image to image, too."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
    mix = (np.arange(1, WIDTH + 1) ** -0.6)[:, None] * turn
    mean = 2 * rng.normal(size=WIDTH)
    images = []
    for _ in range(count):
        spread = rng.normal(size=(TOKENS, WIDTH)) + 0.5 * rng.normal(size=WIDTH)
        images.append((mean + spread @ mix).astype(np.float16))
    return images


def ours(images: Images) -> Found:
    moments = Moments(WIDTH)
    for image in images:
        moments.add(image)
    found = principal(moments, COMPONENTS)
    for image in images:
        limits(found.scores(image))
    return found.axes, found.explained


def sklearn(images: Images) -> Found:
    return with_scores(PCA(COMPONENTS).fit(np.concatenate(images)), images)


def sklearn_32(images: Images) -> Found:
    fitted = PCA(COMPONENTS).fit(np.concatenate(images, dtype=np.float32))
    return with_scores(fitted, (image.astype(np.float32) for image in images))


def in_steps(images: Images, step: int) -> Found:
    fitted = IncrementalPCA(COMPONENTS)
    for start in range(0, len(images), step):
        fitted.partial_fit(np.concatenate(images[start : start + step]))
    return with_scores(fitted, images)


def with_scores(fitted: PCA | IncrementalPCA, images: Iterable[np.ndarray]) -> Found:
    for image in images:
        limits(fitted.transform(image))
    return fitted.components_.T, fitted.explained_variance_ratio_


VARIANTS: dict[str, Callable[[Images], Found]] = {
    "ours": ours,
    "sklearn": sklearn,
    "sklearn 32": sklearn_32,
    "step 1": lambda images: in_steps(images, 1),
    "step 5": lambda images: in_steps(images, 5),
}


def variants(images: int) -> list[str]:
    return [name for name in VARIANTS if images <= FEW or not name.startswith("step")]


def reference(images: Images) -> Found:
    mean = sum(image.sum(0, dtype=np.float64) for image in images) / (TOKENS * len(images))
    scatter = np.zeros((WIDTH, WIDTH))
    for image in images:
        centred = image.astype(np.float64) - mean
        scatter += centred.T @ centred
    variances, axes = eigh(scatter)
    return axes[:, : -COMPONENTS - 1 : -1], variances[: -COMPONENTS - 1 : -1] / variances.sum()


def error(found: Found, exact: Found) -> tuple[float, float]:
    sign = np.sign((found[0] * exact[0]).sum(0))
    return (
        float(np.abs(found[0] * sign - exact[0]).max()),
        float(np.abs(found[1] - exact[1]).max()),
    )


def speed(counts: list[int], rounds: int) -> None:
    for count in counts:
        images = make_tokens(count)
        exact = reference(images)
        names = variants(count)
        errors = {name: error(VARIANTS[name](images), exact) for name in names}  # warms up, too
        spent: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds):
            for name in names if turn % 2 == 0 else names[::-1]:
                spent[name].append(seconds(VARIANTS[name], images))
        report(count, spent, errors)


def report(
    count: int, spent: dict[str, list[float]], errors: dict[str, tuple[float, float]]
) -> None:
    turns = len(spent["ours"])
    print(f"\n{count} images × {TOKENS} tokens × {WIDTH} channels, {turns} turns")
    print(f"{'':12}{'seconds':>24}{'relative to ours':>24}{'loadings off':>14}{'ratios off':>12}")
    for name, took in spent.items():
        ratios = quartiles(divide(took, spent["ours"]))
        loadings, explained = errors[name]
        print(
            f"{name:12}{quartiles(took):>24}{ratios:>24}{loadings:14.1e}{explained:12.1e}",
            flush=True,
        )


def memory(counts: list[int]) -> None:
    """A fresh process each: memory that one has freed would be reused by the next."""
    for count in counts:
        print(f"\n{count} images: peak memory beyond the tokens, MB")
        for name in variants(count):
            command = [sys.executable, __file__, "--child", name, str(count)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{name:12}{int(done.stdout) / 1e6:8.0f}", flush=True)


def child(name: str, count: int) -> None:
    VARIANTS[name](make_tokens(5))  # libraries allocate their own memory on first use
    images = make_tokens(count)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = peak_bytes()
    VARIANTS[name](images)
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
