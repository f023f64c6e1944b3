"""The bank of a nearest-neighbour run: patches chosen, their tokens read, an index made of them."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skipbench.engine import vectors
from skipbench.engine.parallel import in_parallel
from skipbench.engine.progress import progress
from skipbench.errors import DataError
from skipbench.evaluations.knn.bank import Bank, Part, joined, patch_counts, remember
from skipbench.evaluations.knn.settings import KnnSettings
from skipbench.evaluations.segmentation.tokens import even_shares, normalised, randomness
from skipbench.files import size_text
from skipbench.images import resize_mask

if TYPE_CHECKING:
    from skipbench.evaluations.knn.run import KnnCell, KnnRun

log = logging.getLogger("skipbench")

(K,) = KnnSettings.defaults()["k"]  # the recall of an index is logged for it
PIECE_BYTES = 64_000_000  # of the bank that are read at once
PROBES, PROBED = 1024, 64  # tokens, of images: their exact neighbours tell what an index finds


@dataclass(frozen=True)
class Remembered:
    """A bank, ready to be searched."""

    bank: Bank
    index: vectors.Flat | vectors.Lists
    facts: Mapping[str, Any]  # for the record


class Memory:
    """What a run remembers of its training images."""

    def __init__(self, run: "KnnRun") -> None:
        self.run, self.train, self.features = run, run.train, run.train_features
        self._banks: dict[int, Bank] = {}  # by seed; the same for all layers

    def remember(self, cell: "KnnCell") -> Remembered:
        if cell.seed not in self._banks:
            self._banks[cell.seed] = self._bank(cell.seed)
        bank = self._banks[cell.seed]
        needed = cell.storage.bytes(len(bank), self.run.width(cell))
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

    def _bank(self, seed: int) -> Bank:
        shares = even_shares(self.run.settings.memory, len(self.train), seed)
        work = partial(self._patches, seed=seed, shares=shares)
        images = range(len(self.train))
        bank = joined(list(in_parallel(work, images, "choosing patches of train")))
        if not len(bank):
            raise DataError("no patch that was drawn has a labelled pixel: give a larger --memory")
        first, *others = self.run.settings.seeds
        if bank.whole and others and seed == first:
            log.warning("the bank holds every labelled patch, whatever the seed: one is enough")
        return bank

    def _patches(self, image: int, seed: int, shares: np.ndarray) -> Part:
        plan = self.features.plan
        mask = resize_mask(self.train[image].mask(), plan.sizes_hw[image])
        counts = patch_counts(mask, plan.grid_hw(image), plan.patch, len(self.train.classes))
        return remember(counts, int(shares[image]), seed, image)

    def _index(self, cell: "KnnCell", bank: Bank) -> vectors.Flat | vectors.Lists:
        pieces, width = partial(self._pieces, bank, self.run.columns(cell)), self.run.width(cell)
        if cell.storage.index == "flat":
            return vectors.Flat(pieces, len(bank), width, cell.storage.numbers, self.run.gpus)
        return vectors.Lists(
            pieces, len(bank), width, probes=self._probes(cell), seed=cell.seed,
            k=max(self.run.settings.k), usual_k=K, quantised=cell.storage.numbers == "pq",
            on_gpus=self.run.gpus,
        )  # fmt: skip

    def _pieces(self, bank: Bank, columns: Sequence[str]) -> Iterator[np.ndarray]:
        """The tokens of the bank, some images at a time."""
        piece = np.empty((0, 0), np.float32)
        filled = 0
        with progress("reading the bank", len(bank), "tokens") as advance:
            for image, rows in enumerate(bank.rows):
                if not len(rows):
                    continue
                tokens = normalised(self.features.tokens(image, columns, rows))
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

    def _probes(self, cell: "KnnCell") -> np.ndarray:
        """Tokens of validation images, evenly from some of them."""
        features, rng = self.run.val_features, randomness("probes", cell.seed)
        images = rng.permutation(len(features))[:PROBED]
        each = -(-PROBES // len(images))
        found = []
        for image in images.tolist():
            count = features.plan.tokens(image)
            rows = np.sort(rng.permutation(count)[:each])
            found.append(features.tokens(image, self.run.columns(cell), rows))
        probes = normalised(np.concatenate(found))
        return probes[rng.permutation(len(probes))]
