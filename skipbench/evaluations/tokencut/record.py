"""What object discovery measures in each image, and the record and remarks made of it.

By image:             whole_image: score of the whole image as a box or mask
By image and block:   boxes (4, in pixels of the original image), tokens (size of the object),
                      solver (index in SOLVERS), degenerate, tied, score
with boxes:           ious, ious_of   IoUs with all true boxes (rows of all images concatenated),
                      and the number of rows of each image; the score is a hit, 0 or 1
with masks:           accuracy, f_beta and f_beta_curve (255 thresholds); the score is the IoU

In degenerate images nothing was found. Their box is the whole image, but their score is 0, with
masks also F-beta, even where there is nothing to find; their accuracy is that of an empty mask.
The score with the whole image instead is a metric of its own, `whole_image_if_degenerate`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.datasets import Boxes, Item
from skipbench.evaluations.record import (
    checkpoint_part,
    environment_part,
    recorded_protocol,
    timing_part,
)
from skipbench.evaluations.resume import Arrays
from skipbench.evaluations.tokencut import EVALUATION, MANY_DEGENERATE
from skipbench.evaluations.tokencut.method import SOLVERS, Found, enlarged
from skipbench.evaluations.tokencut.settings import TokencutSettings
from skipbench.features.store import model_part
from skipbench.files import write_csv
from skipbench.images import IGNORED, parse_size, resize_boxes, resize_mask, size_name
from skipbench.metrics.intervals import RESAMPLES, resample_weights
from skipbench.metrics.means import (
    SPLITS,
    CrossChosen,
    box_iou,
    counts_of,
    mean_percent,
    share_percent,
)
from skipbench.metrics.saliency import f_beta_by_threshold, mask_scores, max_f_beta_percent
from skipbench.record_store import plain_result
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.tokencut.run import TokencutRun

log = logging.getLogger("skipbench")

HIT = 0.5  # IoU
HEADLINES = {"boxes": "corloc", "masks": "iou"}
CORNERS = ("xmin", "ymin", "xmax", "ymax")
OTHERS = ("dense", "tied", "f_beta", "max_f_beta", "accuracy")  # of the best block


# -- by image


@dataclass(frozen=True)
class ImageObjects:
    """The objects of one image, in its own pixels."""

    found: Sequence[Found]  # by block
    strides: Sequence[int]  # by block: pixels per token
    input_hw: tuple[int, int]  # of the model's input, before padding
    size_hw: tuple[int, int]  # of the original image

    @property
    def boxes(self) -> np.ndarray:
        """(blocks, 4) float64."""
        pairs = zip(self.found, self.strides, strict=True)
        boxes = np.array([one.box(stride, self.input_hw) for one, stride in pairs], np.float64)
        return resize_boxes(boxes, self.input_hw, self.size_hw)

    @property
    def degenerate(self) -> np.ndarray:
        """(blocks,) bool"""
        return np.array([one.degenerate for one in self.found])

    def mask(self, block: int) -> np.ndarray:
        return self._full(self.found[block].mask, block)

    def map(self, block: int) -> np.ndarray:
        return self._full(self.found[block].map, block)

    def _full(self, grid: np.ndarray, block: int) -> np.ndarray:
        full = enlarged(grid, self.strides[block], self.input_hw)
        return full if self.input_hw == self.size_hw else resize_mask(full, self.size_hw)

    def arrays(self) -> Arrays:
        return {
            "boxes": self.boxes.astype(np.float32),
            "tokens": np.array([one.tokens for one in self.found], np.int32),
            "solver": np.array([SOLVERS.index(one.solver) for one in self.found], np.uint8),
            "degenerate": self.degenerate,
            "tied": np.array([one.tied for one in self.found]),
        }


def true_boxes(item: Item, hard: bool) -> Boxes:
    return item.boxes() if hard else item.boxes().without_hard()


def score_boxes(item: Item, objects: ImageObjects, hard: bool = True) -> Arrays:
    """hard: with boxes marked difficult or truncated."""
    truth = true_boxes(item, hard)
    ious = box_iou(truth.xyxy, objects.boxes)
    whole = np.array([(0, 0, objects.size_hw[1], objects.size_hw[0])])
    return {
        "score": ((ious.max(0) >= HIT) & ~objects.degenerate).astype(np.float32),
        "whole_image": np.array(box_iou(truth.xyxy, whole).max() >= HIT, np.float32),
        "ious": ious.astype(np.float32),
        "ious_of": np.array(len(ious), np.int32),
    }


def score_masks(item: Item, objects: ImageObjects) -> Arrays:
    """The object is everything but the background."""
    mask = item.mask()
    truth, counted = mask > 0, mask != IGNORED
    found = ~objects.degenerate
    blocks = range(len(found))
    masks = [objects.mask(block) & found[block] for block in blocks]
    scores = np.array([mask_scores(mask, truth, counted) for mask in masks])
    iou, accuracy, _, _, f_beta = scores.T.astype(np.float32)
    curves = [f_beta_by_threshold(_rounded(objects.map(block)), truth, counted) for block in blocks]
    return {
        "score": found * iou,
        "whole_image": np.array(mask_scores(truth | True, truth, counted).iou, np.float32),
        "accuracy": accuracy,
        "f_beta": found * f_beta,
        "f_beta_curve": found[:, None] * np.array(curves, np.float32),
    }


def _rounded(values: np.ndarray) -> np.ndarray:
    """Scaled so that the largest magnitude is 1, and rounded so that noise does not rank pixels."""
    return np.round(values / max(float(np.abs(values).max()), 1e-300), 7)


def stacked(images: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """One array per name, images along its first axis."""
    joined = {name: np.concatenate if name == "ious" else np.stack for name in images[0]}
    return {name: join([one[name] for one in images]) for name, join in joined.items()}


def gathered(parts: Sequence[Mapping[str, np.ndarray]], numbers: Sequence[int]) -> Arrays:
    """Parts of `stacked` as one, images in order. numbers: the image at each place of the parts."""
    places = np.argsort(numbers)
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if "ious" in whole:
        rows = ious_by_image(whole)
        whole["ious"] = np.concatenate([rows[place] for place in places])
    return {name: array if name == "ious" else array[places] for name, array in whole.items()}


def ious_by_image(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """(true boxes, blocks) for each image."""
    return np.split(arrays["ious"], np.cumsum(arrays["ious_of"])[:-1])


# -- the record


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
    """kind: what is scored, boxes or masks. Only TokenCut has τ and ε."""
    cut = {"tau": settings.threshold, "eps": settings.weak_link}
    return {
        "name": "paper",
        "method": settings.method,
        **(cut if settings.method == "tokencut" else {}),
        "feature": settings.feature,
        "size": size_name(parse_size(settings.size)),
        "score": kind,
        "hard": settings.hard if kind == "boxes" else None,
        "degenerate": "miss",  # records of version 1 have none: these figures are not alike
    }


def metrics(run: "TokencutRun", arrays: Arrays, holdout: CrossChosen | None) -> dict[str, Any]:
    """arrays: of `gathered`; holdout: of `cross_chosen`, for several blocks."""
    name, blocks = HEADLINES[run.kind], run.blocks
    weights = resample_weights(len(arrays["score"]), RESAMPLES, 0)
    rows = _by_block(arrays, blocks, name, weights)
    best = max(rows, key=lambda row: row[name])
    of_choice = (name, "interval", "block", "degenerate", "whole_image_if_degenerate")
    chosen: dict[str, Any] = {"val": {key: best[key] for key in of_choice}, "holdout": None}
    if holdout:
        chosen["holdout"] = _of_other_half(holdout, arrays, blocks, name, weights)
    where = run.settings.select if chosen[run.settings.select] else "val"
    figure = chosen[where]
    several = len(blocks) > 1
    return {
        "headline": name,
        **{key: figure[key] for key in of_choice},
        "selected_on": where if several else None,
        "chosen": chosen if several else {},
        "blocks": rows,
        **({} if where == "holdout" else {key: best[key] for key in OTHERS if key in best}),
        "whole_image": float(share_percent(counts_of(arrays["whole_image"]).sum(0))),
    }


def _of_other_half(
    holdout: CrossChosen, arrays: Arrays, blocks: Sequence[int], name: str, weights: np.ndarray
) -> dict[str, Any]:
    value, ends = mean_percent(holdout.counts, weights)
    return {
        name: value,
        "interval": ends,
        "block": None,
        "blocks": {str(b): int(n) for b, n in zip(blocks, holdout.chosen, strict=True) if n},
        "degenerate": round((holdout.times * arrays["degenerate"]).sum() / SPLITS),
        "whole_image_if_degenerate": holdout.percent(_whole_if_degenerate(arrays)),
    }


def _whole_if_degenerate(arrays: Arrays) -> np.ndarray:
    """(images, blocks) scores, with the whole image as the object of degenerate images."""
    whole, score = arrays["whole_image"].astype(np.float64), arrays["score"]
    return np.where(arrays["degenerate"], whole[:, None], score)


def _by_block(
    arrays: Arrays, blocks: Sequence[int], name: str, weights: np.ndarray
) -> list[dict[str, Any]]:
    rows = []
    others = _whole_if_degenerate(arrays)
    for place, block in enumerate(blocks):
        value, ends = mean_percent(counts_of(arrays["score"][:, place]), weights)
        row = {
            "block": block,
            name: value,
            "interval": ends,
            "degenerate": int(arrays["degenerate"][:, place].sum()),
            "whole_image_if_degenerate": 100 * float(np.nanmean(others[:, place])),
            "dense": int((arrays["solver"][:, place] == SOLVERS.index("dense")).sum()),
            "tied": int(arrays["tied"][:, place].sum()),
        }
        rows.append(row | (_mask_figures(arrays, place) if name == "iou" else {}))
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
    usual = TokencutSettings(ckpt="", dataset="any", method=run.settings.method)
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
        protocol=recorded_protocol(
            {
                **protocol,
                "select": run.settings.select,
                "splits": SPLITS if len(run.blocks) > 1 else None,
            },
            protocol_part(usual, run.kind),
        ),
        metrics=found,
        environment={**environment_part(run.backbone), "call": run.settings.call()},
        timing=timing_part(run.seconds, len(run.data), run.computed),
        determines=run.determines,
    )


def kept_arrays(
    run: "TokencutRun", arrays: Arrays, found: Mapping[str, Any], holdout: CrossChosen | None
) -> Arrays:
    """By image; `counts` of the headline are for comparisons."""
    kept = {name: array for name, array in arrays.items() if name != "f_beta_curve"}
    counts = {"val": counts_of(arrays["score"][:, reported(run, found)])}
    if holdout:
        counts["holdout"] = holdout.counts
    if found["chosen"]:
        kept |= {f"counts_{where}": array for where, array in counts.items()}
    return kept | {"counts": counts[found["selected_on"] or "val"]}


def reported(run: "TokencutRun", found: Mapping[str, Any]) -> int:
    """Index in run.blocks of the block that is best on these images."""
    best = found["chosen"]["val"] if found["chosen"] else found
    return run.blocks.index(best["block"])


def write_table(run: "TokencutRun", arrays: Arrays, found: Mapping[str, Any]) -> None:
    """images.csv: the best block, image by image."""
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
    folder = run.settings.out / run.id
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "images.csv", [columns, *zip(*columns.values(), strict=True)])


def running_score(run: "TokencutRun", counts: np.ndarray) -> str:
    """ "CorLoc 54.1", of the best block. counts: (blocks, 2), summed over images."""
    scores = share_percent(counts)
    best = int(scores.argmax())
    which = f" (block {run.blocks[best]})" if len(scores) > 1 else ""
    return f"{EVALUATION.metrics[HEADLINES[run.kind]]} {scores[best]:.1f}{which}"


def log_remarks(found: Mapping[str, Any], images: int, settings: TokencutSettings) -> None:
    if (degenerate := found["degenerate"]) and degenerate >= MANY_DEGENERATE * images:
        metric = EVALUATION.metrics[found["headline"]]
        log.warning(
            "degenerate images: %d of %d; they count as misses (%s %.1f with the whole image as "
            "their object); try %s", degenerate, images, metric,
            found["whole_image_if_degenerate"], ", ".join(_other_settings(settings)),
        )  # fmt: skip
    if settings.select == "holdout" and found["selected_on"] == "val":
        log.warning("too few images to choose a block on some of them: chosen on all")


def _other_settings(settings: TokencutSettings) -> list[str]:
    """With which fewer images may be degenerate."""
    words = ["another --feature" if settings.feature == "tokens" else "--feature tokens"]
    words += ["another --tau"] if settings.method == "tokencut" else []
    return words + (["--layers all"] if settings.layers != "all" else [])
