"""Printing for people: control characters in names are made visible, a closed pipe is tolerated.

Everything that a command prints goes through `echo` or `page`; progress through
`engine/progress.py`.
"""

import io
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from skipbench.engine import progress
from skipbench.errors import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def prepare_streams() -> None:
    """TERM=dumb is the one setting that all libraries respect: rich keeps bold type under NO_COLOR,
    and Typer takes a CI log for a terminal, but neither decorates output for a dumb one."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may be invalid UTF-8
    if progress.is_plain() and not os.environ.get("FORCE_COLOR"):
        os.environ["TERM"] = "dumb"


def reader_has_gone() -> NoReturn:
    """`skipbench … | head`: nothing went wrong."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(0)


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    typer.echo(printable_lines(str(text)), err=err, nl=nl)


def echo_json(value: object) -> None:
    echo(json.dumps(value, indent=2))


class _Lines(logging.Handler):
    """Log records as plain lines on stderr; warnings stand out where there is colour."""

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):  # a name is one line, also with a line break in it
            record.args = tuple(
                printable(str(one)) if isinstance(one, str | Path) else one for one in record.args
            )
        text = printable_lines(self.format(record))
        if record.levelno >= logging.WARNING:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
            console.print(f"warning: {text}", style="bold yellow", markup=False)
        else:
            echo(text, err=True)


def set_up_log(verbose: bool, quiet: bool) -> None:
    progress.quiet = quiet
    log = logging.getLogger("skipbench")
    log.handlers = [_Lines()]
    log.propagate = False
    log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)


def page(**options: Any) -> "Console":
    from rich.console import Console

    class Page(Console):
        def render_str(self, text: str, **style: Any) -> "Text":
            """Of all strings, also those in tables: their markup becomes style."""
            return super().render_str(printable_lines(text), **style)

        def on_broken_pipe(self) -> None:
            reader_has_gone()

    return Page(emoji=False, **options)


def wide_page(**options: Any) -> "Console":
    """For tables: a truncated number is worse than a long line."""
    from rich.console import Console

    return page(width=max(Console().width, 1000), highlight=False, **options)


def plain_table(*columns: str, right: Sequence[str] = (), **style: Any) -> Any:
    """Columns without borders. right: those that are right-aligned."""
    from rich.table import Table

    table = Table(**{"box": None, "padding": (0, 2, 0, 0), "header_style": "bold", **style})
    for name in columns:
        table.add_column(name, no_wrap=True, justify="right" if name in right else "left")
    return table


def shown(text: object) -> str:
    """Text from outside within a line of markup."""
    from rich.markup import escape

    return escape(printable(str(text)))


def open_in_browser(path: Path) -> None:
    """A machine without a browser is no reason to fail."""
    import webbrowser

    try:
        opened = webbrowser.open(path.absolute().as_uri())
    except (OSError, webbrowser.Error):
        opened = False
    if not opened:
        echo("no browser found; open the page yourself", err=True)
