"""`skipbench knn`: dense nearest-neighbour segmentation with a checkpoint, on a data set.

features of training and validation images (once) → bank of training patches → index → neighbours
of every validation token (one search for all k and temperatures) → scores → a record each
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.datasets import Dataset
from skipbench.engine import vectors
from skipbench.engine.parallel import in_parallel
from skipbench.engine.progress import Progress, progress
from skipbench.errors import DataError
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.knn import EVALUATION, method
from skipbench.evaluations.knn.method import Bank, Part, Storage, Vote, Votes
from skipbench.evaluations.knn.settings import KnnSettings
from skipbench.evaluations.record import recorded_protocol
from skipbench.evaluations.run import Arrays, Cell
from skipbench.evaluations.segmentation.run import SegmentationRun, segmentation_metrics
from skipbench.evaluations.segmentation.tokens import even_shares, normalised, randomness
from skipbench.files import size_text
from skipbench.images import parse_size, resize_mask, size_name
from skipbench.metrics.segmentation import LEFT_OUT
from skipbench.pipeline import Inspection
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.pictures import Predict

log = logging.getLogger("skipbench")

DEFAULTS = KnnSettings.defaults()
(K,), (TEMPERATURE,) = DEFAULTS["k"], DEFAULTS["temperature"]
DEFAULTS = {
    "size": size_name(parse_size(DEFAULTS["size"])), "k": K, "temperature": TEMPERATURE,
    "memory": DEFAULTS["memory"],
}  # fmt: skip
PIECE_BYTES = 64_000_000  # of the bank that are read at once
PROBES, PROBED = 1024, 64  # tokens, and images they are from, to measure the recall of an index
TRIAL_TOKENS = 20_000
IVF_SHARE = 0.15  # of an exhaustive search: measured with 10⁶ tokens on two cores


@dataclass(frozen=True)
class KnnCell(Cell):
    vote: Vote
    storage: Storage


@dataclass(frozen=True)
class Memory:
    bank: Bank
    index: vectors.Index


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
        self._memory: tuple[object, Memory] | None = None  # of one group of cells

    def _cell(self, blocks: tuple[int, ...], layers: str, seed: int, vote: Vote) -> KnnCell:
        storage = method.choose_storage(
            self.settings.index, self.most_tokens[blocks], self.width(blocks),
            self.settings.bank_limit, self.gpus,
        )  # fmt: skip
        identity = self.identity(blocks, seed, self._protocol(vote, storage))
        return KnnCell(identity, layers, blocks, seed, vote, storage)

    def _protocol(self, vote: Vote, storage: Storage) -> dict[str, Any]:
        return {
            "name": "hummingbird",
            "size": size_name(self.size),
            "k": vote.k,
            "temperature": vote.temperature,
            "memory": self.settings.memory,
            "index": storage.index,
            "bank": storage.numbers,
            "absent_classes": LEFT_OUT,
        }

    @cached_property
    def most_tokens(self) -> dict[tuple[int, ...], int]:
        """The size of the bank, or more if patches have no label; by blocks."""
        items, memory = self.train.items, self.settings.memory
        return {blocks: self.tokens_of(items, blocks, memory) for blocks in self.layers}

    def describe(self, cell: KnnCell) -> str:
        return f"{super().describe(cell)}, k {cell.vote.k}, temperature {cell.vote.temperature:g}"

    def shared(self, cell: KnnCell) -> tuple[tuple[int, ...], int]:
        """Layers and seed: the same bank."""
        return cell.blocks, cell.seed

    def check_data(self) -> None:
        super().check_data()
        if self.settings.memory < len(self.train):
            log.warning(
                "--memory %d: fewer tokens than training images; some contribute none",
                self.settings.memory,
            )
        if max(self.settings.k) > min(self.most_tokens.values()):
            log.warning("k %d exceeds the bank: every token in it votes", max(self.settings.k))

    def estimate(self, cells: Sequence[KnnCell]) -> Estimate:
        trial = Trial(self, self.val[:TRIAL_IMAGES], cells)
        per_product = _seconds_per_product(trial.tokens(cells[0]))
        banks = {self.shared(cell): cell for cell in cells}
        work = sum(self._search_seconds(cell, per_product, trial) for cell in banks.values())
        held = max(self._bytes(cell, self.most_tokens[cell.blocks]) for cell in cells)
        lists = [self.train.items, self.val.items]
        return trial.estimate(lists, work, held, "bank and neighbours")

    def _bytes(self, cell: KnnCell, tokens: int) -> int:
        return cell.storage.bytes(tokens, self.width(cell.blocks))

    def _search_seconds(self, cell: KnnCell, per_product: float, trial: Trial) -> float:
        """To build one index and find the neighbours of all images: products dominate."""
        tokens, per_pair = self.most_tokens[cell.blocks], per_product * self.width(cell.blocks)
        whole = trial.tokens_of_an_image(cell) * len(self.val) * tokens
        if cell.storage.index == "flat":
            return per_pair * whole
        lists = vectors.LISTS * tokens**0.5
        training = vectors.TURNS * vectors.POINTS_A_LIST * lists * lists
        return per_pair * (IVF_SHARE * whole + training + (lists + PROBES) * tokens)

    # -- the bank

    def _memory_of(self, cell: KnnCell) -> Memory:
        """What the cells of one group share; one at a time is kept."""
        key = self.shared(cell)
        if self._memory is None or self._memory[0] != key:
            self._memory = None  # freed before the next one is made
            with self.timed("bank"):
                self._memory = key, self.build_memory(cell)
        return self._memory[1]

    def build_memory(self, cell: KnnCell) -> Memory:
        key = cell.seed, self.train_features.stride(self.columns(cell))
        if key not in self._banks:
            self._banks[key] = self._bank(*key)
        bank = self._banks[key]
        tokens, needed = f"{len(bank):,}", size_text(self._bytes(cell, len(bank)))
        log.info(
            "%s: %s tokens in the bank, %s: %s", cell.layers, tokens, cell.storage.words, needed
        )
        index = self._index(cell, bank)
        if isinstance(index, vectors.Lists):
            log.info(
                "%s: searching %d of %d lists finds %.1f %% of the %d nearest neighbours",
                cell.layers, index.searched, index.lists, 100 * index.recall(K), K,
            )  # fmt: skip
        return Memory(bank, index)

    def _bank(self, seed: int, stride: int) -> Bank:
        shares = even_shares(self.settings.memory, len(self.train), seed)
        work = partial(self._patches, seed=seed, stride=stride, shares=shares)
        images = range(len(self.train))
        bank = method.joined(list(in_parallel(work, images, "choosing patches of train")))
        if not len(bank):
            raise DataError("no sampled patch has a labelled pixel: use a larger --memory")
        first, *others = self.settings.seeds
        if bank.whole and others and seed == first:
            log.warning(
                "the bank holds every labelled patch, so all seeds score the same: one is enough"
            )
        return bank

    def _patches(self, image: int, seed: int, stride: int, shares: np.ndarray) -> Part:
        plan = self.train_features.plan
        mask = resize_mask(self.train[image].mask(), plan.sizes_hw[image])
        grid_hw = plan.grid_hw(image, stride)
        counts = method.patch_counts(mask, grid_hw, stride, len(self.train.classes))
        return method.part_of_bank(counts, int(shares[image]), seed, image)

    def _index(self, cell: KnnCell, bank: Bank) -> vectors.Index:
        pieces, width = partial(self._pieces, bank, self.columns(cell)), self.width(cell.blocks)
        if cell.storage.index == "flat":
            return vectors.Flat(pieces, len(bank), width, cell.storage.numbers, self.gpus)
        return vectors.Lists(
            pieces, len(bank), width, probes=self._probes(cell), seed=cell.seed,
            k=max(self.settings.k), usual_k=K, quantised=cell.storage.numbers == "pq",
            on_gpus=self.gpus,
        )  # fmt: skip

    def _pieces(self, bank: Bank, columns: Sequence[str]) -> Iterator[np.ndarray]:
        """The tokens of the bank, some images at a time."""
        parts: list[np.ndarray] = []
        images = [image for image, rows in enumerate(bank.rows) if len(rows)]
        with progress("reading the bank", len(bank), "tokens") as advance:
            for image in images:
                tokens = self.train_features.tokens(image, columns, bank.rows[image])
                parts.append(normalised(tokens))
                if image == images[-1] or sum(part.nbytes for part in parts) >= PIECE_BYTES:
                    yield np.concatenate(parts)
                    advance(sum(map(len, parts)))
                    parts.clear()

    def _probes(self, cell: KnnCell) -> np.ndarray:
        """Random tokens of some validation images, as many of each."""
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
        bank, index = memory.bank, memory.index

        def score(
            images: Sequence[int], cells: Sequence[KnnCell], advance: Progress
        ) -> list[dict[str, np.ndarray]]:
            votes = [cell.vote for cell in cells]
            found = method.score(split, images, index, bank.labels, votes, advance)
            return [{"counts": counts} for counts in found.swapaxes(0, 1)]

        parts = self.scored(cells, self.label("neighbours", cells[0]), score)
        for cell in cells:
            counts = np.concatenate([part["counts"] for part in parts[cell.id]])
            found = segmentation_metrics(counts, self.val.classes)
            result = self.record(
                cell, self.val_features,
                recorded_protocol(self._protocol(cell.vote, cell.storage), DEFAULTS),
                {**found, "bank": self._facts(cell, bank, index)}, self.seconds_since(before),
                k=cell.vote.k, temperature=cell.vote.temperature,
            )  # fmt: skip
            yield cell, result, {"counts": counts}

    def _facts(self, cell: KnnCell, bank: Bank, index: vectors.Index) -> dict[str, Any]:
        """The bank as a record describes it."""
        shares = zip(self.train.classes, bank.class_shares().tolist(), strict=True)
        facts = {
            "tokens": len(bank),
            "whole": bank.whole,
            "bytes": self._bytes(cell, len(bank)),
            "class_percent": {name: 100 * share for name, share in shares},
        }
        if isinstance(index, vectors.Lists):
            facts |= {"lists": index.lists, "searched": index.searched}
            facts["recall"] = index.recall(cell.vote.k)
        return facts

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


def _seconds_per_product(tokens: np.ndarray) -> float:
    """Of one number of a query and one of a token in the bank."""
    bank = np.resize(tokens, (TRIAL_TOKENS, tokens.shape[1]))
    index = vectors.Flat(lambda: [bank], *bank.shape)
    index.search(tokens[:64], K)
    started = time.monotonic()
    index.search(tokens, K)
    return (time.monotonic() - started) / (len(tokens) * bank.size)
