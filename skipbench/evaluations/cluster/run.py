"""`skipbench cluster`: k-means segmentation with a checkpoint, on a data set.

features of the validation images (once) → k-means on their tokens, for each seed and number of
clusters → the cluster of every pixel → clusters as classes, on the whole split → a record each
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from skipbench.datasets import Dataset
from skipbench.drawing.sheet import hues
from skipbench.engine import vectors
from skipbench.engine.progress import Progress, progress
from skipbench.errors import UsageError
from skipbench.evaluations.cluster import EVALUATION, method
from skipbench.evaluations.cluster import record as written
from skipbench.evaluations.cluster.method import TURNS
from skipbench.evaluations.cluster.record import clusters_words
from skipbench.evaluations.cluster.settings import CLASSES, ClusterSettings
from skipbench.evaluations.record import recorded_protocol
from skipbench.evaluations.run import Arrays, Cell
from skipbench.evaluations.segmentation.run import SegmentationRun, figures
from skipbench.evaluations.segmentation.tokens import TokenMap, even_shares, normalised, randomness
from skipbench.pipeline import Inspection
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.pictures import Predict

log = logging.getLogger("skipbench")


@dataclass(frozen=True)
class ClusterCell(Cell):
    clusters: int
    clusters_asked: str | int  # "classes", or the number


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


class ClusterRun(SegmentationRun):
    """Clusterings with the same number of clusters are scored in one pass."""

    evaluation = EVALUATION
    settings: ClusterSettings
    sample_bytes = 4_000_000_000  # of tokens that k-means gets, at most
    stages = ("clustering", "scoring")
    stage, advice = "clustering", "Use a smaller --sample-tokens, or fewer --layers"
    cells: list[ClusterCell]

    def __init__(
        self, inspections: Sequence[Inspection], data: Sequence[Dataset], settings: ClusterSettings
    ) -> None:
        super().__init__(inspections, data, settings, settings.size)
        self.gpus = vectors.gpus(self.backbone.device)
        numbers: dict[int, str | int] = {}
        for given in settings.clusters:
            count = len(self.val.classes) if given == CLASSES else int(given)
            numbers.setdefault(count, CLASSES if count == len(self.val.classes) else count)
        most = max(numbers)
        if settings.sample_tokens < most:
            raise UsageError(
                f"--sample-tokens {settings.sample_tokens}: fewer tokens than clusters ({most:,})"
            )
        tokens = min(self.tokens_of(self.val.items, blocks, most) for blocks in self.layers)
        if tokens < most:
            raise UsageError(f"{most:,} clusters of {tokens:,} tokens: use fewer --clusters")
        self.cells = [
            self._cell(blocks, text, seed, count, asked)
            for blocks, text in self.layers.items()
            for count, asked in numbers.items()
            for seed in settings.seeds
        ]
        self._sampled: tuple[object, np.ndarray] | None = None

    def _cell(
        self, blocks: tuple[int, ...], layers: str, seed: int, clusters: int, asked: str | int
    ) -> ClusterCell:
        identity = self.identity(blocks, seed, self._protocol(clusters, asked))
        return ClusterCell(identity, layers, blocks, seed, clusters, asked)

    def _protocol(self, clusters: int, asked: str | int) -> dict[str, Any]:
        return written.protocol_part(self.settings, clusters, asked, len(self.val.classes))

    def describe(self, cell: ClusterCell) -> str:
        return f"{super().describe(cell)}, {clusters_words(cell.clusters)}"

    def groups(self) -> Iterator[list[ClusterCell]]:
        yield from self.grouped_by(lambda cell: cell.blocks)

    def compute(self, cells: Sequence[ClusterCell]) -> Iterator[tuple[ClusterCell, Result, Arrays]]:
        """First all clusterings, seed by seed: they share a sample."""
        made: dict[str, Clustering] = {}
        before = dict(self.seconds)
        with progress("k-means", len(cells), "clusterings") as advance, self.timed("clustering"):
            for cell in sorted(cells, key=lambda cell: cell.seed):
                made[cell.id] = self._clustering(cell)
                advance(1)
        self._sampled = None
        for count in dict.fromkeys(cell.clusters for cell in cells):
            same = [cell for cell in cells if cell.clusters == count]
            for cell, pairs in zip(same, self._score(same, made), strict=True):
                yield cell, *self._record(cell, made[cell.id], pairs, before)

    # -- k-means

    def _clustering(self, cell: ClusterCell) -> Clustering:
        kept = self.training_state(cell)
        if (state := None if self.settings.force else kept.load()) is not None:
            return Clustering.of_state(state)
        tokens = self.sample(cell)
        found = vectors.k_means(
            tokens, cell.clusters, cell.seed, TURNS, self.settings.redo, self.gpus
        )
        made = Clustering(*found, len(tokens))
        self.chunks(cell).forget()  # of other centroids, if there are any
        kept.save(made.state())
        return made

    def most_tokens(self, cell: Cell) -> int:
        return min(self.settings.sample_tokens, self.sample_bytes // (4 * self.width(cell)))

    def _counts(self, cell: Cell) -> np.ndarray:
        """(images,) tokens."""
        columns = self.columns(cell)
        images = range(len(self.val))
        return np.array([self.val_features.token_count(image, columns) for image in images])

    def sample(self, cell: ClusterCell) -> np.ndarray:
        """(tokens, width) float32 of length 1: all, or as many from each image, by the seed."""
        tokens = int(self._counts(cell).sum())
        most = self.most_tokens(cell)
        seed = None if tokens <= most else cell.seed
        if self._sampled is None or self._sampled[0] != (cell.blocks, seed):
            self._sampled = None  # before the next one is there
            if seed is not None:
                log.info("%s: k-means on %s of %s tokens", cell.layers, f"{most:,}", f"{tokens:,}")
            self._sampled = (cell.blocks, seed), self._read(cell, most, seed)
        return self._sampled[1]

    def _read(self, cell: Cell, most: int, seed: int | None) -> np.ndarray:
        images, counts = range(len(self.val)), self._counts(cell)
        kept = counts if seed is None else counts.clip(max=even_shares(most, len(images), seed))
        tokens = np.empty((kept.sum(), self.width(cell)), np.float32)
        for image, end in zip(images, kept.cumsum(), strict=True):
            rows = None
            if seed is not None:
                order = randomness("sample", seed, image).permutation(counts[image])
                rows = np.sort(order[: kept[image]])
            read = self.val_features.tokens(image, self.columns(cell), rows)
            tokens[end - kept[image] : end] = normalised(read)
        return tokens

    # -- scores

    def _score(
        self, cells: Sequence[ClusterCell], made: Mapping[str, Clustering]
    ) -> Iterator[csr_array]:
        """Pixels by image, cluster and class; one pass over the images for all cells, which have
        the same number of clusters."""
        split, classes = self.split(cells[0]), len(self.val.classes)

        def score(
            images: Sequence[int], cells: Sequence[ClusterCell], advance: Progress
        ) -> list[dict[str, np.ndarray]]:
            centroids = [made[cell.id].centroids for cell in cells]
            return list(map(_parts, method.score(split, images, centroids, classes, advance)))

        label = f"{clusters_words(cells[0].clusters)}, {cells[0].layers}"
        size = cells[0].clusters * classes
        scored = self.scored(cells, label, score)
        for cell in cells:
            yield csr_array(vstack([_joined(part, size) for part in scored[cell.id]]))

    def _record(
        self, cell: ClusterCell, made: Clustering, pairs: csr_array, before: Mapping[str, float]
    ) -> tuple[Result, Arrays]:
        classes = len(self.val.classes)
        pixels = np.asarray(pairs.sum(0)).reshape(cell.clusters, classes)
        matching = method.match(pixels)
        counts = method.matched_counts(pairs, matching, classes)
        metrics = {
            **figures(counts, self.val.classes),
            "clusters": cell.clusters,
            "clusters_used": int((pixels.sum(1) > 0).sum()),
            "classes_found": len(np.unique(matching[pixels.sum(1) > 0])),
            "tokens": made.tokens,
            "inertia": made.inertia,
        }
        protocol = self._protocol(cell.clusters, cell.clusters_asked)
        result = self.record(
            cell, self.val_features, recorded_protocol(protocol, written.USUAL, "matching kept"),
            metrics, self.seconds_since(before), clusters=cell.clusters_asked,
        )  # fmt: skip
        return result, {"counts": counts, "centroids": made.centroids, "matching": matching}

    # -- pictures

    def predictor(self, cell: ClusterCell, arrays: Arrays) -> "Predict":
        split, colours = self.split(cell), hues(cell.clusters)

        def predict(image: int, size_hw: tuple[int, int]) -> tuple[np.ndarray, Arrays]:
            tokens = TokenMap(split.grid(image), normalised(split.tokens(image)))
            (clusters,) = method.nearest_centroid(tokens, size_hw, [arrays["centroids"]])
            return arrays["matching"][clusters], {"clusters": colours[clusters]}

        return predict

    def caption(self, cell: ClusterCell) -> str:
        return f"{cell.layers}, {clusters_words(cell.clusters)}, seed {cell.seed}"


def _parts(pairs: csr_array) -> dict[str, np.ndarray]:
    """As a chunk has them."""
    return {"starts": pairs.indptr, "pairs": pairs.indices, "pixels": pairs.data}


def _joined(part: Arrays, size: int) -> csr_array:
    shape = (len(part["starts"]) - 1, size)
    return csr_array((part["pixels"], part["pairs"], part["starts"]), shape=shape)
