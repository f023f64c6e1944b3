"""`skipbench tokencut --dry-run`."""

import time
from collections.abc import Sequence

from skipbench.datasets import Item
from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate
from skipbench.evaluations.run import Cell
from skipbench.evaluations.tokencut.run import TokencutRun


def estimate(run: TokencutRun, cells: Sequence[Cell]) -> Estimate:
    """Nothing but what was found is stored, so there is no disk to speak of."""
    left = run.missing_images()
    few = run.data[: max(1, min(TRIAL_IMAGES, len(run.data)))]
    _look_at(run, few[:1])  # the first pass is slower
    before = dict(run.seconds)
    scored = _look_at(run, few)
    features, cutting = (run.seconds[key] - before[key] for key in ("features", "cutting"))
    return Estimate(
        images=left,
        stored=len(run.data) - left,
        features_seconds=features / len(few) * left,
        training_seconds=0.0,
        scoring_seconds=(cutting + scored) / len(few) * left,
        disk_bytes=0,
        memory_bytes=peak_bytes(),
    )


def _look_at(run: TokencutRun, items: Sequence[Item]) -> float:
    """Seconds that scoring takes."""
    plan, spent = run.plan(items), 0.0
    for image, seen in run.look(items, plan, range(len(plan.shards))):
        started = time.monotonic()
        run.score(items[image], seen)
        spent += time.monotonic() - started
    return spent
