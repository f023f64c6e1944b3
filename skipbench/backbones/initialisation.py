"""The initialisation of "Cutting the Skip" (arXiv:2510.00345, §5), for training without skips.

    values, output   W_V = c·U, W_O = c·Vᵀ   from the SVD of a Gaussian matrix (§5.1): their product
                                             is c² times an orthogonal matrix
    queries, keys    W_Q W_Kᵀ = αZ + βI      with Z_ij ~ N(0, 1/d) (eq. 11): attention starts near
                                             the identity instead of the uniform matrix
    MLP              uniform orthogonal, scaled to keep the size of its input (Martens et al., 2021)

The paper writes x W; torch's Linear stores Wᵀ. It leaves open how eq. 11 is shared between heads:
"per-head" gives each head its own Z and the best approximation its rank allows (as in mimetic
initialisation, Trockman & Kolter, 2023); "joint" makes the sum over heads exactly αZ + βI.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

Factoring = Literal["per-head", "joint"]


@dataclass(frozen=True)
class SkiplessInit:
    alpha: float
    beta: float
    c: float
    factoring: Factoring = "per-head"

    def __str__(self) -> str:
        return f"skipless({self.factoring}, alpha={self.alpha}, beta={self.beta}, c={self.c})"


VIT_S_DINO = SkiplessInit(alpha=1.8, beta=1.0, c=3.0)
VIT_B_SUPERVISED = SkiplessInit(alpha=2.0, beta=0.6, c=3.0)


def value_and_output(
    width: int, c: float, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """W_V and W_O, (width, width) each, applied from the right as in the paper."""
    gaussian = torch.randn(width, width, generator=generator, dtype=torch.float64)
    u, _, vt = torch.linalg.svd(gaussian)
    return c * u, c * vt


def query_and_key(
    width: int, heads: int, init: SkiplessInit, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """W_Q and W_K, (width, width) each; the columns of one head after those of another."""
    if init.factoring == "joint":
        return _split_evenly(_near_identity(width, init, generator), width)
    pairs = [
        _split_evenly(_near_identity(width, init, generator), width // heads) for _ in range(heads)
    ]
    return torch.cat([q for q, _ in pairs], 1), torch.cat([k for _, k in pairs], 1)


def _near_identity(
    width: int, init: SkiplessInit, generator: torch.Generator | None
) -> torch.Tensor:
    z = torch.randn(width, width, generator=generator, dtype=torch.float64) / math.sqrt(width)
    return init.alpha * z + init.beta * torch.eye(width, dtype=torch.float64)


def _split_evenly(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Q, K of this rank with Q Kᵀ closest to the matrix; each gets the root of the spectrum."""
    u, s, vt = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, vt[:rank].T * root


def scaled_orthogonal(
    rows: int, columns: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """A uniformly random (semi-)orthogonal matrix times max(1, √(rows / columns))."""
    weight = torch.empty(rows, columns, dtype=torch.float64)
    torch.nn.init.orthogonal_(weight, generator=generator)
    return weight * max(1.0, math.sqrt(rows / columns))


@torch.no_grad()
def initialise_skipless(vit: Any, init: SkiplessInit, generator: torch.Generator) -> None:
    """Initialise the blocks of a timm VisionTransformer, but not embeddings, norms and head."""
    for block in vit.blocks:
        attn, mlp = block.attn, block.mlp
        w_q, w_k = query_and_key(vit.embed_dim, attn.num_heads, init, generator)
        w_v, w_o = value_and_output(vit.embed_dim, init.c, generator)
        attn.qkv.weight.copy_(torch.cat([w_q.T, w_k.T, w_v.T]))
        attn.proj.weight.copy_(w_o.T)
        for linear in (mlp.fc1, mlp.fc2):
            rows, columns = linear.weight.shape
            linear.weight.copy_(scaled_orthogonal(rows, columns, generator))
        for linear in (attn.qkv, attn.proj, mlp.fc1, mlp.fc2):
            if linear.bias is not None:
                linear.bias.zero_()
