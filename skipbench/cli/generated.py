"""Commands made from settings: one Typer option for each, in panels.

    add_command(app, "table", TableSettings, table)

`table(settings, as_json=…)` gets the parsed settings; its docstring is the command's help. Typer
reads the defaults from the signature and the options from the annotations, so both are set.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from skipbench.cli.completion import completer
from skipbench.cli.running import with_exit_codes
from skipbench.console import echo
from skipbench.settings import Option, Settings, flag_of
from skipbench.settings.declaration import OUTPUT, PANELS, shown


def _without_types(parameters: list[Any]) -> list[Any]:
    """Help shows names and metavars, without <list[str]> or <bool> beside them."""
    for one in parameters:
        if isinstance(one, TyperArgument):
            one.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        elif one.is_flag:
            one.metavar = " "
    return parameters


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _flag(*names: str, help: str, **more: Any) -> Any:
    option = typer.Option(*names, help=help, rich_help_panel=OUTPUT, **more)
    return Annotated[bool, option]


def _show_help(context: typer.Context, value: bool) -> None:
    if value:
        echo(context.get_help())
        raise typer.Exit


# Flags of the command itself; `quiet` and `verbose` are handled by `with_exit_codes`.
DRY_RUN = _flag("--dry-run", help="Estimate time, disk and memory from a short trial.")
JSON = _flag("--json", help="JSON on stdout, everything else on stderr.")
QUIET = _flag("--quiet", "-q", help="No progress, no notes.")
VERBOSE = _flag("--verbose", "-v", help="Details and tracebacks.")
HELP = _flag("--help", "-h", help="Show this message.", is_eager=True, callback=_show_help)


def add_command(
    app: typer.Typer,
    name: str,
    settings: type[Settings],
    act: Callable[..., None],
    *,
    doc: str = "",
    short_help: str | None = None,
    flags: Sequence[str] = ("as_json",),
    keeps: bool = True,
) -> None:
    """flags: of `act` beside the settings: as_json, dry_run. keeps: an interrupted run can be
    resumed."""
    own = {"dry_run": DRY_RUN, "as_json": JSON}
    common = {flag: own[flag] for flag in flags} | {"quiet": QUIET, "verbose": VERBOSE}
    parameters = dict(_parameters(settings))
    parameters |= {flag: _parameter(flag, kind, False) for flag, kind in common.items()}
    parameters["help"] = _parameter("help", HELP, False)

    def command(**given: Any) -> None:
        made = settings.make(values_of(settings, given))
        act(made, **{flag: given[flag] for flag in flags})

    paragraphs = (doc or inspect.getdoc(act) or "").split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(part.split()) for part in paragraphs)  # Typer wraps them
    command.__name__ = name
    command = with_exit_codes(command, keeps)
    command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {key: one.annotation for key, one in parameters.items()}
    app.command(name, cls=Command, short_help=short_help, add_help_option=False)(command)


def values_of(settings: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by the names of the settings; --no-x is x = false."""
    found: dict[str, Any] = {}
    for name in settings.options():
        value = False if given.get(f"no_{name}") else given.get(name)
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
        if option.switch and defaults[name] is not False:
            # The position that changes something is shown, the other one is only accepted.
            either = defaults[name] is None
            on, no = flag_of(name, option), f"--no-{flag_of(name, option)[2:]}"
            off = replace(option, help=f"Turn {on} off.") if either else option
            yield name, _option(name, option, None, bool, hidden=not either)
            yield f"no_{name}", _option(f"no_{name}", off, None, bool, flag=no)
        else:
            kind: Any = bool if option.switch else list[str] if option.several else str
            required = name not in defaults
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
    optional = kind if required else kind | None
    words_of = None if option.switch else completer(flag_of(name, option), option)
    if option.argument:
        made: Any = typer.Argument(
            help=help, metavar=option.metavar, show_default=False, autocompletion=words_of,
        )  # fmt: skip
    else:
        made = typer.Option(
            *([flag] if flag else option.flags or [flag_of(name, option)]), help=help,
            metavar=option.metavar, rich_help_panel=option.panel,
            show_default=False, hidden=hidden, envvar=option.env, show_envvar=False,
            autocompletion=words_of,
        )  # fmt: skip
    return _parameter(
        name, Annotated[optional, made], inspect.Parameter.empty if required else None
    )


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
