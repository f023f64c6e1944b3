"""`skipbench run --dry-run`: the matrix with estimated time and disk. Nothing is written."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from skipbench.records import Result
from skipbench.suites.execute import Execution, passes
from skipbench.suites.plan import Cell, Plan, error_facts

if TYPE_CHECKING:
    from skipbench.evaluations.estimate import Estimate
    from skipbench.evaluations.run import Need, Run
    from skipbench.pipeline import Inspection


@dataclass(frozen=True)
class Forecast:
    """The cost of a cell. Images that several cells need count towards the first of them."""

    cell: Cell
    state: Literal["done before", "to do", "failed"]
    records: int = 0
    missing: int = 0  # of the records
    images: int = 0  # still to pass through the backbone
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
    return _DryRun(plan).run()


class _DryRun(Execution):
    """A short trial of every cell instead of its work."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.measured: dict[tuple[Any, ...], _Rates] = {}  # by shape of model and evaluation

    def done_before(self, cell: Cell, results: list[Result]) -> None:
        self.outcomes[cell] = Forecast(cell, "done before", len(results))

    def announce(self, cell: Cell) -> None:
        self.begin(len(self.outcomes), f"trial of {cell.checkpoint.name}")

    def refuse_duplicate(self, inspection: "Inspection", name: str) -> None:
        """Nothing is written."""

    def failed(self, cells: list[Cell], label: str, error: Exception) -> None:
        self.outcomes |= {cell: Forecast(cell, "failed", error=error) for cell in cells}

    def dataset(self, inspection: "Inspection", cells: list[Cell]) -> None:
        trials = []
        for cell in cells:
            with self.failing([cell], cell.title):
                run = self.open_run(cell, inspection)
                if run.missing():
                    needs = run.needs()
                    trials.append(_Trial(cell, run, needs, list(map(_missing_images, needs))))
                    self._cell(trials[-1])
                else:
                    self.outcomes[cell] = Forecast(cell, "done before", len(run.cells))
        self._add_passes([t for t in trials if self.outcomes[t.cell].state == "to do"])

    def _cell(self, trial: "_Trial") -> None:
        """Without features that can be shared: they count once for all cells that need them."""
        run, rates = trial.run, self._rates(trial)
        took, missing = rates.took, len(run.missing())
        found = Forecast(
            trial.cell, "to do", len(run.cells), missing, seconds=missing * rates.record,
            memory_bytes=took.memory_bytes,
        )  # fmt: skip
        if rates.alone:
            seconds = found.seconds + took.features_seconds
            found = replace(found, images=took.images, seconds=seconds, disk_bytes=took.disk_bytes)
        self.outcomes[trial.cell] = found

    def _rates(self, trial: "_Trial") -> "_Rates":
        """Measured once for models of one shape, unless all features existed then."""
        cell, images = trial.cell, sum(trial.images)
        key = (_shape(trial.run.backbone), cell.evaluation.name, cell.dataset)
        known = self.measured.get(key)
        if known is None or (images and not known.took.images):
            missing = trial.run.missing()
            took = trial.run.estimate(missing)
            columns = max((len(need.spec.columns) for need in trial.needs), default=1)
            computed = max(took.images, 1)
            known = self.measured[key] = _Rates(
                took,
                record=(took.training_seconds + took.scoring_seconds) / len(missing),
                image=took.features_seconds / computed,
                column=took.disk_bytes / computed / columns,
                alone=took.images > images,
            )
        return known

    def _add_passes(self, trials: "list[_Trial]") -> None:
        """Each pass counts towards the first cell that still needs images of it."""
        needs = [
            (need, trial)
            for trial in trials
            for need, images in zip(trial.needs, trial.images, strict=True)
            if images and not self._rates(trial).alone
        ]
        for group, spec in passes(needs):
            need, trial = group[0]
            rates, before = self._rates(trial), self.outcomes[trial.cell]
            images = _missing_images(replace(need, spec=spec))
            self.outcomes[trial.cell] = replace(
                before,
                images=before.images + images,
                seconds=before.seconds + images * rates.image,
                disk_bytes=before.disk_bytes + round(images * len(spec.columns) * rates.column),
            )


@dataclass(frozen=True)
class _Trial:
    """A cell to do. What is missing is looked up only once: comparing checksums takes time."""

    cell: Cell
    run: "Run"
    needs: "list[Need]"
    images: list[int]  # missing from the cache, for each need


@dataclass(frozen=True)
class _Rates:
    """Unit costs, from a trial of one cell."""

    took: "Estimate"
    record: float  # seconds of training and scoring
    image: float  # seconds of the forward pass
    column: float  # bytes of one tensor of one block of an image
    alone: bool  # it needs images that it cannot share: crops, windows


def _missing_images(need: "Need") -> int:
    from skipbench.features.store import missing_images

    return missing_images(need.backbone, need.pictures, need.spec, need.source.cache)


def _shape(backbone: Any) -> tuple[Any, ...]:
    facts = backbone.facts
    words = "width depth patch heads mlp_width gated_mlp registers layer_scale".split()
    return (*(getattr(facts, word) for word in words), backbone.residual, backbone.precision)
