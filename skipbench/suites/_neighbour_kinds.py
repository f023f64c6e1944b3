"""Nearest neighbours and clusters in a suite."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from skipbench.errors import UsageError
from skipbench.evaluations.knn import settings
from skipbench.suites import _keys
from skipbench.suites._feature_kind import FEATURE_KEYS, FeatureKind
from skipbench.suites._keys import Check
from skipbench.suites._kind import Opened, Places

if TYPE_CHECKING:
    from skipbench.datasets import Dataset, Item
    from skipbench.evaluations.cluster.run import Cluster
    from skipbench.evaluations.estimate import Estimate
    from skipbench.evaluations.knn.run import Knn
    from skipbench.evaluations.run import FeatureRun
    from skipbench.suites.sharing import Need


# As the commands call them.
KNN_KEYS: dict[str, Check] = {
    **FEATURE_KEYS,
    "k": _keys.parsed(settings.parse_ks),
    "temperature": _keys.parsed(settings.parse_temperatures),
    "memory": _keys.whole(1),
    "index": _keys.one_of(*settings.INDEXES),
    "bank_limit": _keys.space,
    "seeds": _keys.several(_keys.whole(0)),
    "train_images": _keys.whole(1),
    "subset_seed": _keys.whole(0),
}
CLUSTER_KEYS: dict[str, Check] = {
    **FEATURE_KEYS,
    "clusters": _keys.parsed(settings.parse_clusters),
    "seeds": _keys.parsed(settings.parse_how_many_seeds),
    "sample": _keys.whole(1),
    "redo": _keys.whole(1),
    "split": _keys.text,
}
OF_DATA = ("limit", "classes", "skip_bad")


class _NeighbourKind(FeatureKind):
    def problems(self, options: Mapping[str, Any]) -> Iterator[tuple[str, UsageError]]:
        from skipbench.images import parse_size

        try:
            parse_size(str(options.get("size", 448)))
        except UsageError as error:
            yield "size", error

    def _needs(
        self,
        run: "FeatureRun",
        lists: "Mapping[str, Sequence[Item]]",
        check: Callable[[], object],
    ) -> "list[Need]":
        """lists: the images of each split."""
        from skipbench.suites.sharing import Need

        wanted, keeping = [*self.todo(run), *run.drawn()], run.asked.keeping
        if not wanted or keeping.in_memory:
            return []
        once, spec = cache(check), run.spec(wanted)
        return [
            Need(run.backbone, items, spec, keeping, what, once) for what, items in lists.items()
        ]


class KnnKind(_NeighbourKind):
    keys = KNN_KEYS

    def data(self, dataset: str, options: Mapping[str, Any], root: str | None) -> "list[Dataset]":
        from skipbench.evaluations.data import open_splits

        names = (*OF_DATA, "train_images", "subset_seed")
        chosen = {key: options[key] for key in names if key in options}
        return list(open_splits(dataset, root=root, **chosen))

    def versions(self) -> Mapping[str, int]:
        from skipbench.evaluations.knn.record import VERSION
        from skipbench.images import TRANSFORM_VERSION

        return {"knn": VERSION, "transform": TRANSFORM_VERSION}

    def open(
        self,
        opened: Opened,
        dataset: str,
        data: "Sequence[Dataset]",
        options: Mapping[str, Any],
        places: Places,
    ) -> "Knn":
        from skipbench.evaluations.knn.calls import open_knn

        train, val = data
        together: dict[str, Any] = {**opened.reading, **places.options(), **options}
        return open_knn(
            opened.path, dataset, splits=(train, val), inspection=opened.inspection, **together
        )

    def needs(self, run: "Knn") -> "list[Need]":
        from skipbench.evaluations.data import check_masks

        lists = {"train": run.train.items, "val": run.val.items}
        return self._needs(run, lists, lambda: check_masks(run.train, run.val))

    def estimate(self, run: "Knn") -> "Estimate":
        from skipbench.evaluations.knn.estimate import estimate_knn

        return estimate_knn(self.rest(run))


class ClusterKind(_NeighbourKind):
    keys = CLUSTER_KEYS

    def problems(self, options: Mapping[str, Any]) -> Iterator[tuple[str, UsageError]]:
        yield from super().problems(options)
        try:
            settings.check_sample(
                options.get("sample", settings.SAMPLE), options.get("clusters", ())
            )
        except UsageError as error:
            yield "sample", error

    def data(self, dataset: str, options: Mapping[str, Any], root: str | None) -> "list[Dataset]":
        from skipbench.evaluations.data import open_masks

        chosen = {key: options[key] for key in (*OF_DATA, "split") if key in options}
        return [open_masks(dataset, root=root, **chosen)]

    def versions(self) -> Mapping[str, int]:
        from skipbench.evaluations.cluster.record import VERSION
        from skipbench.images import TRANSFORM_VERSION

        return {"cluster": VERSION, "transform": TRANSFORM_VERSION}

    def open(
        self,
        opened: Opened,
        dataset: str,
        data: "Sequence[Dataset]",
        options: Mapping[str, Any],
        places: Places,
    ) -> "Cluster":
        from skipbench.evaluations.knn.calls import open_cluster

        together: dict[str, Any] = {**opened.reading, **places.options(), **options}
        return open_cluster(
            opened.path, dataset, data=data[0], inspection=opened.inspection, **together
        )

    def needs(self, run: "Cluster") -> "list[Need]":
        from skipbench.evaluations.data import check_labelled

        return self._needs(run, {"val": run.data.items}, lambda: check_labelled(run.data))

    def estimate(self, run: "Cluster") -> "Estimate":
        from skipbench.evaluations.knn.estimate import estimate_cluster

        return estimate_cluster(self.rest(run))
