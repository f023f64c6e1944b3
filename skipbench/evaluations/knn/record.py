"""What a nearest-neighbour evaluation writes down."""

from typing import TYPE_CHECKING, Any

from skipbench.evaluations.knn.method import Vote
from skipbench.evaluations.knn.settings import MEMORY, TEMPERATURE, K, Storage
from skipbench.evaluations.record import changes_from, feature_record, interval_words
from skipbench.images import size_name
from skipbench.metrics.segmentation import LEFT_OUT
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.evaluations.knn.run import Knn, KnnCell

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
        asked={"k": cell.vote.k, "temperature": cell.vote.temperature},
    )
