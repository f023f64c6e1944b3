"""`skipbench probe`: linear-probe segmentation of a checkpoint on a data set.

features of training and validation images (once) → heads for all rates → scores → record.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import torch

from skipbench import views
from skipbench.backbones.vit import Backbone
from skipbench.datasets import Dataset
from skipbench.engine.environment import of_this_run
from skipbench.engine.memory import peak_bytes
from skipbench.engine.progress import progress
from skipbench.errors import DataError
from skipbench.evaluations import probe as evaluation
from skipbench.evaluations._protocols import Protocol, settle
from skipbench.evaluations.probe import Images, Scenes, Trained
from skipbench.features.held import Features
from skipbench.features.layers import parse_layers
from skipbench.files import cache_folder, ensure_writable
from skipbench.images import TRANSFORM_VERSION, parse_size, size_name
from skipbench.pipeline import (
    Inspection,
    Reading,
    default_workers,
    inspect,
    say_what_is_adapted,
)
from skipbench.records import FeatureSpec, Result, StoreDtype
from skipbench.results.store import (
    find_result,
    plain_result,
    read_arrays,
    result_id,
    write_result,
)
from skipbench.runs._held import Keeping, Split, Views, Windows, cut_windows
from skipbench.runs._state import TrainingState
from skipbench.runs.splits import open_splits

log = logging.getLogger("skipbench")

# Enters the id of every record: raise it when a change of the code moves the numbers.
VERSION = 1


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


@dataclass(frozen=True)
class Cell:
    """One training: a set of layers and a seed."""

    id: str
    layers: str
    blocks: tuple[int, ...]
    seed: int


def probe(
    ckpt: str | Path,
    dataset: str = "voc",
    *,
    layers: str | Sequence[str] = "last",
    protocol: str | Protocol = "paper",
    seeds: int | Sequence[int] = 0,
    select: Literal["val", "holdout"] = "val",
    train_images: int | None = None,
    subset_seed: int = 0,
    data_root: str | Path | None = None,
    limit: int | None = None,
    classes: int | None = None,
    skip_bad: int = 0,
    norm: bool = True,
    precision: str = "auto",
    out: str | Path = "results",
    force: bool = False,
    pictures: int = 0,
    keeping: Keeping | None = None,
    **reading: Unpack[Reading],
) -> list[Result]:
    """One record for each set of layers and each seed, as `skipbench probe` writes them.

    protocol: paper, dinov2 or leopart, or one of them changed: `settle("paper", epochs=10)`.
    reading: residual, weights, expected, position_rule, device, as for `inspect`.
    """
    how = protocol if isinstance(protocol, Protocol) else settle(protocol)
    train, val = open_splits(
        dataset, how, train_images=train_images, subset_seed=subset_seed, root=data_root,
        limit=limit, classes=classes, skip_bad=skip_bad,
    )  # fmt: skip
    asked = Asked(
        protocol=how,
        layers=(layers,) if isinstance(layers, str) else tuple(layers),
        seeds=(seeds,) if isinstance(seeds, int) else tuple(seeds),
        select=select,
        norm=norm,
        precision=precision,
        keeping=keeping or Keeping(workers=default_workers()),
        out=Path(out),
        force=force,
        pictures=pictures,
    )
    return Probe(inspect(ckpt, **reading), train, val, asked).run()


class Probe:
    """The whole run; every stage is done when it is first needed."""

    def __init__(self, inspection: Inspection, train: Dataset, val: Dataset, asked: Asked) -> None:
        self.inspection, self.train, self.val, self.asked = inspection, train, val, asked
        self.protocol = asked.protocol
        self.backbone: Backbone = inspection.backbone(asked.precision)
        self.tensor = "tokens_norm" if asked.norm else "tokens"
        depth = self.backbone.depth
        sets = {text: parse_layers(text, depth) for text in asked.layers}
        self.train_facts, self.val_facts = train.facts(), val.facts()
        self.cells = [
            Cell(self._id(blocks, seed), text, blocks, seed)
            for text, blocks in sets.items()
            for seed in asked.seeds
        ]
        self.seconds = {"features": 0.0, "training": 0.0, "scoring": 0.0}

    def run(self) -> list[Result]:
        ensure_writable(self.asked.out)
        results: dict[str, Result] = {}
        for cell in self.cells:
            found = None if self.asked.force else find_result(self.asked.out, cell.id)
            if found:
                log.info("%s: done before (%s); --force does it again", cell.layers, cell.id)
                results[cell.id] = found
        todo = [cell for cell in self.cells if cell.id not in results]
        drawn = self.cells if self.asked.pictures else []
        if todo or drawn:
            with ExitStack() as stack:
                self._open(stack, todo, todo or drawn)
                for cell in todo:
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

    def _open(self, stack: ExitStack, todo: Sequence[Cell], cells: Sequence[Cell]) -> None:
        """Validation features; training features too, where something is to be trained."""
        spec = self.spec(cells)
        say_what_is_adapted(self.backbone, spec)
        if todo and self.protocol.views == "whole":
            self.train_features = stack.enter_context(self._hold(self.train, spec, "training"))
        if self.protocol.window:
            self.windows, self.first = cut_windows(self.val, *self.protocol.window)
        pictures = self.windows if self.protocol.window else self.val
        self.val_features = stack.enter_context(self._hold(pictures, spec, "validation"))

    def _hold(self, pictures: Sequence[Any], spec: FeatureSpec, what: str) -> Features:
        started = time.monotonic()
        log.debug("features of the %s images", what)
        items = pictures.items if isinstance(pictures, Dataset) else pictures
        found = self.asked.keeping.features(self.backbone, items, spec)
        self.seconds["features"] += time.monotonic() - started
        return found

    def _training_images(self, cell: Cell, stack: ExitStack) -> Callable[[int], Images]:
        """The images of each epoch."""
        columns, size = self.columns(cell), self.protocol.loss_size
        if self.protocol.views == "whole":
            split = Split(self.train_features, self.train, columns, size)
            return lambda epoch: split
        crop = {"dinov2": views.crop_dinov2, "leopart": views.crop_leopart}[self.protocol.views]
        side = int(self.protocol.size)
        spec = self.spec([cell])
        source = Views(
            self.train,
            lambda item, epoch: crop(item, side, cell.seed, epoch),
            lambda pictures: self._hold(pictures, spec, "training"),
            self.protocol.different_views,
        )
        stack.callback(source.close)

        def at(epoch: int) -> Images:
            features, pictures = source.at(epoch)
            return Split(features, pictures, columns, size)

        return at

    def scenes(self, cell: Cell) -> Scenes:
        columns, size = self.columns(cell), self.protocol.score_size
        if self.protocol.window:
            split = Split(self.val_features, self.windows, columns, size)
            return Windows(split, self.val, self.first)
        return Split(self.val_features, self.val, columns, size)

    # -- training and scoring

    def _train_and_score(self, cell: Cell) -> Result:
        before = dict(self.seconds)
        trained = self._train(cell)
        counts, held_out = self._score(cell, trained)
        if not counts[:, :, 2].any():
            raise DataError(f"{self.val.name} {self.val.split}: no labelled pixel in any mask")
        found = evaluation.metrics(
            trained, counts, held_out, self.val.classes, self.protocol.absent_classes,
            self.asked.select,
        )  # fmt: skip
        _say_what_matters(found, cell)
        result = self._record(cell, trained, found, before)
        write_result(self.asked.out, result, _arrays(trained, counts, found))
        self._state(cell).forget()
        return result

    def _train(self, cell: Cell) -> Trained:
        started, features_before = time.monotonic(), self.seconds["features"]
        course = self.protocol.course(len(self.train), cell.seed)
        kept = self._state(cell)
        state = kept.load()
        begun = 0 if state is None else int(state["epoch"]) + 1
        if begun:
            log.info(
                "training %s: %d of %d epochs were done before", cell.layers, begun, course.epochs
            )
        rates = self.protocol.rates
        with (
            ExitStack() as stack,
            progress(self._label("training", cell), course.epochs, "epochs", begun) as advance,
        ):

            def after_epoch(
                epoch: int, state: dict[str, torch.Tensor], losses: Sequence[float]
            ) -> None:
                kept.save(state)
                best = int(np.nanargmin(losses[: len(rates)])) if np.isfinite(losses).any() else 0
                advance(1, f"loss {losses[best]:.3g} at rate {rates[best]:g}")

            trained = evaluation.fit(
                self._training_images(cell, stack), len(self.train), len(self.train.classes),
                self.protocol, cell.seed, device=self.backbone.device, state=state,
                after_epoch=after_epoch,
            )  # fmt: skip
        features = self.seconds["features"] - features_before
        self.seconds["training"] += time.monotonic() - started - features
        return trained

    def _score(self, cell: Cell, trained: Trained) -> tuple[np.ndarray, np.ndarray | None]:
        started = time.monotonic()
        scenes, classes, held_out = self.scenes(cell), trained.classes, None
        total = len(scenes) + len(trained.held_out)
        with progress(self._label("scoring", cell), total) as advance:
            counts = evaluation.score(
                scenes, *trained.heads(trained.full), classes, advance=advance
            )
            if trained.held_out:
                size = self.protocol.score_size
                split = Split(self.train_features, self.train, self.columns(cell), size)
                held_out = evaluation.score(
                    split, *trained.heads(trained.choosing), classes, trained.held_out, advance
                )
        self.seconds["scoring"] += time.monotonic() - started
        return counts, held_out

    def _state(self, cell: Cell) -> TrainingState:
        if self.asked.keeping.in_memory:
            return TrainingState(None)
        folder = cache_folder(self.asked.keeping.cache) / "training"
        folder.mkdir(parents=True, exist_ok=True)
        return TrainingState(folder / f"{cell.id}.state")

    def _label(self, what: str, cell: Cell) -> str:
        seed = f" seed {cell.seed}" if len(self.asked.seeds) > 1 else ""
        return f"{what} {cell.layers}{seed}"

    # -- the record

    def _determines(self, blocks: tuple[int, ...], seed: int) -> dict[str, Any]:
        """All that the number depends on."""
        facts = self.backbone.facts
        return {
            "version": VERSION,
            "transform_version": TRANSFORM_VERSION,
            "checkpoint": [facts.sha256, facts.weights, self.backbone.residual, facts.heads],
            "norm_eps": facts.norm_eps,
            "position_rule": facts.position_rule,
            "precision": self.backbone.precision,
            "features": [list(blocks), self.tensor, self.asked.store_dtype],
            "training": self.train_facts.fingerprint,
            "dataset": self.val_facts.fingerprint,
            "protocol": self.protocol.facts(),
            "select": self.asked.select,
            "seed": seed,
        }

    def _id(self, blocks: tuple[int, ...], seed: int) -> str:
        return result_id("probe", self.val.name, self._determines(blocks, seed))

    def _record(
        self, cell: Cell, trained: Trained, metrics: dict[str, Any], before: dict[str, float]
    ) -> Result:
        facts, choice = self.backbone.facts, self.inspection.require_sound()
        degenerate = {c: len(self.val_features.degenerate[c]) for c in self.columns(cell)}
        return plain_result(
            id=cell.id,
            evaluation="probe",
            dataset=self.val_facts.to_json(),
            training=self.train_facts.to_json(),
            checkpoint={
                **facts.to_json(),
                "residual": self.backbone.residual,
                "residual_source": choice.source,
                "warning": choice.warning,
            },
            features={
                "layers": cell.layers,
                "blocks": list(cell.blocks),
                "tensor": self.tensor,
                "size": size_name(parse_size(self.protocol.size)),
                "precision": self.backbone.precision,
                "store_dtype": self.asked.store_dtype,
                "degenerate": degenerate,
            },
            protocol={
                **self.protocol.facts(),
                "seed": cell.seed,
                "select": self.asked.select,
                "held_out": [self.train.names[i] for i in trained.held_out],
                "resamples": evaluation.RESAMPLES,
            },
            metrics=metrics,
            environment=of_this_run(str(self.backbone.device)),
            timing={
                **{f"{stage}_seconds": round(self.seconds[stage] - before[stage], 3)
                   for stage in ("training", "scoring")},
                "features_seconds": round(self.seconds["features"], 3),
                "images": len(self.train) + len(self.val),
                "peak_memory_bytes": peak_bytes(),
            },
        )  # fmt: skip

    # -- pictures

    def _draw(self, result: Result, cell: Cell) -> None:
        from skipbench.runs._pictures import draw_predictions

        arrays = read_arrays(self.asked.out, result.id)
        folder = self.asked.out / result.id
        draw_predictions(
            folder, self.val, self.scenes(cell), arrays, self.asked.pictures, cell.layers
        )
        log.info("pictures: %s", folder)


def _arrays(trained: Trained, counts: np.ndarray, metrics: dict[str, Any]) -> dict[str, np.ndarray]:
    """Counts by image of the heads that are reported, and the head of the headline itself."""
    rates = list(trained.rates)
    index = rates.index(metrics["rate"])
    weight, bias = trained.heads(slice(index, index + 1))
    arrays = {
        "counts": counts[:, index],
        "weight": weight.cpu().numpy(),
        "bias": bias.cpu().numpy(),
    }
    for where, choice in metrics["chosen"].items():
        if choice:
            arrays[f"counts_{where}"] = counts[:, rates.index(choice["rate"])]
    return arrays


def _say_what_matters(metrics: dict[str, Any], cell: Cell) -> None:
    """What a reader of the number should be told."""
    rates = metrics["rates"]
    if metrics["edge"]:
        end = {"highest": f",{rates[-1]['rate'] * 3:.0e}", "lowest": f",{rates[0]['rate'] / 3:.0e}"}
        sweep = ",".join(f"{row['rate']:g}" for row in rates)
        log.warning(
            "%s: the best rate, %g, is the %s of the sweep: widen the sweep, for example --lr %s%s",
            cell.layers, metrics["rate"], metrics["edge"], sweep, end[metrics["edge"]],
        )  # fmt: skip
    if gone := [row["rate"] for row in rates if row.get("diverged")]:
        log.warning(
            "%s: rate %s ended in NaN or Inf", cell.layers, ", ".join(f"{r:g}" for r in gone)
        )
    if absent := metrics["absent_classes"]:
        some = ", ".join(absent[:6]) + (" …" if len(absent) > 6 else "")
        log.info("%d classes do not occur in the validation masks: %s", len(absent), some)
