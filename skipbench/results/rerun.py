"""The run of a record once more: with other seeds, or with weights and data elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from skipbench.errors import CheckpointError, DataError, UsageError
from skipbench.evaluations import find_evaluation
from skipbench.evaluations.run import FeatureRun
from skipbench.pipeline import open_run
from skipbench.records import LABELS, TOLD, Result

NEEDED = {"ckpt", "dataset", "layers", "seed"}


def reopen(
    result: Result, *, ckpt: str | Path | None = None, seeds: Sequence[int], **places: Any
) -> FeatureRun:
    """ckpt: new place of the weights, if they moved; places: data_root, out, cache, device, …"""
    evaluation = find_evaluation(result.evaluation)
    if not evaluation.has_seed:
        raise UsageError(f"{result.evaluation} has no seed to change")
    call = dict(result.environment.get("call") or {})
    if not NEEDED <= set(call) <= NEEDED | set(evaluation.settings.options()):
        raise UsageError(
            f"{result.id} lacks its settings, or has those of another version: it cannot be rerun"
        )
    del call["seed"]
    call |= {key: value for key, value in places.items() if value is not None}
    call |= {"seeds": list(seeds), "ckpt": ckpt or call["ckpt"], "layers": [call["layers"]]}
    sources = result.checkpoint.get("sources") or {}
    call["labels"] = {k: result.checkpoint[k] for k in LABELS if sources.get(k) == TOLD}
    run = cast(FeatureRun, open_run(evaluation, evaluation.settings.make(call)))
    _require_same_inputs(result, call["ckpt"], run)
    return run


def _require_same_inputs(result: Result, ckpt: str | Path, run: FeatureRun) -> None:
    found, made = run.backbone.facts.sha256, result.checkpoint["sha256"]
    if found != made:
        raise CheckpointError(
            f"{ckpt}: not the weights of {result.id} (sha256 {found[:12]}…, not {made[:12]}…)"
        )
    for facts, part in ((run.val_facts, result.dataset), (run.train_facts, result.training)):
        if facts and part and facts.fingerprint != part["fingerprint"]:
            raise DataError(f"{facts.name} {facts.split}: not the images or labels of {result.id}")
