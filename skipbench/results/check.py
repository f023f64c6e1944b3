"""A gate: is each expected figure met, better, worse or missing?

tolerance   worse: more than so many points below
sigma       worse: more than so many deviations of the training noise below. Two runs of the
            same thing differ by √2 deviations, so 2.8 is two of those.
paired      worse: the paired 95 % interval of the difference lies below 0
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skipbench.errors import DataError, UsageError
from skipbench.files import read_json
from skipbench.metrics.intervals import RESAMPLES, SIGNIFICANT, interval, resample_weights
from skipbench.results.baseline import Baseline, Expected, counts_key, named, read_baseline
from skipbench.results.compare import Side, chance_of
from skipbench.results.scores import Entry, differing, entries, fits, only, parse_where
from skipbench.results.read import Source, Stored, listed, read_results

log = logging.getLogger("skipbench")

TOLERANCE = 0.5
FEW_SEEDS = 4
ROUNDING = 1e-4  # values in a baseline have four digits

CELL = ("checkpoint", "evaluation", "dataset")

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
    if not all(isfinite(limit) and limit >= 0 for limit in (tolerance or 0, sigma or 0)):
        raise UsageError("--tolerance and --sigma are numbers from 0")
    wanted, chosen = read_baseline(Path(baseline), counts=paired), parse_where(where)
    if not wanted.figures:
        log.warning("%s expects nothing: every result passes", baseline)
    given = listed(results)
    stored = read_results(given, strict=strict)
    groups = named(entries(only(stored, chosen)))
    of_lines = {fact: values for fact, values in chosen.items() if fact != "seed"}
    names = sorted(name for name, line in wanted.figures.items() if fits(line.facts, of_lines))
    if chosen and not names:
        raise UsageError(f"no figure of {baseline} fits --where: there is nothing to check")
    failed = failures(stored, given)
    if sigma is not None:
        _require_noise([wanted.figures[name] for name in names if name in groups])
    verdicts = []
    for name in names:
        line = wanted.figures[name]
        trouble = failed.get(tuple(line.facts[key] for key in CELL), "")
        if name not in groups or trouble:
            missing = Verdict(name, "missing", line.metric, line.value, None, None, None)
            verdicts.append(replace(missing, note=trouble))
            continue
        entry = made_alike(line, wanted, groups[name])
        if paired:
            verdicts.append(_paired(line, entry, wanted))
        else:
            verdicts.append(_judge(line, entry, _allowed(line, entry, tolerance, sigma)))
    for name in sorted(set(groups) - set(wanted.figures)):
        for entry in groups[name]:
            verdicts.append(Verdict(name, "new", entry.first.metric, None, entry.value, None, None))
    return verdicts


def failures(stored: Sequence[Stored], given: Sequence[Source]) -> dict[tuple[Any, ...], str]:
    """Cells of a suite that have failed, in the folders of these records: what an older record says
    of them is out of date."""
    folders = {one.folder for one in stored}
    folders |= {Path(one).expanduser() for one in given if isinstance(one, str | Path)}
    found = {}
    for path in sorted(path for folder in folders for path in folder.glob("failures/*.json")):
        cell = read_json(path) or {}
        words = " ".join(str(cell.get("message", "")).split())[:120]
        key = tuple(cell.get(name) for name in ("checkpoint", "kind", "dataset"))
        found[key] = f"its evaluation failed: {words}"
    return found


def made_alike(line: Expected, wanted: Baseline, group: Sequence[Entry]) -> Entry:
    """The entry that was made as the expected figure was; an error that says how it differs."""
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
            + "\n".join(f"  {_which(entry, line)}" for entry in alike)
            + "\nTake the old ones out of the folder, or give names with --label name=…"
        )
    if alike:
        if any(_sha(entry) != _sha(alike[0]) for entry in group):
            raise UsageError(
                f"{line.figure!r} was also made with other weights in another way; which one is "
                "meant?\n" + "\n".join(f"  {_which(entry, line)}" for entry in group)
            )
        return alike[0]
    told = "; ".join(
        f"{name}: {_words(old)} in the baseline, {_words(new)} now"
        for name, (old, new) in ways[0].items()
    )
    raise UsageError(
        f"{line.figure}: the baseline was made with another protocol, or on other images.\n{told}\n"
        "Evaluate as it was, or write a new baseline with --update."
    )


def _words(value: Any) -> str:
    """ "30 (2a5f0348ff4e)" for so many images and their fingerprint."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], str):
        return f"{value[0]:,} ({value[1]})"
    return str(value)


def _which(entry: Entry, line: Expected) -> str:
    result = entry.first.result
    when = str(result.timing.get("finished") or "")[:16].replace("T", " ")
    own = " (the baseline's)" if _sha(entry) == line.sha256 else ""
    return f"{result.id}  {entry.value:.2f}  {when}  weights {_sha(entry)[:12]}{own}"


def _sha(entry: Entry) -> str:
    return str(entry.first.result.checkpoint["sha256"])


def _require_noise(lines: Sequence[Expected]) -> None:
    unknown = [line.figure for line in lines if line.noise is None]
    if unknown:
        told = "\n".join(f"  {name}" for name in unknown)
        raise UsageError(
            f"--sigma: the noise of {len(unknown)} figures is not known:\n{told}\n"
            "`skipbench calibrate` measures it, where there is a seed (tokencut has none); --where "
            "leaves figures out."
        )
    if few := [line for line in lines if line.noise_seeds < FEW_SEEDS]:
        least = min(line.noise_seeds for line in few)
        log.warning("noise from %d seeds is itself uncertain; calibrate with more", least)


def _allowed(line: Expected, entry: Entry, tolerance: float | None, sigma: float | None) -> float:
    if sigma is None:
        return TOLERANCE if tolerance is None else tolerance
    assert line.noise is not None
    seeds = (1 / line.seeds + 1 / len(entry.figures)) / 2  # means over seeds are less noisy
    return float(sigma * line.noise * np.sqrt(seeds))


def _judge(line: Expected, entry: Entry, allowed: float) -> Verdict:
    difference = entry.value - line.value
    state: State = "worse"  # unless it is shown not to be
    if difference > allowed + ROUNDING:
        state = "better"
    elif difference >= -allowed - ROUNDING:
        state = "met"
    return Verdict(
        line.figure, state, line.metric, line.value, entry.value, difference, allowed,
        note=_note(line, entry),
    )  # fmt: skip


def _paired(line: Expected, entry: Entry, wanted: Baseline) -> Verdict:
    now = Side(entry.first.result, [figure.stored.counts() for figure in entry.figures])
    before = Side(entry.first.result, _counts_before(line, wanted))
    if len({counts.shape for counts in [*now.counts, *before.counts]}) > 1:
        raise DataError(f"{line.figure}: counts by image of another shape; --update --paired")
    if abs(before.value - line.value) > 1e-3:
        raise DataError(
            f"{line.figure}: the counts beside the baseline are of {before.value:.2f}, not of "
            f"{line.value:.2f}: the two files do not belong together; --update --paired"
        )
    images = len(now.counts[0])
    if images < 2:
        raise UsageError(f"{line.figure}: one image says nothing of others; give --tolerance")
    if now.is_by_image and 2 * 0.5**images > SIGNIFICANT:  # p, were all of them worse
        raise UsageError(f"{line.figure}: {images} images can show no difference; give --tolerance")
    weights = resample_weights(images, RESAMPLES, seed=0)
    drawn = now.resampled(weights).value - before.resampled(weights).value
    low, high = interval(drawn)
    chance = chance_of(before, now, drawn)
    state: State = "met"
    if not low <= 0 <= high and chance < SIGNIFICANT:
        state = "worse" if high < 0 else "better"
    return Verdict(
        line.figure, state, line.metric, line.value, entry.value, entry.value - line.value, None,
        (low, high), chance, _note(line, entry),
    )  # fmt: skip


def _counts_before(line: Expected, wanted: Baseline) -> list[np.ndarray]:
    keys = [counts_key(line.figure, i) for i in range(line.seeds)]
    if not set(keys) <= set(wanted.counts):
        raise UsageError(
            f"{line.figure}: no counts by image beside the baseline; write it with "
            "--update --paired"
        )
    return [wanted.counts[key] for key in keys]


def _note(line: Expected, entry: Entry) -> str:
    notes = []
    if len(entry.figures) != line.seeds:
        notes.append(f"seeds: {line.seeds} in the baseline, {len(entry.figures)} now")
    if _sha(entry) != line.sha256:
        notes.append("other weights than the baseline's")
    if (now := entry.first.computing["precision"]) != line.precision:
        notes.append(f"computed in {now}, the baseline in {line.precision}")
    return ", ".join(notes)
