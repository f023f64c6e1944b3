"""Principal components of tokens, and the colours they are shown in.

x: tokens, m: their mean. The components are the eigenvectors of the covariance
Σ (x − m)(x − m)ᵀ / (n − 1), those of the largest variance first. That matrix is as wide as a token,
however many tokens there are: it is summed up in float64, image by image, and solved exactly.

What makes two pictures comparable:
    sign        the loading of the largest magnitude is positive; with a fit per image, from the
                second image on, the sign agrees with the image before (where two loadings are
                nearly as large, the first rule would flip between similar images)
    alignment   scores B are rotated onto scores A by the orthogonal R that minimises |B R − A|
                (Procrustes): R = U Vᵀ, where U S Vᵀ is the SVD of Bᵀ A
    colours     from the 1st to the 99th percentile of each component
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from skipbench.engine.machine import one_thread
from skipbench.evaluations.pca.settings import Upsample
from skipbench.evaluations.segmentation.tokens import Grid

LOW, HIGH = 1, 99  # percentiles of the scores that colours span
FLAT = 0.5  # the colour of a component that does not vary
SLABS = 4  # of columns: only the upper triangle of the scatter matrix is computed
ROUNDING = 1e-5  # deviation relative to the norm: below it, tokens are all alike (see health.py)
RANK = 1e-12  # variance relative to the largest: below it, a direction is rounding noise,
FLOAT32 = 2.0**-23  # and so is a deviation below this share of the mean
TIED = 1e-9  # loadings whose magnitudes are as close as that count as equal


class Moments:
    """Number, mean and covariance of tokens, accumulated in constant memory."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        kind = {"dtype": torch.float64, "device": device}
        self.count = 0
        self._shift: Tensor | None = None  # near the mean: large means would cost digits
        self._sum = torch.zeros(width, **kind)  # type: ignore[call-overload]
        self._upper = torch.zeros(width, width, **kind)  # type: ignore[call-overload]

    def add(self, tokens: np.ndarray | Tensor) -> None:
        """tokens: (tokens, width), of any precision."""
        if not len(tokens):
            return
        values = _in_torch(tokens).to(self._sum.device).to(torch.float64, copy=True)
        if self._shift is None:
            self._shift = values.mean(0)
        values -= self._shift
        self.count += len(values)
        self._sum += values.sum(0)
        width = len(self._sum)
        step = max(1, -(-width // SLABS))
        for start in range(0, width, step):
            rows = slice(start, start + step)
            self._upper[rows, start:].addmm_(values[:, rows].T, values[:, start:])

    def mean(self) -> np.ndarray:
        """(width,)"""
        if self._shift is None:
            return np.zeros(len(self._sum))
        return (self._shift + self._sum / self.count).cpu().numpy()

    def covariance(self) -> np.ndarray:
        """(width, width)"""
        upper = self._upper.triu()
        scatter = upper + upper.triu(1).T
        scatter -= torch.outer(self._sum, self._sum) / max(self.count, 1)
        return (scatter / max(self.count - 1, 1)).cpu().numpy()


def _in_torch(tokens: np.ndarray | Tensor) -> Tensor:
    if isinstance(tokens, Tensor):
        return tokens
    return torch.from_numpy(np.require(tokens, requirements=("C", "W")))  # no views from the end


@dataclass(frozen=True)
class Components:
    mean: np.ndarray = field(repr=False)  # (width,)
    axes: np.ndarray = field(repr=False)  # (width, components); zeros where nothing varies
    variances: np.ndarray = field(repr=False)  # (width,): of all directions, the largest first

    @property
    def explained(self) -> np.ndarray:
        """(components,): shares of the whole variance."""
        total, shares = self.variances.sum(), np.zeros(self.axes.shape[1])
        shares[: len(self.variances)] = self.variances[: len(shares)]
        return shares / total if total > 0 else shares

    @property
    def deviation(self) -> float:
        """Over tokens, root mean square, relative to the norm of their mean."""
        return float(np.sqrt(self.variances.sum()) / max(np.linalg.norm(self.mean), 1e-300))

    def scores(self, tokens: np.ndarray) -> np.ndarray:
        """(tokens, width) → (tokens, components) float64."""
        turned = _in_torch(tokens).double() @ torch.from_numpy(self.axes)  # numpy's takes longer
        return turned.numpy() - self.mean @ self.axes


def principal(moments: Moments, components: int) -> Components:
    """The first components. Those beyond the width, or beyond what varies, are zero."""
    mean, covariance = moments.mean(), moments.covariance()
    with one_thread():
        found = torch.linalg.eigh(torch.from_numpy(covariance))
    variances, axes = (values.numpy()[..., ::-1] for values in found)
    variances = variances.clip(min=0)
    total = variances.sum()
    if total <= ROUNDING**2 * (mean @ mean + total):
        variances = np.zeros_like(variances)
    kept = np.zeros((len(mean), components))
    noise = max(RANK * variances[0], (FLOAT32 * np.linalg.norm(mean)) ** 2)
    places = np.flatnonzero(variances[:components] > noise)
    kept[:, places] = axes[:, places]
    return Components(mean, kept * signs(kept), variances)


def signs(axes: np.ndarray) -> np.ndarray:
    """(components,) of ±1: the largest loading becomes positive; of equal ones the first."""
    sizes = np.abs(axes)
    first = (sizes >= sizes.max(0) * (1 - TIED)).argmax(0)
    return np.where(np.take_along_axis(axes, first[None], 0)[0] < 0, -1.0, 1.0)


def with_signs_of(components: Components, before: np.ndarray) -> Components:
    """With the signs that agree with these axes, of the image before."""
    cosines = (components.axes * before).sum(0)
    return replace(components, axes=components.axes * np.where(cosines < -TIED, -1.0, 1.0))


@dataclass(frozen=True)
class Rotation:
    matrix: np.ndarray  # (components, components), orthogonal
    agreement: float | None  # 0 to 1: how much of the variance becomes the same; None: none varies


def rotation_onto(reference: np.ndarray, scores: np.ndarray) -> Rotation:
    """The rotation of scores onto the reference; both (tokens, components), of the same tokens."""
    a, b = (values - values.mean(0) if len(values) else values for values in (reference, scores))
    size = np.linalg.norm(a) * np.linalg.norm(b)
    if not size > ROUNDING**2 * np.linalg.norm(reference) * np.linalg.norm(scores):
        return Rotation(np.eye(scores.shape[1]), None)
    u, s, vt = np.linalg.svd(b.T @ a)
    return Rotation(u @ vt, float((s.sum() / size) ** 2))


def foreground(scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Bool grids: the side of the first component taken as foreground, as in DINOv2's figures.

    scores: of the first component, (height, width) each, of all images of one fit. The side with
    fewer tokens at the images' borders; in a tie, the smaller one.
    """
    sides = [[one > 0 for one in scores], [one < 0 for one in scores]]

    def at_border(side: list[np.ndarray]) -> tuple[int, int]:
        inside = sum(int(one[1:-1, 1:-1].sum()) for one in side)
        whole = sum(int(one.sum()) for one in side)
        return whole - inside, whole

    chosen = min(sides, key=at_border)
    return chosen if any(one.any() for one in chosen) else [np.ones(s.shape, bool) for s in scores]


def limits(scores: np.ndarray) -> np.ndarray:
    """(tokens, components) → (2, components): the range of scores that colours span."""
    if not len(scores):
        return np.zeros((2, scores.shape[1]))
    return np.percentile(scores, (LOW, HIGH), axis=0)


def colours(scores: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(…, components) → the same shape, 0 to 1; ends: of `limits`."""
    low, high = ends
    varies = high > low
    share = (scores - low) / np.where(varies, high - low, 1.0)
    return np.where(varies, share.clip(0, 1), FLAT)


def resampled(
    values: np.ndarray,
    grid: Grid,
    size_hw: tuple[int, int],
    how: Upsample,
    extent_hw: tuple[float, float] | None = None,
) -> np.ndarray:
    """(height, width, …) of a grid of tokens → (*size_hw, …) over the same image.

    extent_hw: rows and columns that the image covers, if not all (another padded grid).
    """
    for axis in (0, 1):
        whole = extent_hw[axis] if extent_hw else size_hw[axis]
        places = (np.arange(size_hw[axis]) + 0.5) * grid.extent_hw[axis] / whole
        last = grid.size_hw[axis] - 1
        if how == "nearest":
            values = values.take(np.minimum(places.astype(np.int64), last), axis)
            continue
        places = (places - 0.5).clip(0, last)
        low = places.astype(np.int64)
        share = (places - low).astype(values.dtype)
        share = share.reshape([-1 if i == axis else 1 for i in range(values.ndim)])
        high = np.minimum(low + 1, last)
        values = values.take(low, axis) * (1 - share) + values.take(high, axis) * share
    return values
