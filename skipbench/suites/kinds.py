"""What a suite can evaluate. An entry in KINDS is all that a further evaluation needs.

Importing this imports nothing heavy: a kind checks its options first, and loads torch to open.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from skipbench.errors import UsageError
from skipbench.records import PRECISIONS, Result, StoreDtype
from skipbench.suites import _keys
from skipbench.suites._keys import Check

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.pipeline import Inspection, Reading
    from skipbench.runs._estimate import Estimate
    from skipbench.runs.probe import Cell as ProbeCell
    from skipbench.runs.probe import Probe
    from skipbench.suites.sharing import Need


@dataclass(frozen=True)
class Places:
    """Where and how, for all cells."""

    out: Path
    device: str = "auto"
    data_root: str | None = None
    cache: str | None = None
    cache_limit: int | None = None  # None: the usual one
    force: bool = False

    def options(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Opened:
    """A checkpoint that was read, once for all that is done with it."""

    path: str
    reading: "Reading"
    inspection: "Inspection"


class Kind(ABC):
    keys: Mapping[str, Check]  # of an [[evaluation]] of this kind
    headline: tuple[str, str]  # among a record's metrics, and as people call it

    @abstractmethod
    def problems(self, options: Mapping[str, Any]) -> Iterator[tuple[str, UsageError]]:
        """Keys whose values, right by themselves, cannot be with the others."""

    @abstractmethod
    def data(self, dataset: str, options: Mapping[str, Any], root: str | None) -> "list[Dataset]":
        """Every split it needs, open."""

    @abstractmethod
    def versions(self) -> Mapping[str, int]:
        """Of the code that makes its numbers."""

    @abstractmethod
    def open(
        self,
        opened: Opened,
        dataset: str,
        data: "Sequence[Dataset]",
        options: Mapping[str, Any],
        places: Places,
    ) -> Any:
        """All but the work itself. What this gives, the following take."""

    @abstractmethod
    def records(self, run: Any) -> int:
        """How many it makes."""

    @abstractmethod
    def missing(self, run: Any) -> int:
        """How many of them are yet to be made."""

    @abstractmethod
    def needs(self, run: Any) -> "list[Need]":
        """Stored features that it will ask for."""

    @abstractmethod
    def do(self, run: Any) -> list[Result]: ...

    @abstractmethod
    def estimate(self, run: Any) -> "Estimate":
        """What the records that are yet to be made would take."""


def _layers(value: Any) -> str:
    from skipbench.features.layers import check_layers

    text = _keys.text(str(value) if isinstance(value, int) else value)
    check_layers(text)
    return text


def _protocol(value: Any) -> str:
    from skipbench.evaluations._protocols import settle

    return settle(_keys.text(value)).name


def _rates(value: Any) -> tuple[float, ...]:
    from skipbench.evaluations._protocols import parse_rates

    for part in value if isinstance(value, list) else [value]:
        _keys.text_or_number(part)
    return parse_rates(value)


# As `skipbench probe` calls them; in_memory is --no-cache.
PROBE_KEYS: dict[str, Check] = {
    "layers": _keys.several(_layers),
    "seeds": _keys.several(_keys.whole(0)),
    "protocol": _protocol,
    "epochs": _keys.whole(1),
    "lr": _rates,
    "size": _keys.text_or_number,
    "score_size": _keys.text_or_number,
    "loss_pixels": _keys.text_or_number,
    "standardize": _keys.flag,
    "views": _keys.whole(1),
    "select": _keys.one_of("val", "holdout"),
    "norm": _keys.flag,
    "train_images": _keys.whole(1),
    "subset_seed": _keys.whole(0),
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
OF_DATA = ("train_images", "subset_seed", "limit", "classes", "skip_bad")
OF_PROTOCOL = ("epochs", "lr", "size", "score_size", "loss_pixels", "standardize", "views")


class ProbeKind(Kind):
    headline = ("miou", "mIoU")
    keys = PROBE_KEYS

    def problems(self, options: Mapping[str, Any]) -> Iterator[tuple[str, UsageError]]:
        from skipbench.evaluations._protocols import settle
        from skipbench.images import parse_size

        name = options.get("protocol", "paper")
        for key in filter(options.__contains__, OF_PROTOCOL):
            try:
                value = {"rates" if key == "lr" else key: options[key]}
                parse_size(settle(name, **value).size)
            except UsageError as error:
                yield key, error

    def data(self, dataset: str, options: Mapping[str, Any], root: str | None) -> "list[Dataset]":
        from skipbench.evaluations._protocols import settle
        from skipbench.runs.splits import open_splits

        chosen = {key: options[key] for key in OF_DATA if key in options}
        protocol = settle(options.get("protocol", "paper"))
        return list(open_splits(dataset, protocol, root=root, **chosen))

    def versions(self) -> Mapping[str, int]:
        from skipbench import views
        from skipbench.images import TRANSFORM_VERSION
        from skipbench.runs._probe_record import VERSION

        return {"probe": VERSION, "views": views.VERSION, "transform": TRANSFORM_VERSION}

    def open(
        self,
        opened: Opened,
        dataset: str,
        data: "Sequence[Dataset]",
        options: Mapping[str, Any],
        places: Places,
    ) -> "Probe":
        from skipbench.runs.calls import open_probe

        train, val = data
        together: dict[str, Any] = {**opened.reading, **places.options(), **options}
        return open_probe(
            opened.path, dataset, splits=(train, val), inspection=opened.inspection, **together
        )

    def _todo(self, run: "Probe") -> "list[ProbeCell]":
        from skipbench.results.store import find_result

        asked = run.asked
        return [c for c in run.cells if asked.force or find_result(asked.out, c.id) is None]

    def records(self, run: "Probe") -> int:
        return len(run.cells)

    def missing(self, run: "Probe") -> int:
        return len(self._todo(run))

    def needs(self, run: "Probe") -> "list[Need]":
        """Crops and windows are the probe's own; what is kept in memory cannot be shared."""
        from skipbench.runs.splits import check_masks
        from skipbench.suites.sharing import Need

        todo, keeping = self._todo(run), run.asked.keeping
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

    def do(self, run: "Probe") -> list[Result]:
        return run.run()

    def estimate(self, run: "Probe") -> "Estimate":
        from skipbench.runs._estimate import estimate

        rest = copy(run)
        rest.cells = self._todo(run)
        return estimate(rest)


KINDS: dict[str, Kind] = {"probe": ProbeKind()}
