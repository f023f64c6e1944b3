"""`skipbench run --dry-run` with PCA pictures."""

import time
from collections.abc import Sequence

from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate, Trial
from skipbench.evaluations.pca.run import PcaRun
from skipbench.evaluations.run import Cell


def estimate(run: PcaRun, cells: Sequence[Cell]) -> Estimate:
    """Of one checkpoint. Pictures are drawn again; stored features are reused."""
    model = run.models[0]
    few = model.pictures[:TRIAL_IMAGES]
    trial = Trial(run, few, cells)  # type: ignore[arg-type]
    model.features = trial.features
    started = time.monotonic()
    for image in range(len(few)):
        model.fitted(0, [image])
    seconds = (time.monotonic() - started) / len(few) * len(run.data) * len(model.blocks)
    return trial.estimate([model.pictures], seconds, 0, "components")  # type: ignore[list-item]
