"""`--dry-run` of nearest neighbours and clusters: what they would take, from a trial."""

import time
from collections.abc import Sequence

import numpy as np

from skipbench.datasets import Item
from skipbench.engine import vectors
from skipbench.engine.memory import peak_bytes
from skipbench.evaluations.cluster import method as clustering
from skipbench.evaluations.cluster.method import TURNS
from skipbench.evaluations.cluster.run import Cluster
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate
from skipbench.evaluations.knn.memory import PROBES
from skipbench.evaluations.knn.method import normalised
from skipbench.evaluations.knn.run import Knn, KnnCell
from skipbench.evaluations.run import Cell, FeatureRun
from skipbench.evaluations.segmentation.images import Split
from skipbench.features.build import DTYPES
from skipbench.features.held import Features, compute
from skipbench.features.store import missing_images

TRIAL_TOKENS = 20_000
TRIAL_TURNS = 5
IVF_SHARE = 0.15  # of what the whole bank would take: measured with 10⁶ tokens on two cores


def estimate_knn(run: Knn) -> Estimate:
    trial = _Trial(run, run.val[:TRIAL_IMAGES])
    per_pair = _seconds_of_a_pair(trial.tokens(run.cells[0]))
    banks = {(cell.blocks, cell.seed): cell for cell in run.cells}
    work = sum(_search(run, cell, per_pair, trial.tokens_of_an_image) for cell in banks.values())
    held = max(cell.storage.bytes(run.most_tokens, run.width(cell)) for cell in run.cells)
    lists = [run.train.items, run.val.items]
    return trial.estimate(lists, work, held, "bank and neighbours")


def _search(run: Knn, cell: KnnCell, per_pair: float, queries: float) -> float:
    """Seconds of one bank: its index, then the neighbours of all images. Similarities are what
    counts."""
    tokens, wide = run.most_tokens, len(cell.blocks) / len(run.cells[0].blocks)
    whole = queries * len(run.val) * tokens
    if cell.storage.index == "flat":
        return per_pair * wide * whole
    lists = vectors.LISTS * tokens**0.5
    learning = vectors.TURNS * vectors.POINTS_A_LIST * lists * lists
    return per_pair * wide * (IVF_SHARE * whole + learning + (lists + PROBES) * tokens)


def _seconds_of_a_pair(tokens: np.ndarray) -> float:
    """One query against one token of the bank."""
    bank = np.resize(tokens, (TRIAL_TOKENS, tokens.shape[1]))
    index = vectors.Flat(lambda: [bank], *bank.shape)
    index.search(tokens[:64], 30)
    started = time.monotonic()
    index.search(tokens, 30)
    return (time.monotonic() - started) / (len(tokens) * len(bank))


def estimate_cluster(run: Cluster) -> Estimate:
    trial = _Trial(run, run.data[:TRIAL_IMAGES])
    everything, work, held = round(trial.tokens_of_an_image * len(run.data)), 0.0, 0
    for cell in run.cells:
        few, tokens = trial.tokens(cell), min(everything, run.most_tokens(cell))
        held = max(held, 4 * tokens * run.width(cell))
        clusters = min(cell.clusters, len(few))
        started = time.monotonic()
        centroids, _ = vectors.k_means(few, clusters, cell.seed, TRIAL_TURNS)
        per_turn = (time.monotonic() - started) / TRIAL_TURNS / len(few)
        started = time.monotonic()
        split = Split(trial.features, trial.few, run.columns(cell), None)
        clustering.score(split, range(len(trial.few)), [centroids], len(run.data.classes))
        scoring = (time.monotonic() - started) / len(trial.few) * len(run.data)
        work += per_turn * TURNS * run.asked.redo * tokens + scoring
    return trial.estimate([run.data.items], work, held, "k-means and scoring")


class _Trial:
    """Features of a few images, and how long they took."""

    def __init__(self, run: FeatureRun, few: Sequence[Item]) -> None:
        self.run, self.few, self.spec = run, few, run.spec(run.cells)
        keeping = run.asked.keeping
        compute(run.backbone, few[:1], self.spec, workers=keeping.workers)  # the first is slower
        started = time.monotonic()
        self.features: Features = compute(
            run.backbone, few, self.spec, batch_size=keeping.batch_size
        )
        self.per_image = (time.monotonic() - started) / len(few)
        counts = [self.features.plan.tokens(image) for image in range(len(few))]
        self.tokens_of_an_image = sum(counts) / len(few)

    def tokens(self, cell: Cell) -> np.ndarray:
        columns = self.run.columns(cell)
        read = [self.features.tokens(image, columns) for image in range(len(self.few))]
        return normalised(np.concatenate(read))

    def estimate(
        self, lists: Sequence[Sequence[Item]], work: float, held: int, words: str
    ) -> Estimate:
        """lists: the images of each split; held: bytes of what is searched."""
        keeping, backbone = self.run.asked.keeping, self.run.backbone
        missing = sum(map(len, lists))
        if not keeping.in_memory:
            missing = sum(missing_images(backbone, one, self.spec, keeping.cache) for one in lists)
        per_token = DTYPES[self.spec.store_dtype].itemsize * backbone.facts.width
        stored = round(per_token * self.tokens_of_an_image * missing * len(self.spec.columns))
        return Estimate(
            images=missing,
            stored=sum(map(len, lists)) - missing,
            features_seconds=self.per_image * missing,
            training_seconds=0.0,
            scoring_seconds=work,
            disk_bytes=0 if keeping.in_memory else stored,
            memory_bytes=peak_bytes() + held + (stored if keeping.in_memory else 0),
            work=words,
        )
