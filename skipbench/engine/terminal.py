"""Colour and animation: only on a terminal, and only without NO_COLOR."""

import io
import os
import sys


def is_plain() -> bool:
    """No escape codes, no animation."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return True
    return not (sys.stdout.isatty() or sys.stderr.isatty())


def prepare_streams() -> None:
    """TERM=dumb is the one setting that all libraries respect: rich keeps bold type under NO_COLOR,
    and Typer takes a CI log for a terminal, but neither decorates output for a dumb one."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may be invalid UTF-8
    if is_plain() and not os.environ.get("FORCE_COLOR"):
        os.environ["TERM"] = "dumb"
