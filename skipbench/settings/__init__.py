"""What a user can set, declared once: command line, Python, suites and records are made from it.

A group of settings is a frozen dataclass whose fields are made by `setting`. `Settings.make` is the
only way in: it parses what the user gave (text from the command line, values from TOML or Python),
fills in the defaults, and runs the checks across fields, so a mistake gets the same message
everywhere. Nothing heavy is imported: a mistyped flag is answered at once.

parsers.py   text, TOML or Python values → values
groups.py    what evaluations share: checkpoint, data, features, output
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from skipbench.errors import SkipbenchError, UsageError, did_you_mean
from skipbench.settings.parsers import InvalidError, Parse, switch

# Panels of --help, in this order.
WHAT = "What to evaluate"
RECORDS = "Records"
CHECK = "Check"
PROTOCOL = "Protocol"
CHECKPOINT = "Checkpoint"
DATA = "Data"
FEATURES = "Features and cache"
OUTPUT = "Output"
PANELS = (WHAT, RECORDS, CHECK, PROTOCOL, CHECKPOINT, DATA, FEATURES, OUTPUT)


@dataclass(frozen=True, kw_only=True)
class Option:
    """How one setting is written and shown."""

    help: str
    parse: Parse = switch
    panel: str = PROTOCOL
    metavar: str = "TEXT"
    flags: tuple[str, ...] = ()  # on the command line; empty: derived from the name
    several: bool = False  # may be repeated on the command line
    argument: bool = False  # positional on the command line
    hidden: bool = False  # not on the command line
    moves: bool = True  # can change the number, so it belongs to the call in a record
    default_text: str | None = None  # in --help, instead of the default itself
    env: str | None = None

    @property
    def switch(self) -> bool:
        """--x and --no-x instead of a value."""
        return self.parse is switch

    @property
    def words(self) -> tuple[str, ...]:
        """Values that the shell completes."""
        return getattr(self.parse, "words", ())


def setting(default: Any = MISSING, **option_fields: Any) -> Any:
    """A field of a group of settings, described by an `Option`. Without `parse`, it is a switch."""
    option = Option(**option_fields)
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata={"option": option})
    return dataclasses.field(default=default, metadata={"option": option})


def same_as(group: "type[Settings]", name: str, default: Any, **changes: Any) -> Any:
    """A setting of another group with its own default. changes: fields of its `Option`."""
    option = dataclasses.replace(group.options()[name], **changes)
    return dataclasses.field(default=default, metadata={"option": option})


class Settings:
    """Base of every group. Subclasses are frozen, keyword-only dataclasses."""

    positional: ClassVar[tuple[str, ...]] = ()  # of the Python call

    @classmethod
    def options(cls) -> dict[str, Option]:
        return {one.name: one.metadata["option"] for one in _fields(cls)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """By name, for the settings that have one."""
        found = {}
        for one in _fields(cls):
            if one.default is not MISSING:
                found[one.name] = one.default
            elif one.default_factory is not MISSING:
                found[one.name] = one.default_factory()
        return found

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Self:
        """Parsed and checked; None means the default."""
        values, problems = cls.parse(given)
        for error in problems.values():
            raise error
        required = set(cls.options()) - set(cls.defaults())
        if missing := sorted(required - set(values)):
            raise UsageError(f"{flag_of(missing[0], cls.options()[missing[0]])} is required")
        return cls(**values)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, SkipbenchError]]:
        """The valid values, and the errors of the others, by name."""
        values: dict[str, Any] = {}
        problems: dict[str, SkipbenchError] = {}
        known = cls.options()
        for name, value in given.items():
            if name not in known:
                near = did_you_mean(name, known)
                problems[name] = UsageError(f"no option {name!r}.{near} Known: {', '.join(known)}")
            elif value is not None:
                try:
                    values[name] = known[name].parse(value)
                except InvalidError as error:
                    flag = flag_of(name, known[name])
                    problems[name] = UsageError(f"{flag} {shown(value)}: {error}")
                except SkipbenchError as error:
                    problems[name] = error
        return values, problems

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises for settings that cannot be combined."""

    def ensure_files(self) -> None:
        """Raises for missing or unwritable files and folders, before anything is loaded."""

    def changed(self) -> dict[str, Any]:
        """Settings that are not at their default."""
        usual = self.defaults()
        values = {name: getattr(self, name) for name in self.options()}
        return {k: v for k, v in values.items() if k not in usual or v != usual[k]}

    def call(self) -> dict[str, Any]:
        """For the record: the settings that give the same number again, from any folder."""
        options = self.options()
        return {name: plain(v) for name, v in self.changed().items() if options[name].moves}


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cls)  # mypy does not know that every subclass is a dataclass


def flag_of(name: str, option: Option) -> str:
    if option.argument:
        return name.upper()
    return option.flags[0] if option.flags else f"--{name.replace('_', '-')}"


def shown(value: Any) -> str:
    """A value in a message, the same whether it came as text, from TOML or from Python."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ",".join(f"{key}={shown(one)}" for key, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(shown, value)) or "''"
    text = str(value)
    return text if text and text.isprintable() and text == text.strip() else repr(text)


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
