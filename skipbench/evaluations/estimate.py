"""`--dry-run`: what an evaluation would take, from a trial on a few images."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from skipbench.datasets import Item
from skipbench.engine.memory import peak_bytes
from skipbench.engine.progress import duration
from skipbench.evaluations.pca.run import PcaRun
from skipbench.evaluations.probe import method as evaluation
from skipbench.evaluations.probe.run import Cell, Probe
from skipbench.evaluations.probe.training import Draws
from skipbench.evaluations.segmentation.images import Held, Split, cut_windows
from skipbench.evaluations.segmentation.pixels import Grid
from skipbench.evaluations.tokencut.run import Discovery
from skipbench.features.build import DTYPES
from skipbench.features.held import compute
from skipbench.features.store import missing_images
from skipbench.files import size_text
from skipbench.metrics.intervals import RESAMPLES
from skipbench.records import FeatureSpec

TRIAL_IMAGES = 6
TRIAL_STEPS, TRIAL_EPOCHS = 3, 4


@dataclass(frozen=True)
class Estimate:
    images: int  # that the backbone has yet to see
    stored: int  # of which features are there
    features_seconds: float
    training_seconds: float
    scoring_seconds: float
    disk_bytes: int  # yet to be written
    memory_bytes: int
    work: str = "finding objects"  # where there is no training: what the rest is

    @property
    def seconds(self) -> float:
        return self.features_seconds + self.training_seconds + self.scoring_seconds

    def lines(self) -> list[str]:
        stored = f" ({self.stored:,} are stored)" if self.stored else ""
        work = {"training": self.training_seconds, "scoring": self.scoring_seconds}
        if not self.training_seconds:
            work = {self.work: self.scoring_seconds}
        return [
            f"features of {self.images:,} images{stored}: {duration(self.features_seconds)}",
            ", ".join(f"{name}: {duration(seconds)}" for name, seconds in work.items()),
            f"in all about {duration(self.seconds)}, "
            f"{size_text(self.disk_bytes)} of disk, {size_text(self.memory_bytes)} of memory",
        ]


def estimate_tokencut(run: Discovery) -> Estimate:
    """Nothing but what was found is stored, so there is no disk to speak of."""
    left = run.missing_images()
    few = run.data[: max(1, min(TRIAL_IMAGES, len(run.data)))]
    _look_at(run, few[:1])  # the first pass is slower
    before = dict(run.seconds)
    scored = _look_at(run, few)
    features, cutting = (run.seconds[key] - before[key] for key in ("features", "cutting"))
    return Estimate(
        images=left,
        stored=len(run.data) - left,
        features_seconds=features / len(few) * left,
        training_seconds=0.0,
        scoring_seconds=(cutting + scored) / len(few) * left,
        disk_bytes=0,
        memory_bytes=peak_bytes(),
    )


def estimate_pca(run: PcaRun) -> Estimate:
    """Of one checkpoint. Pictures are drawn again, features are not computed again."""
    model, keeping = run.models[0], run.asked.keeping
    few = model.pictures[: max(1, min(TRIAL_IMAGES, len(run.data)))]
    compute(model.backbone, few[:1], model.spec, workers=keeping.workers)
    started = time.monotonic()
    model.features = compute(model.backbone, few, model.spec, batch_size=keeping.batch_size)
    per_image = (time.monotonic() - started) / len(few)
    started = time.monotonic()
    for image in range(len(few)):
        run.fitted(0, 0, [image])
    per_picture = (time.monotonic() - started) / len(few)
    left = len(run.data)
    if not keeping.in_memory:
        left = missing_images(model.backbone, model.pictures, model.spec, keeping.cache)
    plan = model.features.plan
    per_token = DTYPES[run.asked.store_dtype].itemsize * model.backbone.facts.width
    tokens = sum(map(plan.tokens, range(len(few)))) / len(few)
    stored = round(per_token * tokens * left * len(model.blocks))
    return Estimate(
        images=left,
        stored=len(run.data) - left,
        features_seconds=per_image * left,
        training_seconds=0.0,
        scoring_seconds=per_picture * len(run.data) * len(model.blocks),
        disk_bytes=0 if keeping.in_memory else stored,
        memory_bytes=peak_bytes() + (stored if keeping.in_memory else 0),
        work="components",
    )


def _look_at(run: Discovery, items: Sequence[Item]) -> float:
    """Seconds that scoring takes."""
    plan, spent = run.plan(items), 0.0
    for image, seen in run.look(items, plan, range(len(plan.shards))):
        started = time.monotonic()
        run.score(items[image], seen)
        spent += time.monotonic() - started
    return spent


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


def estimate(run: Probe) -> Estimate:
    spec, protocol, keeping = run.spec(run.cells), run.protocol, run.asked.keeping
    course = protocol.course(len(run.train), 0)
    few = run.train[: max(1, min(TRIAL_IMAGES, len(run.train)))]
    compute(run.backbone, few[:1], spec, workers=keeping.workers)  # the first pass is slower
    started = time.monotonic()
    features = compute(run.backbone, few, spec, batch_size=keeping.batch_size)
    per_image = (time.monotonic() - started) / len(few)
    held, windows = Held(few, features), 1.0
    if protocol.window:
        cut, first = cut_windows(few, *protocol.window)
        held, windows = Held(few, compute(run.backbone, cut, spec), cut, first), len(cut) / len(few)
    training = scoring = 0.0
    for cell in run.cells:
        split = Split(features, few, run.columns(cell), protocol.loss_size)
        per_step, per_score = _trial(run, cell, split, held)
        training += per_step * course.steps
        scoring += per_score * (len(run.val) + 0.1 * len(run.train))
    missing = _missing(run, spec, windows)
    plan = features.plan
    per_token = DTYPES[spec.store_dtype].itemsize * run.backbone.facts.width * len(spec.columns)
    bytes_per_image = per_token * sum(map(plan.tokens, range(len(few)))) / len(few)
    # Crops that are new in every epoch are stored for one epoch.
    written = missing[1] + min(missing[0], len(run.train) * (protocol.different_views or 1))
    in_memory = bytes_per_image * sum(missing) if keeping.in_memory else 0
    counts = len(run.val) * (12 * len(run.val.classes) * len(protocol.rates) + 8 * RESAMPLES)
    return Estimate(
        images=sum(missing),
        stored=max(round(len(run.train) + windows * len(run.val)) - sum(missing), 0),
        features_seconds=per_image * sum(missing),
        training_seconds=training,
        scoring_seconds=scoring,
        disk_bytes=0 if keeping.in_memory else round(bytes_per_image * written),
        memory_bytes=round(peak_bytes() + in_memory + Draws(course).most_bytes() + counts),
    )


def _missing(run: Probe, spec: FeatureSpec, windows: float) -> tuple[int, int]:
    """How many training and validation pictures (crops, windows) the backbone has yet to see."""
    protocol, keeping = run.protocol, run.asked.keeping
    times = protocol.different_views or protocol.course(len(run.train), 0).epochs
    train = len(run.train) * (1 if protocol.views == "whole" else times)
    val = round(windows * len(run.val))
    if keeping.in_memory:
        return train, val
    if protocol.views == "whole":
        train = missing_images(run.backbone, run.train.items, spec, keeping.cache)
    if protocol.window is None:
        val = missing_images(run.backbone, run.val.items, spec, keeping.cache)
    return train, val


def _trial(run: Probe, cell: Cell, split: Split, held: Held) -> tuple[float, float]:
    """Seconds of a step of training, and of scoring an image, with heads that have learnt a bit."""
    classes = len(run.train.classes)
    images = _Repeated(split, TRIAL_STEPS * run.protocol.batch)
    rates = tuple(1e-3 * (1 + i) for i in range(len(run.protocol.rates)))  # as many; none too high
    seconds = []
    for epochs in (1, 1 + TRIAL_EPOCHS):  # what is done once only is in both
        protocol = replace(run.protocol, epochs=epochs, steps=None, warm_up=0.0, rates=rates)
        started = time.monotonic()
        trained = evaluation.fit(
            lambda epoch: images, len(images), classes, protocol, 0, device=run.backbone.device
        )
        seconds.append(time.monotonic() - started)
    started = time.monotonic()
    scenes = held.scenes(run.columns(cell), run.protocol.score_size)
    evaluation.score(scenes, *trained.heads(trained.full), classes)
    per_image = (time.monotonic() - started) / len(held.pictures)
    return (seconds[1] - seconds[0]) / (TRIAL_EPOCHS * TRIAL_STEPS), per_image
