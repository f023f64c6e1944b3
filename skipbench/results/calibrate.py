"""`skipbench calibrate`: how much a score varies over seeds, the noise for `check --sigma`."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

from skipbench.errors import CheckpointError, DataError, UsageError
from skipbench.evaluations import find_evaluation
from skipbench.evaluations.run import FeatureRun, Run
from skipbench.pipeline import carry_out, open_run
from skipbench.records import LABELS, TOLD, Result
from skipbench.results.baseline import name_of, read_baseline, write_baseline
from skipbench.results.check import matching_entry
from skipbench.results.entries import Entry, entries, grouped
from skipbench.results.read import Source, read_results
from skipbench.results.scores import only, parse_where

log = logging.getLogger("skipbench")


@dataclass(frozen=True)
class Noise:
    figure: str  # name of the score
    values: tuple[float, ...]  # one for each seed
    baseline: bool  # written there

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
    seeds: Sequence[int] = (1, 2, 3, 4),
    where: Iterable[str] = (),
    ckpt: str | Path | None = None,
    **places: str | Path | int | None,
) -> list[Noise]:
    """`skipbench calibrate`: run each evaluation with other seeds and write the standard deviation
    to the baseline. New records go to RESULTS/calibration.

    ckpt: path of the weights, if they moved; places: data_root, cache, device, …
    """
    wanted = entries(only(read_results(results), parse_where(where)))
    if baseline:
        known, groups = read_baseline(Path(baseline)), grouped(wanted, name_of)
        lines = [line for name, line in sorted(known.figures.items()) if name in groups]
        wanted = [matching_entry(line, known, groups[line.figure]) for line in lines]
    for name in sorted({_name(e) for e in wanted if not _has_seed(e)}):
        log.info("%s has no seed: its scores have no noise to measure", name)
    wanted = list(filter(_has_seed, wanted))
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
            _write(Path(baseline), noise)  # at once, so that an interruption loses nothing
    return noises


def _has_seed(entry: Entry) -> bool:
    """Not every method of an evaluation has one."""
    return entry.first.evaluation.has_seed and entry.facts["seed"] is not None


def _name(entry: Entry) -> str:
    """Of the evaluation, or of its one method without a seed."""
    return entry.first.title if entry.first.evaluation.has_seed else entry.facts["evaluation"]


def _values(
    entry: Entry, seeds: Sequence[int], ckpt: str | Path | None, places: dict[str, Any]
) -> tuple[float, ...]:
    """The scores of these seeds and of the entry's own."""
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
    line = before.figures[noise.figure]
    line = replace(line, noise=round(noise.deviation, 4), noise_seeds=len(noise.values))
    write_baseline(path, replace(before, figures={**before.figures, noise.figure: line}))


# -- running a record again


def reopen(
    result: Result, *, ckpt: str | Path | None = None, seeds: Sequence[int], **places: Any
) -> FeatureRun:
    """With other seeds, on the same images. ckpt: path of the weights, if they moved; places:
    data_root, out, cache, device, …"""
    if not find_evaluation(result.evaluation).has_seed:
        raise UsageError(f"{result.evaluation} has no seed to change")
    run = cast(FeatureRun, repeat(result, ckpt=ckpt, seeds=list(seeds), **places))
    for facts, part in ((run.val_facts, result.dataset), (run.train_facts, result.training)):
        if facts and part and facts.fingerprint != part["fingerprint"]:
            raise DataError(f"{facts.name} {facts.split}: not the images or labels of {result.id}")
    return run


def repeat(result: Result, *, ckpt: str | Path | None = None, **changes: Any) -> Run:
    """The same call with the same weights, on the images that are there now."""
    evaluation = find_evaluation(result.evaluation)
    known, usual = evaluation.settings.options(), evaluation.settings.defaults()
    call = dict(result.environment.get("call") or {})
    for name, now in (("seed", "seeds"), ("ckpt", "ckpts")):
        if name in call and now in known:
            call[now] = call.pop(name)
    weights = "ckpts" if "ckpts" in known else "ckpt"
    if not set(known) - set(usual) <= set(call) <= set(known):
        raise UsageError(
            f"{result.id} lacks its settings, or has those of another version: it cannot be rerun"
        )
    call |= {name: value for name, value in changes.items() if value is not None}
    call[weights] = ckpt or call[weights]
    sources = result.checkpoint.get("sources") or {}
    call["labels"] = {k: result.checkpoint[k] for k in LABELS if sources.get(k) == TOLD}
    try:
        run = open_run(evaluation, evaluation.settings.make(call))
    except DataError as error:
        parts = [part for part in (result.dataset, result.training) if part]
        images = "; ".join(
            f"{part['name']} {part['split']}: {part['images']:,} images, fingerprint "
            f"{part['fingerprint'][:12]}"
            for part in parts
        )
        raise DataError(f"{result.id} needs {images}.\n{error}") from None
    except CheckpointError as error:
        name, sha256 = result.checkpoint["name"], result.checkpoint["sha256"]
        raise CheckpointError(f"{result.id} needs {name}, sha256 {sha256}.\n{error}") from None
    found, made = run.backbone.facts.sha256, result.checkpoint["sha256"]
    if found != made:
        raise CheckpointError(
            f"{call[weights]}: not the weights of {result.id}: sha256 {found}, not\n{made}"
        )
    return run
