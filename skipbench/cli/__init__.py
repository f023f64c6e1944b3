"""The command line. Parsing imports neither torch nor timm.

A file `<name>_command.py` in this folder adds the commands in it; the command of an evaluation is
made from its settings.
"""

import atexit
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer

from skipbench import __version__
from skipbench.cli.commands import app, command
from skipbench.console import echo, echo_json, prepare_streams
from skipbench.engine.machine import wait_politely
from skipbench.engine.signals import CODES, leave
from skipbench.evaluations import Evaluation, evaluations
from skipbench.files import remove_partial_files

__all__ = ["app", "main"]

COMMANDS = (
    "run", "table", "compare", "check", "reproduce", "results", "inspect", "extract", "data",
    "cache", "env", "manual",
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
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def run_evaluation(evaluation: Evaluation, settings: Any, dry_run: bool, as_json: bool) -> None:
    settings.ensure_files()
    if evaluation.run_instead(settings, dry_run, as_json):
        return
    data = evaluation.open_data(settings)  # mistakes are reported before torch is loaded

    from skipbench.pipeline import carry_out, open_run

    opened = open_run(evaluation, settings, data)
    if dry_run:
        found = opened.estimate(opened.cells)
        if as_json:
            echo_json(asdict(found) | {"seconds": found.seconds})
        else:
            echo("\n".join(found.lines()))
        return
    results = carry_out(opened)
    if as_json:
        records = [result.to_json() for result in results]
        echo_json(records[0] if evaluation.writes_one else records)
    else:
        evaluation.show(opened, results)


import_module("skipbench.cli.demo_command")
for evaluation in evaluations().values():
    command(
        evaluation.name, evaluation.settings, flags=("dry_run", "as_json"),
        doc=evaluation.summary, short_help=evaluation.headline,
    )(partial(run_evaluation, evaluation))  # fmt: skip
for name in COMMANDS:
    import_module(f"skipbench.cli.{name}_command")


def main() -> None:
    prepare_streams()
    wait_politely()
    code = 1  # of an exception
    atexit.register(lambda: leave(code))  # the first to be registered is the last to be called
    try:
        app()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code in CODES.values():
            remove_partial_files()
            leave(code)
        raise
