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
    timing_part,
)
from skipbench.features.store import model_part
from skipbench.images import parse_size, size_name
from skipbench.metrics.intervals import METHOD, RESAMPLES, resample_weights
from skipbench.metrics.means import counts_of, mean_percent
from skipbench.record_store import plain_result, result_id
from skipbench.records import Result

if TYPE_CHECKING:
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


def identity(run: "PcaRun", number: int) -> str:
    model = run.models[number]
    determines = {
        "version": EVALUATION.version,
        "model": model_part(model.backbone),
        "features": [list(model.blocks), run.settings.feature, run.settings.store_dtype],
        "dataset": run.facts.fingerprint,
        "segments": run.segments_mark,
        "protocol": protocol_part(run.settings),
    }
    return result_id("pca", run.data.name, determines)


def headline(figures: Figures) -> str | None:
    """How much of the variance segments explain; nothing, where none are known. (How smooth
    features are is no headline: collapsed ones are the smoothest.)"""
    return None if np.isnan(figures.by_image["between"][:, -1]).all() else "coherence"


def rows(run: "PcaRun", number: int) -> list[dict[str, Any]]:
    """By block: means over images; shares in percent, None where there is nothing to say. The
    interval is that of coherence."""
    model, figures = run.models[number], run.figures[number]
    found = []
    for place, block in enumerate(model.blocks):
        mean = {name: _mean(values[:, place]) for name, values in figures.by_image.items()}
        components = [_percent(_mean(share)) for share in figures.explained[:, place].T]
        found.append(
            {
                "block": block,
                "components": components,
                "explained": _percent(_mean(figures.explained[:, place].sum(-1))),
                "effective_rank": _mean(figures.rank[:, place]),
                "total_variation": mean["total_variation"],
                "colour_variation": mean["colour_variation"],
                "coherence": _percent(mean["between"]),
                "upside_down": _percent(mean["upside_down"]),
                "colour_coherence": _percent(mean["colour_between"]),
                "agreement": _percent(_mean(figures.agreement[:, place])),
                "degenerate": int(figures.flat[:, place].sum()),
                "interval": interval_of(figures.by_image["between"][:, place]),
            }
        )
    return found


def interval_of(scores: np.ndarray) -> list[float] | None:
    """95 %, in percent, of a mean over images. One image says nothing about others."""
    if (~np.isnan(scores)).sum() < 2:
        return None
    return mean_percent(counts_of(scores), resample_weights(len(scores), RESAMPLES, 0))[1]


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def metrics(run: "PcaRun", number: int) -> dict[str, Any]:
    # Agreement is of the company it was drawn in, not of this model.
    told = [{k: v for k, v in row.items() if k != "agreement"} for row in run.rows[number]]
    name = headline(run.figures[number])
    start = {"headline": name, "pixels": pixels(run.figures[number])} if name else {}
    return {**start, **told[-1], "blocks": told}


def pixels(figures: Figures) -> float | None:
    """The coherence of the images' own colours: what it takes no model to reach."""
    return _percent(_mean(figures.pixels))


def record(run: "PcaRun", number: int) -> tuple[Result, dict[str, np.ndarray]]:
    """Of one checkpoint, with its arrays; the headline is about the deepest block."""
    model, figures = run.models[number], run.figures[number]
    result = plain_result(
        id=run.ids[number],
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
            "interval": f"95 %, bootstrap over images, {RESAMPLES:,} resamples, {METHOD}",
        },
        metrics=metrics(run, number),
        environment={**environment_part(model.backbone), "call": dict(model.call)},
        timing=timing_part(model.seconds, len(run.data), model.features.computed),
    )
    return result, arrays(figures)


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
    if headline(figures):
        kept["pixels"] = figures.pixels.astype(np.float32)
        kept["counts"] = counts_of(figures.by_image["between"][:, -1])
    return kept


# -- for people


def table(run: "PcaRun") -> Iterator[list[Any]]:
    """For a spreadsheet."""
    components = [f"component_{i + 1}" for i in range(run.settings.components)]
    yield ["checkpoint", "residual", *COLUMNS, *ENDS, *components]
    for number, model in enumerate(run.models):
        for row in run.rows[number]:
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
        for number, model in enumerate(run.models):
            points = [(row["block"], _or_nan(row[key])) for row in run.rows[number]]
            bands = _bands(run, number, key)
            curves.append(Curve(model.title, str(model.backbone.residual), points, bands))
        if all(math.isnan(y) for curve in curves for _, y in curve.points):
            continue
        if key == "coherence":
            curves.append(_level(run, [x for curve in curves for x, _ in curve.points]))
        found.append(Panel(title, "block", unit, curves))
    return found


def _level(run: "PcaRun", places: Sequence[float]) -> Curve:
    """The images' own colours, whatever the block."""
    level = _or_nan(pixels(run.figures[0]))
    ends = [(place, level) for place in (min(places), max(places))]
    return Curve("the images' own colours", "none", ends)


def _bands(run: "PcaRun", number: int, key: str) -> list[tuple[float, float] | None]:
    """95 % intervals of what is a mean over images."""
    if key == "coherence":
        ends, unit = [row["interval"] for row in run.rows[number]], 1.0
    elif key == "total_variation":
        values = run.figures[number].by_image[key]
        ends, unit = [interval_of(scores) for scores in values.T], 0.01
    else:
        return []
    return [(unit * pair[0], unit * pair[1]) if pair else None for pair in ends]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
