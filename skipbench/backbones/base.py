"""The interface between models and evaluations. Nothing downstream depends on the model family.

A backbone has blocks (the stages of a hierarchical model), each of which outputs patch tokens on a
grid. Images are padded to multiples of `patch`; a block's grid has one token per `stride` pixels,
which for a plain vision transformer is the patch, too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from skipbench.errors import NumbersError, UsageError
from skipbench.records import TENSORS, CheckpointFacts, Preprocessing, Residual

PROJECTIONS = ("queries", "keys", "values")
Column = tuple[int, str]  # block, tensor
GRID_HW = (12, 16)  # patches of a trial image: enough, cheap, and not square
AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class BlockOutputs:
    """Tokens of one batch by kind, for each (block, tensor)."""

    patches: dict[Column, torch.Tensor]  # (images, height, width, channels)
    class_token: dict[Column, torch.Tensor] = field(default_factory=dict)  # (images, channels)
    registers: dict[Column, torch.Tensor] = field(default_factory=dict)  # (images, n, channels)

    def all(self) -> Iterator[tuple[Column, torch.Tensor]]:
        for kind in (self.patches, self.class_token, self.registers):
            yield from kind.items()


class Backbone(ABC):
    """A frozen model on one device. A family implements `forward` and overrides what differs."""

    facts: CheckpointFacts
    residual: Residual
    device: torch.device
    precision: str
    tensors: tuple[str, ...] = TENSORS  # available from every block
    only_hw: tuple[int, int] | None = None  # the only size of images that it takes

    @abstractmethod
    def forward(
        self, images: torch.Tensor, blocks: Sequence[int], tensors: Sequence[str]
    ) -> BlockOutputs:
        """images: as for `__call__`, on the device; blocks: sorted, from 0."""

    @torch.inference_mode()
    def __call__(
        self,
        images: torch.Tensor,  # (images, 3, height, width), normalised, in whole patches
        blocks: Iterable[int] = (-1,),
        tensors: Sequence[str] = ("tokens_norm",),
    ) -> BlockOutputs:
        """One forward pass. Block −1 is the last one."""
        wanted = sorted({self._index(block) for block in blocks})
        self._check_request(images, wanted, tensors)
        images = images.to(self.device)
        with self.autocast():
            outputs = self.forward(images, wanted, tensors)
        if not all(bool(torch.isfinite(value).all()) for _, value in outputs.all()):
            raise NumbersError(self.first_failure(images, outputs))
        return outputs

    @property
    def depth(self) -> int:
        return self.facts.depth

    @property
    def preprocessing(self) -> Preprocessing:
        return self.facts.preprocessing

    @property
    def patch(self) -> int:
        """Images are padded to multiples of it."""
        return self.facts.patch

    def stride(self, block: int) -> int:
        """Pixels per token of this block."""
        return self.patch

    def width(self, block: int) -> int:
        return self.facts.width

    def numbers_per_patch(self, block: int) -> int:
        """Values per tensor that a block outputs for an area of one patch."""
        return self.width(block) * (self.patch // self.stride(block)) ** 2

    def most_numbers_per_patch(self) -> int:
        return max(self.numbers_per_patch(block) for block in range(self.depth))

    def identity(self) -> dict[str, Any]:
        """What features depend on besides the weights and how they are read."""
        return {}

    def adaptation(self, size_hw: tuple[int, int] | None) -> str:
        """For the log: how the model is adapted to images of this size (None: of several)."""
        return ""

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST[self.precision]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def embedding(self, images: torch.Tensor) -> torch.Tensor | None:
        """Patch tokens before the first block, (images, tokens, channels), if there are any."""
        return None

    def block_by_block(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
        """Patch tokens after each block, (images, tokens, channels), finite or not."""
        outputs = self.forward(images, range(self.depth), (self.output,))
        for block in range(self.depth):
            yield outputs.patches[block, self.output].flatten(1, 2)

    @property
    def output(self) -> str:
        """The tensor that is nearest to what a block hands on."""
        return "tokens" if "tokens" in self.tensors else self.tensors[0]

    def first_failure(self, images: torch.Tensor, outputs: BlockOutputs) -> str:
        """The message that names the first output with NaN or Inf."""
        block, tensor = min(c for c, value in outputs.all() if not torch.isfinite(value).all())
        return f"{self.where}: NaN or Inf in block {block} ({tensor})"

    @property
    def where(self) -> str:
        return f"{self.facts.name} ({self.residual}, {self.precision})"

    def _index(self, block: int) -> int:
        if not -self.depth <= block < self.depth:
            raise UsageError(
                f"no block {block}: {self.facts.name} has blocks 0 to {self.depth - 1}"
            )
        return block % self.depth

    def _check_request(
        self, images: torch.Tensor, blocks: Sequence[int], tensors: Sequence[str]
    ) -> None:
        for tensor in tensors:
            if tensor not in TENSORS:
                raise UsageError(f"no tensor {tensor!r}; known: {', '.join(TENSORS)}")
            if tensor not in self.tensors:
                raise UsageError(
                    f"{self.facts.name} ({self.facts.layout}) has no {tensor}; available: "
                    f"{', '.join(self.tensors)}"
                )
        if not blocks or not tensors:
            raise UsageError("no block or no tensor was requested")
        height, width = images.shape[2:]
        if self.only_hw and (height, width) != self.only_hw:
            raise UsageError(
                f"{self.facts.name} ({self.facts.layout}) takes images of "
                f"{self.only_hw[0]}×{self.only_hw[1]} pixels only, not of {height}×{width}: "
                f"use --size {self.only_hw[0]}x{self.only_hw[1]}"
            )
        if height % self.patch or width % self.patch:
            raise UsageError(f"images of {height}×{width} are not whole patches of {self.patch}")


Build = Callable[[CheckpointFacts, Residual, torch.device, str], Backbone]


@dataclass(frozen=True)
class Model:
    """Opened weights, before variant, device and precision are chosen."""

    facts: CheckpointFacts
    parameters: int
    build: Build
    variants: tuple[Residual, ...] = ("skip",)  # that its blocks can be run as
    only_hw: tuple[int, int] | None = None  # the only size of images that it takes

    @property
    def trial_hw(self) -> tuple[int, int]:
        """Size of images to try it on."""
        return self.only_hw or (GRID_HW[0] * self.facts.patch, GRID_HW[1] * self.facts.patch)

    def backbone(
        self, residual: Residual, device: torch.device | str = "cpu", precision: str = "fp32"
    ) -> Backbone:
        return self.build(self.facts, residual, torch.device(device), precision)
