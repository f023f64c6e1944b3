"""What a clustering writes down."""

from typing import Any

from skipbench.evaluations.cluster.method import TURNS
from skipbench.evaluations.cluster.settings import ClusterSettings
from skipbench.images import parse_size, size_name
from skipbench.metrics.segmentation import LEFT_OUT

DEFAULTS = ClusterSettings.defaults()
USUAL = {
    "size": size_name(parse_size(DEFAULTS["size"])), "sample": DEFAULTS["sample_tokens"],
    "turns": TURNS, "redo": DEFAULTS["redo"],
}  # fmt: skip


def protocol_part(
    settings: ClusterSettings, clusters: int, asked: str | int, classes: int
) -> dict[str, Any]:
    """What the number depends on. asked: "classes", or the number of clusters."""
    return {
        "name": "k-means",
        "size": size_name(parse_size(settings.size)),
        "clusters": asked,
        "matching": "hungarian, by IoU" if clusters <= classes else "majority of pixels",
        "sample": settings.sample_tokens,
        "turns": TURNS,
        "redo": settings.redo,
        "absent_classes": LEFT_OUT,
    }


def clusters_words(count: int) -> str:
    return f"{count:,} cluster{'' if count == 1 else 's'}"
