"""The commands put together. A file `<name>_command.py` in this folder adds itself."""

from importlib import import_module
from typing import Annotated

import typer

from skipbench import __version__
from skipbench.cli.generated import Group
from skipbench.console import echo, prepare_streams
from skipbench.engine.machine import wait_politely
from skipbench.engine.signals import CODES, INTERRUPTED, leave
from skipbench.files import remove_partial_files

app = typer.Typer(
    name="skipbench",
    cls=Group,
    help="Dense-prediction evaluation of frozen vision transformers, with and without skips.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    "demo", "evaluation", "run", "table", "report", "compare", "check", "reproduce", "results",
    "inspect", "extract", "data", "cache", "env", "manual",
)  # fmt: skip


def _show_version(value: bool) -> None:
    if value:
        echo(f"skipbench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    pass


for name in COMMANDS:
    import_module(f"skipbench.cli.{name}_command").add_to(app)


def main() -> None:
    prepare_streams()
    wait_politely()
    try:
        app()
    except KeyboardInterrupt:  # before a command has begun
        leave(INTERRUPTED, remove_partial_files)
    except SystemExit as end:
        if isinstance(end.code, int) and end.code in CODES.values():
            leave(end.code, remove_partial_files)
        raise
