"""`--dry-run`: what a probe would take, from a trial on a few images."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from skipbench.engine.memory import peak_bytes
from skipbench.engine.progress import clock
from skipbench.evaluations import probe as evaluation
from skipbench.evaluations._pixels import Grid
from skipbench.evaluations._protocols import Optimiser
from skipbench.evaluations._training import Draws
from skipbench.features.build import DTYPES
from skipbench.features.held import compute
from skipbench.features.plan import make_plan
from skipbench.features.store import missing_images
from skipbench.files import size_text
from skipbench.images import Picture
from skipbench.runs._held import Split, cut_windows
from skipbench.runs.probe import Cell, Probe

TRIAL_IMAGES = 6
TRIAL_STEPS = 12


@dataclass(frozen=True)
class Estimate:
    images: int  # that the backbone has yet to see
    stored: int  # of which features are there
    features_seconds: float
    training_seconds: float
    scoring_seconds: float
    disk_bytes: int  # yet to be written
    memory_bytes: int

    @property
    def seconds(self) -> float:
        return self.features_seconds + self.training_seconds + self.scoring_seconds

    def lines(self) -> list[str]:
        stored = f" ({self.stored:,} are stored)" if self.stored else ""
        return [
            f"features of {self.images:,} images{stored}: {clock(self.features_seconds)}",
            f"training: {clock(self.training_seconds)}, scoring: {clock(self.scoring_seconds)}",
            f"in all about {clock(self.seconds)} (h:min:s), "
            f"{size_text(self.disk_bytes)} of disk, {size_text(self.memory_bytes)} of memory",
        ]


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


def _same(images: _Repeated, epoch: int) -> _Repeated:
    return images


def estimate(run: Probe) -> Estimate:
    spec, protocol, keeping = run.spec(run.cells), run.protocol, run.asked.keeping
    epochs = protocol.course(len(run.train), 0).epochs
    train: Sequence[Picture] = run.train.items
    val: Sequence[Picture] = run.val.items
    if protocol.window:
        val = cut_windows(run.val, *protocol.window)[0]
    times = 1 if protocol.views == "whole" else protocol.different_views or epochs
    missing = [len(train) * times, len(val)]
    if not keeping.in_memory:
        missing[1] = missing_images(run.backbone, val, spec, keeping.cache)
        if protocol.views == "whole":
            missing[0] = missing_images(run.backbone, train, spec, keeping.cache)
    few = run.train[: max(1, min(TRIAL_IMAGES, len(run.train)))]
    compute(run.backbone, few[:1], spec, workers=keeping.workers)  # the first pass is slower
    started = time.monotonic()
    features = compute(run.backbone, few, spec, batch_size=keeping.batch_size)
    per_image = (time.monotonic() - started) / len(few)
    training = scoring = 0.0
    for cell in run.cells:
        split = Split(features, few, run.columns(cell), protocol.score_size)
        per_step, per_score = _trial(run, cell, split)
        training += per_step * protocol.course(len(run.train), 0).steps
        scoring += per_score * (len(run.val) + 0.1 * len(run.train)) * (len(val) / len(run.val))
    per_token = DTYPES[spec.store_dtype].itemsize * run.backbone.facts.width * len(spec.columns)
    plan = make_plan(few, spec.size, run.backbone.facts.patch, per_token)
    bytes_per_image = per_token * sum(map(plan.tokens, range(len(few)))) / len(few)
    # Crops that are new in every epoch are stored for one epoch.
    written = missing[1] + min(missing[0], len(train) * (protocol.different_views or 1))
    in_memory = bytes_per_image * sum(missing) if keeping.in_memory else 0
    draws = Draws(protocol.course(len(run.train), 0))
    return Estimate(
        images=sum(missing),
        stored=max(len(train) * times + len(val) - sum(missing), 0),
        features_seconds=per_image * sum(missing),
        training_seconds=training,
        scoring_seconds=scoring,
        disk_bytes=0 if keeping.in_memory else round(bytes_per_image * written),
        memory_bytes=round(peak_bytes() + in_memory + draws.most_bytes()),
    )


def _trial(run: Probe, cell: Cell, split: Split) -> tuple[float, float]:
    """Seconds of a step of training, and of scoring an image, with heads that have learnt a bit."""
    protocol = replace(
        run.protocol, epochs=1, steps=None, warm_up=0.0, optimiser=Optimiser(), schedule="cosine"
    )
    classes = len(run.train.classes)
    seconds = []
    for steps in (2, 2 + TRIAL_STEPS):
        images = _Repeated(split, steps * protocol.batch)
        started = time.monotonic()
        trained = evaluation.fit(
            partial(_same, images), len(images), classes, protocol, 0,
            device=run.backbone.device,
        )  # fmt: skip
        seconds.append(time.monotonic() - started)
    started = time.monotonic()
    evaluation.score(split, *trained.heads(trained.full), classes)
    per_image = (time.monotonic() - started) / len(split)
    return float(np.diff(seconds)[0]) / TRIAL_STEPS, per_image
