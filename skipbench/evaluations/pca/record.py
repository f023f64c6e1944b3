"""What PCA pictures are like, in numbers: the record, the table and the curves."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.drawing.curves import Curve, Panel
from skipbench.evaluations.pca import EVALUATION
from skipbench.evaluations.pca.method import HIGH, LOW
from skipbench.evaluations.pca.settings import PcaSettings
from skipbench.evaluations.record import (
    changes_from,
    checkpoint_part,
    environment_part,
    interval_words,
    timing_part,
)
from skipbench.features.store import model_part
from skipbench.images import parse_size, size_name
from skipbench.metrics.intervals import RESAMPLES, resample_weights
from skipbench.metrics.means import counts_of, mean_percent
from skipbench.record_store import plain_result
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.pca.model import Model
    from skipbench.evaluations.pca.run import PcaRun

COLUMNS = (
    "block", "explained", "effective_rank", "total_variation", "colour_variation", "coherence",
    "upside_down", "colour_coherence", "agreement", "degenerate",
)  # fmt: skip
ENDS = ("coherence_low", "coherence_high")  # 95 % interval


class Figures:
    """What the pictures of one model are like, by image and block; NaN where it is not known."""

    NAMES = ("total_variation", "between", "upside_down", "colour_variation", "colour_between")

    def __init__(self, blocks: int, images: int, components: int) -> None:
        def unknown(*more: int) -> np.ndarray:
            return np.full((images, blocks, *more), np.nan)

        self.by_image = {name: unknown() for name in self.NAMES}
        self.explained = unknown(components)  # this and the next two as the image's fit has it
        self.rank = unknown()
        self.deviation = unknown()  # relative to the mean
        self.agreement = unknown()  # with the first checkpoint's colours
        self.flat = np.zeros((images, blocks), bool)
        self.pixels = np.full(images, np.nan)  # as `between`, of the image's own colours

    @property
    def coherent(self) -> bool:
        """Whether it is known how much of the variance of the deepest block segments explain: the
        headline. (How smooth features are is none: collapsed ones are the smoothest.)"""
        return not np.isnan(self.by_image["between"][:, -1]).all()

    @property
    def pixels_coherence(self) -> float | None:
        """The coherence of the images' own colours: what it takes no model to reach."""
        return _mean(self.pixels, 100)


def protocol_part(settings: PcaSettings) -> dict[str, Any]:
    """What the numbers depend on; upsampling and alignment only change the pictures."""
    return {
        "name": "paper",
        "fit": settings.fit,
        "components": settings.components,
        "background": settings.background,
        "feature": settings.feature,
        "size": size_name(parse_size(settings.size)),
    }


def changes(settings: PcaSettings) -> dict[str, Any]:
    """Settings that differ from the protocol's: [its own, this]."""
    usual = PcaSettings(ckpts=("",), images=("",))
    return changes_from(protocol_part(usual), protocol_part(settings))


def determines(run: "PcaRun", model: "Model") -> dict[str, Any]:
    """All that the numbers depend on."""
    return {
        "version": EVALUATION.version,
        "model": model_part(model.backbone),
        "features": [list(model.blocks), run.settings.feature, run.settings.store_dtype],
        "dataset": run.facts.fingerprint,
        "segments": run.segments_mark,
        "protocol": protocol_part(run.settings),
    }


def block_rows(blocks: Sequence[int], figures: Figures) -> list[dict[str, Any]]:
    """Means over images; shares in percent, None where there is nothing to say. The interval is
    that of coherence."""
    return [_block_row(figures, place, block) for place, block in enumerate(blocks)]


def _block_row(figures: Figures, place: int, block: int) -> dict[str, Any]:
    by_image = {name: values[:, place] for name, values in figures.by_image.items()}
    explained = figures.explained[:, place]
    return {
        "block": block,
        "components": [_mean(share, 100) for share in explained.T],
        "explained": _mean(explained.sum(-1), 100),
        "effective_rank": _mean(figures.rank[:, place]),
        "total_variation": _mean(by_image["total_variation"]),
        "colour_variation": _mean(by_image["colour_variation"]),
        "coherence": _mean(by_image["between"], 100),
        "upside_down": _mean(by_image["upside_down"], 100),
        "colour_coherence": _mean(by_image["colour_between"], 100),
        "agreement": _mean(figures.agreement[:, place], 100),
        "degenerate": int(figures.flat[:, place].sum()),
        "interval": interval_of(by_image["between"]),
    }


def interval_of(scores: np.ndarray) -> list[float] | None:
    """95 %, in percent, of a mean over images. One image says nothing about others."""
    if (~np.isnan(scores)).sum() < 2:
        return None
    return mean_percent(counts_of(scores), resample_weights(len(scores), RESAMPLES, 0))[1]


def _mean(values: np.ndarray, unit: float = 1) -> float | None:
    known = values[~np.isnan(values)]
    return unit * float(known.mean()) if len(known) else None


def metrics(model: "Model") -> dict[str, Any]:
    # Agreement is of the company it was drawn in, not of this model.
    told = [{k: v for k, v in row.items() if k != "agreement"} for row in model.rows]
    figures = model.figures
    start = {"headline": "coherence", "pixels": figures.pixels_coherence}
    return {**(start if figures.coherent else {}), **told[-1], "blocks": told}


def record(run: "PcaRun", model: "Model") -> tuple[Result, dict[str, np.ndarray]]:
    """Of one checkpoint, with its arrays; the headline is about the deepest block."""
    result = plain_result(
        id=model.id,
        evaluation="pca",
        dataset=run.facts.to_json(),
        training=None,
        checkpoint=checkpoint_part(model.inspection, model.backbone),
        features={
            "layers": run.settings.layers,
            "blocks": model.blocks,
            "tensor": run.settings.feature,
            "size": size_name(parse_size(run.settings.size)),
            "precision": model.backbone.precision,
            "store_dtype": run.settings.store_dtype,
        },
        protocol={
            **protocol_part(run.settings),
            "changes": changes(run.settings),
            "range": f"percentiles {LOW} to {HIGH}",
            "interval": interval_words(),
        },
        metrics=metrics(model),
        environment={**environment_part(model.backbone), "call": dict(model.call)},
        timing=timing_part(model.seconds, len(run.data), model.features.computed),
        determines=model.determines,
    )
    return result, arrays(model.figures)


def arrays(figures: Figures) -> dict[str, np.ndarray]:
    """By image and block; `counts` of the headline, as comparisons take them."""
    kept: dict[str, np.ndarray] = {
        name: values.astype(np.float32) for name, values in figures.by_image.items()
    }
    kept |= {
        "explained": figures.explained.astype(np.float32),
        "effective_rank": figures.rank.astype(np.float32),
        "degenerate": figures.flat,
    }
    if figures.coherent:
        kept["pixels"] = figures.pixels.astype(np.float32)
        kept["counts"] = counts_of(figures.by_image["between"][:, -1])
    return kept


# -- for people


def table(run: "PcaRun") -> Iterator[list[Any]]:
    """For a spreadsheet."""
    components = [f"component_{i + 1}" for i in range(run.settings.components)]
    yield ["checkpoint", "residual", *COLUMNS, *ENDS, *components]
    for model in run.models:
        for row in model.rows:
            ends = row.get("interval") or [None, None]
            values = [*(row[name] for name in COLUMNS), *ends, *row["components"]]
            numbers = ["" if v is None else f"{v:.6g}" for v in values]
            yield [model.title, model.backbone.residual, *numbers]


PANELS = (
    ("variance between segments", "coherence", "% of the variance"),
    ("total variation of features", "total_variation", "neighbours : any two"),
    ("explained by the components", "explained", "% of the variance"),
    ("effective rank", "effective_rank", "directions"),
)


def panels(run: "PcaRun") -> list[Panel]:
    """Curves over blocks; those that there is nothing to draw of are left out."""
    found = []
    for title, key, unit in PANELS:
        curves = []
        for model in run.models:
            points = [(row["block"], _or_nan(row[key])) for row in model.rows]
            bands = _bands(model, key)
            curves.append(Curve(model.title, str(model.backbone.residual), points, bands))
        if all(math.isnan(y) for curve in curves for _, y in curve.points):
            continue
        if key == "coherence":
            curves.append(_level(run, [x for curve in curves for x, _ in curve.points]))
        found.append(Panel(title, "block", unit, curves))
    return found


def _level(run: "PcaRun", places: Sequence[float]) -> Curve:
    """The images' own colours, whatever the block."""
    level = _or_nan(run.models[0].figures.pixels_coherence)
    ends = [(place, level) for place in (min(places), max(places))]
    return Curve("the images' own colours", "none", ends)


def _bands(model: "Model", key: str) -> list[tuple[float, float] | None]:
    """95 % intervals of what is a mean over images."""
    if key == "coherence":
        ends, unit = [row["interval"] for row in model.rows], 1.0
    elif key == "total_variation":
        values = model.figures.by_image[key]
        ends, unit = [interval_of(scores) for scores in values.T], 0.01
    else:
        return []
    return [(unit * pair[0], unit * pair[1]) if pair else None for pair in ends]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
