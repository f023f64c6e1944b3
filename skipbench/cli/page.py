"""Printing to a person: a console that does not mind when its reader goes away."""

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from skipbench.evaluations.estimate import Estimate


def reader_has_gone() -> NoReturn:
    """`skipbench … | head`: nothing is left to say, and nothing went wrong."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(0)


def page(**options: Any) -> "Console":
    from rich.console import Console

    class Page(Console):
        def on_broken_pipe(self) -> None:
            reader_has_gone()

    return Page(**options)


def wide_page(**options: Any) -> "Console":
    """For tables: a figure that is cut off is worse than a line that is too long."""
    from rich.console import Console

    return page(width=max(Console().width, 1000), highlight=False, **options)


def say_estimate(found: "Estimate", as_json: bool) -> None:
    """Of a dry run."""
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"seconds": found.seconds}, indent=2))
    else:
        typer.echo("\n".join(found.lines()))


def plain_table(**style: Any) -> Any:
    """Columns without lines between them."""
    from rich.table import Table

    return Table(**{"box": None, "padding": (0, 2, 0, 0), "header_style": "bold", **style})


def shown(text: object) -> str:
    """A name from a file, as it is: no markup, and nothing that steers a terminal."""
    from rich.markup import escape

    from skipbench.results.rendering import printable

    return escape(printable(str(text)))


def open_in_browser(path: "Path") -> None:
    """The page is made; a machine without a browser is no reason to fail."""
    import webbrowser

    try:
        opened = webbrowser.open(path.absolute().as_uri())
    except (OSError, webbrowser.Error):
        opened = False
    if not opened:
        typer.echo("no browser to be found here: open it yourself", err=True)
