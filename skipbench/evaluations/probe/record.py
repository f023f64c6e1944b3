"""What a probe reports: scores of every rate, the rates chosen, and arrays by image."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from skipbench.errors import some_of
from skipbench.evaluations.probe.method import Trained
from skipbench.evaluations.segmentation.run import by_class, of_counts
from skipbench.metrics.intervals import RESAMPLES, resample_weights
from skipbench.metrics.segmentation import LEFT_OUT, miou_percent

log = logging.getLogger("skipbench")

HEADLINE = ("miou", "interval", "pixel_accuracy", "mean_accuracy", "weighted_iou")


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
        log.info("classes that occur in no validation mask: %s", some_of(absent))


def metrics(
    trained: Trained,
    counts: np.ndarray,
    held_out: np.ndarray | None,
    names: Sequence[str],
    absent: str = LEFT_OUT,
    select: Literal["val", "holdout"] = "val",
) -> dict[str, Any]:
    """Of one training, for the record.

    counts: (images, rates, 3, classes) on validation images, of heads trained on all images;
    held_out: the same on held-out training images, of heads that have not seen them.
    """
    rates = trained.rates
    weights = resample_weights(len(counts), RESAMPLES, seed=0)  # the same images for every rate
    holdout = _holdout_miou(trained, held_out, absent)
    table = [
        {"rate": rate, "loss": trained.loss[i]}
        | of_counts(counts[:, i], weights, absent)
        | {"holdout_miou": holdout[i]}
        if trained.finite[i]
        else {"rate": rate, "loss": None, "diverged": True, "miou": None}
        for i, rate in enumerate(rates)
    ]
    chosen = {"val": _best(table, "miou"), "holdout": _best(table, "holdout_miou")}
    if chosen[select] is None:
        select = "val"
    index = chosen[select]
    assert index is not None
    row = table[index]
    return {
        "headline": "miou",
        **{key: row[key] for key in HEADLINE},
        "rate": rates[index],
        "selected_on": select if len(rates) > 1 else None,
        "chosen": {
            where: None
            if i is None
            else {key: table[i][key] for key in ("rate", "miou", "interval")}
            | {"edge": _edge(rates, i)}
            for where, i in chosen.items()
        },
        "edge": _edge(rates, index),
        "rates": table,
        **by_class(counts[:, index], names),
    }


def _holdout_miou(
    trained: Trained, held_out: np.ndarray | None, absent: str
) -> Sequence[float | None]:
    """Of each rate; None where its choosing head diverged, or no held-out pixel is labelled."""
    if held_out is None:
        return [None] * len(trained.rates)
    mious = miou_percent(held_out.sum(0, dtype=np.int64), absent)
    known = ~np.isnan(mious) & trained.finite[trained.choosing]
    return [float(miou) if here else None for miou, here in zip(mious, known, strict=True)]


def _best(table: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """The first of the best; None if none was measured."""
    known = [i for i, row in enumerate(table) if row.get(name) is not None]
    return max(known, key=lambda i: (table[i][name], -i), default=None)


def _edge(rates: Sequence[float], index: int) -> str | None:
    """Whether a rate beyond the sweep might be better."""
    if len(rates) < 2 or rates[index] not in (min(rates), max(rates)):
        return None
    return "highest" if rates[index] == max(rates) else "lowest"
