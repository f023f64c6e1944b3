"""How every command runs: logging, and errors as one message with the right exit code."""

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from skipbench.console import echo, reader_has_gone
from skipbench.engine.signals import INTERRUPTED, TERMINATED, Terminated, signals_end_it
from skipbench.errors import SkipbenchError, printable, printable_lines
from skipbench.files import remove_partial_files


def with_exit_codes(command: Callable[..., None], keeps: bool = True) -> Callable[..., None]:
    """A command whose errors become one message and an exit code; it obeys `verbose` and `quiet`.

    keeps: an interrupted run can be resumed.
    """
    kept = "; finished work is kept" if keeps else ""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        verbose = bool(options.get("verbose"))
        set_up_log(verbose, bool(options.get("quiet")))
        try:
            with signals_end_it(remove_partial_files):
                command(**options)
                sys.stdout.flush()  # here, where a closed pipe is handled
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

        echo(traceback.format_exc().rstrip(), err=True)
    echo(f"skipbench: {message}", err=True)


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
    from skipbench.engine import progress

    progress.quiet = quiet
    log = logging.getLogger("skipbench")
    log.handlers = [_Lines()]
    log.propagate = False
    log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
