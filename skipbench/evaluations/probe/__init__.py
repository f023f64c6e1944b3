"""Linear-probe segmentation, as mIoU.

Train linear classifiers on frozen patch tokens and report their mIoU. The backbone sees each image
once; all learning rates train at once.
"""

from typing import TYPE_CHECKING

from skipbench.evaluations import Evaluation
from skipbench.evaluations.probe.settings import ProbeSettings

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.records import Result


class Probe(Evaluation):
    name, title, order = "probe", "linear probe", 1
    run = "ProbeRun"
    settings = ProbeSettings
    metrics = {"miou": "mIoU"}
    seed_changes = "training"
    returns_one = redraws = True
    demo = (
        {"layers": ["last", "multiscale"], "size": "160x208", "epochs": 5, "pictures": 4},
        {"layers": ["1", "3"], "size": "160x208", "epochs": 5},
    )

    def open_data(self, settings: ProbeSettings) -> "list[Dataset]":
        from skipbench.evaluations.data import open_splits

        protocol, given = settings.resolved, settings.of_training_data()
        split = protocol.train_splits.get(settings.dataset, "train")
        given["train_images"] = given["train_images"] or protocol.train_images.get(settings.dataset)
        return list(open_splits(settings.dataset, train_split=split, **given))

    def remarks(self, result: "Result") -> list[str]:
        found = []
        if result.metrics.get("selected_on") == "val":
            found.append("learning rate chosen on the validation images, as papers do")
        if edge := result.metrics.get("edge"):
            found.append(f"the {edge} rate of the sweep was chosen: a wider one may be better")
        return found

    def versions(self) -> dict[str, int]:
        from skipbench.evaluations.probe import views

        return {**super().versions(), "views": views.VERSION}


EVALUATION = Probe()
