"""What a run is made of: cells, each of which becomes one record. `pipeline.carry_out` does them.

A cell is a set of layers, a seed, and what the evaluation adds to them (k, clusters, …).
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.backbones.base import Backbone
from skipbench.datasets import Dataset
from skipbench.engine.device import is_out_of_memory
from skipbench.errors import OutOfMemory
from skipbench.evaluations import Evaluation
from skipbench.evaluations.record import checkpoint_part, environment_part, timing_part
from skipbench.evaluations.resume import SHARD, Chunks, TrainingState
from skipbench.features.layers import parse_layers
from skipbench.features.source import FeatureSource
from skipbench.features.store import Features, model_part
from skipbench.files import cache_folder
from skipbench.images import Picture, padded, parse_size, size_name, target_hw
from skipbench.pipeline import Inspection, log_adaptation
from skipbench.record_store import find_result, plain_result, result_id
from skipbench.records import FeatureSpec, Result

if TYPE_CHECKING:
    from skipbench.evaluations.estimate import Estimate

log = logging.getLogger("skipbench")

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Cell:
    id: str
    layers: str
    blocks: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Need:
    """Stored features that a run will use; a suite computes shared ones in one pass."""

    backbone: Backbone
    pictures: Sequence[Picture]
    spec: FeatureSpec
    source: FeatureSource
    what: str  # train, val
    check: Callable[[], object]  # called before features are extracted


class Run:
    """One evaluation of one checkpoint (`pca`: of several) on opened data."""

    evaluation: Evaluation
    settings: Any  # of the evaluation
    cells: list[Any]  # of `Cell`, or of a subclass
    backbone: Backbone
    _checked = False
    always = False  # done even if all records exist: pictures are drawn again
    stage = "the evaluation"  # that may run out of memory, and what to do then
    advice = "Use another --device"

    def groups(self) -> Iterator[list[Any]]:
        """Neighbouring cells that share work."""
        yield from (list(group) for _, group in groupby(self.cells, self.shared))

    def shared(self, cell: Any) -> Any:
        """Cells with the same value share work."""
        return cell.id

    def check_data(self) -> None:
        """Called before long work, so that bad data is not found only hours later."""

    def check_once(self) -> None:
        if not self._checked:
            self.check_data()
            self._checked = True

    def open_features(self, stack: ExitStack, todo: Sequence[Any], drawn: Sequence[Any]) -> None:
        """Features of all images that these cells need, in one pass; closed with the stack."""

    def compute(self, cells: Sequence[Any]) -> Iterator[tuple[Any, Result, Arrays]]:
        """The record of each cell of a group, with its arrays by image."""
        raise NotImplementedError

    def drawn(self) -> list[Any]:
        """Cells whose pictures are wanted."""
        return []

    def draw(self, cell: Any, result: Result) -> None:
        raise NotImplementedError

    def tidy(self, cell: Any) -> None:
        """Remove what was kept for resuming."""

    def describe(self, cell: Any) -> str:
        """What distinguishes it from the other cells."""
        return ""

    def needs(self) -> list[Need]:
        return []

    def estimate(self, cells: Sequence[Any]) -> "Estimate":
        """What these cells would take, from a trial on a few images."""
        raise NotImplementedError

    def missing(self) -> list[Any]:
        """Cells without a record."""
        force = getattr(self.settings, "force", False)
        return [c for c in self.cells if force or find_result(self.settings.out, c.id) is None]

    def chunks(self, cell: Cell) -> Chunks:
        """Results by image, kept for resuming."""
        return Chunks(self._working_path(cell.id))

    def training_state(self, cell: Cell) -> TrainingState:
        return TrainingState(self._working_path(f"{cell.id}.state"))

    def _working_path(self, name: str) -> Path | None:
        if self.settings.in_memory:
            return None
        return cache_folder(self.settings.cache) / self.evaluation.name / name

    @contextmanager
    def out_of_memory_is_reported(self, cell: Any) -> Iterator[None]:
        """Extraction retries with smaller batches; later stages cannot."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            words = (str(error) or type(error).__name__).splitlines()[0][:80]
            raise OutOfMemory(
                f"{cell.layers}: out of memory in {self.stage} ({words}).\n"
                f"{self.advice}; finished work is kept."
            ) from None


class FeatureRun(Run):
    """A run on stored features of one checkpoint."""

    stages: tuple[str, ...] = ("scoring",)  # timed after the features
    shard_images = SHARD  # whose results are kept together for resuming
    train: Dataset  # only of evaluations that use training images
    train_features: Features
    val: Dataset  # the scored images
    val_features: Features

    def __init__(
        self, inspections: Sequence[Inspection], data: Sequence[Dataset], settings: Any, size: str
    ) -> None:
        """data: the scored split, or the training split and the scored one."""
        self.inspection, self.settings = inspections[0], settings
        *training, self.val = data
        if training:
            (self.train,) = training
        self.splits = {"train": self.train, "val": self.val} if training else {"val": self.val}
        self.val_facts = self.val.facts()
        self.train_facts = self.train.facts() if training else None
        self.size = parse_size(size)
        self.backbone = self.inspection.backbone(settings.precision)
        self.tensor = "tokens_norm" if settings.norm else "tokens"
        self.layers: dict[tuple[int, ...], str] = {}
        for text in settings.layers:  # "last" and "11" may be one set
            self.layers.setdefault(parse_layers(text, self.backbone.depth), text)
        self.determines: dict[str, Mapping[str, Any]] = {}  # of each cell, by id
        self.seconds = dict.fromkeys(("features", *self.stages), 0.0)
        self.computed = 0  # images whose features were computed, not found

    def spec(self, cells: Sequence[Cell]) -> FeatureSpec:
        """The features of all of them, for one pass over the images."""
        return FeatureSpec(
            blocks=tuple(sorted({block for cell in cells for block in cell.blocks})),
            tensors=(self.tensor,),
            size=self.size,
            store_dtype=self.settings.store_dtype,
        )

    def columns(self, cell: Cell) -> tuple[str, ...]:
        return FeatureSpec(blocks=cell.blocks, tensors=(self.tensor,)).columns

    def width(self, blocks: Sequence[int]) -> int:
        """Channels per token."""
        return sum(map(self.backbone.width, blocks))

    def open_features(self, stack: ExitStack, todo: Sequence[Any], drawn: Sequence[Any]) -> None:
        spec = self.spec([*todo, *drawn])
        log_adaptation(self.backbone, spec)
        if self.train_facts:
            features = self.features(self.train.items, spec, "train")
            self.train_features = stack.enter_context(features)
        self.val_features = stack.enter_context(self.features(self.val.items, spec, "val"))

    def needs(self) -> list[Need]:
        return self.needs_of([*self.missing(), *self.drawn()], self.splits)

    def needs_of(self, cells: Sequence[Any], splits: Mapping[str, Dataset]) -> list[Need]:
        """Nothing where features are kept in memory."""
        source = self.settings.source
        if not cells or source.in_memory:
            return []
        spec = self.spec(cells)
        return [
            Need(self.backbone, data.items, spec, source, what, self.check_once)
            for what, data in splits.items()
        ]

    def features(self, pictures: Sequence[Picture], spec: FeatureSpec, what: str) -> Features:
        with self.timed("features"):
            label = f"features of {what}"
            found = self.settings.source.features(self.backbone, pictures, spec, label)
        self.computed += found.computed
        return found

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] += time.monotonic() - started

    def seconds_since(self, before: Mapping[str, float]) -> dict[str, float]:
        """By stage; before: an earlier copy of `seconds`. Features are shared by all cells."""
        return {
            stage: spent if stage == "features" else spent - before[stage]
            for stage, spent in self.seconds.items()
        }

    def tidy(self, cell: Any) -> None:
        self.chunks(cell).forget()
        self.training_state(cell).forget()

    def identity(
        self, blocks: tuple[int, ...], seed: int, protocol: Mapping[str, Any], **more: Any
    ) -> str:
        """The id of a record, from all that its number depends on."""
        if self.train_facts:
            more["training"] = self.train_facts.fingerprint
        determines = {
            "version": self.evaluation.version,
            "model": model_part(self.backbone),
            "features": [list(blocks), self.tensor, self.settings.store_dtype],
            "dataset": self.val_facts.fingerprint,
            "protocol": protocol,
            "seed": seed,
            **more,
        }
        identity = result_id(self.evaluation.name, self.val_facts.name, determines)
        self.determines[identity] = determines
        return identity

    def record(
        self,
        cell: Cell,
        features: Features,
        protocol: Mapping[str, Any],
        metrics: Mapping[str, Any],
        seconds: Mapping[str, float],
        **swept: Any,
    ) -> Result:
        """features: of the scored images; swept: settings other than layers and seed that differ
        between cells."""
        call = {**self.settings.call(), **swept, "layers": cell.layers}
        if self.evaluation.has_seed:
            call["seed"] = cell.seed
            call.pop("seeds", None)
        splits = [facts for facts in (self.val_facts, self.train_facts) if facts]
        return plain_result(
            id=cell.id,
            evaluation=self.evaluation.name,
            dataset=self.val_facts.to_json(),
            training=self.train_facts and self.train_facts.to_json(),
            checkpoint=checkpoint_part(self.inspection, self.backbone),
            features={
                "layers": cell.layers,
                "blocks": cell.blocks,
                "tensor": self.tensor,
                "size": size_name(self.size),
                "precision": self.backbone.precision,
                "store_dtype": self.settings.store_dtype,
                "degenerate": {c: len(features.degenerate[c]) for c in self.columns(cell)},
            },
            protocol={**protocol, "seed": cell.seed if self.evaluation.has_seed else None},
            metrics=metrics,
            environment={**environment_part(self.backbone), "call": call},
            timing=timing_part(seconds, sum(facts.images for facts in splits), self.computed),
            determines=self.determines[cell.id],
        )

    def estimate(self, cells: Sequence[Any]) -> "Estimate":
        """Counts feature extraction only."""
        from skipbench.evaluations.estimate import TRIAL_IMAGES, Trial

        trial = Trial(self, self.val[:TRIAL_IMAGES], cells)
        return trial.estimate([data.items for data in self.splits.values()], 0.0, 0, "scoring")

    def label(self, what: str, cell: Cell) -> str:
        seed = f" seed {cell.seed}" if len({one.seed for one in self.cells}) > 1 else ""
        return f"{what} {cell.layers}{seed}"

    def describe(self, cell: Any) -> str:
        return self.label("", cell).strip()

    def tokens_of(self, items: Sequence[Picture], blocks: Sequence[int], enough: int) -> int:
        """Number of tokens of these images, without decoding them; counts up to `enough`."""
        stride, count = min(map(self.backbone.stride, blocks)), 0
        for item in items:
            size_hw = self.size if isinstance(self.size, tuple) else item.size_hw()
            height, width = padded(target_hw(size_hw, self.size), self.backbone.patch)
            count += (height // stride) * (width // stride)
            if count >= enough:
                return enough
        return count
