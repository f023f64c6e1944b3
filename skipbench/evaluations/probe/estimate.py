"""`skipbench probe --dry-run`."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.probe import method
from skipbench.evaluations.probe.images import ScoredImages, cut_windows
from skipbench.evaluations.probe.method import Draws
from skipbench.evaluations.probe.run import Cell, ProbeRun
from skipbench.evaluations.segmentation.pixels import Grid
from skipbench.evaluations.segmentation.run import Split
from skipbench.features.source import compute
from skipbench.features.store import missing_images
from skipbench.metrics.intervals import RESAMPLES
from skipbench.records import FeatureSpec

TRIAL_STEPS, TRIAL_EPOCHS = 3, 4


class _Repeated:
    """A few images as though they were many. Masks are decoded once, as they are for many epochs
    of training."""

    def __init__(self, split: Split, count: int) -> None:
        self.split, self.count = split, count
        self.masks = [split.mask(image) for image in range(len(split))]

    def __len__(self) -> int:
        return self.count

    def grid(self, image: int) -> Grid:
        return self.split.grid(image % len(self.split))

    def tokens(self, image: int, rows: np.ndarray | None = None) -> np.ndarray:
        return self.split.tokens(image % len(self.split), rows)

    def mask(self, image: int) -> np.ndarray:
        return self.masks[image % len(self.masks)]


def estimate(run: ProbeRun, cells: Sequence[Cell]) -> Estimate:
    protocol, source = run.protocol, run.settings.source
    course = protocol.course(len(run.train), 0)
    trial = Trial(run, run.train[:TRIAL_IMAGES], cells)
    few, spec, features = trial.few, trial.spec, trial.features
    held, windows = ScoredImages(few, features), 1.0
    if protocol.window:
        cut, first = cut_windows(few, *protocol.window)
        held = ScoredImages(few, compute(run.backbone, cut, spec), cut, first)
        windows = len(cut) / len(few)
    training = scoring = 0.0
    for cell in cells:
        split = Split(features, few, run.columns(cell), protocol.loss_size)
        per_step, per_score = _trial(run, cell, split, held)
        training += per_step * course.steps
        scoring += per_score * (len(run.val) + 0.1 * len(run.train))
    missing = _missing(run, spec, windows)
    # Crops that are new in every epoch are stored for one epoch.
    written = missing[1] + min(missing[0], len(run.train) * (protocol.different_views or 1))
    in_memory = trial.bytes_of_an_image * sum(missing) if source.in_memory else 0
    counts = len(run.val) * (12 * len(run.val.classes) * len(protocol.rates) + 8 * RESAMPLES)
    return Estimate(
        images=sum(missing),
        stored=max(round(len(run.train) + windows * len(run.val)) - sum(missing), 0),
        features_seconds=trial.per_image * sum(missing),
        training_seconds=training,
        scoring_seconds=scoring,
        disk_bytes=0 if source.in_memory else round(trial.bytes_of_an_image * written),
        memory_bytes=round(peak_bytes() + in_memory + Draws(course).most_bytes() + counts),
    )


def _missing(run: ProbeRun, spec: FeatureSpec, windows: float) -> tuple[int, int]:
    """How many training and validation pictures (crops, windows) the backbone has yet to see."""
    protocol, source = run.protocol, run.settings.source
    times = protocol.different_views or protocol.course(len(run.train), 0).epochs
    train = len(run.train) * (1 if protocol.views == "whole" else times)
    val = round(windows * len(run.val))
    if source.in_memory:
        return train, val
    if protocol.views == "whole":
        train = missing_images(run.backbone, run.train.items, spec, source.cache)
    if protocol.window is None:
        val = missing_images(run.backbone, run.val.items, spec, source.cache)
    return train, val


def _trial(run: ProbeRun, cell: Cell, split: Split, held: ScoredImages) -> tuple[float, float]:
    """Seconds of a step of training, and of scoring an image, with heads that have learnt a bit."""
    classes = len(run.train.classes)
    images = _Repeated(split, TRIAL_STEPS * run.protocol.batch)
    rates = tuple(1e-3 * (1 + i) for i in range(len(run.protocol.rates)))  # as many; none too high
    seconds = []
    for epochs in (1, 1 + TRIAL_EPOCHS):  # what is done once only is in both
        protocol = replace(run.protocol, epochs=epochs, steps=None, warm_up=0.0, rates=rates)
        started = time.monotonic()
        trained = method.fit(
            lambda epoch: images, len(images), classes, protocol, 0, device=run.backbone.device
        )
        seconds.append(time.monotonic() - started)
    started = time.monotonic()
    scenes = held.scenes(run.columns(cell), run.protocol.score_size)
    method.score(scenes, *trained.heads(trained.full), classes)
    per_image = (time.monotonic() - started) / len(held.pictures)
    return (seconds[1] - seconds[0]) / (TRIAL_EPOCHS * TRIAL_STEPS), per_image
