"""Colour and animation: where a person looks at a terminal, and has not said NO_COLOR."""

import io
import os
import sys


def is_plain() -> bool:
    """No escape codes, no animation."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return True
    return not (sys.stdout.isatty() or sys.stderr.isatty())


def prepare_streams() -> None:
    """Say it in the one way that every library on the way heeds: rich keeps bold type under
    NO_COLOR, and Typer takes a CI log for a terminal, but neither decorates a dumb one."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may be no text at all
    if is_plain() and not os.environ.get("FORCE_COLOR"):
        os.environ["TERM"] = "dumb"
