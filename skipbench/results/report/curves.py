"""The page's curves: over epochs, over blocks, over learning rates."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skipbench.results.entries import Entry, differing, differing_words, grouped
from skipbench.results.report.charts import (
    Axis,
    Line,
    Point,
    ends,
    line_chart,
    log_axis,
    number,
    x_axis,
    y_axis,
)
from skipbench.results.report.comparisons import SAME
from skipbench.results.report.models import Look, Model, model_of
from skipbench.results.scores import CHOSEN
from skipbench.results.words import dataset_name, features_name, in_order, score_text

MOST_LINES = 12  # in one chart; more cannot be told apart

# The points of an entry; the text is what their tooltips begin with.
Points = Callable[[Entry, str], list[Point]]
Named = Callable[[Entry], tuple[str, Look]]


@dataclass(frozen=True)
class Chart:
    title: str
    lines: tuple[Line, ...]
    more: int = 0  # lines that are not drawn


def over_epochs(found: Sequence[Entry]) -> dict[str, Any]:
    """The paper's Figure 2: a line for each training."""
    known = [entry for entry in found if isinstance(entry.facts["epoch"], int)]
    points: Points = lambda entry, what: [_point(entry, what, entry.facts["epoch"])]  # noqa: E731
    return _section(known, "epoch", points, _trainings(known))


def over_blocks(found: Sequence[Entry], looks: Mapping[Model, Look]) -> dict[str, Any]:
    """Of records of one block and of several scored one by one."""
    known = [entry for entry in found if _by_block(entry, "")]
    return _section(known, "block", _by_block, _models(looks))


def over_rates(found: Sequence[Entry], looks: Mapping[Model, Look]) -> dict[str, Any]:
    known = [entry for entry in found if len(_by_rate(entry, "")) > 1]
    return _section(known, "learning rate", _by_rate, _models(looks), log_axis)


def _models(looks: Mapping[Model, Look]) -> Named:
    def name(entry: Entry) -> tuple[str, Look]:
        model = model_of(entry.facts)
        return ", ".join(model), looks[model]

    return name


def _trainings(found: Sequence[Entry]) -> Named:
    """The variant, and each further fact without which two trainings would share a line. The name
    of a checkpoint without its epoch is that of its training."""
    facts = [dict(entry.facts, training=_training(entry)) for entry in found]
    named = ["residual", *(n for n in ("optimizer", "depth") if differing(facts, [n]))]
    places = [[entry.facts["epoch"], _same_chart(entry, "epoch")] for entry in found]
    one_line = [json.dumps([p, [f[n] for n in named]]) for p, f in zip(places, facts, strict=True)]
    if len(set(one_line)) < len(one_line):
        named.append("training")
    labels = [" ".join(_fact(n, f[n]) for n in named) for f in facts]
    numbers = {label: i for i, label in enumerate(sorted(set(labels)))}
    known = {
        id(entry): (label, Look(numbers[label], str(entry.facts["residual"])))
        for entry, label in zip(found, labels, strict=True)
    }
    return lambda entry: known[id(entry)]


def _training(entry: Entry) -> str:
    return re.sub(rf"[-_]?0*{entry.facts['epoch']}(?!\d)", "", str(entry.facts["checkpoint"]))


def _fact(name: str, value: Any) -> str:
    if value is None:
        return f"unknown {name}"
    return f"{value} blocks" if name == "depth" else str(value)


# -- points


def _by_block(entry: Entry, what: str) -> list[Point]:
    blocks = entry.first.result.features.get("blocks")
    if isinstance(blocks, list) and len(blocks) == 1:
        return [_point(entry, what, blocks[0])]
    return _points_of_rows(entry, what, entry.first.blocks, "block")


def _by_rate(entry: Entry, what: str) -> list[Point]:
    """Of the first seed. A rate that diverged has no score and no point."""
    found = entry.first.result.metrics.get("rates")
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    return [point for point in _points_of_rows(entry, what, rows, "rate") if point.x > 0]


def _point(entry: Entry, what: str, x: float) -> Point:
    tooltip = f"{what} {x:g}: {score_text(entry.value, entry.interval)}"
    return Point(x, entry.value, entry.interval, tooltip)


def _points_of_rows(
    entry: Entry, what: str, rows: Iterable[Mapping[str, Any]], key: str
) -> list[Point]:
    """The row of the record's own score is marked as chosen."""
    points = []
    for row in rows:
        x, value = number(row.get(key)), number(row.get(entry.first.metric))
        if x is not None and value is not None:
            interval = ends(row.get("interval"))
            tooltip = f"{what} {x:g}: {score_text(value, interval)}"
            chosen = x == entry.first.result.metrics.get(key)
            points.append(Point(x, value, interval, tooltip, chosen))
    return points


# -- charts


def _section(
    found: Sequence[Entry],
    axis: str,
    points: Points,
    name: Named,
    make_axis: Callable[[str, Iterable[Line]], Axis] = x_axis,
) -> dict[str, Any]:
    """All charts over one axis, and one legend. Those of an evaluation and data set share a y
    axis."""
    shown, legend = [], {}
    for group in _grouped(found, lambda e: [e.first.title, e.facts["dataset"], e.first.metric]):
        charts = []
        for peers in _grouped(group, lambda e: _same_chart(e, axis)):
            if lines := _real_curves(_lines(peers, axis, points, name)):
                kept = tuple(lines[:MOST_LINES])
                title = _chart_title(peers[0], group, axis)
                charts.append(Chart(title, kept, len(lines) - len(kept)))
        shown += _shown(group[0], charts, make_axis, axis)
        legend.update({line.label: line for chart in charts for line in chart.lines})
    return {
        "title": f"Over {axis}s",
        "charts": shown,
        "legend": sorted(legend.values(), key=lambda line: line.look.number),
    }


def _real_curves(lines: Sequence[Line]) -> list[Line]:
    """A single point is kept only beside the curve of the other variant that it belongs to."""

    def but_variant(line: Line) -> str:
        return line.label.removeprefix(line.look.variant)

    real = [line for line in lines if len({point.x for point in line.points}) > 1]
    beside = {but_variant(line) for line in real}
    return [line for line in lines if line in real or but_variant(line) in beside]


def _grouped(found: Iterable[Entry], key: Callable[[Entry], Any]) -> list[list[Entry]]:
    groups = grouped(found, lambda entry: json.dumps(key(entry), sort_keys=True))
    return sorted(groups.values(), key=lambda group: in_order(group[0].facts, SAME))


def _same_chart(entry: Entry, axis: str) -> list[Any]:
    """Scores that may share a chart: of one protocol on the same images."""
    settings = dict(entry.first.settings)
    if axis == "block" and entry.first.evaluation.by_block:
        del settings[CHOSEN]  # every block has its point, chosen or not
    features = None if axis == "block" else entry.facts["features"]
    return [entry.facts["split"], features, settings, entry.first.images]


def _chart_title(entry: Entry, group: Sequence[Entry], axis: str) -> str:
    if axis == "block":
        return differing_words(entry, group, [CHOSEN] if entry.first.evaluation.by_block else [])
    parts = (features_name(entry.facts["features"]), differing_words(entry, group))
    return ", ".join(filter(None, parts))


def _lines(found: Sequence[Entry], axis: str, points: Points, name: Named) -> list[Line]:
    """A point that two records share is drawn once."""
    lines = []
    for (label, look), group in grouped(found, name).items():
        found_points = [point for entry in group for point in points(entry, f"{label}, {axis}")]
        found_points.sort(key=lambda point: (point.x, point.y, point.chosen))
        once = {(point.x, point.y, point.interval): point for point in found_points}  # chosen last
        lines.append(Line(label, look, tuple(once.values())))
    return sorted(lines, key=lambda line: line.look.number)


def _shown(
    entry: Entry,
    charts: Sequence[Chart],
    make_axis: Callable[[str, Iterable[Line]], Axis],
    axis: str,
) -> list[dict[str, Any]]:
    lines = [line for chart in charts for line in chart.lines]
    if not lines:
        return []
    metric, data = entry.first.metric_name, dataset_name(entry.facts["dataset"])
    x, y, about = make_axis(axis, lines), y_axis(metric, lines), f"{metric} over {axis}s, {data}"
    return [
        {
            "title": ", ".join(filter(None, (data, one.title))),
            "about": f"{entry.first.title}, {metric}",
            "svg": line_chart(one.lines, x, y, _alt_text(one, about)),
            "more": one.more,
        }
        for one in charts
    ]


def _alt_text(chart: Chart, about: str) -> str:
    """Where each line begins and ends."""
    told = [
        f"{line.label} from {line.points[0].y:.1f} at {line.points[0].x:g} "
        f"to {line.points[-1].y:.1f} at {line.points[-1].x:g}"
        for line in chart.lines
    ]
    return "; ".join([", ".join(filter(None, (about, chart.title))), *told])
