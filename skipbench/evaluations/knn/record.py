"""What a nearest-neighbour evaluation writes down."""

from typing import TYPE_CHECKING, Any

from skipbench.evaluations.knn import EVALUATION
from skipbench.evaluations.knn.method import Vote
from skipbench.evaluations.knn.settings import KnnSettings
from skipbench.evaluations.knn.storage import Storage
from skipbench.evaluations.record import changes_from, feature_record, interval_words
from skipbench.images import parse_size, size_name
from skipbench.metrics.segmentation import LEFT_OUT
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.knn.run import KnnCell, KnnRun

DEFAULTS = KnnSettings.defaults()
USUAL = {
    "size": size_name(parse_size(DEFAULTS["size"])), "k": DEFAULTS["k"][0],
    "temperature": DEFAULTS["temperature"][0], "memory": DEFAULTS["memory"],
}  # fmt: skip


def determines(
    run: "KnnRun", blocks: tuple[int, ...], seed: int, vote: Vote, storage: Storage
) -> dict[str, Any]:
    """All that the number depends on."""
    return {
        "version": EVALUATION.version,
        **run.determined_by(blocks),
        "training": run.train_facts and run.train_facts.fingerprint,
        "dataset": run.val_facts.fingerprint,
        "protocol": protocol_part(run, vote, storage),
        "seed": seed,
    }


def protocol_part(run: "KnnRun", vote: Vote, storage: Storage) -> dict[str, Any]:
    return {
        "name": "hummingbird",
        "size": size_name(run.size),
        "k": vote.k,
        "temperature": vote.temperature,
        "memory": run.settings.memory,
        "index": storage.index,
        "bank": storage.numbers,
        "absent_classes": LEFT_OUT,
    }


def record(
    run: "KnnRun", cell: "KnnCell", metrics: dict[str, Any], seconds: dict[str, float]
) -> Result:
    """seconds: of all cells that were sought together."""
    protocol = protocol_part(run, cell.vote, cell.storage)
    return feature_record(
        run,
        cell,
        evaluation="knn",
        dataset=run.val_facts,
        training=run.train_facts,
        features=run.val_features,
        protocol={
            **protocol,
            "changes": changes_from(USUAL, protocol),
            "interval": interval_words(),
        },
        metrics=metrics,
        seconds=seconds,
        cell_settings={"k": cell.vote.k, "temperature": cell.vote.temperature},
    )
