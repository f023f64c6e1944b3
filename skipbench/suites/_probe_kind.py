"""The linear probe in a suite."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from skipbench.errors import UsageError
from skipbench.suites import _keys
from skipbench.suites._feature_kind import FEATURE_KEYS, FeatureKind
from skipbench.suites._keys import Check
from skipbench.suites._kind import Opened, Places

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.evaluations.estimate import Estimate
    from skipbench.evaluations.probe.run import Probe
    from skipbench.suites.sharing import Need


def _protocol(value: Any) -> str:
    from skipbench.evaluations.probe.protocols import settle

    return settle(_keys.text(value)).name


def _rates(value: Any) -> tuple[float, ...]:
    from skipbench.evaluations.probe.protocols import parse_rates

    return parse_rates(value)


# As `skipbench probe` calls them.
PROBE_KEYS: dict[str, Check] = {
    **FEATURE_KEYS,
    "seeds": _keys.several(_keys.whole(0)),
    "protocol": _protocol,
    "epochs": _keys.whole(1),
    "lr": _keys.parsed(_rates),
    "score_size": _keys.text_or_number,
    "loss_pixels": _keys.text_or_number,
    "standardize": _keys.flag,
    "views": _keys.whole(1),
    "select": _keys.one_of("val", "holdout"),
    "train_images": _keys.whole(1),
    "subset_seed": _keys.whole(0),
}
OF_DATA = ("train_images", "subset_seed", "limit", "classes", "skip_bad")
OF_PROTOCOL = ("epochs", "lr", "size", "score_size", "loss_pixels", "standardize", "views")


class ProbeKind(FeatureKind):
    keys = PROBE_KEYS

    def problems(self, options: Mapping[str, Any]) -> Iterator[tuple[str, UsageError]]:
        from skipbench.evaluations.probe.protocols import settle
        from skipbench.images import parse_size

        name = options.get("protocol", "paper")
        for key in filter(options.__contains__, OF_PROTOCOL):
            try:
                value = {"rates" if key == "lr" else key: options[key]}
                parse_size(settle(name, **value).size)
            except UsageError as error:
                yield key, error

    def data(self, dataset: str, options: Mapping[str, Any], root: str | None) -> "list[Dataset]":
        from skipbench.evaluations.data import open_splits
        from skipbench.evaluations.probe.protocols import settle

        chosen = {key: options[key] for key in OF_DATA if key in options}
        protocol = settle(options.get("protocol", "paper"))
        return list(open_splits(dataset, protocol, root=root, **chosen))

    def versions(self) -> Mapping[str, int]:
        from skipbench import views
        from skipbench.evaluations.probe.record import VERSION
        from skipbench.images import TRANSFORM_VERSION

        return {"probe": VERSION, "views": views.VERSION, "transform": TRANSFORM_VERSION}

    def open(
        self,
        opened: Opened,
        dataset: str,
        data: "Sequence[Dataset]",
        options: Mapping[str, Any],
        places: Places,
    ) -> "Probe":
        from skipbench.evaluations.probe.calls import open_probe

        train, val = data
        together: dict[str, Any] = {**opened.reading, **places.options(), **options}
        return open_probe(
            opened.path, dataset, splits=(train, val), inspection=opened.inspection, **together
        )

    def needs(self, run: "Probe") -> "list[Need]":
        """Crops and windows are the probe's own; what is kept in memory cannot be shared."""
        from skipbench.evaluations.data import check_masks
        from skipbench.suites.sharing import Need

        todo, keeping = self.todo(run), run.asked.keeping
        if not todo or keeping.in_memory:
            return []
        check = cache(lambda: check_masks(run.train, run.val))
        found = []
        if run.protocol.views == "whole":
            spec = run.spec(todo)
            found.append(Need(run.backbone, run.train.items, spec, keeping, "train", check))
        if run.protocol.window is None:
            spec = run.spec(run.cells if run.asked.pictures else todo)
            found.append(Need(run.backbone, run.val.items, spec, keeping, "val", check))
        return found

    def estimate(self, run: "Probe") -> "Estimate":
        from skipbench.evaluations.estimate import estimate

        return estimate(self.rest(run))
