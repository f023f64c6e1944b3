"""`skipbench knn`: dense nearest-neighbour segmentation with a checkpoint, on a data set.

features of training and validation images (once) → bank of training patches → index → neighbours
of every validation token (one search for all k and temperatures) → scores → a record each
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.datasets import Dataset
from skipbench.engine import vectors
from skipbench.engine.parallel import in_parallel
from skipbench.engine.progress import Progress, progress
from skipbench.errors import DataError
from skipbench.evaluations.knn import EVALUATION, method
from skipbench.evaluations.knn import record as written
from skipbench.evaluations.knn.bank import (
    Bank,
    Part,
    Storage,
    choose_storage,
    joined,
    patch_counts,
    remember,
)
from skipbench.evaluations.knn.method import Vote, Votes
from skipbench.evaluations.knn.settings import KnnSettings
from skipbench.evaluations.record import recorded_protocol
from skipbench.evaluations.run import Arrays, Cell
from skipbench.evaluations.segmentation.run import SegmentationRun, figures
from skipbench.evaluations.segmentation.tokens import even_shares, normalised, randomness
from skipbench.files import size_text
from skipbench.images import resize_mask
from skipbench.pipeline import Inspection
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.pictures import Predict

log = logging.getLogger("skipbench")

(K,) = KnnSettings.defaults()["k"]  # the recall of an index is logged for it
PIECE_BYTES = 64_000_000  # of the bank that are read at once
PROBES, PROBED = 1024, 64  # tokens, of images: their exact neighbours tell what an index finds


@dataclass(frozen=True)
class KnnCell(Cell):
    vote: Vote
    storage: Storage


@dataclass(frozen=True)
class Remembered:
    """A bank, ready to be searched."""

    bank: Bank
    index: vectors.Flat | vectors.Lists
    facts: Mapping[str, Any]  # for the record


class KnnRun(SegmentationRun):
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
            self._cell(blocks, text, seed, Vote(k, temperature))
            for blocks, text in self.layers.items()
            for seed in settings.seeds
            for k in settings.k
            for temperature in settings.temperature
        ]
        self._banks: dict[tuple[int, int], Bank] = {}  # by seed and pixels per token
        self._remembered: tuple[object, Remembered] | None = None

    def _cell(self, blocks: tuple[int, ...], layers: str, seed: int, vote: Vote) -> KnnCell:
        storage = choose_storage(
            self.settings.index, self.most_tokens[blocks], self.width_of(blocks),
            self.settings.bank_limit, self.gpus,
        )  # fmt: skip
        protocol = written.protocol_part(self.settings, vote, storage)
        identity = self.identity(blocks, seed, protocol)
        return KnnCell(identity, layers, blocks, seed, vote, storage)

    @cached_property
    def most_tokens(self) -> dict[tuple[int, ...], int]:
        """Of the bank, by blocks."""
        items, memory = self.train.items, self.settings.memory
        return {blocks: self.tokens_of(items, blocks, memory) for blocks in self.layers}

    def describe(self, cell: KnnCell) -> str:
        return f"{super().describe(cell)}, k {cell.vote.k}, temperature {cell.vote.temperature:g}"

    def groups(self) -> Iterator[list[KnnCell]]:
        yield from self.grouped_by(lambda cell: (cell.blocks, cell.seed))

    def check_data(self) -> None:
        super().check_data()
        if self.settings.memory < len(self.train):
            log.warning(
                "--memory %d: fewer tokens than training images; some contribute none",
                self.settings.memory,
            )
        if max(self.settings.k) > min(self.most_tokens.values()):
            log.warning("k %d exceeds the bank: all of it votes", max(self.settings.k))

    # -- the bank

    def _memory_of(self, cell: KnnCell) -> Remembered:
        """The bank that the cells of one group share; one at a time is kept."""
        key = cell.blocks, cell.seed
        if self._remembered is None or self._remembered[0] != key:
            self._remembered = None  # before the next one is there
            with self.timed("bank"):
                self._remembered = key, self.remember(cell)
        return self._remembered[1]

    def remember(self, cell: KnnCell) -> Remembered:
        key = cell.seed, self.train_features.stride(self.columns(cell))
        if key not in self._banks:
            self._banks[key] = self._bank(*key)
        bank = self._banks[key]
        needed = cell.storage.bytes(len(bank), self.width(cell))
        log.info(
            "%s: %s tokens in the bank, %s: %s",
            cell.layers, f"{len(bank):,}", cell.storage.words, size_text(needed),
        )  # fmt: skip
        index = self._index(cell, bank)
        facts: dict[str, Any] = {"tokens": len(bank), "whole": bank.whole, "bytes": needed}
        if isinstance(index, vectors.Lists):
            facts |= {"lists": index.lists, "searched": index.searched}
            log.info(
                "%s: %d of %d lists are searched; they hold %.1f %% of the %d nearest",
                cell.layers, index.searched, index.lists, 100 * index.recall(K), K,
            )  # fmt: skip
        shares = zip(self.train.classes, bank.class_shares().tolist(), strict=True)
        return Remembered(bank, index, {**facts, "class_percent": {c: 100 * s for c, s in shares}})

    def _bank(self, seed: int, stride: int) -> Bank:
        shares = even_shares(self.settings.memory, len(self.train), seed)
        work = partial(self._patches, seed=seed, stride=stride, shares=shares)
        images = range(len(self.train))
        bank = joined(list(in_parallel(work, images, "choosing patches of train")))
        if not len(bank):
            raise DataError("no patch that was drawn has a labelled pixel: give a larger --memory")
        first, *others = self.settings.seeds
        if bank.whole and others and seed == first:
            log.warning("the bank holds every labelled patch, whatever the seed: one is enough")
        return bank

    def _patches(self, image: int, seed: int, stride: int, shares: np.ndarray) -> Part:
        plan = self.train_features.plan
        mask = resize_mask(self.train[image].mask(), plan.sizes_hw[image])
        counts = patch_counts(mask, plan.grid_hw(image, stride), stride, len(self.train.classes))
        return remember(counts, int(shares[image]), seed, image)

    def _index(self, cell: KnnCell, bank: Bank) -> vectors.Flat | vectors.Lists:
        pieces, width = partial(self._pieces, bank, self.columns(cell)), self.width(cell)
        if cell.storage.index == "flat":
            return vectors.Flat(pieces, len(bank), width, cell.storage.numbers, self.gpus)
        return vectors.Lists(
            pieces, len(bank), width, probes=self._probes(cell), seed=cell.seed,
            k=max(self.settings.k), usual_k=K, quantised=cell.storage.numbers == "pq",
            on_gpus=self.gpus,
        )  # fmt: skip

    def _pieces(self, bank: Bank, columns: Sequence[str]) -> Iterator[np.ndarray]:
        """The tokens of the bank, some images at a time."""
        piece = np.empty((0, 0), np.float32)
        filled = 0
        with progress("reading the bank", len(bank), "tokens") as advance:
            for image, rows in enumerate(bank.rows):
                if not len(rows):
                    continue
                tokens = normalised(self.train_features.tokens(image, columns, rows))
                if filled + len(tokens) > len(piece):
                    if filled:
                        yield piece[:filled]
                        advance(filled)
                    fitting = max(PIECE_BYTES // tokens[0].nbytes, len(tokens))
                    piece, filled = np.empty((fitting, tokens.shape[1]), np.float32), 0
                piece[filled : filled + len(tokens)] = tokens
                filled += len(tokens)
            yield piece[:filled]
            advance(filled)

    def _probes(self, cell: KnnCell) -> np.ndarray:
        """Tokens of validation images, evenly from some of them."""
        features, columns = self.val_features, self.columns(cell)
        rng = randomness("probes", cell.seed)
        images = rng.permutation(len(features))[:PROBED]
        each = -(-PROBES // len(images))
        found = []
        for image in images.tolist():
            rows = np.sort(rng.permutation(features.token_count(image, columns))[:each])
            found.append(features.tokens(image, columns, rows))
        probes = normalised(np.concatenate(found))
        return probes[rng.permutation(len(probes))]

    # -- scores

    def compute(self, cells: Sequence[KnnCell]) -> Iterator[tuple[KnnCell, Result, Arrays]]:
        if not cells:
            return
        before = dict(self.seconds)
        memory, split = self._memory_of(cells[0]), self.split(cells[0])

        def score(
            images: Sequence[int], cells: Sequence[KnnCell], advance: Progress
        ) -> list[dict[str, np.ndarray]]:
            votes = [cell.vote for cell in cells]
            found = method.score(split, images, memory.index, memory.bank.labels, votes, advance)
            return [{"counts": counts} for counts in found.swapaxes(0, 1)]

        parts = self.scored(cells, self.label("neighbours", cells[0]), score)
        for cell in cells:
            counts = np.concatenate([part["counts"] for part in parts[cell.id]])
            yield cell, self._record(cell, counts, memory, before), {"counts": counts}

    def _record(
        self, cell: KnnCell, counts: np.ndarray, memory: Remembered, before: Mapping[str, float]
    ) -> Result:
        index, bank = memory.index, memory.facts
        if isinstance(index, vectors.Lists):
            bank = {**bank, "recall": index.recall(cell.vote.k)}
        metrics = {**figures(counts, self.val.classes), "bank": bank}
        protocol = written.protocol_part(self.settings, cell.vote, cell.storage)
        return self.record(
            cell, self.val_features, recorded_protocol(protocol, written.USUAL), metrics,
            self.seconds_since(before), k=cell.vote.k, temperature=cell.vote.temperature,
        )  # fmt: skip

    # -- pictures

    def predictor(self, cell: KnnCell, arrays: Arrays) -> "Predict":
        memory, split = self._memory_of(cell), self.split(cell)

        def predict(image: int, size_hw: tuple[int, int]) -> tuple[np.ndarray, Arrays]:
            grid, tokens = split.grid(image), normalised(split.tokens(image))
            found = Votes(tokens, memory.index, memory.bank.labels, [cell.vote])
            maps = found.maps(slice(None), grid.size_hw)
            return method.segment(maps, grid, size_hw)[0], {}

        return predict

    def caption(self, cell: KnnCell) -> str:
        return f"{cell.layers}, {cell.vote.k} neighbours at {cell.vote.temperature:g}"
