"""What a nearest-neighbour evaluation writes down."""

from typing import TYPE_CHECKING, Any

from skipbench.evaluations._neighbour_settings import MEMORY, TEMPERATURE, K, Storage
from skipbench.evaluations.knn import Vote
from skipbench.images import size_name
from skipbench.metrics.intervals import METHOD, RESAMPLES
from skipbench.metrics.segmentation import LEFT_OUT
from skipbench.records import Result
from skipbench.results.store import plain_result
from skipbench.runs._record import checkpoint_part, environment_part, timing_part

if TYPE_CHECKING:
    from skipbench.runs.knn import Knn, KnnCell

# Enters the id of every record: raise it when a change of the code moves the numbers.
VERSION = 1

USUAL = {"size": "512x512", "k": K, "temperature": TEMPERATURE, "memory": MEMORY}


def determines(
    run: "Knn", blocks: tuple[int, ...], seed: int, vote: Vote, storage: Storage
) -> dict[str, Any]:
    """All that the number depends on."""
    return {
        "version": VERSION,
        **run.determined_by(blocks),
        "training": run.train_facts.fingerprint,
        "dataset": run.val_facts.fingerprint,
        "protocol": protocol_part(run, vote, storage),
        "seed": seed,
    }


def protocol_part(run: "Knn", vote: Vote, storage: Storage) -> dict[str, Any]:
    return {
        "name": "hummingbird",
        "size": size_name(run.size),
        "k": vote.k,
        "temperature": vote.temperature,
        "memory": run.asked.memory,
        "index": storage.index,
        "bank": storage.numbers,
        "absent_classes": LEFT_OUT,
    }


def record(
    run: "Knn", cell: "KnnCell", metrics: dict[str, Any], seconds: dict[str, float]
) -> Result:
    """seconds: of all cells that were sought together."""
    protocol = protocol_part(run, cell.vote, cell.storage)
    return plain_result(
        id=cell.id,
        evaluation="knn",
        dataset=run.val_facts.to_json(),
        training=run.train_facts.to_json(),
        checkpoint=checkpoint_part(run.inspection, run.backbone),
        features=run.features_part(cell, run.val_features),
        protocol={
            **protocol,
            "seed": cell.seed,
            "changes": {k: [v, protocol[k]] for k, v in USUAL.items() if protocol[k] != v},
            "interval": f"95 %, bootstrap over images, {RESAMPLES:,} resamples, {METHOD}",
        },
        metrics=metrics,
        environment={
            **environment_part(run.backbone),
            "call": {
                **run.asked.call, "layers": cell.layers, "seed": cell.seed, "k": cell.vote.k,
                "temperature": cell.vote.temperature,
            },
        },
        timing=timing_part(seconds, len(run.train) + len(run.val), run.computed),
    )  # fmt: skip
