"""What a clustering writes down."""

from typing import TYPE_CHECKING, Any

from skipbench.evaluations.cluster import EVALUATION
from skipbench.evaluations.cluster.method import TURNS
from skipbench.evaluations.cluster.settings import ClusterSettings
from skipbench.evaluations.record import changes_from, feature_record, interval_words
from skipbench.images import parse_size, size_name
from skipbench.metrics.segmentation import LEFT_OUT
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.cluster.run import ClusterCell, ClusterRun

DEFAULTS = ClusterSettings.defaults()
USUAL = {
    "size": size_name(parse_size(DEFAULTS["size"])), "sample": DEFAULTS["sample"], "turns": TURNS,
    "redo": DEFAULTS["redo"],
}  # fmt: skip


def determines(
    run: "ClusterRun", blocks: tuple[int, ...], seed: int, clusters: int, said: str | int
) -> dict[str, Any]:
    """All that the number depends on."""
    return {
        "version": EVALUATION.version,
        **run.determined_by(blocks),
        "dataset": run.val_facts.fingerprint,
        "protocol": protocol_part(run, clusters, said),
        "seed": seed,
    }


def protocol_part(run: "ClusterRun", clusters: int, said: str | int) -> dict[str, Any]:
    one_to_one = clusters <= len(run.data.classes)
    return {
        "name": "k-means",
        "size": size_name(run.size),
        "clusters": said,
        "matching": "hungarian, by IoU" if one_to_one else "majority of pixels",
        "sample": run.settings.sample,
        "turns": TURNS,
        "redo": run.settings.redo,
        "absent_classes": LEFT_OUT,
    }


def record(
    run: "ClusterRun", cell: "ClusterCell", metrics: dict[str, Any], seconds: dict[str, float]
) -> Result:
    """seconds: of all cells of the same layers."""
    protocol = protocol_part(run, cell.clusters, cell.clusters_asked)
    return feature_record(
        run,
        cell,
        evaluation="cluster",
        dataset=run.val_facts,
        training=None,
        features=run.val_features,
        protocol={
            **protocol,
            "changes": changes_from(USUAL, protocol),
            "interval": interval_words("matching kept"),
        },
        metrics=metrics,
        seconds=seconds,
        cell_settings={"clusters": cell.clusters_asked},
    )


def clusters_words(count: int) -> str:
    return f"{count:,} cluster{'' if count == 1 else 's'}"
