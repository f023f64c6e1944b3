"""The commands put together, and the way every one of them ends: with the right exit code."""

import functools
import logging
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

from skipbench import __version__
from skipbench.console import reader_has_gone
from skipbench.engine import terminal
from skipbench.engine.machine import wait_politely
from skipbench.engine.signals import INTERRUPTED, TERMINATED, Terminated, signals_end_it
from skipbench.errors import SkipbenchError

app = typer.Typer(
    name="skipbench",
    help="Dense-prediction evaluation of frozen vision transformers, with and without skips.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    "demo", "evaluation", "run", "table", "report", "compare", "check", "results", "inspect",
    "extract", "data", "cache", "env", "manual",
)  # fmt: skip


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"skipbench {__version__}")
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


def ending_well(command: Callable[..., None], keeps: bool = True) -> Callable[..., None]:
    """Errors of ours become one message and their exit code; `verbose` and `quiet` are seen to.

    keeps: whether what it has done by then is of use to the next run.
    """
    kept = "; what was done is kept" if keeps else ""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        verbose = bool(options.get("verbose"))
        set_up_log(verbose, bool(options.get("quiet")))
        try:
            with signals_end_it():
                command(**options)
                sys.stdout.flush()  # here, where a reader that has gone is no accident
        except SkipbenchError as error:
            _complain(str(error), verbose)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _complain(f"interrupted{kept}", verbose=False)
            raise typer.Exit(INTERRUPTED) from None
        except Terminated:
            _complain(f"terminated{kept}", verbose=False)
            raise typer.Exit(TERMINATED) from None
        except BrokenPipeError:
            reader_has_gone()
        except typer.Abort:  # Ctrl-C at a question
            raise typer.Exit(INTERRUPTED) from None
        except typer.Exit:
            raise
        except Exception as error:
            _complain(
                f"a bug in skipbench: {type(error).__name__}: {error}\n"
                "Please report it with the output of --verbose and of `skipbench env`.",
                verbose,
            )
            raise typer.Exit(1) from None

    return run


def _complain(message: str, verbose: bool) -> None:
    if verbose:
        import traceback

        traceback.print_exc()
    typer.echo(f"skipbench: {message}", err=True)


class _Lines(logging.Handler):
    """Log records as plain lines on stderr; warnings stand out where there is colour."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, soft_wrap=True)
            console.print(f"warning: {text}", style="bold yellow", markup=False)
        else:
            typer.echo(text, err=True)


def set_up_log(verbose: bool, quiet: bool) -> None:
    from skipbench.engine import progress

    progress.quiet = quiet
    log = logging.getLogger("skipbench")
    log.handlers = [_Lines()]
    log.propagate = False
    log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)


for name in COMMANDS:
    import_module(f"skipbench.cli.{name}_command").add_to(app)


def main() -> None:
    terminal.prepare_streams()
    wait_politely()
    try:
        app()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(INTERRUPTED)
