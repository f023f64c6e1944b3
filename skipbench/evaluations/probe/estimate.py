"""`skipbench probe --dry-run`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.probe import method
from skipbench.evaluations.probe.method import Draws
from skipbench.evaluations.probe.run import Cell, ProbeRun
from skipbench.evaluations.probe.views import WindowedSplit, cut_windows
from skipbench.evaluations.segmentation.run import Split
from skipbench.evaluations.segmentation.tokens import Grid
from skipbench.features.source import compute
from skipbench.metrics.intervals import RESAMPLES

TRIAL_STEPS, TRIAL_EPOCHS = 3, 4


@dataclass(frozen=True)
class _Repeated(Split):
    """A few images repeated to `count`. Masks are decoded once, as they are for many epochs of
    training."""

    masks: Sequence[np.ndarray] = ()
    count: int = 0

    def __len__(self) -> int:
        return self.count

    def grid(self, image: int) -> Grid:
        return super().grid(image % len(self.masks))

    def tokens(self, image: int, rows: np.ndarray | None = None) -> np.ndarray:
        return super().tokens(image % len(self.masks), rows)

    def mask(self, image: int) -> np.ndarray:
        return self.masks[image % len(self.masks)]


def estimate(run: ProbeRun, cells: Sequence[Cell]) -> Estimate:
    protocol, in_memory = run.protocol, run.settings.source.in_memory
    course = protocol.course(len(run.train), 0)
    trial = Trial(run, run.train[:TRIAL_IMAGES], cells)
    few, features = trial.few, trial.features
    scored, windows = Split(features, few, trial.spec.columns), 1.0  # windows: of an image
    if protocol.window:
        cut, first = cut_windows(few, *protocol.window)
        seen = compute(run.backbone, cut, trial.spec)
        scored = WindowedSplit(seen, few, trial.spec.columns, windows=cut, first=first)
        windows = len(cut) / len(few)
    training = scoring = 0.0
    for cell in cells:
        split = Split(features, few, run.columns(cell), protocol.loss_size)
        per_step, per_score = _trial(run, cell, split, scored)
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


def _trial(run: ProbeRun, cell: Cell, split: Split, scored: Split) -> tuple[float, float]:
    """Seconds of a training step, and of scoring an image with heads after some training."""
    classes = len(run.train.classes)
    masks = [split.mask(image) for image in range(len(split))]
    images = _Repeated(**vars(split), masks=masks, count=TRIAL_STEPS * run.protocol.batch)
    rates = tuple(1e-3 * (1 + i) for i in range(len(run.protocol.rates)))  # as many; none diverges
    seconds = []
    for epochs in (1, 1 + TRIAL_EPOCHS):  # the difference leaves out the setup
        protocol = replace(run.protocol, epochs=epochs, steps=None, warm_up=0.0, rates=rates)
        started = time.monotonic()
        trained = method.fit(
            lambda epoch: images, len(images), classes, protocol, 0, device=run.backbone.device
        )
        seconds.append(time.monotonic() - started)
    started = time.monotonic()
    few = replace(scored, columns=split.columns, mask_size=run.protocol.score_size)
    method.score(few, *trained.heads(trained.full), classes)
    per_image = (time.monotonic() - started) / len(few)
    return (seconds[1] - seconds[0]) / (TRIAL_EPOCHS * TRIAL_STEPS), per_image
