"""What a probe writes down, and what it says aloud."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench import views
from skipbench.evaluations.probe import EVALUATION
from skipbench.evaluations.probe.method import Trained
from skipbench.evaluations.probe.protocols import PROTOCOLS
from skipbench.evaluations.record import changes_from, feature_record, interval_words
from skipbench.images import parse_size, size_name
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.probe.run import ProbeRun
    from skipbench.evaluations.run import Cell

log = logging.getLogger("skipbench")


def determines(run: "ProbeRun", blocks: tuple[int, ...], seed: int) -> dict[str, Any]:
    """All that the number depends on."""
    crops = run.protocol.views != "whole" or run.protocol.window
    return {
        "version": EVALUATION.version,
        "views_version": views.VERSION if crops else None,
        **run.determined_by(blocks),
        "training": run.train_facts and run.train_facts.fingerprint,
        "dataset": run.val_facts.fingerprint,
        "protocol": protocol_part(run),
        "select": run.settings.select,
        "seed": seed,
    }


def protocol_part(run: "ProbeRun") -> dict[str, Any]:
    """However the size was written: "448" and "448x448" are one."""
    return {**run.protocol.facts(), "size": size_name(parse_size(run.protocol.size))}


def changes(run: "ProbeRun") -> dict[str, Any]:
    """The settings that are not those of the protocol whose name it bears: [its own, this]."""
    usual = PROTOCOLS[run.protocol.name]
    its_own = {**usual.facts(), "size": size_name(parse_size(usual.size))}
    return changes_from(its_own, protocol_part(run))


def record(
    run: "ProbeRun",
    cell: "Cell",
    trained: Trained,
    metrics: dict[str, Any],
    seconds: dict[str, float],
) -> Result:
    return feature_record(
        run,
        cell,
        evaluation="probe",
        dataset=run.val_facts,
        training=run.train_facts,
        features=run.val_held.features,
        protocol={
            **protocol_part(run),
            "select": run.settings.select,
            "changes": changes(run),
            "held_out": [run.train.names[i] for i in trained.held_out],
            "interval": interval_words(),
        },
        metrics=metrics,
        seconds=seconds,
    )


def arrays(trained: Trained, counts: np.ndarray, metrics: dict[str, Any]) -> dict[str, np.ndarray]:
    """Counts by image of the heads that are reported, and the head of the headline itself."""
    rates = list(trained.rates)
    index = rates.index(metrics["rate"])
    weight, bias = trained.heads(slice(index, index + 1))
    kept = {
        "counts": counts[:, index],
        "weight": weight.cpu().numpy(),
        "bias": bias.cpu().numpy(),
    }
    for where, choice in metrics["chosen"].items():
        if choice:
            kept[f"counts_{where}"] = counts[:, rates.index(choice["rate"])]
    return kept


def say_what_matters(metrics: dict[str, Any], layers: str) -> None:
    """What a reader of the number should be told."""
    if gone := [f"{row['rate']:g}" for row in metrics["rates"] if row.get("diverged")]:
        log.warning("%s: rate %s ended in NaN or Inf", layers, ", ".join(gone))
    if absent := metrics["absent_classes"]:
        some = ", ".join(absent[:6]) + (" …" if len(absent) > 6 else "")
        log.info("%d classes do not occur in the validation masks: %s", len(absent), some)
