"""The evaluations, one folder each. A folder with an EVALUATION is found; nothing lists them.

run.py          what a run consists of: cells, each of which becomes a record
segmentation/   what probe, knn and cluster share

Everything that tables, report, check, suites, the demo and --help know of an evaluation is an
attribute of its `Evaluation`.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar

from skipbench.errors import UsageError, did_you_mean
from skipbench.records import Result
from skipbench.settings import Settings

if TYPE_CHECKING:
    from skipbench.datasets import Dataset
    from skipbench.evaluations.run import Run
    from skipbench.pipeline import Inspection


class Evaluation:
    """One per folder, as EVALUATION in its __init__.py; nothing heavy is imported until `open`."""

    name: str  # of the command, the Python function, the suite's kind and the records
    title: str  # in tables and on the report's page
    settings: ClassVar[type[Settings]]
    run: ClassVar[str]  # the class in run.py; what it prints is `show` in page.py
    version: ClassVar[int] = 1  # enters every id: raise it when the numbers move
    order: ClassVar[int] = 100  # in lists; equal ones by name

    # -- its records
    metrics: Mapping[str, str] = {}  # headline → how it is written: {"miou": "mIoU"}
    by_block: bool = False  # each block is scored by itself; the best is reported
    seed_changes: ClassVar[str | None] = None  # what another seed makes anew; None: has no seed
    protocol: ClassVar[str] = "paper"  # a record's protocol.name that needs no footnote
    task: ClassVar[str] = "image-segmentation"  # among the Hugging Face hub's
    methods: ClassVar[Mapping[str, str]] = {}  # protocol.method → title, if there are several
    named_by: ClassVar[Mapping[str, Any]] = {}  # settings in the name of a score → usual value
    hidden_settings: ClassVar[frozenset[str]] = frozenset()  # of the protocol, shown elsewhere
    tiles: ClassVar[Mapping[str, str]] = {}  # kind of picture → caption on the report's page
    glossary: ClassVar[Mapping[str, str]] = {}  # term → explanation, on the report's page
    redraws: ClassVar[bool] = False  # for `compare --pictures`: run.scored_images, run.drawing

    writes_one: ClassVar[bool] = False  # one record per run: --json prints it, not a list
    returns_one: ClassVar[bool] = False  # the Python function returns one record, not a list
    demo: ClassVar[Sequence[Mapping[str, Any]]] = ({},)  # settings of its runs in the demo
    swept: ClassVar[Sequence[str]] = ()  # settings in which the records of one run differ
    fixed_in_suites: ClassVar[Mapping[str, Any]] = {}  # settings that a suite may not change

    def target(self, ckpts: Sequence[str], dataset: str) -> Mapping[str, Any]:
        """The settings that say what is evaluated, for a suite or the demo."""
        return {"ckpt": ckpts[0], "dataset": dataset}

    @property
    def takes_several_checkpoints(self) -> bool:
        return "ckpts" in self.settings.options()

    def run_instead(self, settings: Any, dry_run: bool, as_json: bool) -> bool:
        """True if the settings asked for something that gives no record, and it was done."""
        return False

    def open_data(self, settings: Any) -> "list[Dataset]":
        """Every split it needs; called before torch is loaded."""
        raise NotImplementedError

    def open(
        self,
        settings: Any,
        data: "Sequence[Dataset]",
        inspections: "Sequence[Inspection]",
    ) -> "Run":
        """All but the work itself. inspections: of the checkpoint, or of several."""
        return getattr(self.module("run"), self.run)(inspections, data, settings)

    def show(self, run: Any, results: Sequence[Result]) -> None:
        """Print the finished records for a person."""
        self.module("page").show(run, results)

    def module(self, name: str) -> Any:
        """A module of its folder, or else the usual one; imported when it is needed."""
        own = f"{type(self).__module__}.{name}"
        return import_module(own if find_spec(own) else f"skipbench.evaluations.{name}")

    def remarks(self, result: Result) -> list[str]:
        """Footnotes wherever the score is shown."""
        return []

    def seed_matters(self, result: Result) -> bool:
        """Another seed could have given another score."""
        return self.has_seed and result.protocol.get("seed") is not None

    def versions(self) -> dict[str, int]:
        """Of everything that makes its numbers."""
        from skipbench.images import TRANSFORM_VERSION

        return {self.name: self.version, "transform": TRANSFORM_VERSION}

    @property
    def headline(self) -> str:
        """For lists: the first line of its package's docstring."""
        return self._doc[0]

    @property
    def summary(self) -> str:
        """For --help: the rest of that docstring."""
        return f"{self._doc[2]}\n\nResumable; existing records are reused."

    @property
    def _doc(self) -> tuple[str, str, str]:
        return (inspect.getdoc(sys.modules[type(self).__module__]) or "").partition("\n\n")

    @property
    def has_seed(self) -> bool:
        return self.seed_changes is not None


class UnknownEvaluation(Evaluation):
    """Of records that a newer version or another package has written."""

    seed_changes = "run"
    protocol = ""  # any

    def __init__(self, result: Result, metrics: Mapping[str, str]) -> None:
        self.name = self.title = result.evaluation
        self.metrics = metrics
        self.by_block = isinstance(result.metrics.get("blocks"), list)


@cache
def evaluations() -> dict[str, Evaluation]:
    """By name, in the order in which they are listed."""
    packages = [import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__) if m.ispkg]
    found = [package.EVALUATION for package in packages if hasattr(package, "EVALUATION")]
    return {one.name: one for one in sorted(found, key=lambda one: (one.order, one.name))}


def evaluation_of(result: Result) -> Evaluation:
    """With sensible defaults for a record of an evaluation that this version does not know."""
    known = evaluations()
    if result.evaluation in known:
        return known[result.evaluation]
    metrics = {name: title for one in known.values() for name, title in one.metrics.items()}
    return UnknownEvaluation(result, metrics)


def find_evaluation(name: str) -> Evaluation:
    known = evaluations()
    if name not in known:
        near = did_you_mean(name, known)
        raise UsageError(f"no evaluation {name!r}.{near} Known: {', '.join(known)}")
    return known[name]
