"""The graphs that TokenCut cuts: tokens are linked where their cosine exceeds τ.

An affinity matrix has two values, 1 between linked tokens and ε elsewhere. It is kept as its links
alone, a byte each: A = ε + (1 − ε) · links. Products with such a matrix are exact to the last bits
of float64 and yet cost little: a vector is cut into short whole numbers, the digits of fixed-point
numbers, whose sums over a row int8 or float32 arithmetic holds exactly.
"""

from copy import copy
from functools import cache

import torch
import torch.nn.functional as F

ROWS = 600  # of a graph at a time: what is above the diagonal is mirrored, half of the work
DIGITS = 7  # of 7 bits: 49 bits, next to the 53 of float64
FLOAT_BITS = 24  # whole numbers up to 2^24 are exact in float32


def link(tokens: torch.Tensor, tau: float) -> torch.Tensor:
    """(graphs, n, n) bool. tokens: (graphs, n, channels); a token is linked to itself, too."""
    graphs, count, _ = tokens.shape
    unit = F.normalize(tokens.float(), dim=-1)
    links = torch.empty(graphs, count, count, dtype=torch.bool, device=tokens.device)
    for i in range(graphs):
        for start in range(0, count, ROWS):
            rows = slice(start, start + ROWS)
            part = unit[i, rows] @ unit[i, start:].T > tau
            square = part[:, : len(part)]
            square |= square.T.clone()  # a cosine within rounding of τ may be two things
            links[i, rows, start:] = part
            links[i, start:, rows] = part.T
    return links


class Graphs:
    """Several graphs of as many tokens each."""

    def __init__(self, links: torch.Tensor, eps: float, exact: str | None = None) -> None:
        """links: (graphs, n, n) bool, symmetric; exact: by "int8" or "float32", else the faster."""
        self.links, self.eps = links, eps
        self.numbers = list(range(len(links)))  # those of the links that are meant
        self.exact = exact or ("int8" if links.device.type == "cpu" and has_int8() else "float32")
        whole = links.new_ones(links.shape[:2], dtype=torch.float64)
        self.neighbours = self.sums(whole[:, None])[:, 0]  # of each token
        self.degrees = self.affine(whole[:, None])[:, 0]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def tokens(self) -> int:
        return self.links.shape[1]

    def only(self, which: torch.Tensor) -> "Graphs":
        """Some of them; the links, which are large, are not copied. which: (graphs,) bool."""
        part = copy(self)
        part.numbers = [i for i, one in zip(self.numbers, which.tolist(), strict=True) if one]
        part.neighbours, part.degrees = self.neighbours[which], self.degrees[which]
        return part

    def affine(self, x: torch.Tensor) -> torch.Tensor:
        """x A. x: (graphs, vectors, n) float64."""
        return self.eps * x.sum(-1, keepdim=True) + (1 - self.eps) * self.sums(x)

    def sums(self, x: torch.Tensor) -> torch.Tensor:
        """Of each vector, for each token, the sum over its neighbours. x, and the answer:
        (graphs, vectors, n) float64."""
        largest = x.abs().amax(-1, keepdim=True)
        exponent = torch.frexp(largest).exponent  # |x| ≤ 2^exponent
        x = torch.ldexp(x, -exponent)
        x = self._sums_int8(x) if self.exact == "int8" else self._sums_float32(x)
        return torch.ldexp(x, exponent)

    def _sums_int8(self, x: torch.Tensor) -> torch.Tensor:
        """x: at most 1."""
        parts, values = digits(x, 7, DIGITS)
        parts = parts.to(torch.int8).flatten(1, 2)
        links = self.links.view(torch.int8)
        pairs = zip(parts, self.numbers, strict=True)
        summed = [torch._int_mm(some, links[number]) for some, number in pairs]
        return together(torch.stack(summed), values, x)

    def _sums_float32(self, x: torch.Tensor) -> torch.Tensor:
        """The same on any device."""
        bits = min(11, FLOAT_BITS - self.tokens.bit_length() + 1)
        parts, values = digits(x, bits, -(-7 * DIGITS // bits))
        whole = len(self) == len(self.links)
        links = self.links if whole else self.links[self.numbers]
        summed = parts.float().flatten(1, 2) @ links.float()
        return together(summed, values, x)


def digits(x: torch.Tensor, bits: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(…, vectors, count, n) whole numbers from −2^(bits−1) to 2^(bits−1), and the value of each
    place, so that x is their sum. x: (…, vectors, n), at most 1."""
    places = torch.arange(count, dtype=torch.float64, device=x.device)
    scale = torch.exp2(bits - 1 + bits * places)[:, None]
    rounded = torch.round(x[..., None, :] * scale)
    rounded[..., 1:, :] -= 2.0**bits * rounded[..., :-1, :]
    return rounded, 1 / scale[:, 0]


def together(summed: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums of digits → sums of x. summed: (graphs, vectors · digits, n)."""
    by_place = summed.to(torch.float64).unflatten(1, (x.shape[1], len(values)))
    return torch.matmul(values, by_place)


@cache
def has_int8() -> bool:
    """Whether this build of torch multiplies int8 on the CPU, by a library and not by loops."""
    return hasattr(torch, "_int_mm") and torch.backends.mkldnn.is_available()
