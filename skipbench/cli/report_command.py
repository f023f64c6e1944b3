"""`skipbench report`: records as one page for a browser."""

from typing import Annotated

import typer

from skipbench.cli import options
from skipbench.console import open_in_browser


def add_to(app: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    app.command("report")(ending_well(report, keeps=False))


def report(
    results: options.Results = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The page; its folder is made.")
    ] = "report.html",
    title: Annotated[
        str | None, typer.Option("--title", help="Of the page.", show_default=False)
    ] = None,
    where: options.Where = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
    strict: options.Strict = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make one self-contained page of records: tables, curves, classes, pictures, provenance.

    It needs no network and no other file: send it, or open it from disk.
    """
    from skipbench.files import size_text
    from skipbench.results.report import report as make

    path = make(results or ["results"], output, title=title, where=where or (), strict=strict)
    typer.echo(f"{path}  {size_text(path.stat().st_size)}")
    if open_it:
        open_in_browser(path)
