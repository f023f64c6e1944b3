"""Any model of timm, through its own `forward_intermediates`."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from skipbench.backbones.base import BlockOutputs, Model
from skipbench.backbones.wrapped import Wrapped, by_kind, require, wrapped_model
from skipbench.checkpoints import Expected
from skipbench.checkpoints.layouts import named_branch, notes_on
from skipbench.checkpoints.read import require_hash
from skipbench.checkpoints.timm_hub import TimmModel, load_into, preprocessing_of
from skipbench.errors import CheckpointError
from skipbench.records import CheckpointFacts, RopeKeys


class TimmBackbone(Wrapped):
    made_as: dict[str, Any]  # name and options
    has_norm = True  # or timm refuses to apply it

    def __init__(self, module: Any, facts: CheckpointFacts) -> None:
        self.module = module.eval().requires_grad_(False)
        self.facts = facts
        self.residual, self.device, self.precision = "skip", torch.device("cpu"), "fp32"
        names = {name.rpartition(".")[2] for name, _ in module.named_parameters()}
        self.has_class = bool(names & {"cls_token", "class_token"})
        known = inspect.signature(module.forward_intermediates).parameters
        has_prefix = "return_prefix_tokens" in known and getattr(module, "num_prefix_tokens", None)
        self._more = {"return_prefix_tokens": True} if has_prefix else {}
        blocks = getattr(module, "blocks", ())
        self.attending = blocks if len(blocks) == facts.depth else ()

    def identity(self) -> dict[str, Any]:
        return super().identity() | self.made_as

    def tokens(
        self, images: torch.Tensor, blocks: Sequence[int], names: Sequence[str]
    ) -> BlockOutputs:
        patches, prefix = {}, {}
        for name in names:
            norm = name == "tokens_norm" and self.has_norm
            found = self.module.forward_intermediates(
                images, indices=list(blocks), norm=norm, stop_early=True, output_fmt="NCHW",
                intermediates_only=True, **self._more,
            )  # fmt: skip
            for block, one in zip(blocks, found, strict=True):
                # Models without other tokens return the map alone.
                grid, others = one if isinstance(one, tuple | list) else (one, None)
                patches[block, name] = grid.permute(0, 2, 3, 1)
                if others is not None:
                    prefix[block, name] = others
        return by_kind(patches, prefix, self.has_class)


def timm_model(
    opened: TimmModel,
    name: str,
    weights: str | None,
    expected: Expected,
    rope_keys: RopeKeys,
) -> Model:
    require_hash(opened.raw, expected, name)
    module, kind = opened.module, type(opened.module).__name__
    if not hasattr(module, "forward_intermediates"):
        raise CheckpointError(f"{name}: timm's {kind} gives no intermediate features")
    role: str | None = None
    notes: tuple[str, ...] = ()
    if opened.of_file:
        branch, others = load_into(module, opened.raw, weights, name)
        role, name = branch.label(others), named_branch(name, branch, others)
        notes = notes_on(branch, others)
    how, native_hw = preprocessing_of(module)
    info = list(module.feature_info)
    strides = [int(one["reduction"]) for one in info]
    heads = {int(m.num_heads) for m in module.modules() if hasattr(m, "num_heads")}
    facts = CheckpointFacts(
        name=name,
        sha256=opened.raw.sha256,
        layout=f"timm {kind}",
        weights=role,
        notes=notes,
        width=int(info[-1]["num_chs"]),
        depth=len(info),
        patch=max(strides),
        heads=heads.pop() if len(heads) == 1 else None,
        rope_keys=rope_keys if getattr(module, "rope", None) is not None else None,
        residual="skip",
        preprocessing=how,
        native_hw=native_hw,
        sources={
            "sha256": opened.raw.sha256_source, "layout": f"timm's {opened.name}",
            "width": "timm", "depth": "timm", "patch": "timm", "heads": "timm",
            "residual": "its architecture", "preprocessing": "timm's data config",
            "native_hw": "timm",
        },
    )  # fmt: skip
    backbone = TimmBackbone(module, facts)
    backbone.made_as = {"timm": opened.name, **opened.options}
    backbone.measure(native_hw)
    try:
        backbone.try_on(native_hw, ("tokens_norm",))
    except AssertionError:
        backbone.has_norm = False
        note = "timm gives its features without the final norm; --no-norm changes nothing"
        backbone.facts = replace(backbone.facts, notes=(*notes, note))
    require(expected, backbone.facts)
    return wrapped_model(backbone)
