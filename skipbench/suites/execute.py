"""Runs a suite: finished cells are skipped, failures are recorded, and the rest continues."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from skipbench.engine.progress import overall
from skipbench.errors import CheckpointError, SkipbenchError, UsageError
from skipbench.files import cache_folder, ensure_writable
from skipbench.records import FeatureSpec, Result
from skipbench.settings.groups import ReadingSettings
from skipbench.suites.plan import Cell, Ledger, Plan, error_facts, make_plan, settings_of
from skipbench.suites.problems import Problems
from skipbench.suites.read import CheckpointEntry
from skipbench.tracking import log_results

if TYPE_CHECKING:
    from skipbench.evaluations.run import Need, Run
    from skipbench.pipeline import Inspection
    from skipbench.suites.forecast import Forecast

log = logging.getLogger("skipbench")

Owner = TypeVar("Owner")


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
    return next((error_facts(one.error)["exit_code"] for one in entries if one.error), 0)


def run(
    path: str | Path,
    *,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    device: str | None = None,
    cache: str | Path | None = None,
    only: Sequence[str] = (),
    force: bool = False,
    log: str | Sequence[str] | None = None,
) -> list[Outcome]:
    """`skipbench run`: every cell of a suite. A failed cell is an outcome, not an exception; a
    mistake in the suite itself raises."""
    plan = make_plan(
        path, out=out, data_root=data_root, device=device, cache=cache, only=only, force=force,
        log=log,
    )  # fmt: skip
    return carry_out(plan)


def carry_out(plan: Plan) -> list[Outcome]:
    ensure_writable(plan.places.out)
    ensure_writable(cache_folder(plan.places.cache) / "features")
    return Execution(plan).run()


class Execution:
    """Goes through the cells of a plan; each checkpoint is opened once for all of its cells."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.ledger = plan, Ledger(plan)
        self.outcomes: dict[Cell, Any] = {}
        self.announced: Cell | None = None
        self.names: dict[str, str] = {}  # of opened checkpoints, by the facts that tell them apart

    def run(self) -> list[Any]:
        cells = self.plan.cells
        for cell in cells:
            if results := self.ledger.find(cell):
                self.done_before(cell, results)
        if done := len(self.outcomes):
            log.info("%d of %d cells: done before; --force recomputes them", done, len(cells))
        todo = [cell for cell in cells if cell not in self.outcomes]
        _check_hashes(self.plan.suite.path, [cell.checkpoint for cell in todo])
        if todo:
            with overall(len(cells), "cell") as self.begin:
                for entry, group in groupby(todo, lambda cell: cell.checkpoint):
                    self._checkpoint(entry, list(group))
        return [self.outcomes[cell] for cell in cells]

    def done_before(self, cell: Cell, results: list[Result]) -> None:
        self._first_name(results[0].checkpoint, cell.checkpoint.name)
        log_results(self.plan.places.log, results)
        self._end(Outcome(cell, "done before", tuple(results)))

    def announce(self, cell: Cell) -> None:
        """Once for each cell, however much precedes its own work."""
        if cell is not self.announced:
            self.announced = cell
            self.begin(len(self.outcomes), cell.title)

    def _checkpoint(self, entry: CheckpointEntry, cells: list[Cell]) -> None:
        """If it cannot be opened, all its cells have failed."""
        self.announce(cells[0])
        with self.failing(cells, entry.name):
            inspection = _open_checkpoint(entry, self.plan.places.device)
            self.refuse_duplicate(inspection, entry.name)
            for _, group in groupby(cells, lambda cell: cell.dataset):
                self.dataset(inspection, list(group))

    def refuse_duplicate(self, inspection: "Inspection", name: str) -> None:
        """Two names for one model would overwrite each other's records."""
        choice, facts = inspection.choice, inspection.model.facts
        first = self._first_name({**vars(facts), "residual": choice and choice.residual}, name)
        if first != name:
            raise UsageError(f"the same weights as {first}, whose records they would overwrite")

    def _first_name(self, facts: Mapping[str, Any], name: str) -> str:
        words = ("sha256", "weights", "residual", "position_rule")
        return self.names.setdefault(str([facts.get(word) for word in words]), name)

    def dataset(self, inspection: "Inspection", cells: list[Cell]) -> None:
        """One pass over the images for all evaluations, then each of them runs."""
        self.announce(cells[0])
        runs: dict[Cell, Run] = {}
        for cell in cells:
            with self.failing([cell], cell.title):
                runs[cell] = self.open_run(cell, inspection)
        self._share_features(runs)
        for cell in [cell for cell in runs if cell not in self.outcomes]:
            self.announce(cell)
            with self.failing([cell], cell.title):
                self._carry_out(cell, runs.pop(cell))

    def open_run(self, cell: Cell, inspection: "Inspection") -> "Run":
        from skipbench.pipeline import open_run

        settings = settings_of(self.plan.places, cell)
        return open_run(cell.kind, settings, self.plan.data_of(cell), [inspection])

    def _share_features(self, runs: "dict[Cell, Run]") -> None:
        """Features of which several evaluations need different blocks or tensors, in one pass."""
        needs = [(need, cell) for cell, run in runs.items() for need in run.needs()]
        for group, spec in passes(needs) if len(runs) > 1 else []:
            first, cells = group[0][0], [cell for _, cell in group]
            if all(set(need.spec.columns) == set(spec.columns) for need, _ in group):
                continue  # the first evaluation computes what all of them need
            if not any(cell in self.outcomes for cell in cells):
                with self.failing(cells, f"{cells[0].checkpoint.name} on {cells[0].data_name}"):
                    first.check()
                    label = f"features of {first.what} for {len(group)} evaluations"
                    first.source.features(first.backbone, first.pictures, spec, label).close()

    def _carry_out(self, cell: Cell, run: "Run") -> None:
        from skipbench.pipeline import carry_out

        state: Literal["done", "done before"] = "done" if run.missing() else "done before"
        results = carry_out(run)
        self.ledger.note(cell, results)
        self._end(Outcome(cell, state, tuple(results)))

    def _end(self, outcome: Outcome) -> None:
        self.ledger.clear_failure(outcome.cell)
        self.outcomes[outcome.cell] = outcome

    @contextmanager
    def failing(self, cells: Sequence[Cell], label: str) -> Iterator[None]:
        """An error inside fails those of the cells that have no outcome yet."""
        try:
            yield
        except Exception as error:
            pending = [cell for cell in cells if cell not in self.outcomes]
            if not pending:
                raise
            self.failed(pending, label, error)
            # Its frames hold a model and features: the next cells need their memory.
            error.__traceback__ = error.__context__ = error.__cause__ = None

    def failed(self, cells: list[Cell], label: str, error: Exception) -> None:
        bug = "" if isinstance(error, SkipbenchError) else f"a bug: {type(error).__name__}: "
        log.error("%s failed: %s%s", label, bug, error)
        log.debug("%s", label, exc_info=True)
        for cell in cells:
            self.ledger.note_failure(cell, error)
            self.outcomes[cell] = Outcome(cell, "failed", error=error)


def passes(
    needs: "Iterable[tuple[Need, Owner]]",
) -> "Iterator[tuple[list[tuple[Need, Owner]], FeatureSpec]]":
    """Needs of one model on the same images at the same size, each with whose it is; and a spec of
    every tensor of every block that one of them takes."""
    from skipbench.features.store import describe, key_of

    groups: dict[str, list[tuple[Need, Owner]]] = {}
    for need, owner in needs:
        key = key_of(describe(need.backbone, need.pictures, need.spec))
        groups.setdefault(key, []).append((need, owner))
    for group in groups.values():
        specs = [need.spec for need, _ in group]
        blocks = sorted({block for spec in specs for block in spec.blocks})
        tensors = dict.fromkeys(tensor for spec in specs for tensor in spec.tensors)
        pools = dict.fromkeys(pool for spec in specs for pool in spec.pools)
        yield (
            group,
            replace(specs[0], blocks=tuple(blocks), tensors=tuple(tensors), pools=tuple(pools)),
        )


# -- checkpoints


def _check_hashes(suite: Path, entries: Iterable[CheckpointEntry]) -> None:
    """Before anything runs, so that a wrong file is not found hours later."""
    from skipbench.files import sha256_of
    from skipbench.sources import source_of

    problems = Problems(suite)
    for entry in dict.fromkeys(entries):
        path = source_of(entry.path).path
        if entry.sha256 and path and path.is_file():
            try:
                _compare_hash(entry, sha256_of(path))
            except CheckpointError as error:
                problems.add(f"{entry.table}.sha256", error)
    problems.raise_if_any()


def _compare_hash(entry: CheckpointEntry, sha256: str) -> None:
    if entry.sha256 and not sha256.startswith(entry.sha256):
        raise CheckpointError(
            f"{entry.path}: not the expected file\nsha256 {sha256}\nexpected {entry.sha256}"
        )


def _open_checkpoint(entry: CheckpointEntry, device: str) -> "Inspection":
    from skipbench.pipeline import inspect, labelled

    reading = ReadingSettings.make({**entry.reading(), "device": device}).reading()
    inspection = inspect(entry.path, **reading)
    model = inspection.model
    _compare_hash(entry, model.facts.sha256)
    stated, named = model.facts.epoch, entry.name_epoch
    if named is None:
        return inspection
    if stated is None:
        return replace(inspection, model=labelled(model, {"epoch": named}))
    if abs(stated - named) > 1:  # DINO's numbers differ by one
        log.warning("%s says epoch %s, its name %s: using the file's", entry.name, stated, named)
    return inspection
