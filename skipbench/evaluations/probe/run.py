"""`skipbench probe`: linear-probe segmentation of a checkpoint on a data set.

features of training and validation images (once) → heads for all rates → scores → record.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from itertools import cycle, islice
from math import isfinite
from typing import Any

import numpy as np
import torch

from skipbench.datasets import Dataset, Item
from skipbench.engine.machine import peak_bytes
from skipbench.engine.progress import progress
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.pictures import Drawing, Predict
from skipbench.evaluations.probe import EVALUATION, method, views
from skipbench.evaluations.probe import record as written
from skipbench.evaluations.probe.method import Draws, Trained
from skipbench.evaluations.probe.settings import PROTOCOLS, ProbeSettings
from skipbench.evaluations.probe.views import WindowedSplit, cut_windows, epoch_crops
from skipbench.evaluations.record import recorded_protocol
from skipbench.evaluations.run import Arrays, Cell, Need
from skipbench.evaluations.segmentation.run import SegmentationRun, StoredSplit
from skipbench.features.source import MemoryFeatures
from skipbench.features.source import compute as compute_features
from skipbench.metrics.intervals import RESAMPLES
from skipbench.pipeline import Inspection, log_adaptation
from skipbench.records import FeatureSpec, Result

log = logging.getLogger("skipbench")

TRIAL_STEPS, TRIAL_EPOCHS = 3, 4


class ProbeRun(SegmentationRun):
    """A cell is one training, of all learning rates at once."""

    evaluation = EVALUATION
    settings: ProbeSettings
    stages = ("training", "scoring")
    stage = "training or scoring"
    advice = "Use fewer rates (--lr), fewer --layers, or fewer --loss-pixels"

    def __init__(
        self, inspections: Sequence[Inspection], data: Sequence[Dataset], settings: ProbeSettings
    ) -> None:
        self.protocol = settings.resolved
        super().__init__(inspections, data, settings, self.protocol.size)
        self.cells = [self._cell(blocks, text, seed) for blocks, text in self.layers.items()
                      for seed in settings.seeds]  # fmt: skip

    def _cell(self, blocks: tuple[int, ...], layers: str, seed: int) -> Cell:
        crops = self.protocol.views != "whole" or self.protocol.window
        identity = self.identity(
            blocks, seed, self.protocol.facts(), select=self.settings.select,
            views_version=views.VERSION if crops else None,
        )  # fmt: skip
        return Cell(identity, layers, blocks, seed)

    def drawn(self) -> list[Cell]:
        return self.cells if self.settings.pictures else []

    def needs(self) -> list[Need]:
        """Crops and windows cannot be shared."""
        todo, found = self.missing(), []
        if todo and self.protocol.views == "whole":
            found += self.needs_of(todo, {"train": self.train})
        if todo and self.protocol.window is None:
            found += self.needs_of(self.drawn() or todo, {"val": self.val})
        return found

    # -- features

    def open_features(self, stack: ExitStack, todo: Sequence[Cell], drawn: Sequence[Cell]) -> None:
        """Of the validation images; of the training images too, if something is to be trained."""
        scored = drawn or todo
        log_adaptation(self.backbone, self.spec(scored))
        if todo and self.protocol.views == "whole":
            features = self.features(self.train.items, self.spec(todo), "train")
            self.train_features = stack.enter_context(features)
        self.val_images = self.scored_images(self.val, self.spec(scored), "val")
        self.val_features = stack.enter_context(self.val_images.features)

    def scored_images(self, pictures: Sequence[Item], spec: FeatureSpec, what: str) -> StoredSplit:
        """As pictures are seen when they are scored: whole, or through windows."""
        if self.protocol.window is None:
            return StoredSplit(self.features(list(pictures), spec, what), pictures, spec.columns)
        windows, first = cut_windows(pictures, *self.protocol.window)
        features = self.features(windows, spec, f"{what} windows")
        return WindowedSplit(features, pictures, spec.columns, windows=windows, first=first)

    def _training_images(self, cell: Cell, stack: ExitStack) -> Callable[[int], StoredSplit]:
        """The images of each epoch."""
        columns, size = self.columns(cell), self.protocol.loss_size
        if self.protocol.views == "whole":
            split = StoredSplit(self.train_features, self.train, columns, size)
            return lambda epoch: split
        crop = {"dinov2": views.crop_dinov2, "leopart": views.crop_leopart}[self.protocol.views]
        side, different = int(self.protocol.size), self.protocol.different_views
        # Fixed crops are extracted once for all sets of layers.
        spec = self.spec(self.cells if different else [cell])

        def extract(epoch: int) -> StoredSplit:
            crops = [crop(item, side, cell.seed, epoch) for item in self.train]
            return StoredSplit(self.features(crops, spec, "train crops"), crops, columns, size)

        return stack.enter_context(epoch_crops(extract, different))

    # -- training and scoring

    def compute(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Result, Arrays]]:
        select = self.settings.select
        for cell in cells:
            before = dict(self.seconds)
            trained = self._train(cell)
            counts, held_out = self._score(cell, trained)
            if held_out is None and select == "holdout" and len(trained.rates) > 1:
                log.warning("too few training images to hold some out: the rate is chosen on val")
            classes, absent = self.val.classes, self.protocol.absent_classes
            found = written.metrics(trained, counts, held_out, classes, absent, select)
            written.log_remarks(found, cell.layers)
            names = [self.train.names[image] for image in trained.held_out]
            protocol = recorded_protocol(
                {**self.protocol.facts(), "select": select, "held_out": names},
                PROTOCOLS[self.protocol.name].facts(),
            )
            features, seconds = self.val_features, self.seconds_since(before)
            result = self.record(cell, features, protocol, found, seconds)
            yield cell, result, written.arrays(trained, counts, found)

    def _train(self, cell: Cell) -> Trained:
        started = time.monotonic() - self.seconds["features"]
        plan = self.protocol.training_plan(len(self.train), cell.seed)
        kept = self.training_state(cell)
        state = kept.load()
        spent = 0.0 if state is None else float(state["seconds"])
        begun = 0 if state is None else int(state["epoch"]) + 1
        if begun:
            log.info(
                "training %s: %d of %d epochs were done before", cell.layers, begun, plan.epochs
            )

        def training_seconds() -> float:
            """In all sessions, without the features of crops."""
            return spent + time.monotonic() - self.seconds["features"] - started

        with (
            ExitStack() as stack,
            progress(self.label("training", cell), plan.epochs, "epochs", begun) as advance,
        ):

            def after_epoch(
                epoch: int, state: dict[str, torch.Tensor], losses: Sequence[float]
            ) -> None:
                kept.save(state | {"seconds": torch.tensor(training_seconds())})
                advance(1, _best_loss(losses, self.protocol.rates))

            trained = method.fit(
                self._training_images(cell, stack), len(self.train), len(self.train.classes),
                self.protocol, cell.seed, device=self.backbone.device, state=state,
                after_epoch=after_epoch,
            )  # fmt: skip
        self.seconds["training"] += training_seconds()
        return trained

    def _score(self, cell: Cell, trained: Trained) -> tuple[np.ndarray, np.ndarray | None]:
        """Counts on validation images, and on held-out training images, if there are any."""
        numbers: Sequence[int] = trained.held_out
        held_out = None
        with ExitStack() as stack:
            if numbers and self.protocol.views == "whole":
                images = StoredSplit(self.train_features, self.train, self.columns(cell))
            elif numbers:  # training used crops: whole images have no features yet
                few = [self.train[i] for i in numbers]
                images = self.scored_images(few, self.spec([cell]), "held-out images")
                stack.enter_context(images.features)
                numbers = range(len(few))
            with self.timed("scoring"):
                counts = self._counts(cell, trained, self.val_images, trained.full)
                if numbers:
                    held_out = self._counts(cell, trained, images, trained.choosing, numbers)
        return counts, held_out

    def _counts(
        self,
        cell: Cell,
        trained: Trained,
        images: StoredSplit,
        heads: slice,
        numbers: Sequence[int] | None = None,
    ) -> np.ndarray:
        what = "scoring" if numbers is None else "scoring held-out"
        size = self.protocol.score_size
        split = replace(images, columns=self.columns(cell), mask_size=size)
        total = len(split if numbers is None else numbers)
        with progress(self.label(what, cell), total) as advance:
            return method.score(split, *trained.heads(heads), trained.classes, numbers, advance)

    # -- dry run

    def estimate(self, cells: Sequence[Cell]) -> Estimate:
        protocol, in_memory = self.protocol, self.settings.source.in_memory
        plan = protocol.training_plan(len(self.train), 0)
        trial = Trial(self, self.train[:TRIAL_IMAGES], cells)
        few, columns = trial.few, trial.spec.columns
        trained = _repeated(trial.features, few, TRIAL_STEPS * protocol.batch)
        scored, windows = StoredSplit(trial.features, few, columns), 1.0  # windows: of an image
        if protocol.window:
            cut, first = cut_windows(few, *protocol.window)
            seen = compute_features(self.backbone, cut, trial.spec)
            scored = WindowedSplit(seen, few, columns, windows=cut, first=first)
            windows = len(cut) / len(few)
        training = scoring = 0.0
        for cell in cells:
            per_step, per_score = self._trial(cell, trained, scored)
            training += per_step * plan.steps
            scoring += per_score * (len(self.val) + 0.1 * len(self.train))
        # Crops and windows are yet to be read.
        train, val = len(self.train), round(windows * len(self.val))
        train *= protocol.different_views or plan.epochs
        if protocol.views == "whole":
            train = trial.missing(self.train.items)
        if protocol.window is None:
            val = trial.missing(self.val.items)
        # Crops that are new in every epoch are stored for one epoch.
        stored = val + min(train, len(self.train) * (protocol.different_views or 1))
        counts = len(self.val) * (12 * len(self.val.classes) * len(protocol.rates) + 8 * RESAMPLES)
        held = trial.bytes_of_an_image * (train + val) if in_memory else 0
        return Estimate(
            images=train + val,
            stored=max(round(len(self.train) + windows * len(self.val)) - train - val, 0),
            features_seconds=trial.per_image * (train + val),
            training_seconds=training,
            scoring_seconds=scoring,
            disk_bytes=0 if in_memory else round(trial.bytes_of_an_image * stored),
            memory_bytes=round(peak_bytes() + held + Draws(plan).most_bytes() + counts),
        )

    def _trial(self, cell: Cell, trained: StoredSplit, scored: StoredSplit) -> tuple[float, float]:
        """Seconds of a training step, and of scoring an image with heads after some training."""
        columns, classes, seconds = self.columns(cell), len(self.train.classes), []
        images = replace(trained, columns=columns, mask_size=self.protocol.loss_size)
        rates = tuple(1e-3 * (1 + i) for i in range(len(self.protocol.rates)))  # none diverges
        for epochs in (1, 1 + TRIAL_EPOCHS):  # the difference leaves out the setup
            protocol = replace(self.protocol, epochs=epochs, steps=None, warm_up=0.0, rates=rates)
            started = time.monotonic()
            heads = method.fit(
                lambda epoch: images, len(images), classes, protocol, 0, device=self.backbone.device
            )
            seconds.append(time.monotonic() - started)
        started = time.monotonic()
        few = replace(scored, columns=columns, mask_size=self.protocol.score_size)
        method.score(few, *heads.heads(heads.full), classes)
        per_image = (time.monotonic() - started) / len(few)
        return (seconds[1] - seconds[0]) / (TRIAL_EPOCHS * TRIAL_STEPS), per_image

    # -- pictures

    def drawing(
        self, cell: Cell, items: Sequence[Item], images: StoredSplit, arrays: Arrays
    ) -> Drawing:
        """Predictions of a record's head on these images. arrays: of the record."""
        return Drawing(self.val, items, self.predictor(cell, arrays, images), arrays["counts"])

    def predictor(self, cell: Cell, arrays: Arrays, images: StoredSplit | None = None) -> Predict:
        seen = self.val_images if images is None else images
        split = replace(seen, columns=self.columns(cell))
        weight, bias = (torch.from_numpy(arrays[name]) for name in ("weight", "bias"))

        def predict(image: int, size_hw: tuple[int, int]) -> tuple[np.ndarray, Arrays]:
            tokens, classes = split.image_tokens(image), len(self.val.classes)
            return next(method.predict(tokens, size_hw, weight, bias, classes)), {}

        return predict


def _repeated(features: MemoryFeatures, pictures: Sequence[Item], count: int) -> StoredSplit:
    """A few images as often as it takes to have so many."""

    def many(values: Sequence[Any]) -> list[Any]:
        return list(islice(cycle(values), count))

    found = copy(features)
    found.plan = replace(features.plan, sizes_hw=tuple(many(features.plan.sizes_hw)))
    found.values = {column: many(values) for column, values in features.values.items()}
    return StoredSplit(found, many(pictures), list(found.values))


def _best_loss(losses: Sequence[float], rates: Sequence[float]) -> str:
    """Of the heads that learn from all images, which are the first ones."""
    known = [(loss, rate) for loss, rate in zip(losses, rates, strict=False) if isfinite(loss)]
    return "loss {:.3g} at rate {:g}".format(*min(known)) if known else "every rate has diverged"
