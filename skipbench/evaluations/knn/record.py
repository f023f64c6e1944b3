"""What a nearest-neighbour evaluation writes down."""

from typing import Any

from skipbench.evaluations.knn.bank import Storage
from skipbench.evaluations.knn.method import Vote
from skipbench.evaluations.knn.settings import KnnSettings
from skipbench.images import parse_size, size_name
from skipbench.metrics.segmentation import LEFT_OUT

DEFAULTS = KnnSettings.defaults()
USUAL = {
    "size": size_name(parse_size(DEFAULTS["size"])), "k": DEFAULTS["k"][0],
    "temperature": DEFAULTS["temperature"][0], "memory": DEFAULTS["memory"],
}  # fmt: skip


def protocol_part(settings: KnnSettings, vote: Vote, storage: Storage) -> dict[str, Any]:
    """What the number depends on."""
    return {
        "name": "hummingbird",
        "size": size_name(parse_size(settings.size)),
        "k": vote.k,
        "temperature": vote.temperature,
        "memory": settings.memory,
        "index": storage.index,
        "bank": storage.numbers,
        "absent_classes": LEFT_OUT,
    }
