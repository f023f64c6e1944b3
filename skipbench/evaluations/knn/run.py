"""`skipbench knn`: dense nearest-neighbour segmentation with a checkpoint, on a data set.

features of training and validation images (once) → bank of training patches → index → neighbours
of every validation token (one search for all k and temperatures) → scores → a record each
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from skipbench.datasets import Dataset
from skipbench.engine import vectors
from skipbench.engine.progress import progress
from skipbench.evaluations.data import check_masks
from skipbench.evaluations.knn import method as evaluation
from skipbench.evaluations.knn import record as written
from skipbench.evaluations.knn.memory import Memory, Remembered
from skipbench.evaluations.knn.method import Vote, Votes, normalised
from skipbench.evaluations.knn.settings import (
    BANK_LIMIT,
    MEMORY,
    TEMPERATURE,
    K,
    Storage,
    choose_storage,
)
from skipbench.evaluations.resume import Arrays, Chunks, in_chunks
from skipbench.evaluations.run import AskedOfFeatures, Cell, FeatureRun, memory_is_short_at
from skipbench.evaluations.segmentation.images import Split
from skipbench.evaluations.segmentation.scores import figures
from skipbench.files import cache_folder, ensure_writable
from skipbench.pipeline import Inspection, say_what_is_adapted
from skipbench.records import Result
from skipbench.results.store import read_arrays, result_id, write_result

log = logging.getLogger("skipbench")

ADVICE = "Give a smaller --memory or --bank-limit, or fewer --layers"


@dataclass(frozen=True, kw_only=True)
class Asked(AskedOfFeatures):
    ks: tuple[int, ...] = (K,)
    temperatures: tuple[float, ...] = (TEMPERATURE,)
    memory: int = MEMORY  # tokens
    index: str = "auto"
    bank_limit: int = BANK_LIMIT  # bytes
    size: str = "512"


@dataclass(frozen=True)
class KnnCell(Cell):
    vote: Vote
    storage: Storage


class Knn(FeatureRun):
    """The whole run. Cells of the same layers and seed share a bank and its search."""

    asked: Asked
    stages = ("bank", "searching")
    cells: list[KnnCell]

    def __init__(self, inspection: Inspection, train: Dataset, val: Dataset, asked: Asked) -> None:
        super().__init__(inspection, asked, asked.size)
        self.train, self.val = train, val
        self.train_facts, self.val_facts = train.facts(), val.facts()
        self.gpus = vectors.gpus(self.backbone.device)  # faiss broken or missing: said here
        self.cells = [
            self._cell(blocks, text, seed, vote)
            for blocks, text in self.layers.items()
            for seed in asked.seeds
            for vote in [Vote(k, t) for k in asked.ks for t in asked.temperatures]
        ]

    def _cell(self, blocks: tuple[int, ...], layers: str, seed: int, vote: Vote) -> KnnCell:
        storage = choose_storage(
            self.asked.index, self.most_tokens, self.backbone.facts.width * len(blocks),
            self.asked.bank_limit, self.gpus,
        )  # fmt: skip
        determines = written.determines(self, blocks, seed, vote, storage)
        identity = result_id("knn", self.val.name, determines)
        return KnnCell(identity, layers, blocks, seed, vote, storage)

    @cached_property
    def most_tokens(self) -> int:
        """Of the bank."""
        return self.tokens_of(self.train.items, self.asked.memory)

    def named(self, cell: KnnCell) -> str:
        return f"{super().named(cell)}, k {cell.vote.k}, temperature {cell.vote.temperature:g}"

    def run(self) -> list[Result]:
        ensure_writable(self.asked.out)
        results = self.done_before()
        todo = [cell for cell in self.cells if cell.id not in results]
        drawn = self.drawn()
        if todo:
            check_masks(self.train, self.val)
            self._say_what_matters()
        if todo or drawn:
            with ExitStack() as stack:
                self.look(stack, [*todo, *drawn])
                for _, group in groupby(self.cells, lambda cell: (cell.blocks, cell.seed)):
                    self._together(list(group), todo, drawn, results)
        return [results[cell.id] for cell in self.cells]

    def _say_what_matters(self) -> None:
        if self.asked.memory < len(self.train):
            log.warning(
                "--memory %d: fewer tokens than training images; some give none", self.asked.memory
            )
        if max(self.asked.ks) > self.most_tokens:
            log.warning("k %d is more than the bank has: all of it votes", max(self.asked.ks))

    def look(self, stack: ExitStack, cells: Sequence[Cell]) -> None:
        spec = self.spec(cells)
        say_what_is_adapted(self.backbone, spec)
        self.train_features = stack.enter_context(self.features(self.train.items, spec, "train"))
        self.val_features = stack.enter_context(self.features(self.val.items, spec, "val"))
        self.memory = Memory(self)

    def _together(
        self,
        group: list[KnnCell],
        todo: Sequence[Cell],
        drawn: Sequence[Cell],
        results: dict[str, Result],
    ) -> None:
        """Cells of one bank."""
        scored = [cell for cell in group if cell in todo]
        shown = [cell for cell in group if cell in drawn]
        if not scored and not shown:
            return
        with memory_is_short_at(group[0].layers, "seeking neighbours", ADVICE):
            self.before = dict(self.seconds)
            with self.timed("bank"):
                memory = self.memory.remember(group[0])
            if scored:
                results |= self._score(scored, memory)
            for cell in shown:
                self._draw(results[cell.id], cell, memory)

    # -- scores

    def _score(self, cells: Sequence[KnnCell], memory: Remembered) -> dict[str, Result]:
        by_id = {cell.id: cell for cell in cells}
        chunks = {cell.id: self._chunks(cell) for cell in cells}
        split = self.split(cells[0])

        with (
            progress(self.label("neighbours", cells[0]), len(self.val)) as advance,
            self.timed("searching"),
        ):

            def work(numbers: Sequence[int], names: Sequence[str]) -> dict[str, Arrays]:
                votes = [by_id[name].vote for name in names]
                found = evaluation.score(
                    split, numbers, memory.index, memory.bank.labels, votes, advance
                )
                return {name: {"counts": found[:, i]} for i, name in enumerate(names)}

            parts = in_chunks(chunks, len(self.val), work, advance, self.asked.force)
        made = {}
        for name, kept in parts.items():
            counts = np.concatenate([part["counts"] for part in kept])
            made[name] = self._record(by_id[name], counts, memory)
            self.tidy(by_id[name])
        return made

    def tidy(self, cell: Cell) -> None:
        self._chunks(cell).forget()

    def split(self, cell: Cell) -> Split:
        return Split(self.val_features, self.val, self.columns(cell), None)

    def _record(self, cell: KnnCell, counts: np.ndarray, memory: Remembered) -> Result:
        index, bank = memory.index, memory.facts
        if isinstance(index, vectors.Lists):
            bank = {**bank, "recall": index.recall(cell.vote.k)}
        metrics = {**figures(counts, self.val.classes), "bank": bank}
        result = written.record(self, cell, metrics, self.seconds_since(self.before))
        write_result(self.asked.out, result, {"counts": counts})
        return result

    def _chunks(self, cell: Cell) -> Chunks:
        keeping = self.asked.keeping
        return Chunks(None if keeping.in_memory else cache_folder(keeping.cache) / "knn" / cell.id)

    # -- pictures

    def _draw(self, result: Result, cell: KnnCell, memory: Remembered) -> None:
        from skipbench.evaluations.pictures import Drawing, draw_record

        split, labels = self.split(cell), memory.bank.labels

        def predict(
            image: int, size_hw: tuple[int, int]
        ) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
            grid, tokens = split.grid(image), normalised(split.tokens(image))
            found = Votes(tokens, memory.index, labels, [cell.vote])
            maps = found.maps(slice(None), grid.size_hw)
            return evaluation.segment(maps, grid, size_hw)[0], {}

        counts = read_arrays(self.asked.out / f"{result.id}.npz")["counts"]
        drawing = Drawing(self.val, self.val, predict, counts)
        how = f"{cell.layers}, {cell.vote.k} neighbours at {cell.vote.temperature:g}"
        draw_record(self.asked.out / result.id, drawing, self.asked.pictures, result, how)
