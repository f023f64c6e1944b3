"""`skipbench report`: records as one HTML page."""

from dataclasses import dataclass
from pathlib import Path

import typer

from skipbench.cli.generated import add_command
from skipbench.console import echo, open_in_browser
from skipbench.settings import parsers, setting
from skipbench.settings.declaration import OUTPUT
from skipbench.settings.groups import ResultsSettings


@dataclass(frozen=True, kw_only=True)
class ReportSettings(ResultsSettings):
    out: Path = setting(
        Path("report.html"), help="File to write.", parse=parsers.path, panel=OUTPUT,
        metavar="FILE", flags=("--out", "-o", "--output"),
    )  # fmt: skip
    title: str | None = setting(
        None, help="Title of the page.", parse=parsers.text, panel=OUTPUT, metavar="TEXT"
    )
    open: bool = setting(False, help="Open it in a browser.", panel=OUTPUT)


def add_to(app: typer.Typer) -> None:
    add_command(app, "report", ReportSettings, report, flags=(), keeps=False)


def report(settings: ReportSettings) -> None:
    """Write a self-contained HTML page: tables, curves, classes, pictures, provenance.

    It needs no network and no other file.
    """
    from skipbench.files import size_text
    from skipbench.results.report import report as make

    path = make(
        settings.results, settings.out, title=settings.title, where=settings.where,
        strict=settings.strict,
    )  # fmt: skip
    echo(f"{path}  {size_text(path.stat().st_size)}")
    if settings.open:
        open_in_browser(path)
