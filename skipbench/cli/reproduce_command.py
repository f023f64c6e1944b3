"""`skipbench reproduce RECORD`: run the call of a record again and compare the two."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from skipbench.cli.check_command import CHECK_FAILED
from skipbench.cli.commands import command
from skipbench.cli.results_command import ShowSettings
from skipbench.console import echo_json, plain_table, shown, wide_page
from skipbench.errors import printable
from skipbench.settings import CHECK, OUTPUT, parsers, setting
from skipbench.settings.groups import RerunSettings

if TYPE_CHECKING:
    from skipbench.results.reproduce import Reproduction

MOST_IMAGES = 5


@dataclass(frozen=True, kw_only=True)
class ReproduceSettings(ShowSettings, RerunSettings):
    baseline: Path | None = setting(
        None, help="Baseline with the noise of this score (`skipbench calibrate`).",
        parse=parsers.path, panel=CHECK, metavar="FILE",
    )  # fmt: skip
    out: Path | None = setting(
        None, help="Folder for the new record.", parse=parsers.path, panel=OUTPUT, metavar="DIR",
        default_text="RESULTS/reproduced",
    )  # fmt: skip


@command("reproduce", ReproduceSettings)
def reproduce(settings: ReproduceSettings, as_json: bool) -> None:
    """Run the call of a record again: identical, within the noise, or different (exit 5).

    Settings are read from the record; weights and images must be the same.
    """
    from skipbench.results.pick import pick_one

    record = pick_one(settings.id, settings.results)  # before torch is loaded

    from skipbench.results.reproduce import reproduce as run

    found = run(record, baseline=settings.baseline, out=settings.out, **settings.places())
    if as_json:
        echo_json(found.to_json())
    else:
        show(found)
    if found.verdict == "different":
        raise typer.Exit(CHECK_FAILED)


def show(found: "Reproduction") -> None:
    from skipbench.results.words import prose, signed

    console = wide_page()
    style = "bold red" if found.verdict == "different" else "bold green"
    console.print(f"\n{shown(found.record.result.id)}: [{style}]{found.verdict}[/{style}]")
    numbers = ("recorded", "here", "difference")
    table = plain_table(found.metric, *numbers, right=numbers)
    values = (f"{found.recorded:.2f}", f"{found.reproduced:.2f}", signed(found.difference, 2))
    table.add_row("", *values)
    console.print(table)
    console.print(f"allowed: {found.allowed:.2f} ({found.noise})", markup=False)
    for title, differing in (
        ("images", found.data), ("settings", found.settings), ("environment", found.environment),
    ):  # fmt: skip
        _show_differing(console, title, differing)
    for move in found.images[:MOST_IMAGES]:
        moved = f"{move.name}: {prose(move.a)} → {prose(move.b)}"
        console.print(f"image {printable(moved)}", markup=False)
    if len(found.images) > MOST_IMAGES:
        console.print(f"… {len(found.images):,} images differ (--json lists them)", markup=False)


def _show_differing(console: Any, title: str, differing: Any) -> None:
    """Values of the record and of this run."""
    from skipbench.results.words import prose

    if not differing:
        return
    table = plain_table()
    for name in (f"different {title}", "recorded", "here"):
        table.add_column(name, overflow="fold")
    for name, values in differing.items():
        table.add_row(shown(name), *(shown(prose(value)) for value in values))
    console.print(table)
