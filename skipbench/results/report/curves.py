"""The page's curves: over epochs, over blocks, over learning rates."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from skipbench.record_store import is_interval, is_number
from skipbench.results.entries import Entry, differing, differing_words, grouped
from skipbench.results.report.charts import (
    Axis,
    Line,
    Point,
    line_chart,
    log_axis,
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


def over_epochs(found: Sequence[Entry]) -> dict[str, Any]:
    """The paper's Figure 2: a line for each training."""
    known = [entry for entry in found if isinstance(entry.facts["epoch"], int)]
    points: Points = lambda entry, what: [_point(entry, what, entry.facts["epoch"])]  # noqa: E731
    return _section(known, "epoch", points, _trainings(known))


def over_blocks(found: Sequence[Entry], looks: Mapping[Model, Look]) -> dict[str, Any]:
    """Of records of one block and of several scored one by one."""
    return _section(found, "block", _by_block, _models(looks))


def over_rates(found: Sequence[Entry], looks: Mapping[Model, Look]) -> dict[str, Any]:
    return _section(found, "learning rate", _by_rate, _models(looks), log_axis)


def _models(looks: Mapping[Model, Look]) -> Named:
    return lambda e: (", ".join(model_of(e.facts)), looks[model_of(e.facts)])


def _trainings(found: Sequence[Entry]) -> Named:
    """The variant, and each further fact without which two trainings would share a line. The name
    of a checkpoint without its epoch is that of its training."""
    facts = [dict(entry.facts, training=_training(entry)) for entry in found]
    named = ["residual", *(n for n in ("optimizer", "depth") if differing(facts, [n]))]
    charts = [_same_chart(entry, "epoch") for entry in found]
    lines = [json.dumps([c, [f[n] for n in named]]) for c, f in zip(charts, facts, strict=True)]
    if len({(line, f["training"]) for line, f in zip(lines, facts, strict=True)}) > len({*lines}):
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
        x, value, ends = row.get(key), row.get(entry.first.metric), row.get("interval")
        if is_number(x) and is_number(value):
            interval = (ends[0], ends[1]) if is_interval(ends) else None
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
    charts, legend = [], {}
    for group in _grouped(found, lambda e: [e.first.title, e.facts["dataset"], e.first.metric]):
        made = [
            (peers[0], lines)
            for peers in _grouped(group, lambda e: _same_chart(e, axis))
            if (lines := _real_curves(_lines(peers, axis, points, name)))
        ]
        drawn = [line for _, lines in made for line in lines[:MOST_LINES]]
        if drawn:
            legend.update({line.label: line for line in drawn})
            axes = make_axis(axis, drawn), y_axis(group[0].first.metric_name, drawn)
            charts += [_chart(one, group, axis, lines, *axes) for one, lines in made]
    return {
        "title": f"Over {axis}s",
        "charts": charts,
        "legend": sorted(legend.values(), key=lambda line: line.look.number),
    }


def _real_curves(lines: Sequence[Line]) -> list[Line]:
    """A single point is kept only beside the curve of the other variant that it belongs to."""

    def but_variant(line: Line) -> str:
        return line.label.removeprefix(line.look.variant)

    real = [line for line in lines if len({point.x for point in line.points}) > 1]
    beside = {but_variant(line) for line in real}
    return [one for one in lines if one in real or (one.points and but_variant(one) in beside)]


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


def _chart(
    entry: Entry, group: Sequence[Entry], axis: str, lines: Sequence[Line], x: Axis, y: Axis
) -> dict[str, Any]:
    title, data = _chart_title(entry, group, axis), dataset_name(entry.facts["dataset"])
    kept = lines[:MOST_LINES]
    ends = [  # for screen readers
        f"{line.label} from {line.points[0].y:.1f} at {line.points[0].x:g} "
        f"to {line.points[-1].y:.1f} at {line.points[-1].x:g}"
        for line in kept
    ]
    about = ", ".join(filter(None, (f"{y.label} over {axis}s", data, title)))
    return {
        "title": ", ".join(filter(None, (data, title))),
        "about": f"{entry.first.title}, {y.label}",
        "svg": line_chart(kept, x, y, "; ".join([about, *ends])),
        "more": len(lines) - len(kept),
    }
