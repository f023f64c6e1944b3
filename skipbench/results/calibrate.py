"""How much a score moves if nothing but the seed changes: the noise for `check --sigma`."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from skipbench.errors import UsageError
from skipbench.pipeline import carry_out
from skipbench.results.baseline import by_name, name_of, read_baseline, write_baseline
from skipbench.results.check import made_alike
from skipbench.results.entries import Entry, entries
from skipbench.results.read import Source, read_results
from skipbench.results.rerun import reopen
from skipbench.results.where import only, parse_where

log = logging.getLogger("skipbench")

SEEDS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Noise:
    figure: str  # name of the score
    values: tuple[float, ...]  # one for each seed
    baseline: bool  # whether it was written there

    @property
    def deviation(self) -> float:
        return stdev(self.values)

    @property
    def mean(self) -> float:
        return fmean(self.values)


def calibrate(
    results: Source | Iterable[Source] = "results",
    baseline: str | Path | None = None,
    *,
    seeds: Sequence[int] = SEEDS,
    where: Iterable[str] = (),
    ckpt: str | Path | None = None,
    **places: Any,
) -> list[Noise]:
    """`skipbench calibrate`: run each evaluation with other seeds and write the standard deviation
    to the baseline. New records go to RESULTS/calibration.

    ckpt: new place of the weights, if they moved; places: data_root, cache, device, …
    """
    wanted = entries(only(read_results(results), parse_where(where)))
    if baseline:
        known, groups = read_baseline(Path(baseline)), by_name(wanted)
        lines = [line for name, line in sorted(known.figures.items()) if name in groups]
        wanted = [made_alike(line, known, groups[line.figure]) for line in lines]
    if not wanted:
        raise UsageError(
            "no records to calibrate" + (f" that {baseline} expects" if baseline else "")
        )
    noises = []
    for number, entry in enumerate(wanted, 1):
        log.info("%d of %d: %s", number, len(wanted), name_of(entry))
        values = _values(entry, seeds, ckpt, places)
        if len(values) < 2:
            raise UsageError("--seeds: give at least one seed that the record does not have")
        noise = Noise(name_of(entry), values, baseline is not None)
        noises.append(noise)
        if baseline:
            _write(Path(baseline), noise)  # at once: nothing measured is lost
    return noises


def _values(
    entry: Entry, seeds: Sequence[int], ckpt: str | Path | None, places: dict[str, Any]
) -> tuple[float, ...]:
    """The scores of these seeds and of those that it has."""
    values = {score.facts["seed"]: score.value for score in entry.scores}
    if new := [seed for seed in seeds if seed not in values]:
        stored = entry.first.stored
        out = stored.folder / "calibration"
        run = reopen(stored.result, ckpt=ckpt, seeds=new, out=out, **places)
        for result in carry_out(run):
            values[result.protocol["seed"]] = float(result.metrics[result.metrics["headline"]])
    return tuple(values.values())


def _write(path: Path, noise: Noise) -> None:
    before = read_baseline(path)
    line = replace(
        before.figures[noise.figure],
        noise=round(noise.deviation, 4),
        noise_seeds=len(noise.values),
    )
    write_baseline(path, replace(before, figures={**before.figures, noise.figure: line}))
