"""`skipbench run`: a suite of checkpoints × evaluations × data sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from skipbench.cli.commands import command
from skipbench.console import echo_json, plain_table, shown, wide_page
from skipbench.engine.progress import duration
from skipbench.files import size_text
from skipbench.settings import DATA, OUTPUT, WHAT, Settings, parsers, same_as, setting
from skipbench.settings.groups import DataSettings, FeatureSettings, ReadingSettings, RecordSettings

if TYPE_CHECKING:
    from skipbench.suites import Outcome
    from skipbench.suites.forecast import Forecast


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    suite: str = setting(
        help="TOML file: checkpoints, evaluations, data sets.", parse=parsers.text, panel=WHAT,
        metavar="SUITE", argument=True,
    )  # fmt: skip
    only: tuple[str, ...] = setting(
        (), help="Only these checkpoints, by name or pattern ('skip-*'). Repeatable.",
        parse=parsers.texts, panel=WHAT, metavar="NAME", several=True,
    )  # fmt: skip
    data_root: str | None = same_as(DataSettings, "data_root", None, panel=DATA)
    device: str | None = same_as(
        ReadingSettings, "device", None, default_text="the suite's, or auto"
    )
    cache: str | None = same_as(FeatureSettings, "cache", None)
    out: str | None = setting(
        None, help="Folder for records.", parse=parsers.text, panel=OUTPUT, metavar="DIR",
        default_text="the suite's, or results",
    )  # fmt: skip
    force: bool = same_as(RecordSettings, "force", False)
    log: tuple[str, ...] | None = same_as(
        RecordSettings, "log", None, default_text="the suite's"
    )  # fmt: skip


@command("run", RunSettings, flags=("dry_run", "as_json"))
def run(settings: RunSettings, dry_run: bool, as_json: bool) -> None:
    """Evaluate many checkpoints on many data sets, as described in a TOML file.

    The file is checked before anything runs. Finished cells are skipped; a failed one is recorded
    in OUT/failures, and the rest continues.
    """
    from skipbench.suites import carry_out, exit_code, make_plan
    from skipbench.suites.forecast import forecast

    given = dict(vars(settings))
    plan = make_plan(given.pop("suite"), **given)
    found: Sequence[Outcome] | Sequence[Forecast]
    found = forecast(plan) if dry_run else carry_out(plan)
    if as_json:
        echo_json([entry.to_json() for entry in found])
    elif dry_run:
        _show_forecasts(found)  # type: ignore[arg-type]
    else:
        _show_outcomes(found, str(plan.places.out))  # type: ignore[arg-type]
    if code := exit_code(found):
        raise typer.Exit(code)


# -- what was done


def _show_outcomes(outcomes: "Sequence[Outcome]", out: str) -> None:
    has_epochs = any(r.checkpoint["epoch"] is not None for o in outcomes for r in o.results)
    epochs = ["epoch"] if has_epochs else []
    table = plain_table(
        "checkpoint", "data set", "evaluation", *epochs, "layers", "", "95 % interval",
        right=["epoch", "", "95 % interval"], header_style="dim",
    )  # fmt: skip
    for outcome in outcomes:
        place = _place(outcome)
        for epoch, *figures in _figures(outcome):
            table.add_row(*place, *([epoch] if has_epochs else []), *figures)
        if outcome.error:
            table.add_row(*place, *([""] if has_epochs else []), "", "failed", style="bold red")
    failed = sum(outcome.state == "failed" for outcome in outcomes)
    before = sum(outcome.state == "done before" for outcome in outcomes)
    words = [f"{len(outcomes) - failed} of {len(outcomes)} cells done"]
    words += [f"{before} of them earlier"] if before else []
    words += [f"{failed} failed ({out}/failures)"] if failed else []
    _print(table, [*_failures(outcomes), ", ".join(words) + f"; records in {out}"])


def _figures(outcome: "Outcome") -> Iterator[tuple[str, str, str, str]]:
    """(epoch, features, headline, interval) of each figure, over its seeds."""
    from skipbench.results.entries import entries
    from skipbench.results.read import Stored

    for entry in entries(Stored(result, Path()) for result in outcome.results):
        epoch, interval = entry.facts["epoch"], ""
        name = entry.first.metric_name
        if entry.spread is not None:
            spread = f"± {entry.spread:.2f} ({len(entry.scores)} seeds)"
            figure = f"{name} {entry.value:.2f} {spread}"
        else:
            figure = f"{name} {entry.value:.1f}"
            interval = "{:.1f} to {:.1f}".format(*entry.interval) if entry.interval else ""
        layers = str(entry.first.result.features.get("layers", ""))
        features = shown(", ".join([layers, *entry.first.unusual_settings]))
        yield "" if epoch is None else str(epoch), features, figure, interval


# -- what would be done


def _show_forecasts(forecasts: "Sequence[Forecast]") -> None:
    numbers = ("records", "images", "time", "disk")
    table = plain_table(
        "checkpoint", "data set", "evaluation", "", *numbers, right=numbers, header_style="dim"
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
    todo = [each for each in forecasts if each.state == "to do"]
    memory = max((each.memory_bytes for each in todo), default=0)
    total = [
        f"{len(todo)} of {len(forecasts)} cells to do: {sum(e.missing for e in todo)} records, "
        f"{sum(e.images for e in todo):,} images through the backbone",
        f"in all about {duration(sum(e.seconds for e in todo))}, "
        f"{size_text(sum(e.disk_bytes for e in todo))} of disk, {size_text(memory)} of memory",
    ]
    _print(table, [*_failures(forecasts), *total])


# -- both


def _place(entry: "Outcome | Forecast") -> tuple[str, str, str]:
    cell = entry.cell
    return shown(cell.checkpoint.name), shown(cell.data_name), shown(cell.evaluation.name)


def _failures(entries: "Sequence[Outcome | Forecast]") -> list[str]:
    """One line per error, which cells may share."""
    errors: dict[int, Exception] = {id(e.error): e.error for e in entries if e.error}
    lines = []
    for number, error in errors.items():
        titles = [entry.cell.title for entry in entries if id(entry.error) == number]
        more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        lines.append(f"{titles[0]}{more} failed: {error or type(error).__name__}")
    return lines


def _print(table: Any, lines: "Sequence[str]") -> None:
    console = wide_page()
    console.print(table)
    console.print("\n".join(lines), markup=False)
