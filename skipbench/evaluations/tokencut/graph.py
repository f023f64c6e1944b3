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

ROWS = 300  # of a graph at a time: what is above the diagonal is mirrored, half of the work
BITS = 54  # of a fixed-point number; float64 has 53
TOP_BITS = 0x0080_8080_8080_8080  # of the seven lowest bytes
FLOAT_BITS = 24  # whole numbers up to 2^24 are exact in float32


def link(tokens: torch.Tensor, tau: float, rows_at_once: int = ROWS) -> torch.Tensor:
    """(graphs, n, n) bool. tokens: (graphs, n, channels); a token is linked to itself, too."""
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
            square |= square.T.clone()  # a cosine within rounding of τ may be two things
            links[i, rows, start:] = part
            links[i, start:, rows] = part.T
    return links


class Graphs:
    """Several graphs of as many tokens each."""

    def __init__(
        self,
        links: torch.Tensor,
        eps: float,
        exact: str | None = None,
        float_bits: int = FLOAT_BITS,
    ) -> None:
        """links: (graphs, n, n) bool, symmetric; exact: by "int8" or "float32", else the faster."""
        self.links, self.eps, self.float_bits = links, eps, float_bits
        self.numbers = list(range(len(links)))  # those of the links that are meant
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
        """Some of them; the links, which are large, are not copied. which: (graphs,) bool."""
        part = copy(self)
        part.numbers = [i for i, one in zip(self.numbers, which.tolist(), strict=True) if one]
        part.neighbours, part.degrees = self.neighbours[which], self.degrees[which]
        return part

    def affine(self, x: torch.Tensor) -> torch.Tensor:
        """x A. x: (graphs, vectors, n) float64."""
        return self.sums(x).mul_(1 - self.eps).add_(x.sum(-1, keepdim=True), alpha=self.eps)

    def sums(self, x: torch.Tensor) -> torch.Tensor:
        """Of each vector, for each token, the sum over its neighbours. x, and the answer:
        (graphs, vectors, n) float64."""
        largest = x.abs().amax(-1, keepdim=True)
        unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - BITS)
        whole = torch.round(x / unit)  # up to 2^BITS; exact, for the unit is a power of two
        sums = self._sums_int8 if self.exact == "int8" else self._sums_float32
        return sums(whole) * unit

    def _sums_int8(self, whole: torch.Tensor) -> torch.Tensor:
        """The digits are the bytes of an int64, from −128 to 127: with 128 in every place added,
        the bytes are those digits plus 128, and turning the top bit of each takes 128 away."""
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
    """Whether this build of torch multiplies int8 on the CPU, by a library and not by loops."""
    return hasattr(torch, "_int_mm") and torch.backends.mkldnn.is_available()
