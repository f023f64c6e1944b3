"""PCA pictures in a suite: of one checkpoint at a time, so that no colours are aligned."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skipbench.errors import UsageError
from skipbench.evaluations.pca.settings import (
    BACKGROUNDS,
    FITS,
    IMAGES,
    UPSAMPLING,
)
from skipbench.records import PRECISIONS, TENSORS, Result
from skipbench.suites import _keys
from skipbench.suites._keys import Check
from skipbench.suites._kind import Kind, Opened, Places

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.evaluations.estimate import Estimate
    from skipbench.evaluations.pca.run import PcaRun
    from skipbench.suites.sharing import Need


# As `skipbench pca` calls them; in_memory is --no-cache.
PCA_KEYS: dict[str, Check] = {
    "layers": _keys.layers,
    "feature": _keys.one_of(*TENSORS),
    "fit": _keys.one_of(*FITS),
    "components": _keys.whole(1),
    "upsample": _keys.one_of(*UPSAMPLING),
    "background": _keys.one_of(*BACKGROUNDS),
    "size": _keys.text_or_number,
    "split": _keys.text,
    "limit": _keys.whole(1),
    "skip_bad": _keys.whole(0),
    "precision": _keys.one_of(*PRECISIONS),
    "store_dtype": _keys.one_of("fp16", "fp32"),
    "in_memory": _keys.flag,
    "batch_size": _keys.whole(1),
    "workers": _keys.whole(1),
}


class PcaKind(Kind):
    keys = PCA_KEYS

    def problems(self, options: Mapping[str, Any]) -> Iterator[tuple[str, UsageError]]:
        from skipbench.evaluations.pca.settings import check_components
        from skipbench.images import parse_size

        checks: dict[str, Any] = {"size": parse_size, "components": check_components}
        for key in filter(options.__contains__, checks):
            try:
                checks[key](str(options[key]) if key == "size" else options[key])
            except UsageError as error:
                yield key, error

    def data(self, dataset: str, options: Mapping[str, Any], root: str | None) -> "list[Dataset]":
        from skipbench.datasets import open_dataset

        split, limit = options.get("split"), options.get("limit", IMAGES)
        skip_bad = options.get("skip_bad", 0)
        return [open_dataset(dataset, split, root=root, limit=limit, skip_bad=skip_bad)]

    def versions(self) -> Mapping[str, int]:
        from skipbench.evaluations.pca.record import VERSION
        from skipbench.images import TRANSFORM_VERSION

        return {"pca": VERSION, "transform": TRANSFORM_VERSION}

    def open(
        self,
        opened: Opened,
        dataset: str,
        data: "Sequence[Dataset]",
        options: Mapping[str, Any],
        places: Places,
    ) -> "PcaRun":
        from skipbench.evaluations.pca.calls import open_pca

        where = places.options()
        where.pop("force", None)  # pictures are drawn whenever they are asked for
        together: dict[str, Any] = {**opened.reading, **where, **options}
        return open_pca(
            opened.path, f"dataset:{dataset}", data=data[0], inspections=[opened.inspection],
            apart=True, **together,
        )  # fmt: skip

    def records(self, run: "PcaRun") -> int:
        return 1

    def missing(self, run: "PcaRun") -> int:
        from skipbench.results.store import find_result

        return int(find_result(run.asked.out, run.ids[0]) is None)

    def needs(self, run: "PcaRun") -> "list[Need]":
        from skipbench.suites.sharing import Need

        model, keeping = run.models[0], run.asked.keeping
        if keeping.in_memory:
            return []
        what = run.data.split
        return [Need(model.backbone, model.pictures, model.spec, keeping, what, lambda: None)]

    def do(self, run: "PcaRun") -> list[Result]:
        return run.run()

    def estimate(self, run: "PcaRun") -> "Estimate":
        from skipbench.evaluations.estimate import estimate_pca

        return estimate_pca(run)
