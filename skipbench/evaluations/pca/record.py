"""Measurements of PCA pictures: the record, the table and the curves."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.drawing.curves import Curve, Panel
from skipbench.evaluations.pca import EVALUATION
from skipbench.evaluations.pca.method import HIGH, LOW
from skipbench.evaluations.pca.settings import PcaSettings
from skipbench.evaluations.record import (
    checkpoint_part,
    environment_part,
    recorded_protocol,
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

# Of a row → measurement by image, of which it is the mean, and its unit.
MEANS = {
    "effective_rank": ("effective_rank", 1),
    "total_variation": ("total_variation", 1),
    "colour_variation": ("colour_variation", 1),
    "coherence": ("between", 100),
    "upside_down": ("upside_down", 100),
    "colour_coherence": ("colour_between", 100),
}


class Figures:
    """Measurements of one model's pictures, by image and block; NaN where unknown."""

    def __init__(self, blocks: int, images: int, components: int) -> None:
        def unknown(*more: int) -> np.ndarray:
            return np.full((images, blocks, *more), np.nan)

        self.by_image = {name: unknown() for name, _ in MEANS.values()}
        self.explained = unknown(components)  # like rank and deviation, of the image's fit
        self.deviation = unknown()  # relative to the mean
        self.agreement = unknown()  # with the first checkpoint's colours
        self.flat = np.zeros((images, blocks), bool)
        self.pixels = np.full(images, np.nan)  # as `between`, of the image's own colours

    @property
    def coherent(self) -> bool:
        """Whether the deepest block has a coherence, the headline. (Total variation would be none:
        collapsed features are the smoothest.)"""
        return not np.isnan(self.by_image["between"][:, -1]).all()

    @property
    def pixels_coherence(self) -> float | None:
        """The coherence of the images' own colours, a baseline without a model."""
        return _mean(self.pixels, 100)


def protocol_part(settings: PcaSettings) -> dict[str, Any]:
    """What the numbers depend on; upsampling and alignment change only the pictures."""
    return {
        "name": "paper",
        "fit": settings.fit,
        "components": settings.components,
        "background": settings.background,
        "feature": settings.feature,
        "size": size_name(parse_size(settings.size)),
    }


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


def block_row(figures: Figures, place: int, block: int) -> dict[str, Any]:
    """Means over images; shares in percent, None where unknown. The interval is coherence's."""
    by_image = {name: values[:, place] for name, values in figures.by_image.items()}
    means = {key: _mean(by_image[name], unit) for key, (name, unit) in MEANS.items()}
    explained = figures.explained[:, place]
    return {
        "block": block,
        "components": [_mean(share, 100) for share in explained.T],
        "explained": _mean(explained.sum(-1), 100),
        **means,
        "agreement": _mean(figures.agreement[:, place], 100),
        "degenerate": int(figures.flat[:, place].sum()),
        "interval": interval_of(by_image["between"]),
    }


def interval_of(scores: np.ndarray) -> list[float] | None:
    """95 %, in percent, of a mean over images; None for fewer than two."""
    if (~np.isnan(scores)).sum() < 2:
        return None
    return mean_percent(counts_of(scores), resample_weights(len(scores), RESAMPLES, 0))[1]


def _mean(values: np.ndarray, unit: float = 1) -> float | None:
    known = values[~np.isnan(values)]
    return unit * float(known.mean()) if len(known) else None


def metrics(model: "Model") -> dict[str, Any]:
    # Agreement depends on the first checkpoint, which is not part of this record's id.
    rows = [{k: v for k, v in row.items() if k != "agreement"} for row in model.rows]
    figures = model.figures
    headline = {"headline": "coherence", "pixels": figures.pixels_coherence}
    return {**(headline if figures.coherent else {}), **rows[-1], "blocks": rows}


def record(run: "PcaRun", model: "Model") -> tuple[Result, dict[str, np.ndarray]]:
    """Of one checkpoint, with its arrays; the headline is of the deepest block."""
    protocol = protocol_part(run.settings)
    usual = protocol_part(PcaSettings(ckpts=("",), images=("",)))
    call = run.settings.call_of(run.models.index(model))
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
            "size": protocol["size"],
            "precision": model.backbone.precision,
            "store_dtype": run.settings.store_dtype,
        },
        protocol=recorded_protocol({**protocol, "range": f"percentiles {LOW} to {HIGH}"}, usual),
        metrics=metrics(model),
        environment={**environment_part(model.backbone), "call": call},
        timing=timing_part(model.seconds, len(run.data), model.features.computed),
        determines=model.determines,
    )
    return result, arrays(model.figures)


def arrays(figures: Figures) -> dict[str, np.ndarray]:
    """By image and block; `counts` of the headline are for comparisons."""
    found = {**figures.by_image, "explained": figures.explained}
    kept = {name: values.astype(np.float32) for name, values in found.items()}
    if figures.coherent:
        kept["pixels"] = figures.pixels.astype(np.float32)
        kept["counts"] = counts_of(figures.by_image["between"][:, -1])
    return {**kept, "degenerate": figures.flat}


# -- table and curves


def table(run: "PcaRun") -> Iterator[list[Any]]:
    """figures.csv"""
    columns = ["block", "explained", *MEANS, "agreement", "degenerate"]
    components = [f"component_{i + 1}" for i in range(run.settings.components)]
    interval = ["coherence_low", "coherence_high"]  # 95 %
    yield ["checkpoint", "residual", *columns, *interval, *components]
    for model in run.models:
        for row in model.rows:
            ends = row.get("interval") or [None, None]
            values = [*(row[name] for name in columns), *ends, *row["components"]]
            numbers = ["" if v is None else f"{v:.6g}" for v in values]
            yield [model.title, model.backbone.residual, *numbers]


PANELS = (
    ("variance between segments", "coherence", "% of the variance"),
    ("total variation of features", "total_variation", "neighbours : any two"),
    ("explained by the components", "explained", "% of the variance"),
    ("effective rank", "effective_rank", "directions"),
)


def panels(run: "PcaRun") -> list[Panel]:
    """Curves over blocks; panels without a value are left out."""
    found = []
    for title, key, unit in PANELS:
        curves = []
        for model in run.models:
            values = np.array([row[key] for row in model.rows], float)  # None becomes NaN
            points, variant = list(zip(model.blocks, values, strict=True)), model.backbone.residual
            curves.append(Curve(model.title, str(variant), points, _bands(model, key)))
        if all(np.isnan(y) for curve in curves for _, y in curve.points):
            continue
        level = run.models[0].figures.pixels_coherence
        if key == "coherence" and level is not None:  # the same at every block
            blocks = [block for model in run.models for block in model.blocks]
            ends = [(block, level) for block in (min(blocks), max(blocks))]
            curves.append(Curve("the images' own colours", "none", ends))
        found.append(Panel(title, "block", unit, curves))
    return found


def _bands(model: "Model", key: str) -> list[tuple[float, float] | None]:
    """95 % intervals of means over images."""
    if key not in ("coherence", "total_variation"):
        return []
    name, unit = MEANS[key]
    ends = [interval_of(scores) for scores in model.figures.by_image[name].T]
    return [(pair[0] * unit / 100, pair[1] * unit / 100) if pair else None for pair in ends]
