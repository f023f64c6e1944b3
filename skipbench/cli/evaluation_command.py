"""One command for every evaluation, generated from its settings."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options as common
from skipbench.evaluations import evaluations
from skipbench.evaluations.base import Evaluation
from skipbench.settings import Option, Settings
from skipbench.settings.declaration import PANELS, shown

if TYPE_CHECKING:
    from skipbench.evaluations.estimate import Estimate

# Every generated command has these, beside its settings.
COMMON = {
    "dry_run": common.DryRun, "as_json": common.Json, "quiet": common.Quiet,
    "verbose": common.Verbose, "help": common.Help,
}  # fmt: skip


def add_to(app: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    for evaluation in evaluations().values():
        command = ending_well(command_of(evaluation))
        app.command(evaluation.name, short_help=evaluation.headline, add_help_option=False)(command)


def command_of(evaluation: Evaluation) -> Callable[..., None]:
    def command(**given: Any) -> None:
        flags = {name: given.pop(name) for name in COMMON}
        run(evaluation, values_of(evaluation.settings, given), flags["dry_run"], flags["as_json"])

    parameters = dict(_parameters(evaluation.settings))
    parameters |= {name: _parameter(name, annotation, False) for name, annotation in COMMON.items()}
    return with_signature(command, evaluation.name, evaluation.summary, parameters)


def with_signature(
    command: Callable[..., None],
    name: str,
    doc: str,
    parameters: Mapping[str, inspect.Parameter],
) -> Callable[..., None]:
    """Typer reads the signature for defaults and the annotations for options."""
    command.__name__, command.__doc__ = name, doc
    command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {name: one.annotation for name, one in parameters.items()}
    return command


def run(evaluation: Evaluation, given: Mapping[str, Any], dry_run: bool, as_json: bool) -> None:
    settings = evaluation.settings.make(given)
    settings.ensure_files()
    if evaluation.run_instead(settings, as_json):
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
        typer.echo(json.dumps(found[0] if evaluation.writes_one else found, indent=2))
    else:
        evaluation.show(opened, results)


def show_estimate(found: "Estimate", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"seconds": found.seconds}, indent=2))
    else:
        typer.echo("\n".join(found.lines()))


# -- settings as options


def values_of(settings: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by the names of the settings; --no-x is x = false."""
    found: dict[str, Any] = {}
    for name in settings.options():
        value = given.get(name)
        if given.get(f"no_{name}"):
            value = False
        if value is not None and value != []:
            found[name] = value
    return found


def _parameters(settings: type[Settings]) -> Iterator[tuple[str, inspect.Parameter]]:
    """By panel: arguments and required options come first, switches get an off position."""
    defaults = settings.defaults()
    shown_options = {n: o for n, o in settings.options().items() if not o.hidden}
    ordered = sorted(
        shown_options.items(),
        key=lambda pair: (not pair[1].argument, PANELS.index(pair[1].panel), pair[0] in defaults),
    )
    for name, option in ordered:
        required = name not in defaults
        if option.switch and defaults[name] is not False:
            # The position that changes something is shown, the other one is only accepted.
            either = defaults[name] is None
            off = replace(option, help=f"Turn --{_dashed(name)} off.") if either else option
            flag = f"--no-{_dashed(name)}"
            yield name, _option(name, option, None, bool, hidden=not either)
            yield f"no_{name}", _option(f"no_{name}", off, None, bool, flag=flag)
        else:
            kind: Any = bool if option.switch else list[str] if option.several else str
            yield name, _option(name, option, defaults.get(name), kind, required=required)


def _option(
    name: str,
    option: Option,
    default: Any,
    kind: Any,
    *,
    required: bool = False,
    hidden: bool = False,
    flag: str = "",
) -> inspect.Parameter:
    words = option.default_text
    if words is None and not option.switch and default not in (None, (), {}):
        words = shown(default)
    help = option.help + (f" [dim]({words})[/dim]" if words and not flag else "")
    if option.argument:
        argument = typer.Argument(help=help, metavar=option.metavar, show_default=False)
        return _parameter(name, Annotated[kind, argument], inspect.Parameter.empty)
    flags = [flag] if flag else list(option.flags) or [f"--{_dashed(name)}"]
    made = typer.Option(
        *flags, help=help, metavar=" " if option.switch else option.metavar,
        rich_help_panel=option.panel, show_default=False, hidden=hidden, envvar=option.env,
        show_envvar=False,
    )  # fmt: skip
    if required:
        return _parameter(name, Annotated[kind, made], inspect.Parameter.empty)
    return _parameter(name, Annotated[kind | None, made], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _dashed(name: str) -> str:
    return name.replace("_", "-")


