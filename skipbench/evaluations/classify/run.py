"""`skipbench classify`: k-NN and linear classification of whole images with a checkpoint.

one vector of every training and evaluated image (once) → neighbours and votes, or linear
classifiers for all rates → ranks of the true classes → a record each
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from skipbench.backbones.health import ROUNDING_SPREAD, spread
from skipbench.datasets import Dataset
from skipbench.engine import vectors
from skipbench.engine.machine import peak_bytes
from skipbench.engine.progress import progress
from skipbench.errors import UsageError
from skipbench.evaluations.classify import EVALUATION, method, protocols, trial
from skipbench.evaluations.classify import record as written
from skipbench.evaluations.classify.crops import Crops
from skipbench.evaluations.classify.linear import Classifiers, Training, fit
from skipbench.evaluations.classify.method import Vote
from skipbench.evaluations.classify.settings import WHOLE, ClassifySettings
from skipbench.evaluations.data import class_numbers
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate
from skipbench.evaluations.record import recorded_protocol
from skipbench.evaluations.run import Arrays, Cell, FeatureRun, Need
from skipbench.evaluations.segmentation.tokens import normalised
from skipbench.features.pool import has_class_token
from skipbench.features.source import compute
from skipbench.features.store import Features, missing_images
from skipbench.images import Picture, padded, size_name
from skipbench.pipeline import Inspection, log_adaptation
from skipbench.records import FeatureSpec, Pool, Result

log = logging.getLogger("skipbench")


@dataclass(frozen=True)
class ClassifyCell(Cell):
    method: str
    vote: Vote | None = None  # of k-NN


class ClassifyRun(FeatureRun):
    """k-NN cells of the same layers share a search."""

    evaluation = EVALUATION
    settings: ClassifySettings
    stages = ("searching", "training")
    stage, advice = "classification", "Use fewer --layers or rates (--lr), or --train-images"
    shard_images = 1024  # searched together
    cells: list[ClassifyCell]

    def __init__(
        self, inspections: Sequence[Inspection], data: Sequence[Dataset], settings: ClassifySettings
    ) -> None:
        super().__init__(inspections, data, settings, settings.size)
        self.crop = settings.crop if isinstance(self.size, tuple) else WHOLE
        self.pools, self.usual_pool = self._pools()
        self.seen = {
            "pool": protocols.POOLS[self.pools],
            "size": size_name(self.size),
            "crop": self.crop,
            "interpolation": self.backbone.preprocessing.interpolation,
        }
        self.gpus = vectors.gpus(self.backbone.device) if "knn" in settings.method else 0
        self.cells = [
            cell
            for blocks, text in self.layers.items()
            for name in settings.method
            for cell in (self._knn if name == "knn" else self._linear)(blocks, text)
        ]
        self._read: tuple[object, tuple[np.ndarray, np.ndarray]] | None = None
        self._warned = False

    def _pools(self) -> tuple[tuple[Pool, ...], str]:
        """Those to use, and what `auto` means for this model."""
        hw = self.size if isinstance(self.size, tuple) else (224, 224)
        found = has_class_token(self.backbone, padded(hw, self.backbone.patch), self.tensor)
        usual: Pool = "cls" if found else "mean"
        asked, name = self.settings.pool, self.backbone.facts.name
        if asked in ("cls", "both") and not found:
            raise UsageError(f"--pool {asked}: {name} has no class token; use --pool mean")
        if asked == "auto" and not found:
            log.info("%s has no class token: using the mean patch token", name)
        if asked == "both":
            return ("cls", "mean"), usual
        return (usual if asked == "auto" else asked,), usual

    # -- cells and their protocol

    def _knn(self, blocks: tuple[int, ...], layers: str) -> Iterator[ClassifyCell]:
        for k in self.settings.k:
            for temperature in self.settings.temperature:
                vote = Vote(k, temperature)
                identity = self.identity(blocks, 0, self._knn_protocol(blocks, vote))
                yield ClassifyCell(identity, layers, blocks, 0, "knn", vote)

    def _linear(self, blocks: tuple[int, ...], layers: str) -> Iterator[ClassifyCell]:
        protocol, select = protocols.linear(self.seen, self.settings), self.settings.select
        for seed in self.settings.seeds:
            identity = self.identity(blocks, seed, protocol, select=select)
            yield ClassifyCell(identity, layers, blocks, seed, "linear")

    def _knn_protocol(self, blocks: tuple[int, ...], vote: Vote) -> dict[str, Any]:
        return protocols.knn(self.seen, vote.k, vote.temperature, self._numbers(blocks))

    def _numbers(self, blocks: tuple[int, ...]) -> int:
        return len(self.train) * self.width(blocks) * len(self.pools)

    def shared(self, cell: ClassifyCell) -> Any:
        return (cell.blocks, cell.vote.searched_k) if cell.vote else cell.id

    def describe(self, cell: ClassifyCell) -> str:
        if cell.vote is None:
            return self.label("linear", cell)
        return f"k-NN {cell.layers}, k {cell.vote.k}, temperature {cell.vote.temperature:g}"

    def check_data(self) -> None:
        count = int((~np.isin(self.truth, self.labels)).sum())
        if count:
            log.warning(
                "%s of %s images of %s are of classes without a training image, and can only be "
                "wrong", f"{count:,}", f"{len(self.val):,}", self.val.split,
            )  # fmt: skip
        if "knn" in self.settings.method and max(self.settings.k) > len(self.train):
            log.warning("k %d exceeds the training images: all of them vote", max(self.settings.k))

    @cached_property
    def labels(self) -> np.ndarray:
        """(training images,) int64"""
        return class_numbers(self.train)

    @cached_property
    def truth(self) -> np.ndarray:
        """(evaluated images,) int64"""
        return class_numbers(self.val)

    # -- vectors

    def spec(self, cells: Sequence[Cell]) -> FeatureSpec:
        return replace(super().spec(cells), pools=self.pools)

    def columns(self, cell: Cell) -> tuple[str, ...]:
        return FeatureSpec(blocks=cell.blocks, tensors=(self.tensor,), pools=self.pools).columns

    def pictures(self, data: Dataset) -> Sequence[Picture]:
        """As the model sees them."""
        if isinstance(self.crop, str) or not isinstance(self.size, tuple):
            return data.items
        return Crops(data.items, self.size, self.crop)

    def needs(self) -> list[Need]:
        todo, source = self.missing(), self.settings.source
        if not todo or source.in_memory:
            return []
        spec = self.spec(todo)
        return [
            Need(self.backbone, self.pictures(data), spec, source, what, self.check_once)
            for what, data in self.splits.items()
        ]

    def open_features(
        self, stack: ExitStack, todo: Sequence[ClassifyCell], drawn: Sequence[ClassifyCell]
    ) -> None:
        spec = self.spec(todo)
        log_adaptation(self.backbone, spec)
        train, val = (
            stack.enter_context(self.features(self.pictures(data), spec, what))
            for what, data in self.splits.items()
        )
        self.train_features, self.val_features = train, val

    def read_vectors(self, cell: ClassifyCell) -> tuple[np.ndarray, np.ndarray]:
        """Of the training and of the evaluated images, (images, channels) each; those of one set of
        layers are kept."""
        if self._read is None or self._read[0] != cell.blocks:
            self._read = None  # freed before the next ones are read
            columns = self.columns(cell)
            train, val = (f.vectors(columns) for f in (self.train_features, self.val_features))
            self._note_constant(self.val_features, columns)
            self._read = cell.blocks, (train, val)
        return self._read[1]

    def _note_constant(self, features: Features, columns: Sequence[str]) -> None:
        """Vectors that are the same for all images, up to rounding."""
        for column in columns:
            some = torch.from_numpy(features.vectors([column])[:1000]).float()
            if len(some) > 1 and float(spread(some[None])) < ROUNDING_SPREAD:
                log.warning("%s: all images have the same features", column)
                everything = tuple(range(len(features)))
                features.degenerate = {**features.degenerate, column: everything}

    # -- scores

    def compute(
        self, cells: Sequence[ClassifyCell]
    ) -> Iterator[tuple[ClassifyCell, Result, Arrays]]:
        if not cells:
            return
        yield from self._by_neighbours(cells) if cells[0].vote else self._by_training(cells)

    def _by_neighbours(
        self, cells: Sequence[ClassifyCell]
    ) -> Iterator[tuple[ClassifyCell, Result, Arrays]]:
        before = dict(self.seconds)
        with self.timed("searching"):
            found = self._searched(cells)
        for cell in cells:
            ranks, predicted = (found[cell.id][name] for name in ("ranks", "predicted"))
            metrics = written.knn_metrics(ranks, self.truth, self.labels, self.val.classes)
            assert cell.vote is not None
            protocol = self._knn_protocol(cell.blocks, cell.vote)
            result = self._result(
                cell, protocol, metrics, self.seconds_since(before), k=cell.vote.k,
                temperature=cell.vote.temperature,
            )  # fmt: skip
            yield cell, result, written.image_arrays(ranks, predicted)

    def _searched(self, cells: Sequence[ClassifyCell]) -> dict[str, Arrays]:
        """By cell, rank and prediction of each image. Resumable, shard by shard."""
        train, val = self.read_vectors(cells[0])
        votes = [cell.vote for cell in cells if cell.vote]
        bank = self._knn_protocol(cells[0].blocks, votes[0])["bank"]
        index: vectors.Flat | None = None
        parts: dict[str, list[Arrays]] = {cell.id: [] for cell in cells}
        with progress(f"neighbours {cells[0].layers}", len(val)) as advance:
            for shard, start in enumerate(range(0, len(val), self.shard_images)):
                rows = slice(start, start + self.shard_images)
                kept = [] if self.settings.force else self._kept(cells, shard)
                if not kept:
                    index = index or self._index(train, bank)
                    ranks, predicted = method.knn_ranks(
                        normalised(val[rows]), self.truth[rows], index, self.labels,
                        len(self.val.classes), votes,
                    )  # fmt: skip
                    both = zip(ranks, predicted, strict=True)
                    kept = [{"ranks": one, "predicted": other} for one, other in both]
                    for cell, part in zip(cells, kept, strict=True):
                        self.chunks(cell).save(shard, part)
                for cell, part in zip(cells, kept, strict=True):
                    parts[cell.id].append(part)
                advance(len(val[rows]))
        return {
            name: {key: np.concatenate([part[key] for part in some]) for key in some[0]}
            for name, some in parts.items()
        }

    def _kept(self, cells: Sequence[ClassifyCell], shard: int) -> list[dict[str, np.ndarray]]:
        """Of an interrupted run; nothing if that of one cell is missing."""
        found = [self.chunks(cell).load(shard) for cell in cells]
        return [part for part in found if part] if None not in found else []

    def _index(self, train: np.ndarray, bank: str) -> vectors.Flat:
        def pieces() -> Iterator[np.ndarray]:
            for start in range(0, len(train), vectors.PIECE):
                yield normalised(train[start : start + vectors.PIECE])

        return vectors.Flat(pieces, len(train), train.shape[1], bank, self.gpus)

    def _by_training(
        self, cells: Sequence[ClassifyCell]
    ) -> Iterator[tuple[ClassifyCell, Result, Arrays]]:
        select, names = self.settings.select, self.val.classes
        for cell in cells:
            before = dict(self.seconds)
            train, val = self.read_vectors(cell)
            with self.timed("training"):
                made = self._trained(cell, train)
                ranks, predicted = made.ranks(val, self.truth, made.full)
                held = made.held_out
                held_ranks = (
                    made.ranks(train[held], self.labels[held], made.choosing)[0]
                    if len(held)
                    else None
                )
            metrics = written.linear_metrics(
                made, ranks, held_ranks, self.truth, self.labels, names, select
            )
            if select == "holdout" and metrics["selected_on"] == "val":
                log.warning("too few training images to hold some out: the rate is chosen on val")
            protocol = protocols.linear(self.seen, self.settings)
            protocol |= {"select": select, "held_out": len(held)}
            result = self._result(cell, protocol, metrics, self.seconds_since(before))
            yield cell, result, written.linear_arrays(made, ranks, predicted, metrics)

    def _trained(self, cell: ClassifyCell, train: np.ndarray) -> Classifiers:
        kept, training = self.training_state(cell), self._training(cell.seed)
        state = None if self.settings.force else kept.load()
        begun = 0 if state is None else int(state["epoch"]) + 1
        if begun:
            log.info("%s: %d of %d epochs were done before", cell.layers, begun, training.epochs)
        label = self.label("training", cell)
        with progress(label, training.epochs, "epochs", begun) as advance:

            def after_epoch(state: dict[str, torch.Tensor], losses: Sequence[float]) -> None:
                kept.save(state)
                advance(1, f"loss {min(losses[: len(training.rates)]):.3g}")

            return fit(
                train, self.labels, len(self.val.classes), training,
                device=self.backbone.device, state=state, after_epoch=after_epoch,
            )  # fmt: skip

    def _training(self, seed: int) -> Training:
        settings = self.settings
        return Training(settings.lr, settings.epochs, settings.batch, settings.standardize, seed)

    def _result(
        self,
        cell: ClassifyCell,
        protocol: dict[str, Any],
        metrics: dict[str, Any],
        seconds: dict[str, float],
        **swept: Any,
    ) -> Result:
        if metrics["near_chance"] and not self._warned:
            self._warned = True
            written.warn_of_chance(metrics, self.describe(cell), self.backbone.facts.name)
        noted = recorded_protocol(protocol, protocols.usual(protocol, self.usual_pool))
        result = self.record(
            cell, self.val_features, noted, metrics, seconds, method=[cell.method], **swept
        )
        # A million names of training images would be in every record; their fingerprint suffices.
        trained = {**(result.training or {}), "names": []}
        seed = cell.seed if cell.method == "linear" else None
        return replace(result, training=trained, protocol={**result.protocol, "seed": seed})

    # -- dry run

    def estimate(self, cells: Sequence[ClassifyCell]) -> Estimate:
        source, spec = self.settings.source, self.spec(cells)
        few = list(self.pictures(self.val)[:TRIAL_IMAGES])
        compute(self.backbone, few[:1], spec, workers=source.workers)  # the first is slower
        started = time.monotonic()
        found = compute(self.backbone, few, spec, batch_size=source.batch_size)
        per_image = (time.monotonic() - started) / len(few)
        everything = [self.pictures(data) for data in self.splits.values()]
        images_each = len(self.train), len(self.val)
        images = sum(images_each)
        missing = images
        if not source.in_memory:
            missing = sum(missing_images(self.backbone, p, spec, source.cache) for p in everything)
        bytes_each = sum(found.read(0, column).nbytes for column in spec.columns)
        knn = {self.shared(cell): cell for cell in cells if cell.vote}
        linear = [cell for cell in cells if cell.vote is None]
        work = 0.0
        for cell in knn.values():
            work += trial.search_seconds(self.width(cell.blocks) * len(self.pools), images_each)
        for cell in linear:
            width = self.width(cell.blocks) * len(self.pools)
            work += trial.training_seconds(
                width, self.labels, len(self.val.classes), self._training(0), self.backbone.device
            )
        held = max(4 * self._numbers(cell.blocks) for cell in cells)
        return Estimate(
            images=missing,
            stored=images - missing,
            features_seconds=per_image * missing,
            training_seconds=0.0,
            scoring_seconds=work,
            disk_bytes=0 if source.in_memory else bytes_each * missing,
            memory_bytes=peak_bytes() + held,
            work="neighbours and training",
        )
