"""Models side by side, wherever they were scored by one protocol on the same images: all scores,
the paired differences of every two, and their classes."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.metrics.intervals import RESAMPLES, holm, interval, resample_weights
from skipbench.record_store import is_number
from skipbench.results.entries import Entry, differing, differing_words, grouped
from skipbench.results.paired import ModelCounts, p_of_difference, paired
from skipbench.results.report.charts import Axis, Interval, strip_axis
from skipbench.results.report.models import Look, Model, model_of
from skipbench.results.scores import CHOSEN
from skipbench.results.tables.structure import Row, Table, TableCell, label, marked
from skipbench.results.words import (
    VARIANTS,
    dataset_name,
    features_name,
    in_order,
    natural,
    p_text,
    prose,
    short,
    signed,
)  # fmt: skip

MOST_COMPARED = 12  # models in one comparison; of more, those with the highest scores
MOST_BY_CLASS = 8
MANY_CLASSES, MANY_PARTS = 30, 6  # more are folded away
SIGNIFICANT = 0.05
RESAMPLES_EACH = 200  # for each difference: corrected p-values can go down to 0.01
MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
SAME = ("evaluation", "method", "dataset", "split", "features")  # in one comparison


@dataclass(frozen=True)
class Peer:
    """A model's score among others."""

    entry: Entry
    name: str
    look: Look

    @property
    def block(self) -> str:
        """The one chosen of several."""
        block, blocks = self.entry.first.result.metrics.get("block"), self.entry.first.blocks
        return f"block {block} of {len(blocks)}" if len(blocks) > 1 and block is not None else ""


@dataclass(frozen=True)
class Difference:
    value: float
    interval: Interval
    p_value: float  # corrected for the number of comparisons

    @property
    def shown(self) -> str:
        return signed(self.value)

    @property
    def ends(self) -> str:
        return _signed_ends(self.interval)

    @property
    def p(self) -> str:
        return p_text(self.p_value).replace(" ", "\u00a0")  # one line

    @property
    def is_significant(self) -> bool:
        return self.p_value < SIGNIFICANT


def _signed_ends(ends: Interval) -> str:
    return f"[{signed(ends[0])}, {signed(ends[1])}]"


@dataclass(frozen=True)
class Comparison:
    """Scores of one protocol on the same images, the highest first."""

    how: str  # settings, if there are scores with others
    scored: Sequence[Peer]

    @property
    def peers(self) -> Sequence[Peer]:
        """Those that are compared."""
        return self.scored[:MOST_COMPARED]

    @property
    def first(self) -> Entry:
        return self.peers[0].entry

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.first.facts

    @property
    def title(self) -> str:
        return f"{dataset_name(self.facts['dataset'])}, {features_name(self.facts['features'])}"

    @property
    def about(self) -> str:
        score = self.first.first
        words = (score.title, score.metric_name, self.facts["split"], self.how)
        return ", ".join(filter(None, words))

    @property
    def of_one_block(self) -> bool:
        return str(self.facts["features"]).startswith("block ")

    @property
    def axis(self) -> Axis:
        entries = [peer.entry for peer in self.peers]
        return strip_axis([v for e in entries for v in (e.value, *(e.interval or ()))])

    @cached_property
    def differences(self) -> dict[tuple[int, int], Difference]:
        """Row minus column, for every two that have counts by image."""
        try:
            found = paired_differences([peer.entry for peer in self.peers])
        except (SkipbenchError, *MISSHAPEN):
            return {}
        for (a, b), one in list(found.items()):
            low, high = one.interval
            found[b, a] = Difference(-one.value, (-high, -low), one.p_value)
        return found

    @property
    def two(self) -> tuple[int, int] | None:
        """Which of two is subtracted from which: skip from skipless, else the lower score."""
        if len(self.peers) != 2:
            return None
        first, second = (peer.look.variant for peer in self.peers)
        return (1, 0) if second == "skipless" != first else (0, 1)

    @property
    def sentence(self) -> str:
        """No more than can be said. Overlapping intervals prove nothing, and it says so."""
        if not self.differences:
            if self.two:
                return f"{self._above}; {_intervals([peer.entry for peer in self.peers])}."
            return "Not tested: this needs per-image counts (.npz)."
        over = f"paired over {len(self.first.first.result.dataset['names']):,} images"
        if self.two:
            one = self.differences[self.two]
            words = f"{' − '.join(self._names)}: {one.shown} {one.ends}, {one.p}, {over}."
        else:
            words = (
                f"Row − column [95 % interval], {over}; p-values are corrected for "
                f"{len(self.differences) // 2} comparisons (Holm). Bold: p < {SIGNIFICANT:g}."
            )
        tested = {i for pair in self.differences for i in pair}
        if left_out := [p.name for i, p in enumerate(self.peers) if i not in tested]:
            words += f" Without counts by image: {', '.join(map(short, left_out))}."
        chosen = any(_chosen_on_the_answer(peer.entry) for peer in self.peers)
        allowance = " The blocks were chosen on these images, for which p makes no allowance."
        return words + (allowance if chosen else "")

    @property
    def _names(self) -> tuple[str, str]:
        """Of two: their variants if those tell them apart."""
        upper, lower = (self.peers[i] for i in self.two or (0, 1))
        if {upper.look.variant, lower.look.variant} == set(VARIANTS):
            return upper.look.variant, lower.look.variant
        return short(upper.name), short(lower.name)

    @property
    def _above(self) -> str:
        upper, lower = (self.peers[i].entry.value for i in self.two or (0, 1))
        shown = signed(abs(upper - lower)).lstrip("+")
        one, other = self._names
        if float(shown) == 0:
            return f"{one} and {other} are equal to the last digit shown"
        return f"{one} is {shown} {'above' if upper > lower else 'below'} {other}"


def _chosen_on_the_answer(entry: Entry) -> bool:
    """A block that is the best of several on the very images of its score."""
    return len(entry.first.blocks) > 1 and entry.first.settings[CHOSEN] == "val"


def _intervals(pair: Sequence[Entry]) -> str:
    a, b = (entry.interval for entry in pair)
    if not a or not b:
        return "without intervals there is no telling whether that is more than chance"
    if a[1] < b[0] or b[1] < a[0]:
        return "the intervals do not overlap"
    return "the intervals overlap, which by itself settles nothing"


def comparisons(found: Sequence[Entry], looks: Mapping[Model, Look]) -> list[Comparison]:
    made = []
    for group in grouped(found, lambda e: tuple(e.facts[name] for name in SAME)).values():
        ways = grouped(group, _protocol_and_images).values()
        firsts = [way[0] for way in ways]
        for way in ways:
            made.append(Comparison(differing_words(way[0], firsts), _peers(way, looks)))
    return sorted(made, key=lambda one: [*in_order(one.facts, SAME), natural(one.how)])


def _protocol_and_images(entry: Entry) -> str:
    first = entry.first
    return json.dumps([first.metric, first.settings, first.images], sort_keys=True)


def _peers(group: Sequence[Entry], looks: Mapping[Model, Look]) -> list[Peer]:
    """A model that was computed in several ways is there several times."""
    several = Counter(model_of(entry.facts) for entry in group)
    ways = [{**entry.first.computing, **entry.first.model} for entry in group]
    apart = list(differing(ways))
    made = []
    for entry, way in zip(group, ways, strict=True):
        model = model_of(entry.facts)
        words = [f"{name} {prose(way[name])}" for name in apart] if several[model] > 1 else []
        made.append(Peer(entry, ", ".join([model[0], *words]), looks[model]))
    return sorted(made, key=lambda peer: -peer.entry.value)


def paired_differences(found: Sequence[Entry]) -> dict[tuple[int, int], Difference]:
    """(a, b) → a − b, for a before b; all on the same resamples of the images."""
    counted = {i: counts for i, entry in enumerate(found) if (counts := counts_of(entry))}
    if len(counted) < 2:
        return {}
    pairs = list(combinations(counted, 2))
    images = len(found[0].first.result.dataset["names"])
    weights = resample_weights(images, max(RESAMPLES, RESAMPLES_EACH * len(pairs)), seed=0)
    drawn = {i: one.score(one.resampled(weights)) for i, one in counted.items()}
    moved = [drawn[a] - drawn[b] for a, b in pairs]
    tests = [
        p_of_difference(counted[b], counted[a], values)
        for (a, b), values in zip(pairs, moved, strict=True)
    ]
    return {
        (a, b): Difference(counted[a].value - counted[b].value, interval(values), float(p))
        for (a, b), values, p in zip(pairs, moved, holm(tests), strict=True)
    }


def counts_of(entry: Entry) -> ModelCounts | None:
    """None without counts by image, or if they do not fit the record."""
    try:
        return ModelCounts(entry.first.result, [one.counts() for one in entry.stored])
    except (SkipbenchError, *MISSHAPEN):
        return None


# -- all scores of a model in one row


def score_table(found: Sequence[Comparison]) -> Table | None:
    """A column for each evaluation, data set and protocol, but for those of single blocks."""
    shown = [one for one in found if not one.of_one_block] or list(found)
    if not shown:
        return None
    rows: dict[Model, dict[int, Peer]] = {}
    for column, one in enumerate(shown):
        for peer in one.scored:
            rows.setdefault((peer.name, peer.look.variant), {})[column] = peer
    first = {key: next(iter(peers.values())) for key, peers in rows.items()}
    ordered = sorted(rows, key=lambda key: (first[key].look.number, key))
    told = differing([one.entry.facts for one in first.values()], ("depth", "epoch", "optimizer"))
    data = list(dict.fromkeys(map(_data, shown)))
    columns = tuple(
        (f"{one.first.first.title}, {one.first.first.metric_name}", _column(one, len(data) > 1))
        for one in shown
    )
    made = Table(
        "scores", data[0] if len(data) == 1 else "", ("checkpoint", "residual", *told), columns,
        tuple(
            Row(
                (*key, *(label(name, first[key].entry.facts[name]) for name in told)),
                tuple(
                    TableCell(rows[key][column].entry if column in rows[key] else None)
                    for column in range(len(columns))
                ),
            )
            for key in ordered
        ),
    )  # fmt: skip
    groups = [[(row, column) for row in range(len(ordered))] for column in range(len(columns))]
    return marked(made, groups)


def _data(one: Comparison) -> str:
    return f"{dataset_name(one.facts['dataset'])}, {one.facts['split']}"


def _column(one: Comparison, with_data: bool) -> str:
    data = _data(one) if with_data else ""
    return ", ".join(filter(None, (data, features_name(one.facts["features"]), one.how)))


# -- by class


def by_class(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Largest difference first; classes that no model has, last."""
    made: list[dict[str, Any]] = []
    for one in found:
        places = reversed(one.two) if one.two else range(len(one.peers))
        scored = [(one.peers[i], _per_class(one.peers[i].entry)) for i in places]
        scored = [(peer, scores) for peer, scores in scored if scores][:MOST_BY_CLASS]
        if not scored:
            continue
        peers = [peer for peer, _ in scored]
        ends = _class_intervals(peers)
        names = dict.fromkeys(name for _, scores in scored for name in scores)
        rows = [_class_row(name, scored, ends.get(name)) for name in names]
        rows.sort(key=lambda row: (row["difference"] is None, -(row["difference"] or 0)))
        known = [value for row in rows for value in row["values"] if value is not None]
        made.append(
            {
                "comparison": one,
                "peers": peers,
                "rows": rows,
                "axis": strip_axis([0.0, *known]),
                "folded": len(rows) > MANY_CLASSES or len(made) >= MANY_PARTS or one.of_one_block,
            }
        )
    return made


def _per_class(entry: Entry) -> dict[str, float | None]:
    """The mean over the seeds that have the class."""
    known: dict[str, list[float]] = {}
    for score in entry.scores:
        given = score.result.metrics.get("per_class")
        for name, value in given.items() if isinstance(given, Mapping) else ():
            known.setdefault(str(name), []).extend([value] if is_number(value) else [])
    return {name: fmean(values) if values else None for name, values in known.items()}


def _class_intervals(peers: Sequence[Peer]) -> dict[str, Interval | None]:
    """Of the second minus the first of two, paired over the images."""
    if len(peers) != 2:
        return {}
    try:
        found = paired(peers[0].entry.stored, peers[1].entry.stored)
    except (SkipbenchError, *MISSHAPEN):
        return {}
    return {move.name: move.interval for move in found.classes}


def _class_row(
    name: str, scored: Sequence[tuple[Peer, Mapping[str, float | None]]], ends: Interval | None
) -> dict[str, Any]:
    """difference: of two models; of more, between the highest and the lowest."""
    values = [scores.get(name) for _, scores in scored]
    known = [value for value in values if value is not None]
    difference = None
    if len(known) > 1:
        difference = known[1] - known[0] if len(values) == 2 else max(known) - min(known)
    shown = signed(difference or 0)
    return {
        "name": name,
        "values": values,
        "marks": [(scores.get(name), None, peer.look) for peer, scores in scored],
        "difference": difference,
        "shown": shown if len(values) == 2 else shown.lstrip("+"),
        "interval": _signed_ends(ends) if ends else "",
    }
