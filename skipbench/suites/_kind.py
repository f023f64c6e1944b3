"""What a suite asks of an evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.errors import UsageError
from skipbench.records import Result
from skipbench.suites._keys import Check

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.evaluations.estimate import Estimate
    from skipbench.pipeline import Inspection, Reading
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
