"""How far a figure moves when nothing but the seed changes: the noise that `check --sigma` uses."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from skipbench.errors import UsageError
from skipbench.pipeline import carry_out
from skipbench.records import Result
from skipbench.results.baseline import name_of, named, read_baseline, write_baseline
from skipbench.results.check import made_alike
from skipbench.results.read import Source, read_results
from skipbench.results.rerun import open_again
from skipbench.results.scores import Entry, entries, only, parse_where

log = logging.getLogger("skipbench")

SEEDS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Noise:
    figure: str
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
    """`skipbench calibrate`: each evaluation again with other seeds; their deviation is written to
    the baseline. What was done is kept in RESULTS/calibration.

    ckpt: where the weights lie, if not where they did; places: data_root, cache, device, …
    """
    wanted = entries(only(read_results(results), parse_where(where)))
    known = read_baseline(Path(baseline)) if baseline else None
    if known:
        groups = named(wanted)
        lines = [line for name, line in sorted(known.figures.items()) if name in groups]
        wanted = [made_alike(line, known, groups[line.figure]) for line in lines]
    if not wanted:
        raise UsageError("no record to calibrate" + (f" that {baseline} expects" if known else ""))
    noises = []
    for place, entry in enumerate(wanted, 1):
        log.info("%d of %d: %s", place, len(wanted), name_of(entry))
        again = _again(entry, seeds, ckpt, places)
        values = {f.facts["seed"]: f.value for f in entry.figures}
        values |= {r.protocol["seed"]: float(r.metrics[r.metrics["headline"]]) for r in again}
        if len(values) < 2:
            raise UsageError("give at least one seed that is not that of the record")
        noise = Noise(name_of(entry), tuple(values.values()), known is not None)
        noises.append(noise)
        if baseline and noise.baseline:
            _write(Path(baseline), noise)  # at once: what was measured is not lost
    return noises


def _again(
    entry: Entry, seeds: Sequence[int], ckpt: str | Path | None, places: dict[str, Any]
) -> list[Result]:
    result, folder = entry.first.result, entry.first.stored.folder
    done = {figure.facts["seed"] for figure in entry.figures}
    new = [seed for seed in seeds if seed not in done]
    if not new:
        return []
    out = folder / "calibration"
    return carry_out(open_again(result, ckpt=ckpt, seeds=new, out=out, **places))


def _write(path: Path, noise: Noise) -> None:
    before = read_baseline(path)
    line = replace(
        before.figures[noise.figure],
        noise=round(noise.deviation, 4),
        noise_seeds=len(noise.values),
    )
    write_baseline(path, replace(before, figures={**before.figures, noise.figure: line}))
