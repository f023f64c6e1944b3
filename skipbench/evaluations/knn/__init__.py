"""Dense nearest-neighbour segmentation, as mIoU.

Label every patch by its nearest neighbours among training patches and report the mIoU. Nothing is
trained. Shares stored features with `probe`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skipbench.evaluations.base import Evaluation
from skipbench.evaluations.knn.settings import KnnSettings

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.evaluations.knn.run import KnnRun
    from skipbench.pipeline import Inspection
    from skipbench.records import Result


class Knn(Evaluation):
    name, title, order = "knn", "nearest neighbours", 3
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

    def open(
        self,
        settings: KnnSettings,
        data: "Sequence[Dataset]",
        inspections: "Sequence[Inspection]",
    ) -> "KnnRun":
        from skipbench.evaluations.knn.run import KnnRun

        return KnnRun(inspections[0], data[0], data[1], settings)

    def show(self, run: "KnnRun", results: "Sequence[Result]") -> None:
        from skipbench.evaluations.knn.page import show

        show(results, run.settings.out)

    def remarks(self, result: "Result") -> list[str]:
        """If only part of the bank was searched."""
        bank = result.metrics.get("bank")
        recall = bank.get("recall") if isinstance(bank, dict) else None
        if isinstance(recall, bool) or not isinstance(recall, int | float):
            return []
        return [f"approximate search: {100 * recall:.0f} % of the nearest neighbours found"]


EVALUATION = Knn()
