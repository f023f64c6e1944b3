"""`skipbench probe`: linear-probe segmentation of a checkpoint on a data set.

features of training and validation images (once) → heads for all rates → scores → record.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from skipbench import views
from skipbench.backbones.vit import Backbone
from skipbench.datasets import Dataset, Item
from skipbench.engine.device import is_out_of_memory
from skipbench.engine.progress import progress
from skipbench.errors import OutOfMemory
from skipbench.evaluations import probe as evaluation
from skipbench.evaluations._protocols import Protocol
from skipbench.evaluations.probe import Images, Trained
from skipbench.features.held import Features
from skipbench.features.layers import parse_layers
from skipbench.files import cache_folder, ensure_writable
from skipbench.images import Picture, parse_size
from skipbench.pipeline import (
    Inspection,
    say_what_is_adapted,
)
from skipbench.records import FeatureSpec, Result, StoreDtype
from skipbench.results.store import (
    find_result,
    read_arrays,
    relabel,
    result_id,
    write_result,
)
from skipbench.runs import _probe_record as written
from skipbench.runs._held import Held, Keeping, Split, Views, cut_windows
from skipbench.runs._state import TrainingState
from skipbench.runs.splits import check_masks

if TYPE_CHECKING:
    from skipbench.runs._pictures import Drawing

log = logging.getLogger("skipbench")


@dataclass(frozen=True)
class Asked:
    """All that a probe depends on, but for the checkpoint and the data."""

    protocol: Protocol
    layers: tuple[str, ...] = ("last",)
    seeds: tuple[int, ...] = (0,)
    select: Literal["val", "holdout"] = "val"
    norm: bool = True  # block outputs after the final norm
    store_dtype: StoreDtype = "fp16"
    precision: str = "auto"
    keeping: Keeping = field(default_factory=Keeping)
    out: Path = Path("results")
    force: bool = False
    pictures: int = 0
    call: Mapping[str, Any] = field(default_factory=dict)  # as it was asked for, for the record


@dataclass(frozen=True)
class Cell:
    """One training: a set of layers and a seed."""

    id: str
    layers: str
    blocks: tuple[int, ...]
    seed: int


class Probe:
    """The whole run; every stage is done when it is first needed."""

    def __init__(self, inspection: Inspection, train: Dataset, val: Dataset, asked: Asked) -> None:
        self.inspection, self.train, self.val, self.asked = inspection, train, val, asked
        self.protocol = asked.protocol
        self.backbone: Backbone = inspection.backbone(asked.precision)
        self.tensor = "tokens_norm" if asked.norm else "tokens"
        depth = self.backbone.depth
        names: dict[tuple[int, ...], str] = {}
        for text in asked.layers:
            names.setdefault(parse_layers(text, depth), text)  # "last" and "11" may be one set
        self.train_facts, self.val_facts = train.facts(), val.facts()
        self.cells = [
            Cell(
                result_id("probe", val.name, written.determines(self, blocks, seed)),
                text,
                blocks,
                seed,
            )
            for blocks, text in names.items()
            for seed in asked.seeds
        ]
        self.seconds = {"features": 0.0, "training": 0.0, "scoring": 0.0}
        self.computed = 0  # images of which features were computed, not found

    def run(self) -> list[Result]:
        ensure_writable(self.asked.out)
        results: dict[str, Result] = {}
        for cell in self.cells:
            found = None if self.asked.force else find_result(self.asked.out, cell.id)
            if found:
                log.info("%s: done before (%s); --force does it again", cell.layers, cell.id)
                results[cell.id] = relabel(self.asked.out, found, self.backbone.facts)
            elif not self.asked.force and (self.asked.out / f"{cell.id}.json").exists():
                log.warning("the record %s is damaged, and is made anew", cell.id)
        todo = [cell for cell in self.cells if cell.id not in results]
        drawn = self.cells if self.asked.pictures else []
        if todo:
            check_masks(self.train, self.val)
        if todo or drawn:
            with ExitStack() as stack:
                self._open(stack, todo, drawn or todo)
                for cell in todo:
                    with memory_is_short_at(cell.layers):
                        results[cell.id] = self._train_and_score(cell)
                for cell in drawn:
                    self._draw(results[cell.id], cell)
        return [results[cell.id] for cell in self.cells]

    # -- features

    def spec(self, cells: Sequence[Cell]) -> FeatureSpec:
        """One pass over the images for all of them."""
        return FeatureSpec(
            blocks=tuple(sorted({block for cell in cells for block in cell.blocks})),
            tensors=(self.tensor,),
            size=parse_size(self.protocol.size),
            store_dtype=self.asked.store_dtype,
        )

    def columns(self, cell: Cell) -> tuple[str, ...]:
        return FeatureSpec(blocks=cell.blocks, tensors=(self.tensor,)).columns

    def _open(self, stack: ExitStack, todo: Sequence[Cell], scored: Sequence[Cell]) -> None:
        """Validation features; training features too, where something is to be trained."""
        say_what_is_adapted(self.backbone, self.spec(scored))
        if todo and self.protocol.views == "whole":
            features = self._features(self.train.items, self.spec(todo), "train")
            self.train_held = Held(self.train, stack.enter_context(features))
        self.val_held = self.hold(self.val, self.spec(scored), "val")
        stack.enter_context(self.val_held.features)

    def hold(self, pictures: Sequence[Item], spec: FeatureSpec, what: str) -> Held:
        """As pictures are seen when they are scored: whole, or through windows."""
        if self.protocol.window is None:
            items = pictures.items if isinstance(pictures, Dataset) else pictures
            return Held(pictures, self._features(items, spec, what))
        windows, first = cut_windows(pictures, *self.protocol.window)
        return Held(pictures, self._features(windows, spec, f"{what} windows"), windows, first)

    def _features(self, pictures: Sequence[Picture], spec: FeatureSpec, what: str) -> Features:
        started = time.monotonic()
        label = f"features of {what}"
        found = self.asked.keeping.features(self.backbone, pictures, spec, label)
        self.seconds["features"] += time.monotonic() - started
        self.computed += found.computed
        return found

    def _training_images(self, cell: Cell, stack: ExitStack) -> Callable[[int], Images]:
        """The images of each epoch."""
        columns, size = self.columns(cell), self.protocol.loss_size
        if self.protocol.views == "whole":
            split = Split(self.train_held.features, self.train, columns, size)
            return lambda epoch: split
        crop = {"dinov2": views.crop_dinov2, "leopart": views.crop_leopart}[self.protocol.views]
        side = int(self.protocol.size)
        # Crops that stay are seen once for all sets of layers.
        spec = self.spec(self.cells if self.protocol.different_views else [cell])
        source = stack.enter_context(
            Views(
                self.train,
                lambda item, epoch: crop(item, side, cell.seed, epoch),
                lambda pictures: self._features(pictures, spec, "train crops"),
                self.protocol.different_views,
            )
        )

        def at(epoch: int) -> Images:
            features, pictures = source.at(epoch)
            return Split(features, pictures, columns, size)

        return at

    # -- training and scoring

    def _train_and_score(self, cell: Cell) -> Result:
        before = dict(self.seconds)
        trained = self._train(cell)
        counts, held_out = self._score(cell, trained)
        if held_out is None and self.asked.select == "holdout" and len(trained.rates) > 1:
            log.warning("too few training images to hold some out: the rate is chosen on val")
        found = evaluation.metrics(
            trained, counts, held_out, self.val.classes, self.protocol.absent_classes,
            self.asked.select,
        )  # fmt: skip
        written.say_what_matters(found, cell.layers)
        seconds = {
            stage: spent if stage == "features" else spent - before[stage]  # these are shared
            for stage, spent in self.seconds.items()
        }
        result = written.record(self, cell, trained, found, seconds)
        write_result(self.asked.out, result, written.arrays(trained, counts, found))
        self._state(cell).forget()
        return result

    def _train(self, cell: Cell) -> Trained:
        started = time.monotonic() - self.seconds["features"]
        course = self.protocol.course(len(self.train), cell.seed)
        kept = self._state(cell)
        state = kept.load()
        spent = 0.0 if state is None else float(state["seconds"])
        begun = 0 if state is None else int(state["epoch"]) + 1
        if begun:
            log.info(
                "training %s: %d of %d epochs were done before", cell.layers, begun, course.epochs
            )

        def training_seconds() -> float:
            """In all sessions, without the features of crops."""
            return spent + time.monotonic() - self.seconds["features"] - started

        with (
            ExitStack() as stack,
            progress(self._label("training", cell), course.epochs, "epochs", begun) as advance,
        ):

            def after_epoch(
                epoch: int, state: dict[str, torch.Tensor], losses: Sequence[float]
            ) -> None:
                kept.save(state | {"seconds": torch.tensor(training_seconds())})
                advance(1, _best_loss(losses, self.protocol.rates))

            trained = evaluation.fit(
                self._training_images(cell, stack), len(self.train), len(self.train.classes),
                self.protocol, cell.seed, device=self.backbone.device, state=state,
                after_epoch=after_epoch,
            )  # fmt: skip
        self.seconds["training"] += training_seconds()
        return trained

    def _score(self, cell: Cell, trained: Trained) -> tuple[np.ndarray, np.ndarray | None]:
        """Counts on validation images, and on held-out training images, if there are any."""
        with ExitStack() as stack:
            numbers: Sequence[int] = trained.held_out
            held = self.train_held if self.protocol.views == "whole" else None
            if held is None and numbers:  # crops were trained on: these are yet to be seen
                held = self.hold(
                    [self.train[i] for i in numbers], self.spec([cell]), "held-out images"
                )
                stack.enter_context(held.features)
                numbers = range(len(numbers))
            started = time.monotonic()
            counts = self._counts(cell, trained, self.val_held, trained.full)
            held_out = (
                self._counts(cell, trained, held, trained.choosing, numbers)
                if held and numbers
                else None
            )
            self.seconds["scoring"] += time.monotonic() - started
        return counts, held_out

    def _counts(
        self,
        cell: Cell,
        trained: Trained,
        held: Held,
        heads: slice,
        numbers: Sequence[int] | None = None,
    ) -> np.ndarray:
        what = "scoring" if numbers is None else "scoring held-out"
        total = len(held.pictures if numbers is None else numbers)
        scenes = held.scenes(self.columns(cell), self.protocol.score_size)
        with progress(self._label(what, cell), total) as advance:
            weight, bias = trained.heads(heads)
            return evaluation.score(scenes, weight, bias, trained.classes, numbers, advance)

    def _state(self, cell: Cell) -> TrainingState:
        if self.asked.keeping.in_memory:
            return TrainingState(None)
        folder = cache_folder(self.asked.keeping.cache) / "training"
        folder.mkdir(parents=True, exist_ok=True)
        return TrainingState(folder / f"{cell.id}.state")

    def _label(self, what: str, cell: Cell) -> str:
        seed = f" seed {cell.seed}" if len(self.asked.seeds) > 1 else ""
        return f"{what} {cell.layers}{seed}"

    # -- pictures

    def drawing(self, cell: Cell, arrays: Mapping[str, np.ndarray]) -> "Drawing":
        """The head of a record, ready to draw its predictions."""
        from skipbench.runs._pictures import Drawing

        scenes = self.val_held.scenes(self.columns(cell), None)
        return Drawing(self.val, self.val, scenes, arrays)

    def _draw(self, result: Result, cell: Cell) -> None:
        from skipbench.runs._pictures import draw_predictions, draw_tiles

        folder = self.asked.out / result.id
        drawing = self.drawing(cell, read_arrays(self.asked.out / f"{result.id}.npz"))
        title = (
            f"{result.checkpoint['name']} ({result.checkpoint['residual']}), {cell.layers}, "
            f"{self.val.name} {self.val.split}: mIoU {result.metrics['miou']:.1f}"
        )
        draw_predictions(folder, drawing, self.asked.pictures, title)
        draw_tiles(folder / "tiles", drawing, self.asked.pictures)
        log.info("pictures: %s", folder)


@contextmanager
def memory_is_short_at(layers: str) -> Iterator[None]:
    """Features have their own way of making do with less; training and scoring have not."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        words = (str(error) or type(error).__name__).splitlines()[0][:80]
        raise OutOfMemory(
            f"{layers}: out of memory in training or scoring ({words}).\n"
            "Give fewer rates (--lr), fewer --layers, or --loss-pixels 1024; what was done is kept."
        ) from None


def _best_loss(losses: Sequence[float], rates: Sequence[float]) -> str:
    """Of the heads that learn from all images; the others come after them."""
    known = [(loss, rate) for loss, rate in zip(losses, rates, strict=False) if isfinite(loss)]
    return "loss {:.3g} at rate {:g}".format(*min(known)) if known else "every rate has diverged"
