"""A gate: is each expected figure met, better, worse or missing?

tolerance   worse: more than so many points below
sigma       worse: more than so many deviations of the training noise below. Two runs of the
            same thing differ by √2 deviations, so 2.8 is two of those.
paired      worse: the paired 95 % interval of the difference lies below 0
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skipbench.errors import UsageError
from skipbench.metrics.intervals import (
    RESAMPLES,
    bootstrap,
    interval,
    p_value,
    resample_weights,
)
from skipbench.results.baseline import Baseline, Expected, named, read_baseline
from skipbench.results.compare import score_of
from skipbench.results.figures import Entry, differing, entries, only, parse_where
from skipbench.results.read import Source, read_results

TOLERANCE = 0.5
ROUNDING = 1e-4  # values in a baseline have four digits

State = Literal["met", "better", "worse", "missing", "new"]


@dataclass(frozen=True)
class Verdict:
    figure: str
    state: State
    metric: str
    expected: float | None
    found: float | None
    difference: float | None
    allowed: float | None  # points below that are still met; None: paired
    interval: tuple[float, float] | None = None  # of the difference, paired
    p_value: float | None = None
    note: str = ""

    @property
    def fails(self) -> bool:
        return self.state in ("worse", "missing")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(
    results: Source | Iterable[Source] = "results",
    baseline: str | Path = "baseline.json",
    *,
    tolerance: float | None = None,
    sigma: float | None = None,
    paired: bool = False,
    where: Iterable[str] = (),
    strict: bool = False,
) -> list[Verdict]:
    """`skipbench check`: the expected figures first, then new ones."""
    if sum((tolerance is not None, sigma is not None, paired)) > 1:
        raise UsageError("give one of --tolerance, --sigma and --paired")
    wanted = read_baseline(Path(baseline), counts=paired)
    stored = only(read_results(results, strict=strict), parse_where(where))
    groups = named(entries(stored))
    verdicts = []
    for name in sorted(wanted.figures):
        line = wanted.figures[name]
        if name not in groups:
            verdicts.append(Verdict(name, "missing", line.metric, line.value, None, None, None))
            continue
        entry = _made_alike(line, wanted, groups[name])
        if paired:
            verdicts.append(_paired(line, entry, wanted))
        else:
            verdicts.append(_judge(line, entry, _allowed(line, entry, tolerance, sigma)))
    for name in sorted(set(groups) - set(wanted.figures)):
        entry = groups[name][0]
        verdicts.append(Verdict(name, "new", entry.first.metric, None, entry.value, None, None))
    return verdicts


def _made_alike(line: Expected, wanted: Baseline, group: Sequence[Entry]) -> Entry:
    """The entry that was made as the expected figure was; an error that says how it differs."""
    before = {**wanted.protocols[line.protocol], **line.images, "measure": line.metric}
    ways = []
    for entry in group:
        images = {name: list(value) for name, value in entry.first.images.items()}
        now = {**entry.first.settings, **images, "measure": entry.first.metric}
        ways.append(differing([before, now]))
    if not all(ways):
        return group[ways.index({})]
    told = "; ".join(f"{k}: {old} in the baseline, {new} now" for k, (old, new) in ways[0].items())
    raise UsageError(
        f"{line.figure}: the baseline was made with another protocol, or on other images.\n{told}\n"
        "Evaluate as it was, or write a new baseline with --update."
    )


def _allowed(line: Expected, entry: Entry, tolerance: float | None, sigma: float | None) -> float:
    if sigma is None:
        return TOLERANCE if tolerance is None else tolerance
    if line.noise is None:
        raise UsageError(
            f"{line.figure}: its noise is not known; `skipbench calibrate` measures it for --sigma"
        )
    seeds = (1 / line.seeds + 1 / len(entry.figures)) / 2  # means over seeds are less noisy
    return float(sigma * line.noise * np.sqrt(seeds))


def _judge(line: Expected, entry: Entry, allowed: float) -> Verdict:
    difference = entry.value - line.value
    state: State = "met"
    if difference < -allowed - ROUNDING:
        state = "worse"
    elif difference > allowed + ROUNDING:
        state = "better"
    return Verdict(
        line.figure, state, line.metric, line.value, entry.value, difference, allowed,
        note=_weights(line, entry),
    )  # fmt: skip


def _paired(line: Expected, entry: Entry, wanted: Baseline) -> Verdict:
    before = [wanted.counts.get(f"{line.figure}#{i}") for i in range(line.seeds)]
    if any(counts is None for counts in before):
        raise UsageError(
            f"{line.figure}: no counts by image beside the baseline; write it with "
            "--update --paired"
        )
    now = [figure.stored.arrays()["counts"] for figure in entry.figures]
    score = score_of(entry.first.result)
    weights = resample_weights(len(now[0]), RESAMPLES, seed=0)
    new, old = (
        np.mean([bootstrap(counts, score, weights) for counts in side], axis=0)  # type: ignore[arg-type]
        for side in (now, before)
    )
    low, high = interval(new - old)
    state: State = "worse" if high < 0 else "better" if low > 0 else "met"
    return Verdict(
        line.figure, state, line.metric, line.value, entry.value, entry.value - line.value, None,
        (low, high), p_value(new - old), _weights(line, entry),
    )  # fmt: skip


def _weights(line: Expected, entry: Entry) -> str:
    same = entry.first.result.checkpoint["sha256"] == line.sha256
    return "" if same else "other weights than the baseline's"
