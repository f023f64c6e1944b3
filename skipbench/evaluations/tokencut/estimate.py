"""`skipbench tokencut --dry-run`."""

import time
from collections.abc import Sequence

from skipbench.datasets import Item
from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate
from skipbench.evaluations.run import Cell
from skipbench.evaluations.tokencut.run import TokencutRun


def estimate(run: TokencutRun, cells: Sequence[Cell]) -> Estimate:
    """From a trial; what is written to disk is negligible."""
    left, few = run.missing_images(), run.data[:TRIAL_IMAGES]
    _scoring_seconds(run, few[:1])  # the first pass is slower
    before = dict(run.seconds)
    scoring = _scoring_seconds(run, few)
    features, cutting = (run.seconds[key] - before[key] for key in ("features", "cutting"))
    return Estimate(
        images=left,
        stored=len(run.data) - left,
        features_seconds=features / len(few) * left,
        training_seconds=0.0,
        scoring_seconds=(cutting + scoring) / len(few) * left,
        disk_bytes=0,
        memory_bytes=peak_bytes(),
    )


def _scoring_seconds(run: TokencutRun, items: Sequence[Item]) -> float:
    plan, spent = run.plan(items), 0.0
    for image, objects in run.find(items, plan, range(len(plan.shards))):
        started = time.monotonic()
        run.score(items[image], objects)
        spent += time.monotonic() - started
    return spent
