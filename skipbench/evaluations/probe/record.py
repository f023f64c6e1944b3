"""What a probe reports: scores of every rate, the rates chosen, and arrays by image."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from skipbench.evaluations.probe.method import Trained
from skipbench.evaluations.segmentation.scores import by_class, of_counts
from skipbench.metrics.intervals import RESAMPLES, resample_weights
from skipbench.metrics.segmentation import LEFT_OUT, scores

log = logging.getLogger("skipbench")


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


def metrics(
    trained: Trained,
    counts: np.ndarray,
    held_out: np.ndarray | None,
    names: Sequence[str],
    absent: str = LEFT_OUT,
    select: Literal["val", "holdout"] = "val",
) -> dict[str, Any]:
    """All that is said of one training.

    counts: (images, rates, 3, classes) on validation images, of heads trained on all images;
    held_out: the same on held-out training images, of heads that have not seen them.
    """
    rates = trained.rates
    weights = resample_weights(len(counts), RESAMPLES, seed=0)  # the same images for every rate
    table = [
        {"rate": rate, "loss": trained.loss[i]}
        | of_counts(counts[:, i], weights, absent)
        | {"holdout_miou": _miou_of(_chooser(trained, held_out, i), absent)}
        if trained.finite[i]
        else {"rate": rate, "loss": None, "diverged": True, "miou": None}
        for i, rate in enumerate(rates)
    ]
    chosen = {"val": _best(table, "miou"), "holdout": _best(table, "holdout_miou")}
    if chosen[select] is None:
        select = "val"
    index = chosen[select]
    assert index is not None
    return {
        "headline": "miou",
        "miou": table[index]["miou"],
        "interval": table[index]["interval"],
        **{
            name: table[index][name] for name in ("pixel_accuracy", "mean_accuracy", "weighted_iou")
        },
        "rate": rates[index],
        "selected_on": select if len(rates) > 1 else None,
        "chosen": {
            where: None
            if i is None
            else {name: table[i][name] for name in ("rate", "miou", "interval")}
            | {"edge": _edge(rates, i)}
            for where, i in chosen.items()
        },
        "edge": _edge(rates, index),
        "rates": table,
        **by_class(counts[:, index], names),
    }


def _chooser(trained: Trained, held_out: np.ndarray | None, rate: int) -> np.ndarray | None:
    """(images, 3, classes) of the head that has not seen them, unless it has diverged."""
    sound = held_out is not None and trained.finite[trained.choosing][rate]
    return held_out[:, rate] if held_out is not None and sound else None


def _miou_of(held_out: np.ndarray | None, absent: str) -> float | None:
    """None also where no held-out pixel is labelled."""
    miou = np.nan if held_out is None else scores(held_out.sum(0, dtype=np.int64), absent).miou
    return None if np.isnan(miou) else miou


def _best(table: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """The first of the best; None where nothing was measured."""
    known = [i for i, row in enumerate(table) if row.get(name) is not None]
    return max(known, key=lambda i: (table[i][name], -i), default=None)


def _edge(rates: Sequence[float], index: int) -> str | None:
    """Whether a rate beyond the sweep might be better still."""
    if len(rates) < 2 or rates[index] not in (min(rates), max(rates)):
        return None
    return "highest" if rates[index] == max(rates) else "lowest"
