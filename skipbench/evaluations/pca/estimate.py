"""What PCA pictures would take, in the dry run of a suite."""

import time
from collections.abc import Sequence

from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.estimate import TRIAL_IMAGES, Estimate
from skipbench.evaluations.pca.run import PcaRun
from skipbench.evaluations.run import Cell
from skipbench.features.build import DTYPES
from skipbench.features.source import compute
from skipbench.features.store import missing_images


def estimate(run: PcaRun, cells: Sequence[Cell]) -> Estimate:
    """Of one checkpoint. Pictures are drawn again, features are not computed again."""
    model, source = run.models[0], run.settings.source
    few = model.pictures[: max(1, min(TRIAL_IMAGES, len(run.data)))]
    compute(model.backbone, few[:1], model.spec, workers=source.workers)
    started = time.monotonic()
    model.features = compute(model.backbone, few, model.spec, batch_size=source.batch_size)
    per_image = (time.monotonic() - started) / len(few)
    started = time.monotonic()
    for image in range(len(few)):
        model.fitted(0, [image])
    per_picture = (time.monotonic() - started) / len(few)
    left = len(run.data)
    if not source.in_memory:
        left = missing_images(model.backbone, model.pictures, model.spec, source.cache)
    plan = model.features.plan
    per_token = DTYPES[run.settings.store_dtype].itemsize * model.backbone.facts.width
    tokens = sum(map(plan.tokens, range(len(few)))) / len(few)
    stored = round(per_token * tokens * left * len(model.blocks))
    return Estimate(
        images=left,
        stored=len(run.data) - left,
        features_seconds=per_image * left,
        training_seconds=0.0,
        scoring_seconds=per_picture * len(run.data) * len(model.blocks),
        disk_bytes=0 if source.in_memory else stored,
        memory_bytes=peak_bytes() + (stored if source.in_memory else 0),
        work="components",
    )
