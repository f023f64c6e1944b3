"""Principal components of frozen tokens, as pictures and as coherence.

Draw the principal components of frozen tokens as colours and measure how coherent they are. All
blocks come from one pass over the images for each checkpoint; features are stored, so another --fit
or --background needs no further pass.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skipbench.evaluations import Evaluation
from skipbench.evaluations.pca.settings import OF_DATASET, PcaSettings

if TYPE_CHECKING:
    from skipbench.datasets import Dataset


class Pca(Evaluation):
    name, title, order = "pca", "PCA", 5
    run = "PcaRun"
    settings = PcaSettings
    metrics = {"coherence": "coherence"}
    task = "image-feature-extraction"
    by_block = True
    hidden_settings = frozenset({"feature"})
    tiles = {"pca": "PCA"}
    glossary = {
        "Coherence": "of PCA pictures is the share of the features' variance that lies between the "
        "segments of an image: 100 if each segment has one colour. The record also has the "
        "coherence of the image's own colours (pixels), and with the segments upside down."
    }
    fixed_in_suites = {"own_folder": True, "names": (), "align": True}
    demo = ({"layers": "all", "limit": 8, "size": "short:288"},)

    def target(self, ckpts: Sequence[str], dataset: str) -> Mapping[str, Any]:
        return {"ckpts": ckpts, "images": f"{OF_DATASET}{dataset}"}

    def open_data(self, settings: PcaSettings) -> "list[Dataset]":
        from skipbench.evaluations.pca.images import open_images

        return [open_images(settings)]


EVALUATION = Pca()
