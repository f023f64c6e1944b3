"""`skipbench cluster`: k-means segmentation with a checkpoint, on a data set.

features of the validation images (once) → k-means on their tokens, for each seed and number of
clusters → the cluster of every pixel → clusters as classes, on the whole split → a record each
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from skipbench.datasets import Dataset
from skipbench.drawing.sheet import hues
from skipbench.engine import vectors
from skipbench.engine.progress import Progress, progress
from skipbench.errors import UsageError, count_of
from skipbench.evaluations.cluster import EVALUATION, method
from skipbench.evaluations.cluster.method import TURNS
from skipbench.evaluations.cluster.settings import CLASSES, ClusterSettings
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.record import recorded_protocol
from skipbench.evaluations.run import Arrays, Cell
from skipbench.evaluations.segmentation.run import (
    SegmentationRun,
    StoredSplit,
    segmentation_metrics,
)
from skipbench.evaluations.segmentation.tokens import TokenMap, even_shares, normalised, randomness
from skipbench.images import parse_size, size_name
from skipbench.metrics.segmentation import LEFT_OUT
from skipbench.pipeline import Inspection
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.pictures import Predict

log = logging.getLogger("skipbench")

DEFAULTS = ClusterSettings.defaults()
DEFAULTS = {
    "size": size_name(parse_size(DEFAULTS["size"])), "sample": DEFAULTS["sample_tokens"],
    "turns": TURNS, "redo": DEFAULTS["redo"],
}  # fmt: skip
TRIAL_TURNS = 5


@dataclass(frozen=True)
class ClusterCell(Cell):
    clusters: int
    clusters_asked: str | int  # "classes", or the number


# What k-means gives, as it is kept for resuming:
#   centroids  (clusters, width) float32
#   inertia    mean squared distance to them
#   tokens     how many it was given
Clustering = Mapping[str, Tensor]


class ClusterRun(SegmentationRun):
    """Clusterings with the same number of clusters are scored in one pass."""

    evaluation = EVALUATION
    settings: ClusterSettings
    sample_bytes = 4_000_000_000  # of tokens for k-means, at most
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
            raise UsageError(
                f"{tokens:,} tokens are too few for {most:,} clusters: use fewer --clusters"
            )
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
        few = clusters <= len(self.val.classes)
        return {
            "name": "k-means",
            "size": size_name(self.size),
            "clusters": asked,
            "matching": "hungarian, by IoU" if few else "majority of pixels",
            "sample": self.settings.sample_tokens,
            "turns": TURNS,
            "redo": self.settings.redo,
            "absent_classes": LEFT_OUT,
        }

    def describe(self, cell: ClusterCell) -> str:
        return f"{super().describe(cell)}, {count_of(cell.clusters, 'cluster')}"

    def shared(self, cell: ClusterCell) -> tuple[int, ...]:
        return cell.blocks

    def estimate(self, cells: Sequence[ClusterCell]) -> Estimate:
        trial = Trial(self, self.val[:TRIAL_IMAGES], cells)
        work, held = 0.0, 0
        for cell in cells:
            everything = round(trial.tokens_of_an_image(cell) * len(self.val))
            few, tokens = trial.tokens(cell), min(everything, self.most_tokens(cell))
            held = max(held, 4 * tokens * self.width(cell.blocks))
            clusters = min(cell.clusters, len(few))
            started = time.monotonic()
            centroids, _ = vectors.k_means(few, clusters, cell.seed, TRIAL_TURNS)
            per_turn = (time.monotonic() - started) / TRIAL_TURNS / len(few)
            started = time.monotonic()
            split = StoredSplit(trial.features, trial.few, self.columns(cell), None)
            method.score(split, range(len(trial.few)), [centroids], len(self.val.classes))
            scoring = (time.monotonic() - started) / len(trial.few) * len(self.val)
            work += per_turn * TURNS * self.settings.redo * tokens + scoring
        return trial.estimate([self.val.items], work, held, "k-means and scoring")

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
            return state
        tokens = self.sample(cell)
        centroids, inertia = vectors.k_means(
            tokens, cell.clusters, cell.seed, TURNS, self.settings.redo, self.gpus
        )
        made = {
            "centroids": torch.from_numpy(centroids),
            "inertia": torch.tensor(inertia, dtype=torch.float64),
            "tokens": torch.tensor(len(tokens)),
        }
        self.chunks(cell).forget()  # those of other centroids
        kept.save(made)
        return made

    def most_tokens(self, cell: Cell) -> int:
        fitting = self.sample_bytes // (4 * self.width(cell.blocks))
        return min(self.settings.sample_tokens, fitting)

    def sample(self, cell: ClusterCell) -> np.ndarray:
        """(tokens, width) float32 of length 1: all, or a random sample, as many of each image."""
        columns, images = self.columns(cell), range(len(self.val))
        counts = np.array([self.val_features.token_count(image, columns) for image in images])
        tokens, most = int(counts.sum()), self.most_tokens(cell)
        seed = None if tokens <= most else cell.seed
        if self._sampled is None or self._sampled[0] != (cell.blocks, seed):
            self._sampled = None  # freed before the next one is made
            if seed is not None:
                log.info("%s: k-means on %s of %s tokens", cell.layers, f"{most:,}", f"{tokens:,}")
            self._sampled = (cell.blocks, seed), self._read(cell, counts, most, seed)
        return self._sampled[1]

    def _read(self, cell: Cell, counts: np.ndarray, most: int, seed: int | None) -> np.ndarray:
        """counts: of the tokens of each image."""
        kept = counts if seed is None else counts.clip(max=even_shares(most, len(counts), seed))
        tokens = np.empty((kept.sum(), self.width(cell.blocks)), np.float32)
        for image, end in enumerate(kept.cumsum()):
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
            centroids = [made[cell.id]["centroids"].numpy() for cell in cells]
            return [
                {"starts": pairs.indptr, "pairs": pairs.indices, "pixels": pairs.data}
                for pairs in method.score(split, images, centroids, classes, advance)
            ]

        def read(part: Arrays) -> csr_array:
            shape = (len(part["starts"]) - 1, cells[0].clusters * classes)
            return csr_array((part["pixels"], part["pairs"], part["starts"]), shape=shape)

        label = f"{count_of(cells[0].clusters, 'cluster')}, {cells[0].layers}"
        scored = self.scored(cells, label, score)
        for cell in cells:
            yield csr_array(vstack(list(map(read, scored[cell.id]))))

    def _record(
        self, cell: ClusterCell, made: Clustering, pairs: csr_array, before: Mapping[str, float]
    ) -> tuple[Result, Arrays]:
        classes = len(self.val.classes)
        pixels = np.asarray(pairs.sum(0)).reshape(cell.clusters, classes)
        matching = method.match(pixels)
        counts = method.matched_counts(pairs, matching, classes)
        metrics = {
            **segmentation_metrics(counts, self.val.classes),
            "clusters": cell.clusters,
            "clusters_used": int((pixels.sum(1) > 0).sum()),
            "classes_found": len(np.unique(matching[pixels.sum(1) > 0])),
            "tokens": int(made["tokens"]),
            "inertia": float(made["inertia"]),
        }
        protocol = self._protocol(cell.clusters, cell.clusters_asked)
        result = self.record(
            cell, self.val_features, recorded_protocol(protocol, DEFAULTS, "matching kept"),
            metrics, self.seconds_since(before), clusters=cell.clusters_asked,
        )  # fmt: skip
        centroids = made["centroids"].numpy()
        return result, {"counts": counts, "centroids": centroids, "matching": matching}

    # -- pictures

    def predictor(self, cell: ClusterCell, arrays: Arrays) -> "Predict":
        split, colours = self.split(cell), hues(cell.clusters)

        def predict(image: int, size_hw: tuple[int, int]) -> tuple[np.ndarray, Arrays]:
            tokens = TokenMap(split.grid(image), normalised(split.tokens(image)))
            (clusters,) = method.nearest_centroid(tokens, size_hw, [arrays["centroids"]])
            return arrays["matching"][clusters], {"clusters": colours[clusters]}

        return predict

    def caption(self, cell: ClusterCell) -> str:
        return f"{cell.layers}, {count_of(cell.clusters, 'cluster')}, seed {cell.seed}"
