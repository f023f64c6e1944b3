"""What a clustering writes down."""

from typing import TYPE_CHECKING, Any

from skipbench.evaluations.cluster.method import TURNS
from skipbench.evaluations.knn.settings import SAMPLE
from skipbench.evaluations.record import changes_from, feature_record, interval_words
from skipbench.images import size_name
from skipbench.metrics.segmentation import LEFT_OUT
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.cluster.run import Cluster, ClusterCell

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
    return feature_record(
        run,
        cell,
        evaluation="cluster",
        dataset=run.facts,
        training=None,
        features=run.held,
        protocol={
            **protocol,
            "changes": changes_from(USUAL, protocol),
            "interval": interval_words("matching kept"),
        },
        metrics=metrics,
        seconds=seconds,
        asked={"clusters": cell.asked},
    )
