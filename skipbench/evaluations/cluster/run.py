"""`skipbench cluster`: k-means segmentation with a checkpoint, on a data set.

features of the validation images (once) → k-means on their tokens, for each seed and number of
clusters → the cluster of every pixel → clusters as classes, on the whole split → a record each
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from skipbench.datasets import Dataset
from skipbench.engine import vectors
from skipbench.engine.progress import progress
from skipbench.errors import UsageError
from skipbench.evaluations.cluster import method as evaluation
from skipbench.evaluations.cluster import record as written
from skipbench.evaluations.cluster.method import TURNS
from skipbench.evaluations.data import check_labelled
from skipbench.evaluations.knn.bank import shares_of
from skipbench.evaluations.knn.method import normalised
from skipbench.evaluations.knn.settings import CLASSES, SAMPLE, SEEDS, clusters_words
from skipbench.evaluations.probe.method import Part
from skipbench.evaluations.probe.protocols import randomness
from skipbench.evaluations.resume import Arrays, Chunks, in_chunks
from skipbench.evaluations.run import AskedOfFeatures, Cell, FeatureRun, memory_is_short_at
from skipbench.evaluations.segmentation.images import Split
from skipbench.evaluations.segmentation.scores import figures
from skipbench.evaluations.training_state import TrainingState
from skipbench.files import cache_folder, ensure_writable
from skipbench.pictures import hues
from skipbench.pipeline import Inspection, say_what_is_adapted
from skipbench.records import Result
from skipbench.results.store import read_arrays, result_id, write_result

log = logging.getLogger("skipbench")

SAMPLE_BYTES = 4_000_000_000  # that k-means looks at, at the most
ADVICE = "Give a smaller --sample, or fewer --layers"


@dataclass(frozen=True, kw_only=True)
class Asked(AskedOfFeatures):
    seeds: tuple[int, ...] = tuple(range(SEEDS))
    clusters: tuple[str | int, ...] = (CLASSES,)
    sample: int = SAMPLE  # tokens
    redo: int = 1  # k-means, of which the best is taken
    size: str = "448"


@dataclass(frozen=True)
class ClusterCell(Cell):
    clusters: int
    asked: str | int  # "classes", or as many


@dataclass(frozen=True)
class Clustering:
    """What k-means has made."""

    centroids: np.ndarray  # (clusters, width) float32
    inertia: float  # mean squared distance
    tokens: int  # that it looked at

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "centroids": torch.from_numpy(self.centroids),
            "inertia": torch.tensor(self.inertia, dtype=torch.float64),
            "tokens": torch.tensor(self.tokens),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, torch.Tensor]) -> "Clustering":
        return cls(state["centroids"].numpy(), float(state["inertia"]), int(state["tokens"]))


class Cluster(FeatureRun):
    """The whole run. Clusterings into as many clusters are scored in one pass."""

    asked: Asked
    stages = ("clustering", "scoring")
    cells: list[ClusterCell]

    def __init__(self, inspection: Inspection, data: Dataset, asked: Asked) -> None:
        super().__init__(inspection, asked, asked.size)
        self.data, self.facts = data, data.facts()
        self.gpus = vectors.gpus(self.backbone.device)  # faiss broken or missing: said here
        numbers: dict[int, str | int] = {}
        for given in asked.clusters:
            count = len(data.classes) if given == CLASSES else int(given)
            numbers.setdefault(count, CLASSES if count == len(data.classes) else count)
        most = max(numbers)
        if asked.sample < most:
            raise UsageError(f"--sample {asked.sample}: fewer tokens than clusters ({most:,})")
        if (tokens := self.tokens_of(data.items, most)) < most:
            raise UsageError(f"{most:,} clusters of {tokens:,} tokens: give fewer --clusters")
        self.cells = [
            self._cell(blocks, text, seed, count, said)
            for blocks, text in self.layers.items()
            for count, said in numbers.items()
            for seed in asked.seeds
        ]
        self._sampled: tuple[object, np.ndarray] | None = None

    def _cell(
        self, blocks: tuple[int, ...], layers: str, seed: int, clusters: int, said: str | int
    ) -> ClusterCell:
        determines = written.determines(self, blocks, seed, clusters, said)
        identity = result_id("cluster", self.data.name, determines)
        return ClusterCell(identity, layers, blocks, seed, clusters, said)

    def named(self, cell: ClusterCell) -> str:
        return f"{super().named(cell)}, {clusters_words(cell.clusters)}"

    def run(self) -> list[Result]:
        ensure_writable(self.asked.out)
        results = self.done_before()
        todo = [cell for cell in self.cells if cell.id not in results]
        drawn = self.drawn()
        if todo:
            check_labelled(self.data)
        if todo or drawn:
            with ExitStack() as stack:
                spec = self.spec([*todo, *drawn])
                say_what_is_adapted(self.backbone, spec)
                self.held = stack.enter_context(self.features(self.data.items, spec, "val"))
                for blocks, layers in self.layers.items():
                    mine = [cell for cell in todo if cell.blocks == blocks]
                    with memory_is_short_at(layers, "clustering", ADVICE):
                        results |= self._make(mine)
                for cell in drawn:
                    self._draw(results[cell.id], cell)
        return [results[cell.id] for cell in self.cells]

    def _make(self, cells: Sequence[ClusterCell]) -> dict[str, Result]:
        """Of one set of layers. First all clusterings, seed by seed: they share a sample."""
        made: dict[str, Clustering] = {}
        self.before = dict(self.seconds)
        with progress("k-means", len(cells), "clusterings") as advance, self.timed("clustering"):
            for cell in sorted(cells, key=lambda cell: cell.seed):
                made[cell.id] = self._clustering(cell)
                advance(1)
        self._sampled = None
        results: dict[str, Result] = {}
        for count in dict.fromkeys(cell.clusters for cell in cells):
            results |= self._score([cell for cell in cells if cell.clusters == count], made)
        return results

    # -- k-means

    def _clustering(self, cell: ClusterCell) -> Clustering:
        kept = self._state(cell)
        if (state := None if self.asked.force else kept.load()) is not None:
            return Clustering.of_state(state)
        tokens = self.sample(cell)
        found = vectors.k_means(tokens, cell.clusters, cell.seed, TURNS, self.asked.redo, self.gpus)
        made = Clustering(*found, len(tokens))
        self._chunks(cell).forget()  # of other centroids, if there are any
        kept.save(made.state())
        return made

    def most_tokens(self, cell: Cell) -> int:
        return min(self.asked.sample, SAMPLE_BYTES // (4 * self.width(cell)))

    def sample(self, cell: ClusterCell) -> np.ndarray:
        """(tokens, width) float32 of length 1: all, or as many from each image, by the seed."""
        tokens = sum(map(self.held.plan.tokens, range(len(self.data))))
        most = self.most_tokens(cell)
        seed = None if tokens <= most else cell.seed
        if self._sampled is None or self._sampled[0] != (cell.blocks, seed):
            self._sampled = None  # before the next one is there
            if seed is not None:
                log.info("%s: k-means on %s of %s tokens", cell.layers, f"{most:,}", f"{tokens:,}")
            self._sampled = (cell.blocks, seed), self._read(cell, most, seed)
        return self._sampled[1]

    def _read(self, cell: Cell, most: int, seed: int | None) -> np.ndarray:
        images = range(len(self.data))
        counts = np.array([self.held.plan.tokens(image) for image in images])
        kept = counts if seed is None else counts.clip(max=shares_of(most, len(images), seed))
        tokens = np.empty((kept.sum(), self.width(cell)), np.float32)
        for image, end in zip(images, kept.cumsum(), strict=True):
            rows = None
            if seed is not None:
                order = randomness("sample", seed, image).permutation(counts[image])
                rows = np.sort(order[: kept[image]])
            read = self.held.tokens(image, self.columns(cell), rows)
            tokens[end - kept[image] : end] = normalised(read)
        return tokens

    # -- scores

    def _score(
        self, cells: Sequence[ClusterCell], made: Mapping[str, Clustering]
    ) -> dict[str, Result]:
        """Of as many clusters, in one pass over the images."""
        chunks = {cell.id: self._chunks(cell) for cell in cells}
        split, classes = self.split(cells[0]), len(self.data.classes)
        label = f"{clusters_words(cells[0].clusters)}, {cells[0].layers}"
        with progress(label, len(self.data)) as advance, self.timed("scoring"):

            def work(numbers: Sequence[int], names: Sequence[str]) -> dict[str, Arrays]:
                centroids = [made[name].centroids for name in names]
                found = evaluation.score(split, numbers, centroids, classes, advance)
                return {name: _parts(pairs) for name, pairs in zip(names, found, strict=True)}

            parts = in_chunks(chunks, len(self.data), work, advance, self.asked.force)
        results = {}
        for cell in cells:
            size = cell.clusters * classes
            pairs = csr_array(vstack([_joined(part, size) for part in parts[cell.id]]))
            results[cell.id] = self._record(cell, made[cell.id], pairs)
            self.tidy(cell)
        return results

    def tidy(self, cell: Cell) -> None:
        self._chunks(cell).forget()
        self._state(cell).forget()

    def split(self, cell: Cell) -> Split:
        return Split(self.held, self.data, self.columns(cell), None)

    def _record(self, cell: ClusterCell, made: Clustering, pairs: csr_array) -> Result:
        classes = len(self.data.classes)
        pixels = np.asarray(pairs.sum(0)).reshape(cell.clusters, classes)
        matching = evaluation.match(pixels)
        counts = evaluation.matched_counts(pairs, matching, classes)
        metrics = {
            **figures(counts, self.data.classes),
            "clusters": cell.clusters,
            "clusters_used": int((pixels.sum(1) > 0).sum()),
            "classes_found": len(np.unique(matching[pixels.sum(1) > 0])),
            "tokens": made.tokens,
            "inertia": made.inertia,
        }
        result = written.record(self, cell, metrics, self.seconds_since(self.before))
        kept = {"counts": counts, "centroids": made.centroids, "matching": matching}
        write_result(self.asked.out, result, kept)
        return result

    def _folder(self) -> Path | None:
        keeping = self.asked.keeping
        return None if keeping.in_memory else cache_folder(keeping.cache) / "cluster"

    def _chunks(self, cell: Cell) -> Chunks:
        folder = self._folder()
        return Chunks(folder and folder / cell.id)

    def _state(self, cell: Cell) -> TrainingState:
        folder = self._folder()
        return TrainingState(folder and folder / f"{cell.id}.state")

    # -- pictures

    def _draw(self, result: Result, cell: ClusterCell) -> None:
        from skipbench.evaluations.pictures import Drawing, draw_record

        arrays = read_arrays(self.asked.out / f"{result.id}.npz")
        split, colours = self.split(cell), hues(cell.clusters)

        def predict(
            image: int, size_hw: tuple[int, int]
        ) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
            tokens = Part(split.grid(image), normalised(split.tokens(image)))
            (clusters,) = evaluation.nearest_centroid(tokens, size_hw, [arrays["centroids"]])
            return arrays["matching"][clusters], {"clusters": colours[clusters]}

        drawing = Drawing(self.data, self.data, predict, arrays["counts"])
        how = f"{cell.layers}, {clusters_words(cell.clusters)}, seed {cell.seed}"
        draw_record(self.asked.out / result.id, drawing, self.asked.pictures, result, how)


def _parts(pairs: csr_array) -> Arrays:
    """As a chunk has them."""
    return {"starts": pairs.indptr, "pairs": pairs.indices, "pixels": pairs.data}


def _joined(part: Arrays, size: int) -> csr_array:
    shape = (len(part["starts"]) - 1, size)
    return csr_array((part["pixels"], part["pairs"], part["starts"]), shape=shape)
