"""`skipbench run --dry-run`: the matrix with estimated time and disk. Nothing is written."""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from skipbench.engine.progress import overall
from skipbench.suites.checkpoint_files import Opened, check_hashes, open_entry
from skipbench.suites.execute import open_cell, passes
from skipbench.suites.ledger import Ledger, error_facts
from skipbench.suites.plan import Cell, Plan

if TYPE_CHECKING:
    from skipbench.evaluations.estimate import Estimate
    from skipbench.evaluations.run import Need, Run


@dataclass(frozen=True)
class Forecast:
    """What a cell would take. Images that several cells need count towards the first of them."""

    cell: Cell
    state: Literal["done before", "to do", "failed"]
    records: int = 0
    missing: int = 0  # of the records
    images: int = 0  # not through the backbone yet
    seconds: float = 0.0
    disk_bytes: int = 0
    memory_bytes: int = 0
    error: Exception | None = None

    def to_json(self) -> dict[str, Any]:
        content = {**vars(self), **self.cell.facts()}
        del content["cell"]
        if self.error:
            content["error"] = error_facts(self.error)
        return content


def forecast(plan: Plan) -> list[Forecast]:
    return _Dry(plan).run()


class _Dry:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.found: dict[Cell, Forecast] = {}
        self.measured: dict[tuple[Any, ...], _Rates] = {}  # by shape of model and evaluation

    def run(self) -> list[Forecast]:
        ledger, cells = Ledger(self.plan), self.plan.cells
        for cell in cells:
            if results := ledger.find(cell):
                self.found[cell] = Forecast(cell, "done before", len(results))
        todo = [cell for cell in cells if cell not in self.found]
        check_hashes(self.plan.suite.path, [cell.checkpoint for cell in todo])
        with overall(len(cells), "cell") as begin:
            for entry, group in groupby(todo, lambda cell: cell.checkpoint):
                begin(len(self.found), f"trial of {entry.name}")
                self._checkpoint(list(group))
        return [self.found[cell] for cell in cells]

    def _checkpoint(self, cells: list[Cell]) -> None:
        try:
            opened = open_entry(cells[0].checkpoint, self.plan.places.device)
        except Exception as error:
            self.found |= {cell: Forecast(cell, "failed", error=error) for cell in cells}
            return
        for _, group in groupby(cells, lambda cell: cell.dataset):
            self._dataset(opened, list(group))

    def _dataset(self, opened: Opened, cells: list[Cell]) -> None:
        trials = []
        for cell in cells:
            try:
                run = open_cell(self.plan, cell, opened)
                if run.missing():
                    needs = run.needs()
                    trials.append(_Trial(cell, run, needs, list(map(_unseen, needs))))
                    self._cell(trials[-1])
                else:
                    self.found[cell] = Forecast(cell, "done before", len(run.cells))
            except Exception as error:
                self.found[cell] = Forecast(cell, "failed", error=error)
        self._add_passes([t for t in trials if self.found[t.cell].state == "to do"])

    def _cell(self, trial: "_Trial") -> None:
        """Without features that can be shared: they count once for all cells that need them."""
        run, rates = trial.run, self._rates(trial)
        took, missing = rates.took, len(run.missing())
        found = Forecast(trial.cell, "to do", len(run.cells), missing, 0, missing * rates.record)
        if rates.alone:
            seconds = found.seconds + took.features_seconds
            found = replace(found, images=took.images, seconds=seconds, disk_bytes=took.disk_bytes)
        self.found[trial.cell] = replace(found, memory_bytes=took.memory_bytes)

    def _rates(self, trial: "_Trial") -> "_Rates":
        """Measured once for models of one shape, unless all features existed then."""
        cell, unseen = trial.cell, sum(trial.unseen)
        key = (_shape(trial.run.backbone), cell.evaluation.name, cell.dataset)
        known = self.measured.get(key)
        if known is None or (unseen and not known.took.images):
            missing = trial.run.missing()
            took = trial.run.estimate(missing)
            columns = max((len(need.spec.columns) for need in trial.needs), default=1)
            known = _Rates(took, len(missing), columns, took.images > unseen)
            self.measured[key] = known
        return known

    def _add_passes(self, trials: "list[_Trial]") -> None:
        """Each counts towards the first cell that lacks some of it."""
        whose = {
            id(need): trial
            for trial in trials
            for need, unseen in zip(trial.needs, trial.unseen, strict=True)
            if unseen and not self._rates(trial).alone
        }
        for one in passes([n for t in trials for n in t.needs if id(n) in whose]):
            trial = whose[id(one.needs[0])]
            rates, was = self._rates(trial), self.found[trial.cell]
            images = _unseen(replace(one.needs[0], spec=one.spec))
            self.found[trial.cell] = replace(
                was,
                images=was.images + images,
                seconds=was.seconds + images * rates.image,
                disk_bytes=was.disk_bytes + round(images * len(one.spec.columns) * rates.column),
            )


@dataclass(frozen=True)
class _Trial:
    """A cell to do. Its checksums are compared only once: that takes time."""

    cell: Cell
    run: "Run"
    needs: "list[Need]"
    unseen: list[int]  # images, of each need


@dataclass(frozen=True)
class _Rates:
    """Unit costs, from a trial of one cell."""

    took: "Estimate"
    records: int
    columns: int
    alone: bool  # it needs images that it cannot share: crops, windows

    @property
    def record(self) -> float:
        """Seconds of training and scoring."""
        return (self.took.training_seconds + self.took.scoring_seconds) / self.records

    @property
    def image(self) -> float:
        """Seconds of the forward pass."""
        return self.took.features_seconds / max(self.took.images, 1)

    @property
    def column(self) -> float:
        """Bytes of one tensor of one block of an image."""
        return self.took.disk_bytes / max(self.took.images, 1) / self.columns


def _unseen(need: "Need") -> int:
    from skipbench.features.store import missing_images

    return missing_images(need.backbone, need.pictures, need.spec, need.source.cache)


def _shape(backbone: Any) -> tuple[Any, ...]:
    facts = backbone.facts
    words = "width depth patch heads mlp_width gated_mlp registers layer_scale".split()
    return (*(getattr(facts, word) for word in words), backbone.residual, backbone.precision)
