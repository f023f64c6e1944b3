"""open_model: from what the user typed to a model, whatever its family."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from skipbench.backbones.base import Model
from skipbench.backbones.vit import vit_model
from skipbench.checkpoints import Expected
from skipbench.checkpoints.files import read_config, read_file
from skipbench.checkpoints.read import as_checkpoint
from skipbench.checkpoints.timm_hub import is_plain, open_timm, timm_of_folder
from skipbench.errors import UsageError
from skipbench.files import INDEX
from skipbench.records import IMAGENET, PositionRule, Preprocess, Residual, RopeKeys
from skipbench.sources import Given, ModelSource, source_of

# transformers' plain vision transformers, which skipbench runs itself, with or without residuals.
PLAIN = ("vit", "deit", "dinov2", "dinov2_with_registers", "vit_mae")


def open_model(
    source: str | Path,
    *,
    residual: Residual | None = None,
    weights: str | None = None,
    expected: Expected | None = None,
    position_rule: PositionRule | None = None,
    preprocess: Preprocess = "model",
    rope_keys: RopeKeys = "before",
) -> Model:
    expected = expected or Expected()
    given = source.model if isinstance(source, Given) else None
    where = source_of(source)
    name = where.title
    if where.kind == "hf" and where.path is None:
        from skipbench.backbones.hf_model import fetch

        where = replace(where, path=fetch(where.name))
    model = _opened(where, name, given, residual, weights, expected, position_rule, rope_keys)
    if rope_keys == "after" and model.facts.rope_keys is None:
        raise UsageError(
            f"--rope-keys after: {model.facts.name} ({model.facts.layout}) has no rotary positions"
        )
    if position_rule and model.facts.position_rule is None:
        raise UsageError(
            f"--position-rule {position_rule}: {model.facts.name} ({model.facts.layout}) resamples "
            "its positions by itself"
        )
    if preprocess == "imagenet":
        sources = {**model.facts.sources, "preprocessing": "--preprocess imagenet"}
        model = replace(model, facts=replace(model.facts, preprocessing=IMAGENET, sources=sources))
    return model


def _opened(
    where: ModelSource,
    name: str,
    given: Any,
    residual: Residual | None,
    weights: str | None,
    expected: Expected,
    position_rule: PositionRule | None,
    rope_keys: RopeKeys,
) -> Model:
    where.ensure_exists()
    opened = None
    if where.kind == "python":
        from skipbench.backbones.own_model import own_model

        return own_model(where.name, given, expected, residual)
    if where.kind == "timm":
        opened = open_timm(where)
    elif where.path:
        folder = where.path if where.path.is_dir() else where.path.parent
        in_folder = folder == where.path or where.path.name.endswith(INDEX)
        config = read_config(folder) if in_folder else {}
        if "architecture" in config:
            opened = timm_of_folder(where.path, config)
        elif "model_type" in config and not _is_plain(config):
            from skipbench.backbones.hf_model import transformers_model

            return transformers_model(folder, name, expected, rope_keys)
    if opened and not is_plain(opened.module):
        from skipbench.backbones.timm_model import timm_model

        return timm_model(opened, name, weights, expected, rope_keys)
    assert opened or where.path, "a file"
    raw = opened.raw if opened else read_file(where.path)  # type: ignore[arg-type]
    return vit_model(as_checkpoint(raw, name, weights, expected, position_rule))


def _is_plain(config: Mapping[str, Any]) -> bool:
    return config["model_type"] in PLAIN and config.get("hidden_act", "gelu") == "gelu"
