"""Queries, keys and values of any model: watched as its attention computes them.

A forward pass runs inside `Watch`, which sees every call of a torch function. The projections are
linear layers whose weights are known; what enters the attention itself has been through the norms
of queries and keys and through rotary positions as well.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from skipbench.backbones.base import PROJECTIONS, Column
from skipbench.records import RopeKeys

# Linear layers by their names within an attention: timm's, then transformers'.
FUSED = ("qkv",)
SINGLE = {
    "queries": ("q_proj", "query", "q"),
    "keys": ("k_proj", "key", "k"),
    "values": ("v_proj", "value", "v"),
}
Weights = Mapping[int, tuple[int, tuple[str, ...]]]  # id of a weight → block, tensors


def projection_weights(blocks: Iterable[torch.nn.Module]) -> Weights:
    """Empty unless each block has exactly one attention of a known form."""
    found: dict[int, tuple[int, tuple[str, ...]]] = {}
    for number, block in enumerate(blocks):
        mine = dict(_of_block(block))
        if sorted(name for names in mine.values() for name in names) != sorted(PROJECTIONS):
            return {}
        found |= {weight: (number, names) for weight, names in mine.items()}
    return found


def _of_block(block: torch.nn.Module) -> Iterator[tuple[int, tuple[str, ...]]]:
    for path, module in block.named_modules():
        name = path.rpartition(".")[2]
        if not isinstance(module, torch.nn.Linear):
            continue
        if name in FUSED:
            yield id(module.weight), PROJECTIONS
        for tensor, names in SINGLE.items():
            if name in names:
                yield id(module.weight), (tensor,)


class Watch(TorchFunctionMode):
    """Collects the projections of some blocks, each (images, tokens, channels), in `found`."""

    def __init__(self, weights: Weights, blocks: Collection[int], rope_keys: RopeKeys) -> None:
        super().__init__()
        self.weights, self.blocks, self.rope_keys = weights, blocks, rope_keys
        self.found: dict[Column, torch.Tensor] = {}
        self._block: int | None = None  # that is being computed

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if func is F.linear:
            weight = args[1] if len(args) > 1 else given["weight"]
            self._block, names = self.weights.get(id(weight), (self._block, ()))
            if self._block in self.blocks:
                parts = result.chunk(len(names), dim=-1) if names else ()
                self.found |= {(self._block, n): x for n, x in zip(names, parts, strict=True)}  # type: ignore[misc]
        elif func is F.scaled_dot_product_attention and self.rope_keys == "after":
            if self._block in self.blocks:
                for name, x in zip(PROJECTIONS, args, strict=False):  # (images, heads, tokens, …)
                    self.found[self._block, name] = x.transpose(1, 2).flatten(2)  # type: ignore[index]
            self._block = None  # a second attention of the block is another one
        return result
