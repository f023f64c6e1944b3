"""`skipbench run`: a suite of checkpoints × evaluations × data sets."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options
from skipbench.cli.running import with_exit_codes
from skipbench.console import shown, wide_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipbench.suites import Outcome
    from skipbench.suites.forecast import Forecast


def add_to(app: typer.Typer) -> None:
    app.command("run")(with_exit_codes(run))


def run(
    suite: Annotated[str, typer.Argument(help="A TOML file: checkpoints, evaluations, data sets.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="NAME",
            help="These checkpoints, by name or pattern ('skip-*'); repeatable.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", help="Folder for the records.", show_default="the suite's, or results"
        ),
    ] = None,
    data_root: options.DataRoot = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="auto|cpu|cuda|cuda:N|mps",
            help="Where to compute.",
            show_default="the suite's, or auto",
        ),
    ] = None,
    cache: options.Cache = None,
    force: options.Force = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only show the matrix, with time and disk, from trials on few images."
        ),
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Evaluate many checkpoints on many data sets, as a file says.

    The file is checked before anything runs. Finished cells are skipped; a failed one is written
    down in OUT/failures, and the rest goes on.
    """
    from skipbench.suites import carry_out, exit_code, make_plan
    from skipbench.suites.forecast import forecast

    plan = make_plan(
        suite, only=only or (), force=force, out=out, data_root=data_root, device=device,
        cache=cache,
    )  # fmt: skip
    found: Sequence[Outcome] | Sequence[Forecast]
    found = forecast(plan) if dry_run else carry_out(plan)
    if as_json:
        typer.echo(json.dumps([entry.to_json() for entry in found], indent=2))
    elif dry_run:
        _show_forecasts(found)  # type: ignore[arg-type]
    else:
        _show_outcomes(found, str(plan.places.out))  # type: ignore[arg-type]
    if code := exit_code(found):
        raise typer.Exit(code)


# -- what was done


def _show_outcomes(outcomes: "Sequence[Outcome]", out: str) -> None:
    with_epochs = any(r.checkpoint["epoch"] is not None for o in outcomes for r in o.results)
    epoch_column = ["epoch"] if with_epochs else []
    table = _table(("checkpoint", "data set", "evaluation"), epoch_column)
    table.add_column("layers", no_wrap=True)
    table.add_column("", no_wrap=True, justify="right")
    table.add_column("95 % interval", no_wrap=True, justify="right")
    for outcome in outcomes:
        place = _place(outcome)
        for epoch, *figures in _figures(outcome):
            table.add_row(*place, *([epoch] if with_epochs else []), *figures)
        if outcome.error:
            table.add_row(*place, *([""] if with_epochs else []), "", "failed", style="bold red")
    failed = sum(outcome.state == "failed" for outcome in outcomes)
    before = sum(outcome.state == "done before" for outcome in outcomes)
    words = [f"{len(outcomes) - failed} of {len(outcomes)} cells done"]
    words += [f"{before} of them before"] if before else []
    words += [f"{failed} failed ({out}/failures)"] if failed else []
    _print(table, [*_failures(outcomes), ", ".join(words) + f"; records in {out}"])


def _figures(outcome: "Outcome") -> "Iterator[tuple[str, str, str, str]]":
    """(epoch, layers and the like, headline, interval) of each figure, over its seeds."""
    from pathlib import Path

    from skipbench.results.entries import entries
    from skipbench.results.read import Stored

    for entry in entries(Stored(result, Path()) for result in outcome.results):
        epoch, between = entry.facts["epoch"], ""
        name = entry.first.metric_name
        if entry.spread is not None:
            spread = f"± {entry.spread:.2f} ({len(entry.scores)} seeds)"
            figure = f"{name} {entry.value:.2f} {spread}"
        else:
            figure = f"{name} {entry.value:.1f}"
            between = "{:.1f} to {:.1f}".format(*entry.interval) if entry.interval else ""
        layers = str(entry.first.result.features.get("layers", ""))
        told = ", ".join([layers, *entry.first.unusual_settings])
        yield "" if epoch is None else str(epoch), told, figure, between


# -- what would be done


def _show_forecasts(forecasts: "Sequence[Forecast]") -> None:
    from skipbench.engine.progress import duration
    from skipbench.files import size_text

    table = _table(
        ("checkpoint", "data set", "evaluation", ""), ("records", "images", "time", "disk")
    )
    for each in forecasts:
        if each.error:
            table.add_row(*_place(each), "failed", style="bold red")
        elif each.state == "done before":
            table.add_row(*_place(each), "done", f"{each.records}", style="dim")
        else:
            records = f"{each.missing} of {each.records}"
            took = duration(each.seconds), size_text(each.disk_bytes)
            table.add_row(*_place(each), "to do", records, f"{each.images:,}", *took)
    _print(table, [*_failures(forecasts), *_in_all(forecasts)])


def _in_all(forecasts: "Sequence[Forecast]") -> list[str]:
    from skipbench.engine.progress import duration
    from skipbench.files import size_text

    todo = [each for each in forecasts if each.state == "to do"]
    memory = max((each.memory_bytes for each in todo), default=0)
    return [
        f"{len(todo)} of {len(forecasts)} cells to do: {sum(e.missing for e in todo)} records, "
        f"{sum(e.images for e in todo):,} images through the backbone",
        f"in all about {duration(sum(e.seconds for e in todo))}, "
        f"{size_text(sum(e.disk_bytes for e in todo))} of disk, {size_text(memory)} of memory",
    ]


# -- both


def _place(entry: "Outcome | Forecast") -> tuple[str, str, str]:
    cell = entry.cell
    return shown(cell.checkpoint.name), shown(cell.data_name), shown(cell.evaluation.name)


def _failures(entries: "Sequence[Outcome | Forecast]") -> list[str]:
    """Cells that have failed together are named together."""
    errors: dict[int, Exception] = {id(e.error): e.error for e in entries if e.error}
    lines = []
    for number, error in errors.items():
        titles = [entry.cell.title for entry in entries if id(entry.error) == number]
        more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        lines.append(f"{titles[0]}{more} failed: {error or type(error).__name__}")
    return lines


def _table(words: "Sequence[str]", numbers: "Sequence[str]") -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, no_wrap=True, justify="right")
    return table


def _print(table: Any, lines: "Sequence[str]") -> None:
    console = wide_page()
    console.print(table)
    console.print("\n".join(lines), markup=False)
