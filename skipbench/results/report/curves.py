"""The page's curves: over epochs, over blocks, over learning rates."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skipbench.results.entries import Entry, differing_words, grouped
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
from skipbench.results.report.summary import SAME, Comparison
from skipbench.results.scores import CHOSEN
from skipbench.results.words import dataset_name, features_name, in_order, score_text

MOST_LINES = 8  # in one chart; more cannot be told apart

# The points of an entry; the text is what their tooltips begin with.
Points = Callable[[Entry, str], list[Point]]


@dataclass(frozen=True)
class Chart:
    title: str
    lines: tuple[Line, ...]
    more: int = 0  # lines that are not drawn


def over_epochs(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """The paper's Figure 2: a chart for each data set and choice of features."""
    known = [entry for entry in found if isinstance(entry.facts["epoch"], int)]
    apart = ("residual", "optimizer", "depth")
    return _families(known, "epoch", lambda e, what: [_point(e, what, e.facts["epoch"])], apart)


def over_blocks(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """A chart for each data set, of records of one block and of several scored one by one."""
    known = [entry for entry in found if _by_block(entry, "")]
    apart = ("residual", "optimizer", "depth", "epoch", "checkpoint")
    return _families(known, "block", _by_block, apart)


def over_rates(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The learning rates behind the best score of either variant."""
    best = [entry for one in found for entry in one.best.values()]
    known = [entry for entry in best if len(_by_rate(entry, "")) > 1]
    return _families(known, "learning rate", _by_rate, ("residual",), log_axis)


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


def _families(
    found: Sequence[Entry],
    axis: str,
    points: Points,
    apart: tuple[str, ...],
    make_axis: Callable[[str, Iterable[Line]], Axis] = x_axis,
) -> list[dict[str, Any]]:
    """The charts of each evaluation and data set.

    apart: facts that tell lines apart; those that are the same for all are not named.
    """
    made = []
    for group in _grouped(found, lambda e: [e.first.title, e.facts["dataset"], e.first.metric]):
        name = _namer(group, apart)
        styles: dict[str, dict[str, int]] = {}  # of a line, by variant and label
        charts = []
        for peers in _grouped(group, lambda e: _same_chart(e, axis)):
            if lines := _real_curves(_lines(peers, axis, points, name)):
                kept = [_styled(line, styles) for line in lines[:MOST_LINES]]
                title = _chart_title(peers[0], group, axis)
                charts.append(Chart(title, tuple(kept), len(lines) - len(kept)))
        if charts:
            lines = [line for chart in charts for line in chart.lines]
            made.append(_shown(group[0], charts, make_axis(axis, lines), f"over {axis}s"))
    return made


def _real_curves(lines: Sequence[Line]) -> list[Line]:
    """A single point is kept only beside the curve of the other variant that it belongs to."""

    def but_variant(line: Line) -> str:
        return line.label.removeprefix(line.variant)

    real = [line for line in lines if len({point.x for point in line.points}) > 1]
    beside = {but_variant(line) for line in real}
    return [line for line in lines if line in real or but_variant(line) in beside]


def _styled(line: Line, styles: dict[str, dict[str, int]]) -> Line:
    known = styles.setdefault(line.variant, {})
    return replace(line, style=known.setdefault(line.label, len(known)))


def _namer(group: Sequence[Entry], apart: tuple[str, ...]) -> Callable[[Entry], str]:
    """The variant, and each further fact without which different lines would have one name."""

    def kinds(names: list[str]) -> int:
        return len({tuple(str(entry.facts[name]) for name in names) for entry in group})

    named: list[str] = []
    for name in apart:
        if not named or kinds([*named, name]) > kinds(named):
            named.append(name)
    return lambda entry: " ".join(_fact(name, entry.facts[name]) for name in named)


def _fact(name: str, value: Any) -> str:
    if value is None:
        return f"unknown {name}"
    return {"depth": f"{value} blocks", "epoch": f"epoch {value}"}.get(name, str(value))


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


def _lines(
    found: Sequence[Entry], axis: str, points: Points, name: Callable[[Entry], str]
) -> list[Line]:
    """skip before skipless, AdamW before SOAP. A point that two records share is drawn once."""
    groups = grouped(found, lambda entry: (str(entry.facts["residual"]), name(entry)))
    lines = []
    for (variant, label), group in sorted(groups.items(), key=lambda item: item[0]):
        found_points = [point for entry in group for point in points(entry, f"{label}, {axis}")]
        found_points.sort(key=lambda point: (point.x, point.y, point.chosen))
        once = {(point.x, point.y, point.interval): point for point in found_points}  # chosen last
        lines.append(Line(label, variant, tuple(once.values())))
    return lines


def _shown(entry: Entry, charts: Sequence[Chart], x: Axis, about: str) -> dict[str, Any]:
    """All charts share one legend and one y axis."""
    lines = {line.label: line for chart in charts for line in chart.lines}
    metric, title = entry.first.metric_name, dataset_name(entry.facts["dataset"])
    y = y_axis(metric, [line for chart in charts for line in chart.lines])
    return {
        "title": title,
        "about": f"{entry.first.title}, {metric} {about}",
        "charts": [
            {
                "title": one.title,
                "svg": line_chart(one.lines, x, y, _alt_text(one, f"{metric} {about}, {title}")),
                "more": one.more,
            }
            for one in charts
        ],
        "legend": list(lines.values()),
    }


def _alt_text(chart: Chart, about: str) -> str:
    """Where each line begins and ends."""
    told = [
        f"{line.label} from {line.points[0].y:.1f} at {line.points[0].x:g} "
        f"to {line.points[-1].y:.1f} at {line.points[-1].x:g}"
        for line in chart.lines
    ]
    return "; ".join([", ".join(filter(None, (about, chart.title))), *told])
