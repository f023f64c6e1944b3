"""Commands made from settings: one Typer option for each, in panels.

    @command("table", TableSettings)
    def table(settings: TableSettings, as_json: bool) -> None:

The docstring is the command's help. Typer reads the defaults from the signature and the options
from the annotations, so both are set.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from skipbench.console import echo, reader_has_gone, set_up_log
from skipbench.engine.signals import INTERRUPTED, TERMINATED, Terminated, signals_end_it
from skipbench.errors import SkipbenchError
from skipbench.files import WEIGHT_SUFFIXES, remove_partial_files
from skipbench.settings import OUTPUT, PANELS, Option, Settings, flag_of, shown


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


app = typer.Typer(
    name="skipbench",
    cls=Group,
    help="Dense-prediction evaluation of frozen vision transformers, with and without skip "
    "connections.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def add_group(name: str, help: str) -> typer.Typer:
    group = typer.Typer(cls=Group, help=help, no_args_is_help=True)
    app.add_typer(group, name=name)
    return group


def _flag(*names: str, help: str, **more: Any) -> Any:
    option = typer.Option(*names, help=help, rich_help_panel=OUTPUT, **more)
    return Annotated[bool, option]


def _show_help(context: typer.Context, value: bool) -> None:
    if value:
        echo(context.get_help())
        raise typer.Exit


FLAGS = {
    "dry_run": _flag("--dry-run", help="Estimate time, disk and memory from a short trial."),
    "as_json": _flag("--json", help="JSON on stdout, everything else on stderr."),
    "quiet": _flag("--quiet", "-q", help="No progress bars, no notes."),
    "verbose": _flag("--verbose", "-v", help="Debug messages and tracebacks."),
    "help": _flag("--help", "-h", help="Show this message.", is_eager=True, callback=_show_help),
}


def command(
    name: str,
    settings: type[Settings],
    *,
    group: typer.Typer = app,
    flags: Sequence[str] = ("as_json",),
    resumable: bool = True,
    doc: str = "",
    short_help: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """flags: arguments of the function beside the settings. resumable: finished work is kept if
    interrupted. doc: instead of the function's docstring."""
    parameters = dict(_parameters(settings))
    for flag in (*flags, "quiet", "verbose", "help"):
        parameters[flag] = _parameter(flag, FLAGS[flag], False)

    def add(function: Callable[..., None]) -> Callable[..., None]:
        def run(quiet: bool, verbose: bool, **given: Any) -> None:
            set_up_log(verbose, quiet)
            with _exit_codes(verbose, resumable):
                made = settings.make(values_of(settings, given))
                function(made, **{flag: given[flag] for flag in flags})
                sys.stdout.flush()  # here, where a closed pipe is handled

        paragraphs = (doc or inspect.getdoc(function) or "").split("\n\n")
        run.__doc__ = "\n\n".join(" ".join(part.split()) for part in paragraphs)  # Typer wraps them
        run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {key: one.annotation for key, one in parameters.items()}
        group.command(name, cls=Command, short_help=short_help, add_help_option=False)(run)
        return function

    return add


def values_of(settings: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by the names of the settings; --no-x is x = false."""
    found: dict[str, Any] = {}
    for name in settings.options():
        value = False if given.get(f"no_{name}") else given.get(name)
        if value is not None and value != []:
            found[name] = value
    return found


@contextmanager
def _exit_codes(verbose: bool, resumable: bool) -> Iterator[None]:
    """An error becomes one message and an exit code."""
    kept = "; finished work is kept" if resumable else ""
    try:
        with signals_end_it(remove_partial_files):
            yield
    except SkipbenchError as error:
        _complain(str(error), verbose)
        raise typer.Exit(error.exit_code) from None
    except (KeyboardInterrupt, Terminated) as stop:
        terminated = isinstance(stop, Terminated)
        _complain(f"{'terminated' if terminated else 'interrupted'}{kept}")
        raise typer.Exit(TERMINATED if terminated else INTERRUPTED) from None
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


def _complain(message: str, verbose: bool = False) -> None:
    if verbose:
        import traceback

        echo(traceback.format_exc().rstrip(), err=True)
    echo(f"skipbench: {message}", err=True)


# -- options

REQUIRED = inspect.Parameter.empty


def _parameters(settings: type[Settings]) -> Iterator[tuple[str, inspect.Parameter]]:
    """By panel: arguments and required options come first, switches get an off position."""
    defaults = settings.defaults()
    options = [(name, one) for name, one in settings.options().items() if not one.hidden]
    options.sort(
        key=lambda pair: (not pair[1].argument, PANELS.index(pair[1].panel), pair[0] in defaults)
    )
    for name, option in options:
        if option.switch and defaults[name] is not False:
            # The position that changes something is shown, the other one is only accepted.
            either = defaults[name] is None
            on, no = flag_of(name, option), f"--no-{flag_of(name, option)[2:]}"
            off = replace(option, help=f"Turn {on} off.", default_text="") if either else option
            yield name, _option(name, option, None, hidden=not either)
            yield f"no_{name}", _option(f"no_{name}", replace(off, flags=(no,)), None)
        else:
            yield name, _option(name, option, defaults.get(name, REQUIRED))


def _option(name: str, option: Option, default: Any, hidden: bool = False) -> inspect.Parameter:
    words = option.default_text
    if default is REQUIRED:
        words = None if option.argument else "required"
    elif words is None and not option.switch and default not in (None, (), {}):
        words = shown(default)
    shared: dict[str, Any] = {
        "help": option.help + (f" [dim]({words})[/dim]" if words else ""),
        "metavar": option.metavar,
        "show_default": False,
        "autocompletion": None if option.switch else _completion(flag_of(name, option), option),
    }
    kind: Any = bool if option.switch else list[str] if option.several else str
    if option.argument:
        given = kind if default is REQUIRED else kind | None
        default = REQUIRED if default is REQUIRED else None
        return _parameter(name, Annotated[given, typer.Argument(**shared)], default)
    flags = option.flags or [flag_of(name, option)]
    made = typer.Option(
        *flags, rich_help_panel=option.panel, hidden=hidden, envvar=option.env, show_envvar=False,
        **shared,
    )  # fmt: skip
    return _parameter(name, Annotated[kind | None, made], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


# -- shell completion of values


def _completion(flag: str, option: Option) -> Callable[[str], list[str]] | None:
    """None: the shell completes file names."""
    find = COMPLETED.get(flag)
    if find is None and not option.words:
        return None

    def complete(incomplete: str) -> list[str]:
        return list(find(incomplete) if find else option.words)  # Typer filters them

    return complete


def _datasets(incomplete: str) -> Iterable[str]:
    from skipbench.datasets import names

    return ["folder:" if name == "folder" else name for name in names()]


def _layouts(incomplete: str) -> Iterable[str]:
    from skipbench.results.tables.layouts import LAYOUTS

    return [*LAYOUTS, "plain"]


def _topics(incomplete: str) -> Iterable[str]:
    from skipbench.manual import topics

    return topics()


def _files(suffixes: tuple[str, ...], incomplete: str) -> list[str]:
    """Files with these suffixes, and folders beside them. None for folders alone, nor for names
    that need quotes: the shell itself does those better."""
    folder, begun = os.path.split(incomplete)
    try:
        there = sorted(Path(folder or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
    there = [one for one in there if one.name.startswith(begun)]
    if any(re.search(r"[^\w.,@%+=-]", one.name) for one in there):
        return []
    files = [one.name for one in there if one.suffix in suffixes]
    folders = [f"{one.name}/" for one in there if one.is_dir() and not one.name.startswith(".")]
    return [os.path.join(folder, name) for name in [*files, *folders] if files]  # noqa: PTH118


_weights = partial(_files, WEIGHT_SUFFIXES)
COMPLETED: dict[str, Callable[[str], Iterable[str]]] = {
    "--ckpt": _weights, "--ckpt-a": _weights, "--ckpt-b": _weights,
    "--dataset": _datasets, "NAME": _datasets, "--layout": _layouts,
    "SUITE": partial(_files, (".toml",)), "TOPIC": _topics,
}  # fmt: skip
