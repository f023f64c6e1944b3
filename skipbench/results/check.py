"""`skipbench check`: is each expected score met, better, worse or missing?

tolerance   worse: more than this many points below
sigma       worse: more than this many standard deviations over seeds below. Two runs of the same
            thing differ by √2 deviations, so 2.8 is two of those.
paired      worse: the paired 95 % interval of the difference lies below 0
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from skipbench.errors import DataError, UsageError
from skipbench.evaluations import evaluations
from skipbench.files import read_json
from skipbench.metrics.intervals import RESAMPLES, SIGNIFICANT, interval, resample_weights
from skipbench.results.baseline import Baseline, Expected, counts_key, name_of, read_baseline
from skipbench.results.entries import Entry, differing, entries, grouped
from skipbench.results.paired import ModelCounts, p_of_difference, significant
from skipbench.results.read import Source, Stored, listed, read_results
from skipbench.results.scores import fits, only, parse_where
from skipbench.results.tables.render import md, md_row
from skipbench.results.words import p_text, signed, value_text

log = logging.getLogger("skipbench")

TOLERANCE = 0.5
FEW_SEEDS = 4
ROUNDING = 1e-4  # values in a baseline have four digits

State = Literal["met", "better", "worse", "missing", "new"]


@dataclass(frozen=True)
class Verdict:
    figure: str  # name of the score
    state: State
    metric: str
    expected: float | None
    found: float | None = None
    difference: float | None = None
    allowed: float | None = None  # points below that are still met; None: paired
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
    """`skipbench check`: the expected scores first, then new ones."""
    if sum((tolerance is not None, sigma is not None, paired)) > 1:
        raise UsageError("give only one of --tolerance, --sigma and --paired")
    if not all(isfinite(limit) and limit >= 0 for limit in (tolerance or 0, sigma or 0)):
        raise UsageError("--tolerance and --sigma must be 0 or more")
    wanted, chosen = read_baseline(Path(baseline), counts=paired), parse_where(where)
    if not wanted.figures:
        log.warning("%s expects no scores: every result passes", baseline)
    given = listed(results)
    stored = read_results(given, strict=strict)
    groups = grouped(entries(only(stored, chosen)), name_of)
    of_lines = {fact: values for fact, values in chosen.items() if fact != "seed"}
    lines = [line for _, line in sorted(wanted.figures.items()) if fits(line.facts, of_lines)]
    if chosen and not lines:
        raise UsageError(f"no score in {baseline} matches --where: there is nothing to check")
    failed = _failed_evaluations(stored, given)
    if sigma is not None:
        _require_noise([line for line in lines if line.figure in groups], baseline)
    verdicts = []
    for line in lines:
        failure = failed.get(tuple(line.facts[n] for n in ("checkpoint", "evaluation", "dataset")))
        if failure or line.figure not in groups:
            missing = Verdict(line.figure, "missing", line.metric, line.value, note=failure or "")
            verdicts.append(missing)
            continue
        entry = matching_entry(line, wanted, groups[line.figure])
        if paired:
            verdicts.append(_judge_paired(line, entry, wanted))
        else:
            verdicts.append(_judge(line, entry, _allowed(line, entry, tolerance, sigma)))
    for name in sorted(set(groups) - set(wanted.figures)):
        verdicts += [Verdict(name, "new", e.first.metric, None, e.value) for e in groups[name]]
    return verdicts


def _failed_evaluations(
    stored: Sequence[Stored], given: Sequence[Source]
) -> dict[tuple[Any, ...], str]:
    """(checkpoint, evaluation, data set) → error of a suite's failed evaluations; their older
    records are out of date."""
    folders = {one.folder for one in stored}
    folders |= {Path(one).expanduser() for one in given if isinstance(one, str | Path)}
    found = {}
    for path in sorted(path for folder in folders for path in folder.glob("failures/*.json")):
        failure = read_json(path) or {}
        words = " ".join(str(failure.get("message", "")).split())[:120]
        key = tuple(failure.get(name) for name in ("checkpoint", "kind", "dataset"))
        found[key] = f"its evaluation failed: {words}"
    return found


def matching_entry(line: Expected, wanted: Baseline, group: Sequence[Entry]) -> Entry:
    """The entry with the protocol and images of the expected score; else an error that lists the
    differences."""
    before = {**wanted.protocols[line.protocol], **line.images, "measure": line.metric}
    ways = []
    for entry in group:
        images = {name: list(value) for name, value in entry.first.images.items()}
        now = {**entry.first.settings, **images, "measure": entry.first.metric}
        ways.append(differing([before, now]))
    alike = [entry for entry, way in zip(group, ways, strict=True) if not way]
    if len(alike) > 1:
        raise UsageError(
            f"{len(alike)} records are called {line.figure!r}; which one is meant?\n"
            f"{_listed(alike, line)}\n"
            "Remove the old ones from the folder, or name the checkpoints with --label name=…"
        )
    if alike:
        if any(entry.first.sha256 != alike[0].first.sha256 for entry in group):
            raise UsageError(
                f"{line.figure!r} also has a record of other weights and another protocol; which "
                f"one is meant?\n{_listed(group, line)}"
            )
        return alike[0]
    changes = "; ".join(
        f"{name}: {value_text(old)} in the baseline, {value_text(new)} now"
        for name, (old, new) in ways[0].items()
    )
    raise UsageError(
        f"{line.figure}: the baseline has another protocol or other images.\n{changes}\n"
        "Evaluate with the baseline's settings, or write a new baseline with --update."
    )


def _listed(group: Sequence[Entry], line: Expected) -> str:
    lines = []
    for entry in group:
        result, sha256 = entry.first.result, entry.first.sha256
        when = str(result.timing.get("finished") or "")[:16].replace("T", " ")
        own = " (the baseline's)" if sha256 == line.sha256 else ""
        lines.append(f"  {result.id}  {entry.value:.2f}  {when}  weights {sha256[:12]}{own}")
    return "\n".join(lines)


# -- judging


def _require_noise(lines: Sequence[Expected], baseline: str | Path) -> None:
    if unknown := [line for line in lines if line.noise is None]:
        seeded = [name for name, one in evaluations().items() if one.has_seed]
        can_be_measured = {line.facts["evaluation"] in seeded for line in unknown}
        advice = []
        if True in can_be_measured:
            advice.append(f"Measure it with `skipbench calibrate --baseline {baseline}`.")
        if False in can_be_measured:
            others = " ".join(f"--where evaluation={name}" for name in seeded)
            advice.append(f"Scores without a seed have no noise: leave them out with {others}.")
        raise UsageError(
            f"--sigma: the noise of {len(unknown)} scores is not known:\n"
            + "\n".join(f"  {line.figure}" for line in unknown)
            + "\n"
            + "\n".join(advice)
        )
    if few := [line for line in lines if line.noise_seeds < FEW_SEEDS]:
        least = min(line.noise_seeds for line in few)
        log.warning("noise from %d seeds is itself uncertain; calibrate with more", least)


def _allowed(line: Expected, entry: Entry, tolerance: float | None, sigma: float | None) -> float:
    if sigma is None:
        return TOLERANCE if tolerance is None else tolerance
    assert line.noise is not None
    seeds = (1 / line.seeds + 1 / len(entry.scores)) / 2  # means over seeds are less noisy
    return sigma * line.noise * sqrt(seeds)


def _judge(line: Expected, entry: Entry, allowed: float) -> Verdict:
    difference = entry.value - line.value
    state: State = "worse"  # also for NaN
    if difference > allowed + ROUNDING:
        state = "better"
    elif difference >= -allowed - ROUNDING:
        state = "met"
    return Verdict(
        line.figure, state, line.metric, line.value, entry.value, difference, allowed,
        note=_note(line, entry),
    )  # fmt: skip


def _judge_paired(line: Expected, entry: Entry, wanted: Baseline) -> Verdict:
    keys = [counts_key(line.figure, i) for i in range(line.seeds)]
    if not set(keys) <= set(wanted.counts):
        raise UsageError(
            f"{line.figure}: the baseline has no counts by image; add them with --update --paired"
        )
    result = entry.first.result
    now = ModelCounts(result, [stored.counts() for stored in entry.stored])
    before = ModelCounts(result, [wanted.counts[key] for key in keys])
    if len({counts.shape for counts in [*now.counts, *before.counts]}) > 1:
        raise DataError(f"{line.figure}: counts by image have another shape; --update --paired")
    if abs(before.value - line.value) > 1e-3:
        raise DataError(
            f"{line.figure}: the counts beside the baseline give {before.value:.2f}, not "
            f"{line.value:.2f}: the two files do not belong together; --update --paired"
        )
    images = len(now.counts[0])
    if images < 2:
        raise UsageError(f"{line.figure}: one image is too few for --paired; give --tolerance")
    if now.is_by_image and 2 * 0.5**images > SIGNIFICANT:  # p, were all of them worse
        raise UsageError(f"{line.figure}: {images} images can show no difference; give --tolerance")
    weights = resample_weights(images, RESAMPLES, seed=0)
    drawn = now.score(now.resampled(weights)) - before.score(before.resampled(weights))
    ends, p_value = interval(drawn), p_of_difference(before, now, drawn)
    state: State = "met"
    if significant(ends, p_value):
        state = "worse" if ends[1] < 0 else "better"
    judged = _judge(line, entry, 0)
    return replace(judged, state=state, allowed=None, interval=ends, p_value=p_value)


def _note(line: Expected, entry: Entry) -> str:
    notes = []
    if len(entry.scores) != line.seeds:
        notes.append(f"seeds: {line.seeds} in the baseline, {len(entry.scores)} now")
    if entry.first.sha256 != line.sha256:
        notes.append("other weights than the baseline's")
    if (now := entry.first.computing["precision"]) != line.precision:
        notes.append(f"computed in {now}, the baseline in {line.precision}")
    return ", ".join(notes)


# -- as text: sentences, JUnit, GitHub annotations, Markdown

STATES = ("worse", "missing", "better", "met", "new")


def sentence(verdict: Verdict) -> str:
    """ "56.3 instead of 57.6 (−1.3, allowed 0.5)"."""
    note = f"; {verdict.note}" if verdict.note else ""
    if verdict.found is None:
        return f"missing; {verdict.expected:.2f} was expected{note}"
    if verdict.expected is None or verdict.difference is None:
        return f"{verdict.found:.2f}, not in the baseline"
    if verdict.interval:
        low, high = (signed(end, 2) for end in verdict.interval)
        rule = f"paired interval {low} to {high}, {p_text(verdict.p_value or 0.0)}"
    else:
        rule = f"allowed {verdict.allowed:.2f}"
    moved = signed(verdict.difference, 2)
    return f"{verdict.found:.2f} instead of {verdict.expected:.2f} ({moved}, {rule}){note}"


def summary(verdicts: Sequence[Verdict]) -> str:
    """ "3 met, 1 worse"."""
    count: Counter[str] = Counter(verdict.state for verdict in verdicts)
    return ", ".join(f"{count[state]} {state}" for state in STATES if count[state])


def worst_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted(verdicts, key=lambda verdict: STATES.index(verdict.state))


def junit(verdicts: Sequence[Verdict]) -> str:
    judged = [verdict for verdict in verdicts if verdict.state != "new"]
    failures = str(sum(verdict.fails for verdict in judged))
    counts = {"tests": str(len(judged)), "failures": failures, "errors": "0", "skipped": "0"}
    suite = ElementTree.Element("testsuite", {"name": "skipbench", **counts})
    for verdict in judged:
        name, words = _xml(verdict.figure), _xml(sentence(verdict))
        case = ElementTree.SubElement(suite, "testcase", classname="skipbench.check", name=name)
        if verdict.fails:
            failure = ElementTree.SubElement(case, "failure", type=verdict.state, message=words)
            failure.text = f"{name}: {words}"
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'


def _xml(text: str) -> str:
    """Without control characters and lone surrogates, which XML allows not even escaped."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


ESCAPED = {"%": "%25", "\r": "%0D", "\n": "%0A"}


def annotations(verdicts: Sequence[Verdict]) -> list[str]:
    """Lines that GitHub shows in a pull request."""
    kinds = {"worse": "error", "missing": "error", "better": "notice"}
    return [
        f"::{kinds[verdict.state]} title=skipbench%3A {verdict.state}::"
        + "".join(ESCAPED.get(c, c) for c in f"{verdict.figure}: {sentence(verdict)}")
        for verdict in verdicts
        if verdict.state in kinds
    ]


def step_summary(verdicts: Sequence[Verdict]) -> str:
    """Markdown, for GitHub's page of the run."""
    lines = [f"### skipbench check: {summary(verdicts)}", ""]
    lines += [md_row(["figure", "verdict", "what"]), md_row(["---"] * 3)]
    for verdict in worst_first(verdicts):
        state = f"**{verdict.state}**" if verdict.fails else verdict.state
        lines.append(md_row([md(verdict.figure), state, md(sentence(verdict))]))
    return "\n".join(lines) + "\n"
