"""`skipbench cluster --dry-run`."""

import time
from collections.abc import Sequence

from skipbench.engine import vectors
from skipbench.evaluations.cluster import method
from skipbench.evaluations.cluster.run import ClusterCell, ClusterRun
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.segmentation.run import Split

TRIAL_TURNS = 5


def estimate(run: ClusterRun, cells: Sequence[ClusterCell]) -> Estimate:
    trial = Trial(run, run.val[:TRIAL_IMAGES], cells)
    work, held = 0.0, 0
    for cell in cells:
        everything = round(trial.tokens_of_an_image(cell) * len(run.val))
        few, tokens = trial.tokens(cell), min(everything, run.most_tokens(cell))
        held = max(held, 4 * tokens * run.width(cell))
        clusters = min(cell.clusters, len(few))
        started = time.monotonic()
        centroids, _ = vectors.k_means(few, clusters, cell.seed, TRIAL_TURNS)
        per_turn = (time.monotonic() - started) / TRIAL_TURNS / len(few)
        started = time.monotonic()
        split = Split(trial.features, trial.few, run.columns(cell), None)
        method.score(split, range(len(trial.few)), [centroids], len(run.val.classes))
        scoring = (time.monotonic() - started) / len(trial.few) * len(run.val)
        work += per_turn * method.TURNS * run.settings.redo * tokens + scoring
    return trial.estimate([run.val.items], work, held, "k-means and scoring")
