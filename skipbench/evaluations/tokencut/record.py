"""What object discovery writes down, and what it says aloud."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.evaluations.record import (
    changes_from,
    checkpoint_part,
    environment_part,
    interval_words,
    timing_part,
)
from skipbench.evaluations.resume import Arrays
from skipbench.evaluations.tokencut import EVALUATION
from skipbench.evaluations.tokencut.method import SOLVERS
from skipbench.evaluations.tokencut.scores import ious_by_image
from skipbench.evaluations.tokencut.settings import TokencutSettings
from skipbench.features.store import model_part
from skipbench.files import write_csv
from skipbench.images import parse_size, size_name
from skipbench.metrics.intervals import RESAMPLES, resample_weights
from skipbench.metrics.means import (
    SPLITS,
    CrossChosen,
    counts_of,
    cross_chosen,
    mean_percent,
    share_percent,
)
from skipbench.metrics.saliency import max_f_beta_percent
from skipbench.record_store import plain_result
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.tokencut.run import TokencutRun

log = logging.getLogger("skipbench")

HEADLINES = {"boxes": "corloc", "masks": "iou"}
CORNERS = ("xmin", "ymin", "xmax", "ymax")
OTHERS = ("degenerate", "dense", "tied", "f_beta", "max_f_beta", "accuracy")


def determines(run: "TokencutRun") -> dict[str, Any]:
    """All that the number depends on."""
    return {
        "version": EVALUATION.version,
        "model": model_part(run.backbone),
        "features": [list(run.blocks), run.settings.feature],
        "dataset": run.facts.fingerprint,
        "protocol": protocol_part(run.settings, run.kind),
        "select": run.settings.select if len(run.blocks) > 1 else None,
    }


def protocol_part(settings: TokencutSettings, kind: str) -> dict[str, Any]:
    """kind: of what is scored, boxes or masks; τ and ε are TokenCut's alone."""
    tau, eps = settings.threshold, settings.weak_link
    cut = {"tau": tau, "eps": eps} if settings.method == "tokencut" else {}
    return {
        "name": "paper",
        "method": settings.method,
        **cut,
        "feature": settings.feature,
        "size": size_name(parse_size(settings.size)),
        "score": kind,
        "hard": settings.hard if kind == "boxes" else None,
    }


def changes(settings: TokencutSettings, kind: str) -> dict[str, Any]:
    """Settings that differ from the protocol's: [its own, this]."""
    usual = TokencutSettings(ckpt="", dataset="any", method=settings.method)
    return changes_from(protocol_part(usual, kind), protocol_part(settings, kind))


def metrics(run: "TokencutRun", arrays: Arrays, honest: CrossChosen | None) -> dict[str, Any]:
    """arrays: by image, of `gathered`; honest: of `chosen_on_others`."""
    name, blocks = HEADLINES[run.kind], run.blocks
    weights = resample_weights(len(arrays["score"]), RESAMPLES, 0)
    rows = _by_block(arrays, blocks, name, weights)
    best = max(rows, key=lambda row: row[name])
    chosen = {"val": {key: best[key] for key in (name, "interval", "block")}, "holdout": None}
    if honest:
        value, ends = mean_percent(honest.counts, weights)
        often = {str(b): int(n) for b, n in zip(blocks, honest.chosen, strict=True) if n}
        chosen["holdout"] = {name: value, "interval": ends, "block": None, "blocks": often}
    where = run.settings.select if chosen[run.settings.select] else "val"
    figure = chosen[where] or {}
    several = len(blocks) > 1
    return {
        "headline": name,
        **{key: figure[key] for key in (name, "interval", "block")},
        "selected_on": where if several else None,
        "chosen": chosen if several else {},
        "blocks": rows,
        **({} if where == "holdout" else {key: best[key] for key in OTHERS if key in best}),
        "whole_image": float(share_percent(counts_of(arrays["whole_image"]).sum(0))),
    }


def chosen_on_others(arrays: Arrays) -> CrossChosen | None:
    """None of one block, or of too few images. One of which no pixel counts, counts for nothing."""
    if arrays["score"].shape[1] == 1:
        return None
    scores = arrays["score"].astype(np.float64)
    known = ~np.isnan(scores[:, 0])
    honest = cross_chosen(scores[known])
    if honest is None or known.all():
        return honest
    counts = np.zeros((len(scores), 2))
    counts[known] = honest.counts
    return replace(honest, counts=counts)


def _by_block(
    arrays: Arrays, blocks: Sequence[int], name: str, weights: np.ndarray
) -> list[dict[str, Any]]:
    rows = []
    for place, block in enumerate(blocks):
        value, ends = mean_percent(counts_of(arrays["score"][:, place]), weights)
        row = {"block": block, name: value, "interval": ends}
        row["degenerate"] = int(arrays["degenerate"][:, place].sum())
        row["dense"] = int((arrays["solver"][:, place] == SOLVERS.index("dense")).sum())
        row["tied"] = int(arrays["tied"][:, place].sum())
        if name == "iou":
            row |= _mask_figures(arrays, place)
        rows.append(row)
    return rows


def _mask_figures(arrays: Arrays, place: int) -> dict[str, float]:
    curve = arrays["f_beta_curve"][:, place].astype(np.float64)
    curve = curve[~np.isnan(curve[:, 0])]
    summed = np.stack([curve.sum(0), np.full(curve.shape[1], len(curve))], axis=-1)
    return {
        "f_beta": 100 * float(np.nanmean(arrays["f_beta"][:, place])),
        "max_f_beta": float(max_f_beta_percent(summed)),
        "accuracy": 100 * float(np.nanmean(arrays["accuracy"][:, place])),
    }


def record(run: "TokencutRun", found: dict[str, Any]) -> Result:
    protocol = protocol_part(run.settings, run.kind)
    return plain_result(
        id=run.id,
        evaluation="tokencut",
        dataset=run.facts.to_json(),
        training=None,
        checkpoint=checkpoint_part(run.inspection, run.backbone),
        features={
            "layers": run.settings.layers,
            "blocks": run.blocks,
            "tensor": run.settings.feature,
            "size": protocol["size"],
            "precision": run.backbone.precision,
        },
        protocol={
            **protocol,
            "select": run.settings.select,
            "changes": changes(run.settings, run.kind),
            "splits": SPLITS if len(run.blocks) > 1 else None,
            "interval": interval_words(),
        },
        metrics=found,
        environment={**environment_part(run.backbone), "call": run.settings.call()},
        timing=timing_part(run.seconds, len(run.data), run.computed),
        determines=run.determines,
    )


def kept_arrays(
    run: "TokencutRun", arrays: Arrays, found: Mapping[str, Any], honest: CrossChosen | None
) -> Arrays:
    """By image; `counts` of the headline, as comparisons take them."""
    kept = {name: array for name, array in arrays.items() if name != "f_beta_curve"}
    counts = {"val": counts_of(arrays["score"][:, reported(run, found)])}
    if honest:
        counts["holdout"] = honest.counts
    if found["chosen"]:
        kept |= {f"counts_{where}": array for where, array in counts.items()}
    return kept | {"counts": counts[found["selected_on"] or "val"]}


def reported(run: "TokencutRun", found: Mapping[str, Any]) -> int:
    """The place of the block that is best on these images, among those asked for."""
    best = found["chosen"]["val"] if found["chosen"] else found
    return run.blocks.index(best["block"])


def write_table(path: Path, run: "TokencutRun", arrays: Arrays, found: Mapping[str, Any]) -> None:
    """The best block, image by image, for a spreadsheet."""
    place = reported(run, found)
    column = {name: array[:, place] for name, array in arrays.items() if array.ndim > 1}
    if run.kind == "boxes":
        ious = (rows[:, place] for rows in ious_by_image(arrays))
        scores: dict[str, Any] = {
            "hit": column["score"].astype(int),
            "ious": [" ".join(f"{iou:.4f}" for iou in row) for row in ious],
        }
    else:
        names = {"iou": "score", "f_beta": "f_beta", "accuracy": "accuracy"}
        scores = {k: [f"{value:.4f}" for value in column[name]] for k, name in names.items()}
    columns = {
        "image": run.data.names,
        "block": [run.blocks[place]] * len(run.data),
        **{k: [f"{v:g}" for v in side] for k, side in zip(CORNERS, column["boxes"].T, strict=True)},
        **scores,
        "tokens": column["tokens"],
        "solver": [SOLVERS[number] for number in column["solver"]],
        **{flag: column[flag].astype(int) for flag in ("degenerate", "tied")},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, [columns, *zip(*columns.values(), strict=True)])


def so_far(run: "TokencutRun", counts: np.ndarray) -> str:
    """ "CorLoc 54.1", and of several blocks the best one. counts: (blocks, 2), summed over the
    images."""
    scores = share_percent(counts)
    best = int(scores.argmax())
    which = f" (block {run.blocks[best]})" if len(scores) > 1 else ""
    return f"{EVALUATION.metrics[HEADLINES[run.kind]]} {scores[best]:.1f}{which}"


def log_remarks(found: Mapping[str, Any], images: int, settings: TokencutSettings) -> None:
    """What a reader of the number should know."""
    if 2 * (degenerate := found.get("degenerate", 0)) > images:
        log.warning(
            "%d of %d images are degenerate: the score is mostly that of whole images; try "
            "--feature tokens, another --tau or --layers all", degenerate, images,
        )  # fmt: skip
    if settings.select == "holdout" and found["selected_on"] == "val":
        log.warning("too few images to choose a block on some of them: chosen on all")
