"""Other libraries' models, run as they are; a trial image shows what they give."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from skipbench.backbones.base import (
    GRID_HW,
    PROJECTIONS,
    Backbone,
    BlockOutputs,
    Column,
    Model,
)
from skipbench.backbones.projections import Watch, projection_weights
from skipbench.checkpoints import Expected
from skipbench.engine.device import is_out_of_memory
from skipbench.errors import CheckpointError, first_line
from skipbench.records import TENSORS, CheckpointFacts, Residual

OUTPUTS = ("tokens", "tokens_norm")
Shapes = dict[int, tuple[int, int, int]]  # block → height, width, channels


class Wrapped(Backbone):
    """A frozen `torch.nn.Module`. A family implements `tokens`."""

    module: Any
    attending: Iterable[torch.nn.Module] = ()  # its blocks, if each has an attention
    strides: tuple[int, ...] = ()  # by block
    widths: tuple[int, ...] = ()

    def tokens(
        self, images: torch.Tensor, blocks: Sequence[int], names: Sequence[str]
    ) -> BlockOutputs:
        """These blocks' tokens. names: "tokens", "tokens_norm" or both."""
        raise NotImplementedError

    def forward(
        self, images: torch.Tensor, blocks: Sequence[int], tensors: Sequence[str]
    ) -> BlockOutputs:
        names = [name for name in OUTPUTS if name in tensors]
        inside = sorted(set(tensors) - set(names))
        if not inside:
            return self.tokens(images, blocks, names)
        with self._watch(blocks) as watch:
            outputs = self.tokens(images, blocks, names or OUTPUTS[:1])
        split = self._by_kind_of_token(watch.found, outputs, inside)
        return split if not names else BlockOutputs(
            outputs.patches | split.patches,
            outputs.class_token | split.class_token,
            outputs.registers | split.registers,
        )  # fmt: skip

    def _watch(self, blocks: Sequence[int]) -> Watch:
        weights = projection_weights(self.attending)
        return Watch(weights, blocks, self.facts.rope_keys or "before")

    def _by_kind_of_token(
        self, found: Mapping[Column, torch.Tensor], like: BlockOutputs, names: Sequence[str]
    ) -> BlockOutputs:
        """Projections, (images, tokens, channels), on the grids of the blocks' outputs."""
        patches, prefix = {}, {}
        for (block, _), tokens in like.patches.items():
            grid_hw = (tokens.shape[1], tokens.shape[2])
            for name in names:
                values = found[block, name]
                first = values.shape[1] - grid_hw[0] * grid_hw[1]
                patches[block, name] = values[:, first:].unflatten(1, grid_hw)
                prefix[block, name] = values[:, :first]
        return by_kind(patches, prefix, bool(like.class_token))

    def stride(self, block: int) -> int:
        return self.strides[block]

    def width(self, block: int) -> int:
        return self.widths[block]

    def identity(self) -> dict[str, Any]:
        """All of it but the weights."""
        rope_keys = self.facts.rope_keys
        return {"layout": self.facts.layout} | ({"rope_keys": rope_keys} if rope_keys else {})

    # -- what a trial shows

    def measure(self, native_hw: tuple[int, int]) -> None:
        """Find out which sizes it takes, its grids and widths, and which tensors it has."""
        trial_hw = (GRID_HW[0] * self.patch, GRID_HW[1] * self.patch)
        blocks = range(self.depth)
        try:
            shapes = self._shapes(trial_hw)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.only_hw = trial_hw = native_hw
            try:
                shapes = self._shapes(native_hw)
            except Exception as second:
                raise CheckpointError(
                    f"{self.facts.name} ({self.facts.layout}) cannot be run on images of "
                    f"{native_hw[0]}×{native_hw[1]} pixels: {first_line(second)}"
                ) from error
        self.strides = tuple(self._stride(block, shapes[block], trial_hw) for block in blocks)
        self.widths = tuple(shapes[block][2] for block in blocks)
        rotary = {"rope_keys": "--rope-keys"} if self.facts.rope_keys else {}
        sources = {**self.facts.sources, **rotary}
        self.facts = replace(self.facts, width=self.widths[-1], sources=sources)

    def try_on(self, size_hw: tuple[int, int], names: Sequence[str] = OUTPUTS[:1]) -> BlockOutputs:
        """All blocks, for one image of noise."""
        images = torch.rand((1, 3, *size_hw), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            return self.tokens(images.to(self.device), range(self.depth), names)

    def _shapes(self, size_hw: tuple[int, int]) -> Shapes:
        """Also finds out whether each block has queries, keys and values of all its tokens."""
        with self._watch(range(self.depth)) as watch:
            found = self.try_on(size_hw).patches
        whole = [  # not of a window, and not of several at once
            x.ndim == 3
            and len(x) == 1
            and x.shape[1] >= found[block, OUTPUTS[0]][0, ..., 0].numel()
            for (block, _), x in watch.found.items()
        ]
        usable = len(whole) == self.depth * len(PROJECTIONS) and all(whole)
        self.tensors = tuple(t for t in TENSORS if t in OUTPUTS or usable)
        return {block: tuple(x.shape[1:]) for (block, _), x in found.items()}  # type: ignore[misc]

    def _stride(self, block: int, shape: tuple[int, int, int], size_hw: tuple[int, int]) -> int:
        stride = size_hw[0] // shape[0]
        if (stride * shape[0], stride * shape[1]) == size_hw and self.patch % stride:
            raise CheckpointError(
                f"{self.facts.name}: a token of block {block} covers {stride} pixels, but its "
                f"patch_size is {self.patch}; it must be a multiple of every block's"
            )
        if (stride * shape[0], stride * shape[1]) != size_hw:
            raise CheckpointError(
                f"{self.facts.name} ({self.facts.layout}): block {block} has {shape[0]}×{shape[1]} "
                f"tokens for images of {size_hw[0]}×{size_hw[1]} pixels, which is not a grid of "
                "whole pixels"
            )
        return stride


def by_kind(
    patches: dict[Column, torch.Tensor], prefix: Mapping[Column, torch.Tensor], has_class: bool
) -> BlockOutputs:
    """patches: (images, height, width, channels); prefix: (images, other tokens, channels)."""
    first = int(has_class)
    some = {column: x for column, x in prefix.items() if x.shape[1]}
    return BlockOutputs(
        patches,
        {column: x[:, 0] for column, x in some.items() if has_class},
        {column: x[:, first:] for column, x in some.items()},
    )


def wrapped_model(backbone: Wrapped) -> Model:
    """backbone: on the CPU, measured. On each device and in each precision, it is this module."""

    def build(
        facts: CheckpointFacts, residual: Residual, device: torch.device, precision: str
    ) -> Wrapped:
        other = copy.copy(backbone)
        other.facts, other.residual, other.precision = facts, residual, precision
        other.device, other.module = device, backbone.module.to(device)
        return other

    parameters = sum(one.numel() for one in backbone.module.parameters())
    return Model(backbone.facts, parameters, build, (backbone.residual,), backbone.only_hw)


def require(expected: Expected, facts: CheckpointFacts) -> None:
    for fact in ("depth", "width", "patch", "heads"):
        wanted, actual = getattr(expected, fact), getattr(facts, fact)
        if wanted is not None and actual is None:
            raise CheckpointError(f"{facts.name} ({facts.layout}) has no number of {fact}")
        if wanted is not None and wanted != actual:
            raise CheckpointError(f"{facts.name}: expected {fact} {wanted}, but it has {actual}")
