"""What a classification reports: accuracies with intervals, chance, the rates, arrays by image."""

import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from skipbench.evaluations.classify import baseline_words
from skipbench.evaluations.classify.linear import Classifiers
from skipbench.evaluations.classify.method import accuracy, accuracy_by_class
from skipbench.metrics.intervals import RESAMPLES, resample_weights
from skipbench.metrics.means import counts_of, mean_percent

log = logging.getLogger("skipbench")

TOP = 5
NEAR = 0.05  # of the way from chance to 100 %


def figures(ranks: np.ndarray, classes: int, weights: np.ndarray) -> dict[str, Any]:
    """ranks: of the true class, by image; weights: resamples of the images."""
    value, ends = mean_percent(counts_of((ranks == 0).astype(float)), weights)
    return {
        "top1": value,
        "interval": ends if len(ranks) > 1 else None,
        "top5": accuracy(ranks, TOP) if classes > TOP else None,
    }


def resamples(images: int) -> np.ndarray:
    return resample_weights(images, RESAMPLES, seed=0)


def by_class(ranks: np.ndarray, truth: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    found = accuracy_by_class(ranks, truth, len(names))
    percent = [None if np.isnan(share) else float(share) for share in found]
    return {
        "mean_accuracy": float(np.nanmean(found)),
        "per_class": dict(zip(names, percent, strict=True)),
    }


def baselines(top1: float, truth: np.ndarray, labels: np.ndarray, classes: int) -> dict[str, Any]:
    """What anyone reaches without looking. labels: of the training images."""
    most_frequent = np.bincount(labels, minlength=classes).argmax()
    chance, majority = 100 / classes, 100 * float((truth == most_frequent).mean())
    floor = max(chance, majority)
    return {
        "chance": chance,
        "majority": majority,
        "near_chance": top1 < floor + NEAR * (100 - floor),
        "unseen": int((~np.isin(truth, labels)).sum()),
    }


def knn_metrics(
    ranks: np.ndarray, truth: np.ndarray, labels: np.ndarray, names: Sequence[str]
) -> dict[str, Any]:
    found = figures(ranks, len(names), resamples(len(truth)))
    return {
        "headline": "top1",
        **found,
        **by_class(ranks, truth, names),
        **baselines(found["top1"], truth, labels, len(names)),
    }


def linear_metrics(
    made: Classifiers,
    ranks: np.ndarray,
    held_out: np.ndarray | None,
    truth: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    select: Literal["val", "holdout"],
) -> dict[str, Any]:
    """ranks: (rates, images) of the classifiers trained on all images; held_out: (rates, held-out
    training images) of those that have not seen them."""
    weights = resamples(len(truth))
    rows: list[dict[str, Any]] = [
        {
            "rate": rate,
            "loss": made.loss[i],
            **figures(ranks[i], len(names), weights),
            "holdout_top1": None if held_out is None else accuracy(held_out[i], 1),
        }
        for i, rate in enumerate(made.rates)
    ]
    chosen = {"val": _best(rows, "top1"), "holdout": _best(rows, "holdout_top1")}
    where = select if chosen[select] is not None else "val"
    index = chosen[where]
    assert index is not None  # else nothing was trained
    choices = {
        place: None
        if i is None
        else {key: rows[i][key] for key in ("rate", "top1", "interval", "top5")}
        | {"edge": _edge(made.rates, i)}
        for place, i in chosen.items()
    }
    row = rows[index]
    return {
        "headline": "top1",
        **{key: row[key] for key in ("top1", "interval", "top5")},
        **by_class(ranks[index], truth, names),
        **baselines(row["top1"], truth, labels, len(names)),
        "rate": row["rate"],
        "edge": _edge(made.rates, index),
        "selected_on": where if len(rows) > 1 else None,
        "chosen": choices if len(rows) > 1 else {},
        "rates": rows,
    }


def _best(rows: Sequence[dict[str, Any]], name: str) -> int | None:
    """The first of the best; None if none was measured."""
    known = [i for i, row in enumerate(rows) if row.get(name) is not None]
    return max(known, key=lambda i: (rows[i][name], -i), default=None)


def _edge(rates: Sequence[float], index: int) -> str | None:
    """Whether a rate beyond the sweep might be better."""
    if len(rates) < 2 or rates[index] not in (min(rates), max(rates)):
        return None
    return "highest" if rates[index] == max(rates) else "lowest"


def image_arrays(ranks: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """`counts` are for comparisons."""
    return {
        "counts": counts_of((ranks == 0).astype(float)),
        "ranks": ranks.astype(np.int32),
        "predicted": predicted.astype(np.int32),
    }


def linear_arrays(
    made: Classifiers, ranks: np.ndarray, predicted: np.ndarray, metrics: dict[str, Any]
) -> dict[str, np.ndarray]:
    """(rates, images) each; with the classifier of the headline."""
    rates = list(made.rates)
    index = rates.index(metrics["rate"])
    weight, bias = made.head(index)
    kept = image_arrays(ranks[index], predicted[index])
    kept |= {"weight": weight.cpu().numpy(), "bias": bias.cpu().numpy()}
    for where, choice in metrics["chosen"].items():
        if choice:
            hits = ranks[rates.index(choice["rate"])] == 0
            kept[f"counts_{where}"] = counts_of(hits.astype(float))
    return kept


def warn_of_chance(metrics: dict[str, Any], what: str, name: str) -> None:
    """name: of the checkpoint."""
    log.warning(
        "%s: top-1 %.1f is near chance (%s).\nIs %s trained, and loaded as what it is? "
        "See skipbench inspect", what, metrics["top1"], baseline_words(metrics), name,
    )  # fmt: skip
