"""Your own model: an object with the protocol, or a module that returns patch tokens.

A module needs a `patch_size` and a `forward(images)` that returns, for each block it gives, tokens
(images, n, channels) or a map (images, channels, height, width). Optional attributes: `mean`,
`std`, `num_prefix_tokens` (before the patch tokens; the first is the class token), and `residual`
("skip" or "skipless").
"""

import copy
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from skipbench.backbones.base import GRID_HW, Backbone, BlockOutputs, Build, Column, Model
from skipbench.backbones.wrapped import OUTPUTS, Wrapped, by_kind, require, wrapped_model
from skipbench.checkpoints import Expected
from skipbench.checkpoints.files import digest_of_tensors
from skipbench.errors import CheckpointError, UsageError, did_you_mean, first_line
from skipbench.images import embedded_photographs
from skipbench.records import IMAGENET, CheckpointFacts, Preprocessing, Residual

SAME = 1e-3  # largest deviation, relative to the largest value, between one image and a batch


class OwnBackbone(Wrapped):
    def __init__(self, module: Any, facts: CheckpointFacts, source: str) -> None:
        self.module = module.eval().requires_grad_(False)
        self.facts, self.source = facts, source
        self.residual = facts.residual or "skip"
        self.device, self.precision = _device(module), "fp32"
        self.prefix = int(getattr(module, "num_prefix_tokens", 0))

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"source": self.source}

    def tokens(
        self, images: torch.Tensor, blocks: Sequence[int], names: Sequence[str]
    ) -> BlockOutputs:
        given = as_list(self.module(images))
        patches, prefix = dict[Column, torch.Tensor](), dict[Column, torch.Tensor]()
        for block in blocks:
            grid, first = self._grid(given[block], images, block)
            for name in names:  # the module alone knows whether there is a final norm
                patches[block, name], prefix[block, name] = grid, first
        return by_kind(patches, prefix, has_class=self.prefix > 0)

    def _grid(
        self, found: Any, images: torch.Tensor, block: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(images, height, width, channels), and the tokens before them."""
        height, width = (side // self.patch for side in images.shape[2:])
        if found.ndim == 4:
            return found.permute(0, 2, 3, 1), found.new_empty((len(found), 0, found.shape[1]))
        if found.shape[1] != self.prefix + height * width:
            raise CheckpointError(
                f"{self.facts.name}: {found.shape[1]} tokens for images of {images.shape[2]}×"
                f"{images.shape[3]} pixels; expected {height}×{width} patches"
                + (f" and {self.prefix} others" if self.prefix else "")
                + ".\nSet `patch_size`, and `num_prefix_tokens` if there are tokens before them."
            )
        return found[:, self.prefix :].unflatten(1, (height, width)), found[:, : self.prefix]


def own_model(name: str, given: Any, expected: Expected, residual: Residual | None) -> Model:
    """given: the function or module; None: import `name`, "module:function"."""
    title = f"python:{name}"
    given = _imported(name, title) if given is None else given
    try:
        ready = isinstance(given, torch.nn.Module | Backbone)
        module = given if ready else given()
    except Exception as error:
        raise CheckpointError(f"{title} raised {_described(error)}") from error
    if isinstance(module, Backbone):
        require(expected, module.facts)
        return Model(module.facts, 0, _copies(module), (module.residual,), module.only_hw)
    if not isinstance(module, torch.nn.Module) or not hasattr(module, "patch_size"):
        raise CheckpointError(
            f"{title} returns {type(module).__name__}; expected a torch.nn.Module with a "
            "`patch_size`,\nor a skipbench Backbone (`skipbench manual extending`)."
        )
    stated = getattr(module, "residual", None)
    if stated not in (None, *get_args(Residual)):
        raise CheckpointError(f"{title}: residual is {stated!r}; expected skip or skipless")
    module = module.eval()
    patch = _patch(module, title)
    trial = embedded_photographs((GRID_HW[0] * patch, GRID_HW[1] * patch))[:2].to(_device(module))
    outputs = _checked_outputs(module, trial, title)
    last = outputs[-1]
    facts = CheckpointFacts(
        name=title,
        sha256=digest_of_tensors(module.state_dict()),
        layout=type(module).__name__,
        weights=None,
        width=last.shape[2] if last.ndim == 3 else last.shape[1],
        depth=len(outputs),
        patch=patch,
        residual=residual or stated or "skip",
        preprocessing=_preprocessing(module, title),
        sources={
            "sha256": "hash of the tensors", "layout": "its class", "width": "its output",
            "depth": "its output", "patch": "its attribute patch_size",
            "residual": _told(module, residual), "preprocessing": "its attributes mean and std",
        },
    )  # fmt: skip
    require(expected, facts)
    backbone = OwnBackbone(module, facts, _source_hash(given, module))
    backbone.measure((trial.shape[2], trial.shape[3]))
    _refuse_odd_behaviour(backbone, trial)
    return wrapped_model(backbone)


def _imported(name: str, title: str) -> Any:
    place, colon, attribute = name.partition(":")
    if not (place and colon and attribute):
        raise UsageError(f"{title}: expected python:MODULE:FUNCTION")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
    try:
        module = importlib.import_module(place)
    except Exception as error:
        raise CheckpointError(f"{title}: importing {place} raised {_described(error)}") from error
    finally:
        sys.path.pop(0)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CheckpointError(
                f"{title}: {place} has no {attribute}.{did_you_mean(part, dir(found))}"
            )
        found = getattr(found, part)
    return found


def _described(error: Exception) -> str:
    """With the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)} ({last.filename}, line {last.lineno})"


def _patch(module: Any, title: str) -> int:
    patch = module.patch_size
    if isinstance(patch, Sequence) and len(set(patch)) == 1:
        patch = patch[0]
    if not isinstance(patch, int) or patch < 1:
        raise CheckpointError(f"{title}: patch_size is {patch!r}; expected a positive integer")
    return patch


def _device(module: torch.nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def _preprocessing(module: Any, title: str) -> Preprocessing:
    try:
        mean, std = (
            tuple(float(c) for c in getattr(module, name, usual))
            for name, usual in (("mean", IMAGENET.mean), ("std", IMAGENET.std))
        )
    except (TypeError, ValueError):
        mean, std = (), ()
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise CheckpointError(f"{title}: `mean` and `std` must be three numbers each")
    return Preprocessing(mean, std)


def _told(module: Any, residual: Residual | None) -> str:
    if residual:
        return "--residual"
    return "its attribute residual" if hasattr(module, "residual") else "not stated"


def _source_hash(given: Any, module: Any) -> str:
    """Of the files that define the function and the module's class."""
    texts = []
    for one in (given, type(module)):
        owner = sys.modules.get(getattr(one, "__module__", None) or type(one).__module__)
        try:
            texts.append(inspect.getsource(owner))  # type: ignore[arg-type]
        except (OSError, TypeError):  # typed in by hand
            texts.append(repr(getattr(one, "__qualname__", type(one).__qualname__)))
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


# -- checks, before anything runs


def as_list(output: Any) -> list[Any]:
    return list(output) if isinstance(output, list | tuple) else [output]


def _checked_outputs(module: Any, images: torch.Tensor, title: str) -> list[torch.Tensor]:
    size = "×".join(map(str, images.shape))
    try:
        with torch.inference_mode():
            outputs = as_list(module(images))
    except Exception as error:
        raise CheckpointError(f"{title}: forward of {size} raised {_described(error)}") from error
    if not outputs:
        raise CheckpointError(f"{title}: forward returns nothing")
    for x in outputs:
        is_tensor = isinstance(x, torch.Tensor)
        if not is_tensor or x.ndim not in (3, 4) or len(x) != len(images):
            what = "×".join(map(str, x.shape)) or "one number" if is_tensor else type(x).__name__
            raise CheckpointError(
                f"{title}: forward of {size} returns {what}; expected tokens (images, n, channels) "
                "or\na map (images, channels, height, width), or a list of these."
            )
        if not x.is_floating_point():
            raise CheckpointError(f"{title}: forward returns {x.dtype}; expected floating point")
    return outputs


def _refuse_odd_behaviour(backbone: OwnBackbone, images: torch.Tensor) -> None:
    """The same images give the same tokens, alone or together."""
    blocks, name = range(backbone.depth), backbone.facts.name
    with torch.inference_mode():
        first, again = (backbone.tokens(images, blocks, OUTPUTS[:1]).patches for _ in range(2))
        alone = [backbone.tokens(one[None], blocks, OUTPUTS[:1]).patches for one in images]
    for column, tokens in first.items():
        scale = float(tokens.abs().max()) or 1.0
        if float((tokens - again[column]).abs().max()) > SAME * scale:
            raise CheckpointError(
                f"{name}: the same images give different tokens on a second pass. Something in its "
                "forward is\nrandom, although the module is in eval mode."
            )
        single = torch.cat([one[column] for one in alone])
        if float((tokens - single).abs().max()) > SAME * scale:
            raise CheckpointError(
                f"{name}: an image's tokens depend on the other images of its batch. Look for a "
                "batch norm\nwithout running statistics, or a reshape that mixes images."
            )


def _copies(backbone: Backbone) -> Build:
    """It stays on its own device."""

    def build(
        facts: CheckpointFacts, residual: Residual, device: torch.device, precision: str
    ) -> Backbone:
        other = copy.copy(backbone)
        other.facts, other.precision = facts, precision
        return other

    return build
