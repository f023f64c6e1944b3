"""The graphs that TokenCut cuts: tokens are linked where their cosine exceeds τ.

An affinity matrix has two values, 1 between linked tokens and ε elsewhere. Only the links are
stored, a byte each: A = ε + (1 − ε) · links. Products with such a matrix are exact to the last bits
of float64 and still cheap: a vector is split into short integers, the digits of fixed-point
numbers, whose sums over a row are exact in int8 or float32 arithmetic.

The normalised cut needs the second eigenvector of (D − A) y = λ D y, or, symmetric, of
M u = (1 − λ) u with M = D^-½ A D^-½ and u = D^½ y. The first u is √d, known exactly and projected
out; the second has the largest eigenvalue of the remainder. It is found for many graphs at once in
a block Krylov space, in float64; where that does not converge, by a dense solver.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

ROWS = 300  # of a graph at a time: only what is above the diagonal is computed, then mirrored
BITS = 54  # of a fixed-point number; float64 has 53
TOP_BITS = 0x0080_8080_8080_8080  # of the seven lowest bytes
FLOAT_BITS = 24  # whole numbers up to 2^24 are exact in float32

# Of the eigenvector
SMALL = 128  # tokens up to which a dense solver is as fast
BLOCK = 2  # vectors at a time, so that a double eigenvalue is recognised
CHECKS = (8, 10, 12, 14, 17, 20, 25, 32, 40, 60, 90, 130)  # products between convergence tests
PRECISE = 1e-8  # bound of the error of an entry of y, whose largest is 1
# The third eigenvalue may still move by this many times its residual: of a double eigenvalue, one
# vector may converge a step before the other.
SETTLED = 100
RANDOM_SHARE = 1e-2  # of a random vector in the start vector
SMALL_NORM, ZERO_NORM = 1e-3, 1e-10  # of a new vector; the second is rounding noise
SAME = 1e-9  # eigenvalues this close count as one


def link(tokens: torch.Tensor, tau: float, rows_at_once: int = ROWS) -> torch.Tensor:
    """The edges of each graph: whether the cosine of two tokens exceeds τ.

    tokens: (graphs, n, channels); returns (graphs, n, n) bool, True on the diagonal.
    """
    graphs, count, _ = tokens.shape
    tokens = tokens.float()
    largest = tokens.abs().amax(-1, keepdim=True)
    unit = F.normalize(tokens / largest.clamp(min=torch.finfo(torch.float32).tiny), dim=-1)
    links = torch.empty(graphs, count, count, dtype=torch.bool, device=tokens.device)
    for i in range(graphs):
        for start in range(0, count, rows_at_once):
            rows = slice(start, start + rows_at_once)
            part = unit[i, rows] @ unit[i, start:].T > tau
            square = part[:, : len(part)]
            square |= square.T.clone()  # near τ, rounding may differ between the two halves
            links[i, rows, start:] = part
            links[i, start:, rows] = part.T
    return links


class Graphs:
    """Several graphs with the same number of tokens."""

    def __init__(
        self,
        links: torch.Tensor,
        eps: float,
        exact: str | None = None,
        float_bits: int = FLOAT_BITS,
    ) -> None:
        """links: (graphs, n, n) bool, symmetric; exact: "int8" or "float32", by default the
        faster."""
        self.links, self.eps, self.float_bits = links, eps, float_bits
        self.numbers = list(range(len(links)))  # of these graphs in links
        self.exact = exact or ("int8" if links.device.type == "cpu" and has_int8() else "float32")
        ones = torch.ones(len(links), 1, links.shape[1], dtype=torch.float64, device=links.device)
        self.neighbours = self.sums(ones)[:, 0]  # of each token
        self.degrees = eps * links.shape[1] + (1 - eps) * self.neighbours

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def tokens(self) -> int:
        return self.links.shape[1]

    def only(self, which: torch.Tensor) -> "Graphs":
        """A subset that shares the links. which: (graphs,) bool."""
        part = copy(self)
        part.numbers = [i for i, one in zip(self.numbers, which.tolist(), strict=True) if one]
        part.neighbours, part.degrees = self.neighbours[which], self.degrees[which]
        return part

    def times_affinity(self, x: torch.Tensor) -> torch.Tensor:
        """x A, where A is 1 for linked tokens and ε for others. x: (graphs, vectors, n) float64."""
        return self.sums(x).mul_(1 - self.eps).add_(x.sum(-1, keepdim=True), alpha=self.eps)

    def sums(self, x: torch.Tensor) -> torch.Tensor:
        """For each token, the sum over its neighbours. (graphs, vectors, n) float64, as x."""
        largest = x.abs().amax(-1, keepdim=True)
        unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - BITS)
        whole = torch.round(x / unit)  # up to 2^BITS; exact: the unit is a power of two
        sums = self._sums_int8 if self.exact == "int8" else self._sums_float32
        return sums(whole) * unit

    def _sums_int8(self, whole: torch.Tensor) -> torch.Tensor:
        """The digits are the bytes of an int64, from −128 to 127: with 128 added in every place,
        the bytes are those digits plus 128, and flipping the top bit of each subtracts 128."""
        numbers = whole.mT.to(torch.int64, memory_format=torch.contiguous_format)
        parts = ((numbers + TOP_BITS) ^ TOP_BITS).view(torch.int8)  # (graphs, n, vectors · 8)
        links = self.links.view(torch.int8)
        pairs = zip(self.numbers, parts, strict=True)
        summed = torch.stack([torch._int_mm(links[number], some) for number, some in pairs])
        values = torch.tensor([256.0**place for place in range(8)], dtype=torch.float64)
        return (summed.to(torch.float64).unflatten(-1, (-1, 8)) @ values).mT

    def _sums_float32(self, whole: torch.Tensor) -> torch.Tensor:
        """The same on any device, with digits so short that no sum exceeds what float32 holds."""
        bits = min(11, self.float_bits - self.tokens.bit_length() + 1)
        places = torch.arange(-(-BITS // bits) + 1, dtype=torch.float64, device=whole.device)
        above = torch.round(whole[..., None, :] / torch.exp2(bits * places)[:, None])
        parts = above.clone()
        parts[..., :-1, :] -= 2.0**bits * above[..., 1:, :]
        complete = len(self) == len(self.links)
        links = self.links if complete else self.links[self.numbers]
        summed = parts.float().flatten(1, 2) @ links.float()
        by_place = summed.to(torch.float64).unflatten(1, (whole.shape[1], -1))
        return torch.exp2(bits * places) @ by_place


@cache
def has_int8() -> bool:
    """Whether this build of torch has a fast int8 product on the CPU."""
    return hasattr(torch, "_int_mm") and torch.backends.mkldnn.is_available()


# -- the second eigenvector


@dataclass(frozen=True)
class Second:
    """By graph."""

    vectors: torch.Tensor  # (graphs, n) float64: y, of which the largest entry by magnitude is ±1
    values: torch.Tensor  # (graphs,) λ2
    gaps: torch.Tensor  # (graphs,) λ3 − λ2
    dense: torch.Tensor  # (graphs,) bool: by the dense solver


def second_vectors(graphs: Graphs, checks: Sequence[int] = CHECKS, small: int = SMALL) -> Second:
    """checks: as CHECKS; small: tokens up to which only the dense solver is used."""
    count, n = len(graphs), graphs.tokens
    vectors = graphs.degrees.new_empty(count, n)
    values, gaps = graphs.degrees.new_empty(2, count)
    unsolved = torch.arange(count, device=vectors.device)
    if n > small:
        space = Krylov(graphs, checks[-1])
        for products in filter(lambda products: 8 * products <= n, checks):
            space.grow(products)
            u, value, gap, converged = space.best()
            done = unsolved[converged]
            found = u[converged], value[converged], gap[converged]
            vectors[done], values[done], gaps[done] = found
            unsolved = unsolved[~converged]
            if not len(unsolved):
                break
            space = space.only(~converged) if converged.any() else space
    for i in unsolved.tolist():
        vectors[i], values[i], gaps[i] = _dense(graphs, i)
    y = vectors * graphs.degrees.rsqrt()
    dense = torch.zeros(count, dtype=torch.bool, device=y.device)
    dense[unsolved] = True
    return Second(y / y.abs().amax(-1, keepdim=True), values, gaps, dense)


class Krylov:
    """An orthonormal basis of the block Krylov space of M, for each graph."""

    def __init__(self, graphs: Graphs, most: int) -> None:
        """most: products at most."""
        self.graphs, self.most = graphs, most
        self.root = graphs.degrees.rsqrt()[:, None]
        self._basis, self._images = self._room(len(graphs))  # images: of the basis, under M
        self._basis[:, :1] = F.normalize(1 / self.root, dim=-1)  # the first eigenvector: √d
        self.size = 1
        # The degree of a token correlates with its side; random vectors contain every eigenvector.
        # Degrees alone would find at most one vector of a double eigenvalue.
        start = F.normalize(self._random(), dim=-1).expand(len(graphs), -1, -1).clone()
        start[:, :1] = start[:, :1] * RANDOM_SHARE + F.normalize(1 / self.root**3, dim=-1)
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
        """products: in all."""
        while self.size < BLOCK * products:
            self._add(self._images[:, self.size - BLOCK : self.size])

    def _add(self, new: torch.Tensor) -> None:
        basis = self._basis[:, : self.size]
        least = 0.0
        while least < SMALL_NORM:  # a short remainder is mostly rounding: orthogonalise again
            new = new - (new @ basis.mT) @ basis
            new, lengths = torch.linalg.qr(new.mT)
            left = lengths.diagonal(dim1=1, dim2=2).abs()
            new, least = new.mT, float(left.min())
            if least < ZERO_NORM:  # already in the space
                new = torch.where((left < ZERO_NORM)[..., None], self._random(), new)
        rows = slice(self.size, self.size + BLOCK)
        self._basis[:, rows] = new
        self._images[:, rows] = self.root * self.graphs.times_affinity(self.root * new)
        self.size += BLOCK

    def best(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """u, λ2, λ3 − λ2 and whether they have converged."""
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
