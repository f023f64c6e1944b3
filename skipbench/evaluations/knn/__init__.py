"""Dense nearest-neighbour segmentation, as mIoU.

Label every patch by its nearest neighbours among training patches and report the mIoU. Nothing is
trained. Shares stored features with `probe`.
"""

from typing import TYPE_CHECKING, Any

from skipbench.evaluations import Evaluation
from skipbench.evaluations.knn.settings import KnnSettings
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.datasets import Dataset


class Knn(Evaluation):
    name, title, order = "knn", "nearest neighbours", 3
    run = "KnnRun"
    settings = KnnSettings
    metrics = {"miou": "mIoU"}
    seed_changes = "bank"
    swept = ("k", "temperature")
    protocol = "hummingbird"
    named_by = {"k": 30, "temperature": 0.02}
    demo = ({"size": "160x208"},)

    def open_data(self, settings: KnnSettings) -> "list[Dataset]":
        from skipbench.engine import vectors
        from skipbench.evaluations.data import open_splits

        vectors.load()  # a missing or broken faiss is reported before anything slow
        return list(open_splits(settings.dataset, **settings.of_training_data()))

    def remarks(self, result: Result) -> list[str]:
        """If only part of the bank was searched."""
        recall = bank_of(result).get("recall")
        if isinstance(recall, bool) or not isinstance(recall, int | float):
            return []
        return [f"approximate search: {100 * recall:.0f} % of the nearest neighbours found"]

    def seed_matters(self, result: Result) -> bool:
        """Not if the bank holds every token and is searched exactly."""
        bank = bank_of(result)
        exact = bank.get("whole") and "recall" not in bank
        return super().seed_matters(result) and not exact


def bank_of(result: Result) -> dict[str, Any]:
    bank = result.metrics.get("bank")
    return bank if isinstance(bank, dict) else {}


EVALUATION = Knn()
