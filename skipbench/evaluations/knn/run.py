"""`skipbench knn`: dense nearest-neighbour segmentation with a checkpoint, on a data set.

features of training and validation images (once) → bank of training patches → index → neighbours
of every validation token (one search for all k and temperatures) → scores → a record each
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from skipbench.datasets import Dataset
from skipbench.engine import vectors
from skipbench.engine.progress import progress
from skipbench.evaluations.data import check_masks
from skipbench.evaluations.knn import EVALUATION, method
from skipbench.evaluations.knn import record as written
from skipbench.evaluations.knn.memory import Memory, Remembered
from skipbench.evaluations.knn.method import Vote, Votes
from skipbench.evaluations.knn.settings import KnnSettings
from skipbench.evaluations.knn.storage import Storage, choose_storage
from skipbench.evaluations.resume import Arrays, in_chunks
from skipbench.evaluations.run import Arrays as RecordArrays
from skipbench.evaluations.run import Cell, FeatureRun
from skipbench.evaluations.segmentation.images import Split
from skipbench.evaluations.segmentation.scores import figures
from skipbench.evaluations.segmentation.tokens import normalised
from skipbench.pipeline import Inspection
from skipbench.record_store import read_arrays
from skipbench.records import Result

log = logging.getLogger("skipbench")


@dataclass(frozen=True)
class KnnCell(Cell):
    vote: Vote
    storage: Storage


class KnnRun(FeatureRun):
    """Cells of the same layers and seed share a bank and its search."""

    evaluation = EVALUATION
    settings: KnnSettings
    stages = ("bank", "searching")
    stage = "nearest-neighbour search"
    advice = "Use a smaller --memory or --bank-limit, or fewer --layers"
    cells: list[KnnCell]

    def __init__(
        self, inspections: Sequence[Inspection], data: Sequence[Dataset], settings: KnnSettings
    ) -> None:
        super().__init__(inspections, data, settings, settings.size)
        self.gpus = vectors.gpus(self.backbone.device)
        self.cells = [
            self._cell(blocks, text, seed, vote)
            for blocks, text in self.layers.items()
            for seed in settings.seeds
            for vote in [Vote(k, t) for k in settings.k for t in settings.temperature]
        ]
        self._remembered: tuple[object, Remembered] | None = None

    def _cell(self, blocks: tuple[int, ...], layers: str, seed: int, vote: Vote) -> KnnCell:
        storage = choose_storage(
            self.settings.index, self.most_tokens, self.backbone.facts.width * len(blocks),
            self.settings.bank_limit, self.gpus,
        )  # fmt: skip
        protocol = written.protocol_part(self.settings, vote, storage)
        identity = self.identity(blocks, seed, protocol)
        return KnnCell(identity, layers, blocks, seed, vote, storage)

    @cached_property
    def most_tokens(self) -> int:
        """Of the bank."""
        return self.tokens_of(self.train.items, self.settings.memory)

    def describe(self, cell: KnnCell) -> str:
        return f"{super().describe(cell)}, k {cell.vote.k}, temperature {cell.vote.temperature:g}"

    def groups(self) -> Iterator[list[KnnCell]]:
        yield from self.grouped_by(lambda cell: (cell.blocks, cell.seed))

    def check_data(self) -> None:
        check_masks(self.train, self.val)
        if self.settings.memory < len(self.train):
            log.warning(
                "--memory %d: fewer tokens than training images; some contribute none",
                self.settings.memory,
            )
        if max(self.settings.k) > self.most_tokens:
            log.warning("k %d exceeds the bank: all of it votes", max(self.settings.k))

    @cached_property
    def memory(self) -> Memory:
        return Memory(self)

    def _memory_of(self, cell: KnnCell) -> Remembered:
        """The bank that the cells of one group share; one at a time is kept."""
        key = cell.blocks, cell.seed
        if self._remembered is None or self._remembered[0] != key:
            self._remembered = None  # before the next one is there
            with self.timed("bank"):
                self._remembered = key, self.memory.remember(cell)
        return self._remembered[1]

    # -- scores

    def compute(self, cells: Sequence[KnnCell]) -> Iterator[tuple[KnnCell, Result, RecordArrays]]:
        if not cells:
            return
        before = dict(self.seconds)
        memory = self._memory_of(cells[0])
        by_id = {cell.id: cell for cell in cells}
        chunks = {cell.id: self.chunks(cell) for cell in cells}
        split = self.split(cells[0])

        with (
            progress(self.label("neighbours", cells[0]), len(self.val)) as advance,
            self.timed("searching"),
        ):

            def work(numbers: Sequence[int], names: Sequence[str]) -> dict[str, Arrays]:
                votes = [by_id[name].vote for name in names]
                found = method.score(
                    split, numbers, memory.index, memory.bank.labels, votes, advance
                )
                return {name: {"counts": found[:, i]} for i, name in enumerate(names)}

            parts = in_chunks(
                chunks, len(self.val), work, advance, self.settings.force, self.shard_images
            )
        for name, kept in parts.items():
            counts = np.concatenate([part["counts"] for part in kept])
            yield by_id[name], self._record(by_id[name], counts, memory, before), {"counts": counts}

    def tidy(self, cell: Cell) -> None:
        self.chunks(cell).forget()

    def split(self, cell: Cell) -> Split:
        return Split(self.val_features, self.val, self.columns(cell), None)

    def _record(
        self, cell: KnnCell, counts: np.ndarray, memory: Remembered, before: Mapping[str, float]
    ) -> Result:
        index, bank = memory.index, memory.facts
        if isinstance(index, vectors.Lists):
            bank = {**bank, "recall": index.recall(cell.vote.k)}
        metrics = {**figures(counts, self.val.classes), "bank": bank}
        protocol = written.protocol_part(self.settings, cell.vote, cell.storage)
        return self.record(
            cell, self.val_features, written.recorded(protocol), metrics,
            self.seconds_since(before), k=cell.vote.k, temperature=cell.vote.temperature,
        )  # fmt: skip

    # -- pictures

    def draw(self, cell: KnnCell, result: Result) -> None:
        from skipbench.evaluations.pictures import Drawing, draw_record

        memory = self._memory_of(cell)
        split, labels = self.split(cell), memory.bank.labels

        def predict(
            image: int, size_hw: tuple[int, int]
        ) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
            grid, tokens = split.grid(image), normalised(split.tokens(image))
            found = Votes(tokens, memory.index, labels, [cell.vote])
            maps = found.maps(slice(None), grid.size_hw)
            return method.segment(maps, grid, size_hw)[0], {}

        counts = read_arrays(self.settings.out / f"{result.id}.npz")["counts"]
        drawing = Drawing(self.val, self.val, predict, counts)
        how = f"{cell.layers}, {cell.vote.k} neighbours at {cell.vote.temperature:g}"
        draw_record(self.settings.out / result.id, drawing, self.settings.pictures, result, how)
