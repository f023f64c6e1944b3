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
    timing_part,
)
from skipbench.evaluations.resume import Arrays
from skipbench.evaluations.tokencut import EVALUATION
from skipbench.evaluations.tokencut.objects import SOLVERS
from skipbench.evaluations.tokencut.scores import ious_by_image
from skipbench.evaluations.tokencut.settings import TokencutSettings
from skipbench.features.store import model_part
from skipbench.files import write_csv
from skipbench.images import parse_size, size_name
from skipbench.metrics.intervals import METHOD, RESAMPLES, resample_weights
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
COUNTED = ("degenerate", "dense", "tied")


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
    """arrays: by image, of `_sightings`; honest: of `chosen_on_others`."""
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
        **({} if where == "holdout" else _other_figures(best)),
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


def _other_figures(best: Mapping[str, Any]) -> dict[str, float]:
    """Of the block whose figure it is."""
    names = (*COUNTED, "f_beta", "max_f_beta", "accuracy")
    return {key: best[key] for key in names if key in best}


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
            "interval": f"95 %, bootstrap over images, {RESAMPLES:,} resamples, {METHOD}",
        },
        metrics=found,
        environment={**environment_part(run.backbone), "call": run.settings.call()},
        timing=timing_part(run.seconds, len(run.data), run.computed),
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
    place, of_boxes = reported(run, found), run.kind == "boxes"
    answers = ["hit", "ious"] if of_boxes else ["iou", "f_beta", "accuracy"]
    facts = ["tokens", "solver", "degenerate", "tied"]
    table: list[list[Any]] = [["image", "block", *CORNERS, *answers, *facts]]
    ious = ious_by_image(arrays) if of_boxes else None
    for i, name in enumerate(run.data.names):
        score = float(arrays["score"][i, place])
        if ious is not None:
            answer = [int(score), " ".join(f"{iou:.4f}" for iou in ious[i][:, place])]
        else:
            others = (arrays[key][i, place] for key in ("f_beta", "accuracy"))
            answer = [f"{value:.4f}" for value in (score, *others)]
        box = [f"{corner:g}" for corner in arrays["boxes"][i, place]]
        solver = SOLVERS[arrays["solver"][i, place]]
        flags = [int(arrays[key][i, place]) for key in ("degenerate", "tied")]
        size = int(arrays["tokens"][i, place])
        table.append([name, run.blocks[place], *box, *answer, size, solver, *flags])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, table)


class SoFar:
    """ "CorLoc 54.1", and of several blocks the best one."""

    def __init__(self, run: "TokencutRun", scores: Sequence[np.ndarray]) -> None:
        """scores: by block, of the images that were done before."""
        self.run, self.images = run, 0
        self.total = np.zeros(len(run.blocks))
        for score in scores:
            self.add(score)

    def add(self, score: np.ndarray) -> str:
        """score: by block, of one more image; NaN where it has none."""
        self.images += not np.isnan(score).any()
        self.total += np.nan_to_num(score)
        best = int(self.total.argmax())
        which = f" (block {self.run.blocks[best]})" if len(self.total) > 1 else ""
        mean = 100 * self.total[best] / max(self.images, 1)
        return f"{EVALUATION.metrics[HEADLINES[self.run.kind]]} {mean:.1f}{which}"


def log_remarks(found: Mapping[str, Any], images: int, settings: TokencutSettings) -> None:
    """What a reader of the number should know."""
    if 2 * (degenerate := found.get("degenerate", 0)) > images:
        log.warning(
            "%d of %d images are degenerate: the score is mostly that of whole images; try "
            "--feature tokens, another --tau or --layers all", degenerate, images,
        )  # fmt: skip
    if settings.select == "holdout" and found["selected_on"] == "val":
        log.warning("too few images to choose a block on some of them: chosen on all")
