"""A second forward pass, written out matrix by matrix from the original checkpoint's keys.

Nothing here comes from skipbench, timm or torch.nn: it is what the package is compared with.
"""

import math

import numpy as np
import torch


def bicubic_weights(old, new, rule):
    """(new, old): how much each old sample counts for each new one, as torch defines its rules."""
    scale = (new + 0.1) / old if rule == "offset" else new / old
    widen = max(1.0, 1 / scale) if rule == "antialias" else 1.0
    a = -0.5 if rule == "antialias" else -0.75

    def kernel(t):
        t = abs(t)
        if t <= 1:
            return ((a + 2) * t - (a + 3)) * t * t + 1
        return (((t - 5) * t + 8) * t - 4) * a if t < 2 else 0.0

    weights = np.zeros((new, old))
    for i in range(new):
        centre = (i + 0.5) / scale - 0.5
        for j in range(math.floor(centre - 2 * widen), math.ceil(centre + 2 * widen) + 1):
            weight = kernel((j - centre) / widen)
            if rule == "antialias":
                if 0 <= j < old:
                    weights[i, j] += weight  # outside there is nothing; normalised below
            else:
                weights[i, min(max(j, 0), old - 1)] += weight  # outside the border repeats
    return weights / weights.sum(1, keepdims=True)


def positions(pos_embed, new_hw, rule, prefix=1):
    """(1, prefix + old², d) → class part, (new h · new w, d)."""
    special, grid = pos_embed[0, :prefix].double(), pos_embed[0, prefix:].double()
    side = math.isqrt(len(grid))
    if (side, side) == tuple(new_hw):
        return special, grid
    rows = torch.from_numpy(bicubic_weights(side, new_hw[0], rule))
    columns = torch.from_numpy(bicubic_weights(side, new_hw[1], rule))
    grid = torch.einsum("ij,kl,jld->ikd", rows, columns, grid.view(side, side, -1))
    return special, grid.reshape(new_hw[0] * new_hw[1], -1)


def layer_norm(x, weight, bias, eps=1e-6):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (variance + eps).sqrt() * weight + bias


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def forward(state, image, *, residual, heads, rule="offset"):
    """One image (3, H, W) → for each block, its tensors (class, registers and patches, d), float64.

    `state` has DINO's or DINOv2's original keys.
    """
    w = {key: value.double() for key, value in state.items()}
    kernel = w["patch_embed.proj.weight"]
    d, patch = kernel.shape[0], kernel.shape[-1]
    h, wd = image.shape[1] // patch, image.shape[2] // patch
    rows = []
    for y in range(h):
        for x in range(wd):
            piece = image.double()[:, y * patch : (y + 1) * patch, x * patch : (x + 1) * patch]
            rows.append((kernel * piece).sum((1, 2, 3)) + w["patch_embed.proj.bias"])
    class_position, grid_positions = positions(state["pos_embed"], (h, wd), rule)
    tokens = torch.stack(rows) + grid_positions
    special = [w["cls_token"][0] + class_position]
    if "register_tokens" in w:
        special.append(w["register_tokens"][0])
    x = torch.cat([*special, tokens])
    depth = 1 + max(int(key.split(".")[1]) for key in w if key.startswith("blocks."))
    out = []
    for i in range(depth):
        p = {
            key.split(".", 2)[2]: value
            for key, value in w.items()
            if key.startswith(f"blocks.{i}.")
        }
        given = {}
        y = layer_norm(x, p["norm1.weight"], p["norm1.bias"])
        qkv = y @ p["attn.qkv.weight"].T + p["attn.qkv.bias"]
        q, k, v = qkv[:, :d], qkv[:, d : 2 * d], qkv[:, 2 * d :]
        given.update(queries=q, keys=k, values=v)
        mixed = torch.zeros_like(q)
        width = d // heads
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            logits = q[:, part] @ k[:, part].T / math.sqrt(width)
            weights = (logits - logits.max(1, keepdim=True).values).exp()
            mixed[:, part] = (weights / weights.sum(1, keepdim=True)) @ v[:, part]
        y = mixed @ p["attn.proj.weight"].T + p["attn.proj.bias"]
        y = y * p["ls1.gamma"] if "ls1.gamma" in p else y
        x = x + y if residual == "skip" else y
        y = layer_norm(x, p["norm2.weight"], p["norm2.bias"])
        if "mlp.w12.weight" in p:
            hidden = y @ p["mlp.w12.weight"].T + p["mlp.w12.bias"]
            gate, value = hidden.chunk(2, dim=-1)
            y = (gate / (1 + (-gate).exp()) * value) @ p["mlp.w3.weight"].T + p["mlp.w3.bias"]
        else:
            y = gelu(y @ p["mlp.fc1.weight"].T + p["mlp.fc1.bias"])
            y = y @ p["mlp.fc2.weight"].T + p["mlp.fc2.bias"]
        y = y * p["ls2.gamma"] if "ls2.gamma" in p else y
        x = x + y if residual == "skip" else y
        given["tokens"] = x
        given["tokens_norm"] = layer_norm(x, w["norm.weight"], w["norm.bias"])
        out.append(given)
    return out
