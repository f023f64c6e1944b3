"""Object discovery in a suite."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skipbench.errors import UsageError
from skipbench.evaluations.tokencut.settings import METHODS, SCORES
from skipbench.records import PRECISIONS, TENSORS, Result
from skipbench.suites import _keys
from skipbench.suites._keys import Check
from skipbench.suites._kind import Kind, Opened, Places

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.evaluations.estimate import Estimate
    from skipbench.evaluations.tokencut.run import Discovery
    from skipbench.suites.sharing import Need


# As `skipbench tokencut` calls them; in_memory is --no-cache.
TOKENCUT_KEYS: dict[str, Check] = {
    "layers": _keys.layers,
    "feature": _keys.one_of(*TENSORS),
    "method": _keys.one_of(*METHODS),
    "tau": _keys.between(-1, 1),
    "eps": _keys.between(0, 1),
    "size": _keys.text_or_number,
    "score": _keys.one_of(*SCORES),
    "hard": _keys.flag,
    "select": _keys.one_of("val", "holdout"),
    "split": _keys.text,
    "limit": _keys.whole(1),
    "skip_bad": _keys.whole(0),
    "precision": _keys.one_of(*PRECISIONS),
    "in_memory": _keys.flag,
    "batch_size": _keys.whole(1),
    "workers": _keys.whole(1),
    "pictures": _keys.whole(0),
}
OF_DATA = ("split", "score", "hard", "limit", "skip_bad")


class TokencutKind(Kind):
    keys = TOKENCUT_KEYS

    def problems(self, options: Mapping[str, Any]) -> Iterator[tuple[str, UsageError]]:
        from skipbench.images import parse_size

        if "size" in options:
            try:
                parse_size(str(options["size"]))
            except UsageError as error:
                yield "size", error
        if options.get("method") == "lost":
            for key in filter(options.__contains__, ("tau", "eps")):
                yield key, UsageError('goes with method = "tokencut"')

    def data(self, dataset: str, options: Mapping[str, Any], root: str | None) -> "list[Dataset]":
        from skipbench.evaluations.data import open_objects

        chosen = {key: options[key] for key in OF_DATA if key in options}
        return [open_objects(dataset, root=root, **chosen)]

    def versions(self) -> Mapping[str, int]:
        from skipbench.evaluations.tokencut.record import VERSION
        from skipbench.images import TRANSFORM_VERSION

        return {"tokencut": VERSION, "transform": TRANSFORM_VERSION}

    def open(
        self,
        opened: Opened,
        dataset: str,
        data: "Sequence[Dataset]",
        options: Mapping[str, Any],
        places: Places,
    ) -> "Discovery":
        from skipbench.evaluations.tokencut.calls import open_tokencut

        where = places.options()
        where.pop("cache_limit", None)  # it stores no features
        together: dict[str, Any] = {**opened.reading, **where, **options}
        return open_tokencut(
            opened.path, dataset, data=data[0], inspection=opened.inspection, **together
        )

    def records(self, run: "Discovery") -> int:
        return 1

    def missing(self, run: "Discovery") -> int:
        from skipbench.results.store import find_result

        return int(run.asked.force or find_result(run.asked.out, run.id) is None)

    def needs(self, run: "Discovery") -> "list[Need]":
        """None: what is cut is not stored."""
        return []

    def do(self, run: "Discovery") -> list[Result]:
        return [run.run()]

    def estimate(self, run: "Discovery") -> "Estimate":
        from skipbench.evaluations.estimate import estimate_tokencut

        return estimate_tokencut(run)
