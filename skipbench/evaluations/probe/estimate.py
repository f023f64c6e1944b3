"""`skipbench probe --dry-run`."""

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from skipbench.datasets import Item
from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.probe import method
from skipbench.evaluations.probe.method import Draws
from skipbench.evaluations.probe.run import Cell, ProbeRun
from skipbench.evaluations.probe.views import WindowedSplit, cut_windows
from skipbench.evaluations.segmentation.run import Split
from skipbench.features.source import MemoryFeatures, compute
from skipbench.metrics.intervals import RESAMPLES

TRIAL_STEPS, TRIAL_EPOCHS = 3, 4


def _repeated(features: MemoryFeatures, pictures: Sequence[Item], count: int) -> Split:
    """A few images as often as it takes to have so many."""

    def many(values: Sequence[Any]) -> list[Any]:
        return list(islice(cycle(values), count))

    found = copy(features)
    found.plan = replace(features.plan, sizes_hw=tuple(many(features.plan.sizes_hw)))
    found.values = {column: many(values) for column, values in features.values.items()}
    return Split(found, many(pictures), list(found.values))


def estimate(run: ProbeRun, cells: Sequence[Cell]) -> Estimate:
    protocol, in_memory = run.protocol, run.settings.source.in_memory
    course = protocol.course(len(run.train), 0)
    trial = Trial(run, run.train[:TRIAL_IMAGES], cells)
    few, columns = trial.few, trial.spec.columns
    trained = _repeated(trial.features, few, TRIAL_STEPS * protocol.batch)
    scored, windows = Split(trial.features, few, columns), 1.0  # windows: of an image
    if protocol.window:
        cut, first = cut_windows(few, *protocol.window)
        seen = compute(run.backbone, cut, trial.spec)
        scored = WindowedSplit(seen, few, columns, windows=cut, first=first)
        windows = len(cut) / len(few)
    training = scoring = 0.0
    for cell in cells:
        per_step, per_score = _trial(run, run.columns(cell), trained, scored)
        training += per_step * course.steps
        scoring += per_score * (len(run.val) + 0.1 * len(run.train))
    train, val = len(run.train), round(windows * len(run.val))  # crops and windows yet to be read
    train *= protocol.different_views or course.epochs
    if protocol.views == "whole":
        train = trial.missing(run.train.items)
    if protocol.window is None:
        val = trial.missing(run.val.items)
    # Crops that are new in every epoch are stored for one epoch.
    written = val + min(train, len(run.train) * (protocol.different_views or 1))
    counts = len(run.val) * (12 * len(run.val.classes) * len(protocol.rates) + 8 * RESAMPLES)
    held = trial.bytes_of_an_image * (train + val) if in_memory else 0
    return Estimate(
        images=train + val,
        stored=max(round(len(run.train) + windows * len(run.val)) - train - val, 0),
        features_seconds=trial.per_image * (train + val),
        training_seconds=training,
        scoring_seconds=scoring,
        disk_bytes=0 if in_memory else round(trial.bytes_of_an_image * written),
        memory_bytes=round(peak_bytes() + held + Draws(course).most_bytes() + counts),
    )


def _trial(
    run: ProbeRun, columns: Sequence[str], trained: Split, scored: Split
) -> tuple[float, float]:
    """Seconds of a training step, and of scoring an image with heads after some training."""
    classes = len(run.train.classes)
    images = replace(trained, columns=columns, mask_size=run.protocol.loss_size)
    rates = tuple(1e-3 * (1 + i) for i in range(len(run.protocol.rates)))  # as many; none diverges
    seconds = []
    for epochs in (1, 1 + TRIAL_EPOCHS):  # the difference leaves out the setup
        protocol = replace(run.protocol, epochs=epochs, steps=None, warm_up=0.0, rates=rates)
        started = time.monotonic()
        heads = method.fit(
            lambda epoch: images, len(images), classes, protocol, 0, device=run.backbone.device
        )
        seconds.append(time.monotonic() - started)
    started = time.monotonic()
    few = replace(scored, columns=columns, mask_size=run.protocol.score_size)
    method.score(few, *heads.heads(heads.full), classes)
    per_image = (time.monotonic() - started) / len(few)
    return (seconds[1] - seconds[0]) / (TRIAL_EPOCHS * TRIAL_STEPS), per_image
