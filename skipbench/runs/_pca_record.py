"""What PCA pictures are like, in numbers: the record, the table and the curves."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.evaluations.pca import HIGH, LOW
from skipbench.features.store import model_part
from skipbench.images import parse_size, size_name
from skipbench.metrics.intervals import METHOD, RESAMPLES, resample_weights
from skipbench.plates import Curve, Panel
from skipbench.records import Result
from skipbench.results.store import plain_result, result_id, write_result
from skipbench.runs._means import counts_of, mean_percent
from skipbench.runs._record import checkpoint_part, environment_part, timing_part

if TYPE_CHECKING:
    from skipbench.runs._pca_model import Asked
    from skipbench.runs.pca import PcaRun

# Enters the id of every record: raise it when a change of the code moves the numbers.
VERSION = 1

COLUMNS = (
    "block", "explained", "effective_rank", "total_variation", "colour_variation", "coherence",
    "turned", "colour_coherence", "agreement", "degenerate",
)  # fmt: skip
ENDS = ("low", "high")  # of the 95 % interval of coherence, or of smoothness


class Figures:
    """What the pictures of one model are like, by image and block; NaN where it is not known."""

    NAMES = ("total_variation", "between", "turned", "colour_variation", "colour_between")

    def __init__(self, blocks: int, images: int, components: int) -> None:
        def unknown(*more: int) -> np.ndarray:
            return np.full((images, blocks, *more), np.nan)

        self.by_image = {name: unknown() for name in self.NAMES}
        self.explained = unknown(components)  # this and the next two as the image's fit has it
        self.rank = unknown()
        self.deviation = unknown()  # relative to the mean
        self.agreement = unknown()  # with the first checkpoint's colours
        self.flat = np.zeros((images, blocks), bool)


def protocol_part(asked: "Asked") -> dict[str, Any]:
    """What figures depend on; upsampling and alignment change nothing but the pictures."""
    return {
        "name": "paper",
        "fit": asked.fit,
        "components": asked.components,
        "background": asked.background,
        "feature": asked.feature,
        "size": size_name(parse_size(asked.size)),
    }


def changes(asked: "Asked") -> dict[str, Any]:
    """The settings that are not the protocol's: [its own, this]."""
    usual = protocol_part(type(asked)())
    return {k: [usual[k], v] for k, v in protocol_part(asked).items() if usual[k] != v}


def identity(run: "PcaRun", number: int) -> str:
    model = run.models[number]
    determines = {
        "version": VERSION,
        "model": model_part(model.backbone),
        "features": [list(model.blocks), run.asked.feature, run.asked.store_dtype],
        "dataset": run.facts.fingerprint,
        "segments": run.segments_mark,
        "protocol": protocol_part(run.asked),
    }
    return result_id("pca", run.data.name, determines)


def score_by_image(figures: Figures, name: str) -> np.ndarray:
    """(images, blocks), 0 to 1, NaN where an image has none."""
    if name == "coherence":
        return figures.by_image["between"]
    return 1 - figures.by_image["total_variation"]


def headline(figures: Figures) -> str | None:
    """Where segments are known, how much of the variance they explain; else how smooth it is."""
    for name in ("coherence", "smoothness"):
        if not np.isnan(score_by_image(figures, name)[:, -1]).all():
            return name
    return None


def rows(run: "PcaRun", number: int) -> list[dict[str, Any]]:
    """By block: means over images; shares in percent, None where there is nothing to say. The
    headline has an interval."""
    model, figures = run.models[number], run.figures[number]
    name, found = headline(figures), []
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
                "turned": _percent(mean["turned"]),
                "colour_coherence": _percent(mean["colour_between"]),
                "agreement": _percent(_mean(figures.agreement[:, place])),
                "degenerate": int(figures.flat[:, place].sum()),
                **(_with_interval(figures, name, place) if name else {}),
            }
        )
    return found


def _with_interval(figures: Figures, name: str, place: int) -> dict[str, Any]:
    """One image says nothing about others."""
    scores = score_by_image(figures, name)[:, place]
    known = int((~np.isnan(scores)).sum())
    if known < 2:
        return {name: _percent(_mean(scores)), "interval": None}
    weights = resample_weights(len(scores), RESAMPLES, 0)
    value, ends = mean_percent(counts_of(scores), weights)
    return {name: value, "interval": ends}


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def metrics(run: "PcaRun", number: int) -> dict[str, Any]:
    told = rows(run, number)
    for row in told:
        row.pop("agreement")  # of the company it was drawn in, not of this model
    name = headline(run.figures[number])
    return {**({"headline": name} if name else {}), **told[-1], "blocks": told}


def write(run: "PcaRun", number: int) -> Result:
    """The record of one checkpoint; its headline is about the deepest block."""
    model, figures = run.models[number], run.figures[number]
    result = plain_result(
        id=run.ids[number],
        evaluation="pca",
        dataset=run.facts.to_json(),
        training=None,
        checkpoint=checkpoint_part(model.inspection, model.backbone),
        features={
            "layers": run.asked.layers,
            "blocks": model.blocks,
            "tensor": run.asked.feature,
            "size": size_name(model.spec.size),
            "precision": model.backbone.precision,
            "store_dtype": run.asked.store_dtype,
        },
        protocol={
            **protocol_part(run.asked),
            "changes": changes(run.asked),
            "range": f"percentiles {LOW} to {HIGH}",
            "interval": f"95 %, bootstrap over images, {RESAMPLES:,} resamples, {METHOD}",
        },
        metrics=metrics(run, number),
        environment={**environment_part(model.backbone), "call": dict(model.call)},
        timing=timing_part(model.seconds, len(run.data), model.features.computed),
    )
    write_result(run.asked.out, result, arrays(figures))
    return result


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
    name = headline(figures)
    if name:
        kept["counts"] = counts_of(score_by_image(figures, name)[:, -1])
    return kept


# -- for people


def table(run: "PcaRun") -> Iterator[list[Any]]:
    """For a spreadsheet."""
    components = [f"component_{i + 1}" for i in range(run.asked.components)]
    yield ["checkpoint", "residual", *COLUMNS, *ENDS, *components]
    for number, model in enumerate(run.models):
        for row in rows(run, number):
            ends = row.get("interval") or [None, None]
            values = [*(row[name] for name in COLUMNS), *ends, *row["components"]]
            numbers = ["" if v is None else f"{v:.6g}" for v in values]
            yield [model.name, model.backbone.residual, *numbers]


PANELS = (
    ("variance between segments", "coherence", "% of the variance"),
    ("total variation of features", "total_variation", "neighbours : any two"),
    ("explained by the components", "explained", "% of the variance"),
    ("effective rank", "effective_rank", "directions"),
)


def panels(run: "PcaRun") -> list[Panel]:
    """Curves over blocks; those that there is nothing to draw of are left out."""
    told = [(model, rows(run, number)) for number, model in enumerate(run.models)]
    found = []
    for title, key, unit in PANELS:
        curves = []
        for number, (model, its) in enumerate(told):
            points = [(row["block"], _or_nan(row[key])) for row in its]
            bands = _bands(run.figures[number], key)
            curves.append(Curve(model.title, str(model.backbone.residual), points, bands))
        if any(not math.isnan(y) for curve in curves for _, y in curve.points):
            found.append(Panel(title, "block", unit, curves))
    return found


def _bands(figures: Figures, key: str) -> list[tuple[float, float] | None]:
    """95 % intervals of what is a mean over images; total variation is 1 less what is smooth."""
    name = {"coherence": "coherence", "total_variation": "smoothness"}.get(key)
    if name is None:
        return []
    found: list[tuple[float, float] | None] = []
    for place in range(figures.flat.shape[1]):
        low, high = _with_interval(figures, name, place)["interval"] or (math.nan, math.nan)
        found.append((low, high) if name == key else (1 - high / 100, 1 - low / 100))
    return found


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
