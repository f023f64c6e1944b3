"""The second eigenvector of the normalised cut, for many graphs at once.

Generalised, (D − A) y = λ D y; symmetric, M u = (1 − λ) u with M = D^-½ A D^-½ and u = D^½ y. The
first u is √d, known exactly and kept out; the second belongs to the largest of what remains. It is
found in a block Krylov space, in float64; where that does not converge, by a dense solver.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from skipbench.evaluations.tokencut.graph import Graphs

SMALL = 128  # tokens: a dense solver is as fast
BLOCK = 2  # vectors at a time, so that two equal eigenvalues are seen to be equal
CHECKS = (8, 10, 12, 14, 17, 20, 25, 32, 40, 60, 90, 130)  # products after which it is looked at
PRECISE = 1e-8  # bound of the error of an entry of y, whose largest is 1
# The third eigenvalue may yet move by so many times its residual: of two equal ones, one can be
# found a step before the other.
SETTLED = 100
A_BIT = 1e-2  # of a random vector, in one that is not
LITTLE, NOTHING = 1e-3, 1e-10  # length of what is new in a vector; the second is rounding noise
SAME = 1e-9  # eigenvalues that are no further apart are one


@dataclass(frozen=True)
class Second:
    """By graph."""

    vectors: torch.Tensor  # (graphs, n) float64: y, of which the largest entry by magnitude is ±1
    values: torch.Tensor  # (graphs,) λ2
    gaps: torch.Tensor  # (graphs,) λ3 − λ2
    dense: torch.Tensor  # (graphs,) bool: by the dense solver


def second_vectors(graphs: Graphs, checks: Sequence[int] = CHECKS, small: int = SMALL) -> Second:
    """checks: as CHECKS; small: up to so many tokens, the dense solver alone."""
    count, n = len(graphs), graphs.tokens
    vectors = graphs.degrees.new_empty(count, n)
    values, gaps = graphs.degrees.new_empty(2, count)
    open_ones = torch.arange(count, device=vectors.device)
    if n > small:
        space = Krylov(graphs, checks[-1])
        for products in filter(lambda products: 8 * products <= n, checks):
            space.grow(products)
            u, value, gap, sure = space.best()
            done = open_ones[sure]
            vectors[done], values[done], gaps[done] = u[sure], value[sure], gap[sure]
            open_ones = open_ones[~sure]
            if not len(open_ones):
                break
            space = space.only(~sure) if sure.any() else space
    for i in open_ones.tolist():
        vectors[i], values[i], gaps[i] = _dense(graphs, i)
    y = vectors * graphs.degrees.rsqrt()
    dense = torch.zeros(count, dtype=torch.bool, device=y.device)
    dense[open_ones] = True
    return Second(y / y.abs().amax(-1, keepdim=True), values, gaps, dense)


class Krylov:
    """All that products with M have made of two vectors, orthonormal, for each graph."""

    def __init__(self, graphs: Graphs, most: int) -> None:
        """most: products that will be made."""
        self.graphs, self.most = graphs, most
        self.root = graphs.degrees.rsqrt()[:, None]
        self._basis, self._images = self._room(len(graphs))  # images: of the basis, under M
        self._basis[:, :1] = F.normalize(1 / self.root, dim=-1)  # the first eigenvector: √d
        self.size = 1
        # How many neighbours a token has says much of the side it is on; random vectors have a bit
        # of every eigenvector. Degrees alone would show one of two equal ones at most.
        start = F.normalize(self._random(), dim=-1).expand(len(graphs), -1, -1).clone()
        start[:, :1] = start[:, :1] * A_BIT + F.normalize(1 / self.root**3, dim=-1)
        self._add(start)

    def _room(self, graphs: int) -> torch.Tensor:
        n = self.graphs.tokens
        return self.root.new_empty(2, graphs, 1 + BLOCK * min(self.most, n // 8), n)

    def _random(self) -> torch.Tensor:
        size = (BLOCK, self.graphs.tokens)
        generator = torch.Generator().manual_seed(self.size)
        made = torch.randn(size, dtype=torch.float64, generator=generator)
        return made.to(self.root.device)

    def grow(self, products: int) -> None:
        """Until so many products were made."""
        while self.size < BLOCK * products:
            self._add(self._images[:, self.size - BLOCK : self.size])

    def _add(self, new: torch.Tensor) -> None:
        basis = self._basis[:, : self.size]
        least = 0.0
        while least < LITTLE:  # where little is left, rounding is much of it: once more
            new = new - (new @ basis.mT) @ basis
            new, lengths = torch.linalg.qr(new.mT)
            left = lengths.diagonal(dim1=1, dim2=2).abs()
            new, least = new.mT, float(left.min())
            if least < NOTHING:  # all of it was there
                new = torch.where((left < NOTHING)[..., None], self._random(), new)
        rows = slice(self.size, self.size + BLOCK)
        self._basis[:, rows] = new
        self._images[:, rows] = self.root * self.graphs.affine(self.root * new)
        self.size += BLOCK

    def best(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """u, λ2, λ3 − λ2 and whether these are sure, as far as this space tells."""
        basis, images = self._basis[:, 1 : self.size], self._images[:, 1 : self.size]
        inner = basis @ images.mT
        values, inside = torch.linalg.eigh((inner + inner.mT) / 2)
        two = inside[..., -2:].mT  # the third eigenvector, the second one
        u = two @ basis
        wrong = (two @ images - values[:, -2:, None] * u).norm(dim=-1)
        gap = values[:, -1] - values[:, -2]
        y = self.root[:, 0] * u[:, 1]
        clear = (gap - SETTLED * wrong[:, 0]).clamp(min=1e-300)
        error = wrong[:, 1] / clear * self.root.amax((1, 2)) / y.abs().amax(-1)
        same = (gap < SAME) & (wrong.amax(-1) < SAME)
        return u[:, 1], 1 - values[:, -1], gap, (error < PRECISE) | same

    def only(self, which: torch.Tensor) -> "Krylov":
        part = copy(self)
        part.graphs, part.root = self.graphs.only(which), self.root[which]
        part._basis, part._images = self._room(len(part.graphs))
        part._basis[:, : self.size] = self._basis[which, : self.size]
        part._images[:, : self.size] = self._images[which, : self.size]
        return part


def _dense(graphs: Graphs, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """u, λ2 and λ3 − λ2 by LAPACK."""
    links, root = graphs.links[graphs.numbers[i]], graphs.degrees[i].rsqrt()
    affinity = links.to(root.dtype) * (1 - graphs.eps) + graphs.eps
    values, vectors = torch.linalg.eigh(root[:, None] * affinity * root)
    gap = values[-2] - values[-3] if len(root) > 2 else values.new_tensor(torch.inf)
    return vectors[:, -2], 1 - values[-2], gap
