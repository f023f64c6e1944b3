"""What a probe writes down, and what it says aloud."""

import logging
from typing import Any

import numpy as np

from skipbench.evaluations.probe.method import Trained
from skipbench.evaluations.probe.protocols import PROTOCOLS, Protocol
from skipbench.evaluations.record import changes_from, interval_words
from skipbench.images import parse_size, size_name

log = logging.getLogger("skipbench")


def protocol_part(protocol: Protocol) -> dict[str, Any]:
    """What the number depends on, however the size was written: "448" and "448x448" are one."""
    return {**protocol.facts(), "size": size_name(parse_size(protocol.size))}


def recorded(protocol: Protocol, select: str, held_out: list[str]) -> dict[str, Any]:
    """held_out: names of images."""
    part = protocol_part(protocol)
    return {
        **part,
        "select": select,
        "changes": changes_from(protocol_part(PROTOCOLS[protocol.name]), part),
        "held_out": held_out,
        "interval": interval_words(),
    }


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


def log_remarks(metrics: dict[str, Any], layers: str) -> None:
    """Diverged rates and absent classes."""
    if gone := [f"{row['rate']:g}" for row in metrics["rates"] if row.get("diverged")]:
        log.warning("%s: rate %s ended in NaN or Inf", layers, ", ".join(gone))
    if absent := metrics["absent_classes"]:
        some = ", ".join(absent[:6]) + (" …" if len(absent) > 6 else "")
        log.info("%d classes do not occur in the validation masks: %s", len(absent), some)
