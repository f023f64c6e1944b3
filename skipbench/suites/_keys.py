"""Which values a key may have. A check gives the value as it is used, or says what is wrong."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from skipbench.errors import UsageError, did_you_mean
from skipbench.suites._problems import At

Check = Callable[[Any], Any]


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{value!r}: give a text in quotes")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{value!r}: give true or false")
    return value


def whole(least: int, most: int = 10**9) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{value!r}: give a whole number from {least}")
        return value

    return check


def one_of(*known: str) -> Check:
    def check(value: Any) -> str:
        if value not in known or not isinstance(value, str):
            near = did_you_mean(str(value), known)
            raise UsageError(f"{value!r}: give {', '.join(known)}.{near}")
        return value

    return check


def text_or_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{value!r}: give a number, or a text in quotes")
    return value


def between(least: float, most: float) -> Check:
    """Neither of them included."""

    def check(value: Any) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least < value < most
        ):
            raise UsageError(f"{value!r}: give a number between {least:g} and {most:g}")
        return float(value)

    return check


def layers(value: Any) -> str:
    from skipbench.features.layers import check_layers

    name = text(str(value) if isinstance(value, int) else value)
    check_layers(name)
    return name


def several(check: Check) -> Check:
    """One value, or a list of them; each once."""

    def check_all(value: Any) -> tuple[Any, ...]:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise UsageError("is empty; give at least one")
        return tuple(dict.fromkeys(map(check, values)))

    return check_all


def parsed(parse: Check) -> Check:
    """One value or a list of them, as an option of the command line takes them."""

    def check(value: Any) -> Any:
        for part in value if isinstance(value, list) else [value]:
            text_or_number(part)
        return parse(value)

    return check


def sha256(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{8,64}", value):
        raise UsageError(f"{value!r}: give the 64 hex digits of the file, or its first 8 or more")
    return value.lower()


def device(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
        raise UsageError(f"{value!r}: give auto, cpu, cuda, cuda:N or mps")
    return value


def space(value: Any) -> int:
    from skipbench.files import parse_bytes

    return parse_bytes(str(text_or_number(value)))


def checked(table: Mapping[str, Any], keys: Mapping[str, Check], at: At) -> dict[str, Any]:
    """The values that are right; the others are among the problems."""
    good: dict[str, Any] = {}
    for key, value in table.items():
        if key not in keys:
            near = did_you_mean(key, keys)
            at.add(key, f"no such key.{near} Known: {', '.join(keys)}")
            continue
        try:
            good[key] = keys[key](value)
        except UsageError as error:
            at.add(key, error)
    return good
