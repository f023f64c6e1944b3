"""Curves of the page: over epochs, over blocks, over the learning rates of a probe."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skipbench.results.report.charts import (
    Axis,
    Line,
    Point,
    line_chart,
    log_axis,
    sample,
    x_axis,
    y_axis,
)
from skipbench.results.report.variants import (
    Rivals,
    dataset_name,
    differing_words,
    ends,
    features_name,
    in_order,
    kind_name,
    metric_name,
    number,
)
from skipbench.results.scores import CHOSEN, Entry

MOST_LINES = 8  # in one chart; beyond, nobody can tell them apart

# Those of an entry; the words are what their tooltips begin with.
Points = Callable[[Entry, str], list[Point]]


@dataclass(frozen=True)
class Drawn:
    """One chart to be."""

    title: str
    lines: tuple[Line, ...]
    more: int = 0  # lines that are not drawn


def over_epochs(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """The paper's Figure 2: a chart for each data set and choice of features."""
    known = [entry for entry in found if isinstance(entry.facts["epoch"], int)]
    apart = ("residual", "optimizer", "depth")
    return _family(known, "epoch", lambda e, what: [_point(e, what, e.facts["epoch"])], apart)


def over_blocks(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """Records of one block each, and of several that were scored one by one: a chart for each data
    set."""
    known = [entry for entry in found if _by_block(entry, "")]
    apart = ("residual", "optimizer", "depth", "epoch", "checkpoint")
    return _family(known, "block", _by_block, apart)


def _by_block(entry: Entry, what: str) -> list[Point]:
    """A ring around the block whose figure is the record's."""
    blocks, metrics = entry.first.result.features.get("blocks"), entry.first.result.metrics
    if isinstance(blocks, list) and len(blocks) == 1:
        return [_point(entry, what, blocks[0])]
    points = []
    for row in entry.first.blocks:
        block, value = number(row.get("block")), number(row.get(entry.first.metric))
        if block is None or value is None:
            continue
        interval = ends(row.get("interval"))
        said = f"{what} {block:g}: {figure_words(value, interval)}"
        points.append(Point(block, value, interval, said, chosen=block == metrics.get("block")))
    return points


def _family(
    found: Sequence[Entry], axis: str, points: Points, apart: tuple[str, ...]
) -> list[dict[str, Any]]:
    """For each evaluation and data set its charts, with one y axis and one legend for all.

    apart: facts in which lines differ; those that say nothing are not told.
    """
    made = []
    for group in _grouped(found, _same_family):
        named = _namer(group, apart)
        styles: dict[str, dict[str, int]] = {}  # of a line, by variant and label
        charts = []
        for peers in _grouped(group, lambda e: _same_chart(e, axis)):
            if lines := _curves(_lines(peers, axis, points, named)):
                kept = [_styled(line, styles) for line in lines[:MOST_LINES]]
                title = _chart_title(peers[0], group, axis)
                charts.append(Drawn(title, tuple(kept), len(lines) - len(kept)))
        if charts:
            about = f"over {axis}s"
            lines = [line for one in charts for line in one.lines]
            made.append(_shown(group[0], charts, x_axis(axis, lines), about))
    return made


def _curves(lines: Sequence[Line]) -> list[Line]:
    """A single point stays only beside a curve of the other variant that it belongs to."""

    def others(line: Line) -> str:
        return line.label.removeprefix(line.variant)

    real = [line for line in lines if len({point.x for point in line.points}) > 1]
    beside = {others(line) for line in real}
    return [line for line in lines if line in real or others(line) in beside]


def _styled(line: Line, styles: dict[str, dict[str, int]]) -> Line:
    known = styles.setdefault(line.variant, {})
    return replace(line, style=known.setdefault(line.label, len(known)))


def _namer(group: Sequence[Entry], apart: tuple[str, ...]) -> Callable[[Entry], str]:
    """The variant, and every further fact that tells lines apart which look alike without it."""

    def kinds(names: list[str]) -> int:
        return len({tuple(str(entry.facts[name]) for name in names) for entry in group})

    told: list[str] = []
    for name in apart:
        if not told or kinds([*told, name]) > kinds(told):
            told.append(name)
    return lambda entry: " ".join(_fact(name, entry.facts[name]) for name in told)


def _fact(name: str, value: Any) -> str:
    if value is None:
        return f"unknown {name}"
    return {"depth": f"{value} blocks", "epoch": f"epoch {value}"}.get(name, str(value))


def _grouped(found: Iterable[Entry], key: Callable[[Entry], Any]) -> list[list[Entry]]:
    groups: dict[str, list[Entry]] = {}
    for entry in found:
        groups.setdefault(json.dumps(key(entry), sort_keys=True), []).append(entry)
    order = ("evaluation", "method", "dataset", "split", "features")
    return sorted(
        groups.values(), key=lambda group: [in_order(group[0].facts[n], n) for n in order]
    )


def _same_family(entry: Entry) -> list[Any]:
    """Figures that may share an axis."""
    return [kind_name(entry.facts), entry.facts["dataset"], entry.first.metric]


def _same_chart(entry: Entry, axis: str) -> list[Any]:
    """Figures that may share a chart: made in the same way on the same images."""
    settings = dict(entry.first.settings)
    if axis == "block" and entry.first.by_block:
        del settings[CHOSEN]  # every block has its point, chosen or not
    features = None if axis == "block" else entry.facts["features"]
    return [entry.facts["split"], features, settings, entry.first.images]


def _chart_title(entry: Entry, group: Sequence[Entry], axis: str) -> str:
    if axis == "block":
        return differing_words(entry, group, [CHOSEN] if entry.first.by_block else [])
    parts = (features_name(entry.facts["features"]), differing_words(entry, group))
    return ", ".join(part for part in parts if part)


def _lines(
    found: Sequence[Entry],
    axis: str,
    points: Points,
    named: Callable[[Entry], str],
) -> list[Line]:
    """skip before skipless, AdamW before SOAP. What two records have alike is one point."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in found:
        groups.setdefault((str(entry.facts["residual"]), named(entry)), []).append(entry)
    lines = []
    for (variant, label), group in sorted(groups.items(), key=lambda item: item[0]):
        told = [point for entry in group for point in points(entry, f"{label}, {axis}")]
        told.sort(key=lambda point: (point.x, point.y, point.chosen))
        alike = {(point.x, point.y, point.interval): point for point in told}  # the ring is last
        lines.append(Line(label, variant, tuple(alike.values())))
    return lines


def _point(entry: Entry, what: str, x: float) -> Point:
    said = f"{what} {x:g}: {figure_words(entry.value, entry.interval)}"
    return Point(x, entry.value, entry.interval, said)


def figure_words(value: float, interval: tuple[float, float] | None) -> str:
    return f"{value:.1f}" + (f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else "")


def _shown(entry: Entry, drawn: Sequence[Drawn], x: Axis, about: str) -> dict[str, Any]:
    """One legend and one y axis for all charts: the same line looks the same in each."""
    lines = {line.label: line for one in drawn for line in one.lines}
    metric, title = metric_name(entry), dataset_name(entry.facts["dataset"])
    y = y_axis(metric, [line for one in drawn for line in one.lines])
    return {
        "title": title,
        "about": f"{kind_name(entry.facts)}, {metric} {about}",
        "charts": [
            {
                "title": one.title,
                "svg": line_chart(one.lines, x, y, _in_words(one, f"{metric} {about}, {title}")),
                "more": one.more,
            }
            for one in drawn
        ],
        "legend": [(sample(line), line.label) for line in lines.values()],
    }


def _in_words(drawn: Drawn, about: str) -> str:
    """For those who do not see it: where each line begins and ends."""
    told = [
        f"{line.label} from {line.points[0].y:.1f} at {line.points[0].x:g} "
        f"to {line.points[-1].y:.1f} at {line.points[-1].x:g}"
        for line in drawn.lines
    ]
    return "; ".join([", ".join(part for part in (about, drawn.title) if part), *told])


# -- the learning rates of a probe


def over_rates(found: Sequence[Rivals]) -> list[dict[str, Any]]:
    """The sweep behind the best figure of either variant; a ring around the rate that was taken."""
    groups: dict[tuple[Any, Any], list[tuple[Entry, Drawn]]] = {}
    for rivals in found:
        sweeps = [_sweep(variant, entry) for variant, entry in rivals.best.items()]
        if lines := tuple(line for line in sweeps if line):
            features = features_name(rivals.facts["features"])
            title = ", ".join(part for part in (features, rivals.how) if part)
            place = rivals.facts["evaluation"], rivals.facts["dataset"]
            entry = next(iter(rivals.best.values()))
            groups.setdefault(place, []).append((entry, Drawn(title, lines)))
    made = []
    for group in groups.values():
        charts = [chart for _, chart in group]
        across = log_axis("learning rate", [line for one in charts for line in one.lines])
        made.append(_shown(group[0][0], charts, across, "over learning rates"))
    return made


def _sweep(variant: str, entry: Entry) -> Line | None:
    """Of the first seed. Rates that diverged have no figure and no point."""
    metrics = entry.first.result.metrics
    rows = metrics.get("rates")
    points = []
    for row in rows if isinstance(rows, list) else []:
        told = row if isinstance(row, dict) else {}
        rate, value = number(told.get("rate")), number(told.get(entry.first.metric))
        if rate is None or value is None or rate <= 0:
            continue
        interval = ends(told.get("interval"))
        said = f"{variant}, rate {rate:g}: {figure_words(value, interval)}"
        points.append(Point(rate, value, interval, said, chosen=rate == metrics.get("rate")))
    points.sort(key=lambda point: point.x)
    return Line(variant, variant, tuple(points)) if len(points) > 1 else None
