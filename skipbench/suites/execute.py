"""Runs a suite: finished cells are skipped, failures are recorded, and the rest continues."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skipbench.engine.progress import Begin, overall
from skipbench.errors import SkipbenchError, UsageError
from skipbench.files import cache_folder, ensure_writable
from skipbench.records import FeatureSpec, Result
from skipbench.suites.checkpoint_files import Opened, check_hashes, open_entry
from skipbench.suites.ledger import Ledger, error_facts, exit_code_of
from skipbench.suites.plan import Cell, Plan, make_plan, settings_of

if TYPE_CHECKING:
    from skipbench.evaluations.run import Need, Run
    from skipbench.suites.forecast import Forecast

log = logging.getLogger("skipbench")


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its records, or an error."""

    cell: Cell
    state: Literal["done", "done before", "failed"]
    results: tuple[Result, ...] = ()
    error: Exception | None = None

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            **self.cell.facts(),
            "state": self.state,
            "records": [result.id for result in self.results],
            "figures": [
                {
                    "record": result.id,
                    "layers": result.features.get("layers"),
                    "seed": result.protocol.get("seed"),
                    **{
                        key: result.protocol[key]
                        for key in self.cell.kind.swept
                        if key in result.protocol
                    },
                    **figure_of(result),
                    "interval": result.metrics.get("interval"),
                }
                for result in self.results
            ],
        }
        for result in self.results:  # all of one cell have the same
            for name, value in figure_of(result).items():
                content.setdefault(name, []).append(value)
        if self.error:
            content["error"] = error_facts(self.error)
        return content


def figure_of(result: Result) -> dict[str, Any]:
    """Its headline; empty for pictures without segments."""
    name = result.metrics.get("headline")
    return {} if name is None else {name: result.metrics[name]}


def exit_code(entries: "Sequence[Outcome | Forecast]") -> int:
    """That of the first failure, or 0."""
    return next((exit_code_of(entry.error) for entry in entries if entry.error), 0)


def run(
    path: str | Path,
    *,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    device: str | None = None,
    cache: str | Path | None = None,
    only: Sequence[str] = (),
    force: bool = False,
) -> list[Outcome]:
    """`skipbench run`: every cell of a suite. A failed cell is an outcome, not an exception; a
    mistake in the suite itself raises."""
    plan = make_plan(
        path, out=out, data_root=data_root, device=device, cache=cache, only=only, force=force
    )
    return carry_out(plan)


def carry_out(plan: Plan) -> list[Outcome]:
    ensure_writable(plan.places.out)
    ensure_writable(cache_folder(plan.places.cache) / "features")
    return _Work(plan).run()


class _Work:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.ledger = plan, Ledger(plan)
        self.outcomes: dict[Cell, Outcome] = {}
        self.begin: Begin = lambda done, label: None
        self.current: Cell | None = None
        self.names: dict[str, str] = {}  # of checkpoints that were opened, by what they are

    def run(self) -> list[Outcome]:
        for cell in self.plan.cells:
            if results := self.ledger.find(cell):
                self._first_name(results[0].checkpoint, cell.checkpoint.name)
                self._end(Outcome(cell, "done before", tuple(results)))
        before, cells = len(self.outcomes), self.plan.cells
        if before:
            log.info("%d of %d cells: done before; --force recomputes them", before, len(cells))
        todo = [cell for cell in cells if cell not in self.outcomes]
        check_hashes(self.plan.suite.path, [cell.checkpoint for cell in todo])
        if todo:
            with overall(len(cells), "cell") as self.begin:
                for _, group in groupby(todo, lambda cell: cell.checkpoint):
                    self._checkpoint(list(group))
        return [self.outcomes[cell] for cell in cells]

    def _begin(self, cell: Cell) -> None:
        """Announced once, however much comes before its own work."""
        if cell is not self.current:
            self.current = cell
            self.begin(len(self.outcomes), cell.title)

    def _checkpoint(self, cells: list[Cell]) -> None:
        """Read once; if that fails, all its cells have failed."""
        self._begin(cells[0])
        with self._failing(cells, cells[0].checkpoint.name):
            opened = open_entry(cells[0].checkpoint, self.plan.places.device)
            self._refuse_duplicate(opened, cells[0].checkpoint.name)
            for _, group in groupby(cells, lambda cell: cell.dataset):
                self._dataset(opened, list(group))

    def _refuse_duplicate(self, opened: Opened, name: str) -> None:
        """Two names for one model would overwrite each other's records."""
        choice, facts = opened.inspection.choice, opened.inspection.model.facts
        first = self._first_name({**vars(facts), "residual": choice and choice.residual}, name)
        if first != name:
            raise UsageError(f"the same weights as {first}, whose records they would overwrite")

    def _first_name(self, facts: Mapping[str, Any], name: str) -> str:
        words = ("sha256", "weights", "residual", "position_rule")
        return self.names.setdefault(str([facts.get(word) for word in words]), name)

    def _dataset(self, opened: Opened, cells: list[Cell]) -> None:
        """One pass over the images for all evaluations, then each of them runs."""
        self._begin(cells[0])
        runs: dict[Cell, Run] = {}
        for cell in cells:
            with self._failing([cell], cell.title):
                runs[cell] = open_cell(self.plan, cell, opened)
        self._share(runs)
        for cell in [cell for cell in runs if cell not in self.outcomes]:
            self._begin(cell)
            with self._failing([cell], cell.title):
                self._do(cell, runs.pop(cell))

    def _share(self, runs: "dict[Cell, Run]") -> None:
        """Features of which several evaluations need different blocks or tensors, in one pass."""
        needs = [(need, cell) for cell, run in runs.items() for need in run.needs()]
        whose = {id(need): cell for need, cell in needs}
        for one in passes([need for need, _ in needs]) if len(runs) > 1 else []:
            cells = [whose[id(need)] for need in one.needs]
            if one.is_shared and not any(cell in self.outcomes for cell in cells):
                with self._failing(cells, f"{cells[0].checkpoint.name} on {cells[0].data_name}"):
                    one.compute()

    def _do(self, cell: Cell, run: "Run") -> None:
        from skipbench.pipeline import carry_out

        state: Literal["done", "done before"] = "done" if run.missing() else "done before"
        results = carry_out(run)
        self.ledger.note(cell, results)
        self._end(Outcome(cell, state, tuple(results)))

    def _end(self, outcome: Outcome) -> None:
        self.ledger.forgive(outcome.cell)
        self.outcomes[outcome.cell] = outcome

    @contextmanager
    def _failing(self, cells: Sequence[Cell], whose: str) -> Iterator[None]:
        """An error in here fails those of the cells that have not ended."""
        try:
            yield
        except Exception as error:
            bug = "" if isinstance(error, SkipbenchError) else f"a bug: {type(error).__name__}: "
            log.error("%s failed: %s%s", whose, bug, error)
            log.debug("%s", whose, exc_info=True)
            for cell in cells:
                if cell not in self.outcomes:
                    self.ledger.fail(cell, error)
                    self.outcomes[cell] = Outcome(cell, "failed", error=error)
            # Its frames hold a model and features: the next cells need their memory.
            error.__traceback__ = error.__context__ = error.__cause__ = None


def open_cell(plan: Plan, cell: Cell, opened: Opened) -> "Run":
    from skipbench.pipeline import open_run

    settings = settings_of(plan.places, cell, opened.reading)
    return open_run(cell.kind, settings, plan.data_of(cell), [opened.inspection])


# -- one pass over the images for all evaluations that need features of the same images


@dataclass(frozen=True)
class Pass:
    """Needs of one model on the same images at the same size, and a spec that covers them all."""

    needs: "tuple[Need, ...]"
    spec: FeatureSpec

    @property
    def is_shared(self) -> bool:
        """Otherwise the first evaluation computes what all of them need."""
        return any(set(need.spec.columns) != set(self.spec.columns) for need in self.needs)

    def compute(self) -> None:
        """Afterwards each evaluation finds its features in the cache."""
        first = self.needs[0]
        first.check()
        label = f"features of {first.what} for {len(self.needs)} evaluations"
        first.source.features(first.backbone, first.pictures, self.spec, label).close()


def passes(needs: "Sequence[Need]") -> list[Pass]:
    from skipbench.features.store import describe, key_of

    groups: dict[str, list[Need]] = {}
    for need in needs:
        key = key_of(describe(need.backbone, need.pictures, need.spec))
        groups.setdefault(key, []).append(need)
    return [
        Pass(tuple(group), _for_all([need.spec for need in group])) for group in groups.values()
    ]


def _for_all(specs: Sequence[FeatureSpec]) -> FeatureSpec:
    """Every tensor of every block that one of them takes."""
    return replace(
        specs[0],
        blocks=tuple(sorted({block for spec in specs for block in spec.blocks})),
        tensors=tuple(dict.fromkeys(tensor for spec in specs for tensor in spec.tensors)),
    )
