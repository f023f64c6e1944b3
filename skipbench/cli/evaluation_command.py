"""One command for every evaluation, generated from its settings."""

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from skipbench.cli.generated import add_command
from skipbench.console import echo
from skipbench.evaluations import Evaluation, evaluations

if TYPE_CHECKING:
    from skipbench.evaluations.estimate import Estimate


def add_to(app: typer.Typer) -> None:
    for evaluation in evaluations().values():
        add_command(
            app, evaluation.name, evaluation.settings, partial(run, evaluation),
            doc=evaluation.summary, short_help=evaluation.headline, flags=("dry_run", "as_json"),
        )  # fmt: skip


def run(evaluation: Evaluation, settings: Any, dry_run: bool, as_json: bool) -> None:
    settings.ensure_files()
    if evaluation.run_instead(settings, dry_run, as_json):
        return
    data = evaluation.open_data(settings)  # mistakes are reported before torch is loaded

    from skipbench.pipeline import carry_out, open_run

    opened = open_run(evaluation, settings, data)
    if dry_run:
        show_estimate(opened.estimate(opened.cells), as_json)
        return
    results = carry_out(opened)
    if as_json:
        found = [result.to_json() for result in results]
        echo(json.dumps(found[0] if evaluation.writes_one else found, indent=2))
    else:
        evaluation.show(opened, results)


def show_estimate(found: "Estimate", as_json: bool) -> None:
    if as_json:
        echo(json.dumps(asdict(found) | {"seconds": found.seconds}, indent=2))
    else:
        echo("\n".join(found.lines()))
