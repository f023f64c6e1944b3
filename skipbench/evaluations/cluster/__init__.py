"""k-means segmentation: how well clusters of frozen tokens match classes, as mIoU.

Cluster the patch tokens of all images with k-means, assign the clusters to classes and report the
mIoU. Labels are used only to match clusters to classes, over the whole split.
"""

from typing import TYPE_CHECKING

from skipbench.evaluations import Evaluation
from skipbench.evaluations.cluster.settings import CLASSES, ClusterSettings

if TYPE_CHECKING:
    from skipbench.datasets import Dataset


class Cluster(Evaluation):
    name, title, order = "cluster", "k-means clusters", 4
    run = "ClusterRun"
    settings = ClusterSettings
    metrics = {"miou": "mIoU"}
    seed_changes = "clustering"
    swept = ("clusters",)
    protocol = "k-means"
    named_by = {"clusters": CLASSES}
    hidden_settings = frozenset({"matching"})
    demo = ({"size": "160x208", "seeds": 3},)

    def open_data(self, settings: ClusterSettings) -> "list[Dataset]":
        from skipbench.engine import vectors
        from skipbench.evaluations.data import open_masks

        vectors.load()  # a missing or broken faiss is reported before anything slow
        return [open_masks(settings.dataset, split=settings.split, **settings.of_data())]


EVALUATION = Cluster()
