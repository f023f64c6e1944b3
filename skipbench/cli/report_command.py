"""`skipbench report`: records as one HTML page."""

from typing import Annotated

import typer

from skipbench.cli import options
from skipbench.cli.running import with_exit_codes
from skipbench.console import open_in_browser


def add_to(app: typer.Typer) -> None:
    app.command("report")(with_exit_codes(report, keeps=False))


def report(
    results: options.Results = None,
    output: Annotated[
        str, typer.Option("--out", "-o", "--output", help="File to write.", metavar="FILE")
    ] = "report.html",
    title: Annotated[
        str | None, typer.Option("--title", help="Title of the page.", show_default=False)
    ] = None,
    where: options.Where = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    strict: options.Strict = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a self-contained HTML page: tables, curves, classes, pictures, provenance.

    It needs no network and no other file.
    """
    from skipbench.files import size_text
    from skipbench.results.report import report as make

    path = make(results or ["results"], output, title=title, where=where or (), strict=strict)
    typer.echo(f"{path}  {size_text(path.stat().st_size)}")
    if open_it:
        open_in_browser(path)
