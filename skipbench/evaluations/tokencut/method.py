"""TokenCut (Wang et al. 2022): the object is one side of a normalised cut through its tokens.

    graph      tokens whose cosine exceeds τ are linked by 1, all others by ε
    cut        second smallest eigenvector y of (D − A) y = λ D y
    seed       the token with the largest |y|; y is turned so that it is positive there
    side       y > mean(y); the published code flips both instead, with the same result
    object     the 4-connected part of that side that holds the seed

Implementations disagree in ties. Here y is scaled so that its largest entry is 1, and these rules
apply:

    entries within 1e-7 of the largest are equal: the first of them, row by row, is the seed
    entries within 1e-7 of the mean are not on the seed's side
    if all pairs are linked, or none, or λ2 = λ3 within 1e-9, no cut is better than all others: the
    image is degenerate. The object is then the whole image, and scored as a miss; in the published
    code it is what rounding leaves of the eigenvector.

LOST (Siméoni et al. 2021): the object grows from the token that resembles the fewest others.

    graph      tokens with a positive inner product are linked
    seed       the token with the fewest neighbours; of several, the first, row by row
    expansion  among the 100 tokens with the fewest neighbours, those linked to the seed; of
               several with as many neighbours as the 100th, the first, row by row
    object     tokens whose inner products with these sum to more than 0: the 4-connected part of
               them that holds the seed

Where every token resembles every other, none stands out: the image is degenerate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from scipy import ndimage

from skipbench.errors import NumbersError, UsageError
from skipbench.evaluations.tokencut.graph import CHECKS, SAME, SMALL, Graphs, link, second_vectors
from skipbench.evaluations.tokencut.settings import EPS, TAU

TIE = 1e-7
# Links of the graphs that are cut together; on a CPU they fit its cache.
BYTES_ON_CPU, BYTES_ON_GPU = 16_000_000, 256_000_000
EXPANSION = 100

# small: a dense solver because of few tokens; none: nothing to solve
Solver = Literal["iterative", "dense", "small", "none"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)


@dataclass(frozen=True)
class Found:
    """One object, on the grid of tokens."""

    mask: np.ndarray = field(repr=False)  # (height, width) bool: the 4-connected part of the seed
    map: np.ndarray = field(repr=False)  # (height, width) float64: thresholded; high at the seed
    seed: int  # token, row by row
    solver: Solver = "none"
    degenerate: bool = False  # nothing stands out: the mask is the whole image
    tied: bool = False  # resolved by a rule: equal seeds, tokens on the border, LOST's expansion

    @property
    def tokens(self) -> int:
        return int(self.mask.sum())

    def box(self, stride: int, size_hw: tuple[int, int]) -> tuple[int, int, int, int]:
        """x0, y0, x1, y1 in pixels, half-open; size_hw: of the image before it was padded."""
        rows, columns = (np.flatnonzero(self.mask.any(axis)) for axis in (1, 0))
        height, width = size_hw
        return (
            int(columns[0]) * stride,
            int(rows[0]) * stride,
            min((int(columns[-1]) + 1) * stride, width),
            min((int(rows[-1]) + 1) * stride, height),
        )


def enlarged(grid: np.ndarray, stride: int, size_hw: tuple[int, int]) -> np.ndarray:
    """Every token as a square of pixels, without the padding."""
    return grid.repeat(stride, 0).repeat(stride, 1)[: size_hw[0], : size_hw[1]]


def part_of(mask: np.ndarray, seed: int, rivals: np.ndarray) -> tuple[np.ndarray, bool]:
    """The 4-connected part of a mask that holds the seed, and whether any rival is outside it.

    mask: (height, width) bool; rivals: tokens equal to the seed.
    """
    parts = ndimage.label(mask)[0].ravel()
    mine = parts == parts[seed]
    return mine.reshape(mask.shape), not bool(mine[rivals].all())


def nothing_stands_out(grid_hw: tuple[int, int], solver: Solver = "none") -> Found:
    """The whole image."""
    whole = np.ones(grid_hw, bool)
    return Found(whole, np.zeros(grid_hw), seed=0, solver=solver, degenerate=True)


# -- TokenCut


def tokencut(
    tokens: torch.Tensor,
    grid_hw: tuple[int, int],
    tau: float = TAU,
    eps: float = EPS,
    room: int | None = None,
) -> list[Found]:
    """One object in each image.

    tokens: (images, height · width, channels); room: bytes of links at once.
    """
    found: list[Found] = []
    for some in portions(tokens, grid_hw, room):
        found += cut(Graphs(link(some, tau), eps), grid_hw)
    return found


def portions(
    tokens: torch.Tensor, grid_hw: tuple[int, int], room: int | None = None
) -> Iterator[torch.Tensor]:
    """Batches of images whose links fit into this many bytes."""
    _require_tokens(tokens, grid_hw)
    if room is None:
        room = BYTES_ON_CPU if tokens.device.type == "cpu" else BYTES_ON_GPU
    return iter(tokens.split(max(1, room // tokens.shape[1] ** 2)))


def _require_tokens(tokens: torch.Tensor, grid_hw: tuple[int, int]) -> None:
    height, width = grid_hw
    fits = tokens.ndim == 3 and tokens.shape[1] == height * width
    if not fits or not tokens.numel() or height < 1:
        raise UsageError(
            f"tokens of shape {tuple(tokens.shape)} on a grid of {height}×{width}: "
            "expected (images, height · width, channels), with at least one of each"
        )
    finite = tokens.float().isfinite().flatten(1).all(1)  # links are computed in float32
    if not finite.all():
        raise NumbersError(f"NaN or Inf in the tokens of image {int(finite.int().argmin())}")


def cut(
    graphs: Graphs,
    grid_hw: tuple[int, int],
    checks: Sequence[int] = CHECKS,
    small: int = SMALL,
) -> list[Found]:
    """One object in each graph. checks, small: of the eigen-solver."""
    fewest, most = graphs.neighbours.amin(-1), graphs.neighbours.amax(-1)
    alike = (fewest == graphs.tokens) | (most == 0)  # zero vectors are linked to nothing
    found = [nothing_stands_out(grid_hw)] * len(graphs)
    numbers = (~alike).nonzero()[:, 0].tolist()
    if numbers:
        some = graphs if len(numbers) == len(graphs) else graphs.only(~alike)
        second = second_vectors(some, checks, small)
        direct: Solver = "small" if graphs.tokens <= small else "dense"
        vectors, dense = second.vectors.cpu().numpy(), second.dense.tolist()
        unclear = (second.gaps <= SAME).tolist()
        for i, y, by_lapack, none in zip(numbers, vectors, dense, unclear, strict=True):
            solver: Solver = direct if by_lapack else "iterative"
            found[i] = nothing_stands_out(grid_hw, solver) if none else decide(y, grid_hw, solver)
    return found


def decide(y: np.ndarray, grid_hw: tuple[int, int], solver: Solver = "iterative") -> Found:
    """The object. y: (height · width,), the largest entry ±1."""
    seeds = np.flatnonzero(np.abs(y) >= 1 - TIE)
    seed = int(seeds[0])
    y = y * np.sign(y[seed])
    beyond = y - y.mean()
    mask, apart = part_of((beyond > TIE).reshape(grid_hw), seed, seeds)
    on_the_border = bool((np.abs(beyond) <= TIE).any())
    return Found(mask, y.reshape(grid_hw), seed, solver, tied=apart or on_the_border)


# -- LOST


def lost(
    tokens: torch.Tensor,
    grid_hw: tuple[int, int],
    expansion: int = EXPANSION,
    room: int | None = None,
) -> list[Found]:
    """One object in each image.

    tokens: (images, height · width, channels), not normalised; room: bytes of links at once.
    """
    found = []
    for some in portions(tokens, grid_hw, room):
        neighbours = Graphs(link(some, 0.0), eps=0.0).neighbours
        pairs = zip(some.double(), neighbours, strict=True)
        found += [_grow(image, count, grid_hw, expansion) for image, count in pairs]
    return found


def _grow(
    tokens: torch.Tensor, neighbours: torch.Tensor, grid_hw: tuple[int, int], expansion: int
) -> Found:
    fewest, most = neighbours.amin(), neighbours.amax()
    if fewest == len(tokens) or most == 0:
        return nothing_stands_out(grid_hw)
    few = neighbours.argsort(stable=True)[:expansion]
    seed = int(few[0])
    linked = tokens @ tokens[seed] > 0
    similar = few[linked[few]]
    if not len(similar):  # a zero token
        return nothing_stands_out(grid_hw)
    correlation = (tokens @ tokens[similar].sum(0)).cpu().numpy()
    rivals = (neighbours == fewest).nonzero()[:, 0].cpu().numpy()
    mask, apart = part_of((correlation > 0).reshape(grid_hw), seed, rivals)
    as_last = neighbours == neighbours[few[-1]]
    some_outside = int(as_last.sum()) > int(as_last[few].sum())
    tied = apart or (some_outside and bool((as_last & linked).any()))
    return Found(mask, correlation.reshape(grid_hw), seed, tied=tied)
