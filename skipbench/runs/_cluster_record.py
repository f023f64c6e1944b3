"""What a clustering writes down."""

from typing import TYPE_CHECKING, Any

from skipbench.evaluations._neighbour_settings import SAMPLE
from skipbench.evaluations.cluster import TURNS
from skipbench.images import size_name
from skipbench.metrics.intervals import METHOD, RESAMPLES
from skipbench.metrics.segmentation import LEFT_OUT
from skipbench.records import Result
from skipbench.results.store import plain_result
from skipbench.runs._record import checkpoint_part, environment_part, timing_part

if TYPE_CHECKING:
    from skipbench.runs.cluster import Cluster, ClusterCell

# Enters the id of every record: raise it when a change of the code moves the numbers.
VERSION = 1

USUAL = {"size": "448x448", "sample": SAMPLE, "turns": TURNS, "redo": 1}


def determines(
    run: "Cluster", blocks: tuple[int, ...], seed: int, clusters: int, said: str | int
) -> dict[str, Any]:
    """All that the number depends on."""
    return {
        "version": VERSION,
        **run.determined_by(blocks),
        "dataset": run.facts.fingerprint,
        "protocol": protocol_part(run, clusters, said),
        "seed": seed,
    }


def protocol_part(run: "Cluster", clusters: int, said: str | int) -> dict[str, Any]:
    one_to_one = clusters <= len(run.data.classes)
    return {
        "name": "k-means",
        "size": size_name(run.size),
        "clusters": said,
        "matching": "hungarian, by IoU" if one_to_one else "majority of pixels",
        "sample": run.asked.sample,
        "turns": TURNS,
        "redo": run.asked.redo,
        "absent_classes": LEFT_OUT,
    }


def record(
    run: "Cluster", cell: "ClusterCell", metrics: dict[str, Any], seconds: dict[str, float]
) -> Result:
    """seconds: of all cells of the same layers."""
    protocol = protocol_part(run, cell.clusters, cell.asked)
    return plain_result(
        id=cell.id,
        evaluation="cluster",
        dataset=run.facts.to_json(),
        training=None,
        checkpoint=checkpoint_part(run.inspection, run.backbone),
        features=run.features_part(cell, run.held),
        protocol={
            **protocol,
            "seed": cell.seed,
            "changes": {k: [v, protocol[k]] for k, v in USUAL.items() if protocol[k] != v},
            "interval": f"95 %, bootstrap over images, matching kept, {RESAMPLES:,} resamples, "
            f"{METHOD}",
        },
        metrics=metrics,
        environment={
            **environment_part(run.backbone),
            "call": {
                **run.asked.call, "layers": cell.layers, "seed": cell.seed,
                "clusters": cell.asked,
            },
        },
        timing=timing_part(seconds, len(run.data), run.computed),
    )  # fmt: skip
