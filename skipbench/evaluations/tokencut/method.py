"""TokenCut (Wang et al. 2022): the object is one side of a normalised cut through its tokens.

    graph      tokens whose cosine exceeds τ are linked by 1, all others by ε
    cut        second smallest eigenvector y of (D − A) y = λ D y
    seed       the token with the largest |y|; y is turned so that it is positive there
    side       y > mean(y); the published code flips both instead, to the same end
    object     the 4-connected part of that side that holds the seed

Implementations disagree where y does not decide. Here y is scaled so that its largest entry is 1,
and one rule decides:

    entries within 1e-7 of the largest are as large: the first of them, row by row, is the seed
    entries within 1e-7 of the mean are not on the seed's side
    if every pair is linked alike, or λ2 = λ3 within 1e-9, no cut is better than all others: the
    object is the whole image, and the image is counted as degenerate
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from skipbench.evaluations.tokencut.eigenvector import CHECKS, SAME, SMALL, second_vectors
from skipbench.evaluations.tokencut.graph import Graphs, link
from skipbench.evaluations.tokencut.objects import Found, Solver, nothing_stands_out, part_of
from skipbench.evaluations.tokencut.settings import EPS, TAU

TIE = 1e-7
# Links of the graphs that are cut together. On a CPU they stay in its cache.
BYTES_ON_CPU, BYTES_ON_GPU = 16_000_000, 256_000_000


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
    for some in portions(tokens, room):
        found += cut(Graphs(link(some, tau), eps), grid_hw)
    return found


def portions(tokens: torch.Tensor, room: int | None = None) -> Iterator[torch.Tensor]:
    """So many images that the links of their graphs fit into this many bytes."""
    if room is None:
        room = BYTES_ON_CPU if tokens.device.type == "cpu" else BYTES_ON_GPU
    return iter(tokens.split(max(1, room // tokens.shape[1] ** 2)))


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
