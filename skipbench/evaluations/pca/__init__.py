"""Principal components of frozen tokens, as pictures and as coherence.

Draw the principal components of frozen tokens as colours and measure how coherent they are. All
blocks come from one pass over the images for each checkpoint; features are stored, so another --fit
or --background needs no further pass.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skipbench.evaluations.base import Evaluation
from skipbench.evaluations.pca.settings import OF_DATASET, PcaSettings

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.evaluations.pca.run import PcaRun
    from skipbench.pipeline import Inspection
    from skipbench.records import Result


class Pca(Evaluation):
    name, title, order = "pca", "PCA", 5
    settings = PcaSettings
    metrics = {"coherence": "coherence"}
    mean_over_images = by_block = True
    tiles = {"pca": "PCA"}
    fixed_in_suites = {"own_folder": True, "names": (), "align": True}
    demo = ({"layers": "all", "limit": 8, "size": "short:288"},)

    def target(self, ckpts: Sequence[str], dataset: str) -> Mapping[str, Any]:
        return {"ckpts": ckpts, "images": f"{OF_DATASET}{dataset}"}

    def open_data(self, settings: PcaSettings) -> "list[Dataset]":
        from skipbench.evaluations.data import open_pictures

        return [
            open_pictures(
                settings.images, split=settings.split, root=settings.data_root,
                limit=settings.most_images, skip_bad=settings.skip_bad,
            )
        ]  # fmt: skip

    def open(
        self,
        settings: PcaSettings,
        data: "Sequence[Dataset]",
        inspections: "Sequence[Inspection]",
    ) -> "PcaRun":
        from skipbench.evaluations.pca.run import PcaRun

        return PcaRun(inspections, data[0], settings)

    def show(self, run: "PcaRun", results: "Sequence[Result]") -> None:
        from skipbench.evaluations.pca.page import show

        show(run, [result.id for result in results])


EVALUATION = Pca()
