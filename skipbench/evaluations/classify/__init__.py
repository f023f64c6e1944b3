"""Image classification by k-NN and a linear probe, as top-1 accuracy.

Classify whole images by their class token (or mean patch token): weighted k-NN and a linear
classifier, as DINO does. A sanity check: a wrongly loaded model is near chance.
"""

from typing import TYPE_CHECKING, Any

from skipbench.evaluations import Evaluation
from skipbench.evaluations.classify.settings import METHODS, ClassifySettings
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.datasets import Dataset


class Classify(Evaluation):
    name, title, order = "classify", "classification", 6
    run = "ClassifyRun"
    settings = ClassifySettings
    metrics = {"top1": "top-1"}
    seed_changes = "training"
    protocol = "dino"
    task = "image-classification"
    methods = METHODS
    swept = ("method", "k", "temperature")
    named_by = {"method": "", "k": 20, "temperature": 0.07}
    hidden_settings = frozenset({"optimiser", "augmentation", "interpolation", "bank"})
    glossary = {
        "Top-1": "is the share of images whose class is predicted. Chance is one over the number "
        "of classes; near chance is less than a twentieth of the way from chance (or from always "
        "answering the most frequent class) to 100."
    }
    demo = ({"size": "112x144", "epochs": 20},)

    def open_data(self, settings: ClassifySettings) -> "list[Dataset]":
        from skipbench.evaluations.data import open_classes

        if "knn" in settings.method:
            from skipbench.engine import vectors

            vectors.load()  # a missing or broken faiss is reported before anything slow
        return list(open_classes(settings.dataset, **settings.of_training_data()))

    def remarks(self, result: Result) -> list[str]:
        metrics, found = result.metrics, list[str]()
        if metrics.get("near_chance"):
            found.append(f"near chance ({baseline_words(metrics)})")
        if unseen := metrics.get("unseen"):
            found.append(f"{unseen:,} images are of classes without a training image")
        if result.protocol.get("method") == "linear":
            found.append("trained without augmentation, on stored features")
        if metrics.get("selected_on") == "val":
            found.append("learning rate chosen on the evaluated images, as papers do")
        if edge := metrics.get("edge"):
            found.append(f"the {edge} rate of the sweep was chosen: a wider one may be better")
        return found


def baseline_words(metrics: Any) -> str:
    """ "0.1 %", or with the accuracy of always answering the most frequent class, if higher."""
    chance, majority = metrics["chance"], metrics["majority"]
    words = f"{chance:.1f} %"
    if majority < chance + 1:
        return words
    return f"{words}; the most frequent class alone {majority:.1f} %"


EVALUATION = Classify()
