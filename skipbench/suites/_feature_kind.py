"""What evaluations of stored features have in common in a suite."""

from copy import copy
from typing import TYPE_CHECKING, Any, get_args

from skipbench.records import PRECISIONS, Result, StoreDtype
from skipbench.suites import _keys
from skipbench.suites._keys import Check
from skipbench.suites._kind import Kind

if TYPE_CHECKING:
    from skipbench.evaluations.run import Cell, FeatureRun

# As the commands call them; in_memory is --no-cache.
FEATURE_KEYS: dict[str, Check] = {
    "layers": _keys.several(_keys.layers),
    "size": _keys.text_or_number,
    "norm": _keys.flag,
    "limit": _keys.whole(1),
    "classes": _keys.whole(1),
    "skip_bad": _keys.whole(0),
    "precision": _keys.one_of(*PRECISIONS),
    "store_dtype": _keys.one_of(*get_args(StoreDtype)),
    "in_memory": _keys.flag,
    "batch_size": _keys.whole(1),
    "workers": _keys.whole(1),
    "pictures": _keys.whole(0),
}


class FeatureKind(Kind):
    def todo(self, run: "FeatureRun") -> "list[Cell]":
        from skipbench.results.store import find_result

        asked = run.asked
        return [c for c in run.cells if asked.force or find_result(asked.out, c.id) is None]

    def records(self, run: "FeatureRun") -> int:
        return len(run.cells)

    def missing(self, run: "FeatureRun") -> int:
        return len(self.todo(run))

    def do(self, run: "FeatureRun") -> list[Result]:
        return run.run()

    def rest(self, run: Any) -> Any:
        """The run with what is yet to be done."""
        rest = copy(run)
        rest.cells = self.todo(run)
        return rest
