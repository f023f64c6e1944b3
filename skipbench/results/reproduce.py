"""`skipbench reproduce`: the call of a record once more, and whether it gives the same result.

identical          every metric and every array, to the last bit
within the noise   the scores differ by no more than two runs of one call may
different          they differ by more, or these are other images or labels

How far two runs of one call may be apart:

seeds    With a standard deviation s over n seeds, of a baseline or of records that differ only in
         the seed: t s √2, with Student's t of n − 1 degrees of freedom (2.8 s for many seeds).
images   Without seeds: at most 0.5 points, and no more than the paired interval over images
         explains. Rounding moves images up and down alike, another method moves them one way.

A difference below 0.05 points shows in no table and is always within the noise.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

from scipy.special import stdtrit

from skipbench.errors import NumbersError, UsageError
from skipbench.pipeline import carry_out
from skipbench.records import Result
from skipbench.results.baseline import name_of, read_baseline
from skipbench.results.calibrate import repeat
from skipbench.results.check import TOLERANCE, matching_entry
from skipbench.results.entries import differing, entries
from skipbench.results.paired import Move, Paired, paired, significant
from skipbench.results.pick import pick_one
from skipbench.results.read import Source, Stored, read_results
from skipbench.results.scores import Score
from skipbench.results.words import signed

log = logging.getLogger("skipbench")

INVISIBLE = 0.05  # points
FEWEST_SEEDS = 3  # besides that of the record

Verdict = Literal["identical", "within the noise", "different"]


@dataclass(frozen=True)
class Reproduction:
    verdict: Verdict
    record: Stored = field(repr=False)
    again: Stored = field(repr=False)  # made here
    metric: str
    recorded: float
    reproduced: float
    allowed: float  # points
    noise: str  # what `allowed` follows from
    data: Mapping[str, Any]  # what differs, with both values: number and fingerprint of the images,
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]  # versions, device, …
    images: tuple[Move, ...] = field(repr=False)  # that differ, largest effect on the score first

    @property
    def difference(self) -> float:
        return self.reproduced - self.recorded

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "record": str(self.record.path),
            "again": str(self.again.path),
            "id": self.record.result.id,
            "difference": self.difference,
            "images": [asdict(move) for move in self.images],
        }


def reproduce(
    record: Source,
    *,
    results: Source | Iterable[Source] = "results",
    ckpt: str | Path | None = None,
    baseline: str | Path | None = None,
    out: str | Path | None = None,
    **places: str | Path | int | None,
) -> Reproduction:
    """`skipbench reproduce`: run the call of a record again and compare.

    record: a file, an id or its beginning in `results`, or a Result; ckpt: new place of the
    weights; baseline: has the noise of this score; out: folder for the new record; places:
    data_root, dataset, cache, device, …
    """
    stored = pick_one(record, results)
    if not Score(stored).known:
        raise UsageError(f"{stored.result.id} has only pictures: there is no score to reproduce")
    folder = Path(out) if out else stored.folder / "reproduced"
    if folder.resolve() == stored.folder.resolve():
        raise UsageError(f"{folder} holds the record itself: choose another folder with --out")
    spread = _from_baseline(stored, Path(baseline)) if baseline else _from_seeds(stored)
    run = repeat(stored.result, ckpt=ckpt, out=folder, **places)
    (cell,) = run.cells
    if cell.id != stored.result.id:
        log.warning("not the same id here: data, precision or version differ")
    (folder / f"{cell.id}.json").unlink(missing_ok=True)  # of an earlier attempt
    (result,) = carry_out(run)
    return judge(stored, Stored(result, folder), spread)


@dataclass(frozen=True)
class Spread:
    """Over seeds."""

    deviation: float
    seeds: int
    source: str

    @property
    def allowed(self) -> float:
        return float(stdtrit(self.seeds - 1, 0.975)) * self.deviation * sqrt(2)

    def __str__(self) -> str:
        return f"standard deviation {self.deviation:.2f} over {self.seeds} seeds {self.source}"


def _from_baseline(stored: Stored, path: Path) -> Spread:
    baseline, (entry,) = read_baseline(path), entries([stored])
    name = name_of(entry)
    line = baseline.figures.get(name)
    if line is None or line.noise is None:
        raise UsageError(
            f"{path} has no noise of {name!r}.\nMeasure it: skipbench calibrate --baseline {path}"
        )
    matching_entry(line, baseline, [entry])
    return Spread(line.noise, line.noise_seeds, f"in {path.name}")


def _from_seeds(stored: Stored) -> Spread | None:
    """Of records that differ only in the seed, beside this one or made by `calibrate`. Its own
    score does not count: if it is wrong, it would widen what is allowed."""
    pattern = f"{stored.result.id.rpartition('-')[0]}-*.json"
    folders = (stored.folder, stored.folder / "calibration")
    files = [path for folder in folders for path in sorted(folder.glob(pattern))]
    found = entries([stored, *read_results(set(files) - {stored.path})])[0]
    values = [score.value for score in found.scores if score.result.id != stored.result.id]
    if len(values) < FEWEST_SEEDS:
        return None
    return Spread(stdev(values), len(values), "in records that differ only in the seed")


# -- the two compared


def judge(stored: Stored, again: Stored, spread: Spread | None) -> Reproduction:
    old, new = Score(stored), Score(again)
    data = differing([old.images, new.images])
    has_arrays = stored.path.with_suffix(".npz").exists()
    if not has_arrays:
        log.warning("%s: its .npz is missing, so no images are compared", stored.path)
    pair = _paired(stored, again) if has_arrays else None
    same = not data and old.result.metrics == new.result.metrics
    verdict: Verdict = "different"
    if same and (not has_arrays or _same_arrays(stored, again)):
        verdict = "identical"
    elif not data and _within(new.value - old.value, spread, pair):
        verdict = "within the noise"
    return Reproduction(
        verdict,
        stored,
        again,
        old.metric,
        old.value,
        new.value,
        max(spread.allowed if spread else TOLERANCE if pair else 0, INVISIBLE),
        str(spread) if spread else _interval_words(pair),
        data,
        differing([_settings(old), _settings(new)]),
        differing([_machine(old.result), _machine(new.result)]),
        tuple(move for move in pair.moved if move.difference or move.effect) if pair else (),
    )


def _within(difference: float, spread: Spread | None, pair: Paired | None) -> bool:
    size = abs(difference)
    if size <= INVISIBLE:
        return True
    if spread:
        return size <= spread.allowed
    return size <= TOLERANCE and pair is not None and not significant(pair.interval, pair.p_value)


def _interval_words(pair: Paired | None) -> str:
    if pair is None:
        return "no other seeds and no counts by image"
    low, high = (signed(end, 2) for end in pair.interval)
    return f"no other seeds; paired 95 % interval over images {low} to {high}"


def _paired(stored: Stored, again: Stored) -> Paired | None:
    """None for fewer than two common images."""
    try:
        return paired(stored, again)
    except (UsageError, NumbersError) as error:
        log.warning("no images are compared: %s", error)
        return None


def _same_arrays(stored: Stored, again: Stored) -> bool:
    """To the last bit."""
    one, other = (
        {name: (array.dtype, array.shape, array.tobytes()) for name, array in side.arrays().items()}
        for side in (stored, again)
    )
    return one == other


def _settings(score: Score) -> dict[str, Any]:
    names = ("residual", "features", "seed")
    version = (score.result.determines or {}).get("version")
    return {
        **{name: score.facts[name] for name in names},
        **score.settings,
        **score.model,
        **score.computing,
        **({"version": version} if version else {}),
    }


def _machine(result: Result) -> dict[str, Any]:
    """Versions, device and so on, each by its name."""
    found = {k: v for k, v in result.environment.items() if k not in ("call", "packages")}
    return found | dict(result.environment.get("packages") or {})
