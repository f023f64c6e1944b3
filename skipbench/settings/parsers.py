"""Text, a TOML value or a Python value → the value that is used, or `InvalidError`.

What a parser takes is what type checkers accept from Python; with `Any`, it is the setting's own
type.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skipbench.errors import UsageError, did_you_mean
from skipbench.features.layers import NAMED, check_layers
from skipbench.sources import Given

if TYPE_CHECKING:
    from skipbench.images import ImageItem
    from skipbench.sources import ModelLike

Parse = Callable[[Any], Any]
Parser = TypeVar("Parser", bound=Callable[..., Any])


class InvalidError(ValueError):
    """What was expected instead; `Settings.parse` prepends the option and the value."""


def offers(*words: str) -> Callable[[Parser], Parser]:
    """Adds the words that the shell completes."""

    def mark(parse: Parser) -> Parser:
        parse.words = words  # type: ignore[attr-defined]
        return parse

    return mark


def switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidError("expected true or false")
    return value


def integer(least: int = 0, most: int | None = None, word: str = "") -> Parse:
    """word: accepted unchanged, such as "auto" or "all"."""
    expected = f"expected {f'{word} or ' if word else ''}an integer {_bounds(least, most)}"

    @offers(*filter(None, [word]))
    def parse(value: Any) -> int | str:
        if word and value == word:
            return word
        number = _integer(value)
        if number is None or not least <= number <= (10**9 if most is None else most):
            raise InvalidError(expected)
        return number

    return parse


def _bounds(least: int, most: int | None) -> str:
    return f"of at least {least}" if most is None else f"from {least} to {most:,}"


def number(low: float, high: float) -> Parse:
    def parse(value: Any) -> float:
        found = _number(value)
        if found is None or not low < found < high:
            raise InvalidError(f"expected a number between {low:g} and {high:g}")
        return found

    return parse


def amount(value: Any) -> float:
    found = _number(value)
    if found is None or not found >= 0:
        raise InvalidError("expected a number of at least 0")
    return found


def choice(*known: str) -> Parse:
    @offers(*known)
    def parse(value: Any) -> str:
        if value not in known or not isinstance(value, str):
            raise InvalidError(f"expected {one_of(known)}{_hint(str(value), known)}")
        return value

    return parse


def one_of(known: Sequence[str]) -> str:
    """ "a, b or c"."""
    return known[0] if len(known) == 1 else f"{', '.join(known[:-1])} or {known[-1]}"


def _hint(word: str, known: Iterable[str]) -> str:
    near = did_you_mean(word, known)
    return f".{near}" if near else ""


def distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """Unchanged; a repeated value is taken for a mistake."""
    found = tuple(values)
    for place, value in enumerate(found):
        if value in found[:place]:
            raise InvalidError(f"{value} is given twice")
    return found


def choices(*known: str) -> Parse:
    """One or several, in the order given."""
    one = choice(*known)

    @offers(*known)
    def parse(value: str | Iterable[str]) -> tuple[str, ...]:
        return distinct(map(one, several(value)))

    return parse


def text(value: str | Path) -> str:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise InvalidError("expected text")
    return str(value)


def checkpoint(value: "ModelLike") -> str:
    """Text; a model given from Python becomes text that carries it."""
    if isinstance(value, Given):
        return value
    return Given(value) if callable(value) else text(value)  # type: ignore[arg-type]


def checkpoints(
    value: "ModelLike | Iterable[ModelLike]",
) -> tuple[str, ...]:
    found = tuple(map(checkpoint, (value,) if callable(value) else several(value)))
    if not found:
        raise InvalidError("expected at least one checkpoint")
    return found


def several(value: Any) -> tuple[Any, ...]:
    """One or several, unchanged."""
    one = isinstance(value, str | bytes | Path | Mapping) or not isinstance(value, Iterable)
    return (value,) if one else tuple(value)


def images(value: "str | Path | ImageItem | Iterable[str | Path | ImageItem]") -> tuple[Any, ...]:
    """One or several, unchanged."""
    return several(value)


def texts(value: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """One or several, not split: a name may contain a comma."""
    return tuple(map(text, several(value)))


TRACKERS = ("tensorboard", "wandb", "mlflow")


@offers(*(f"{engine}:" for engine in TRACKERS))
def trackers(value: str | Iterable[str], base: Path = Path()) -> tuple[str, ...]:
    """Places to log to. base: of relative folders."""

    def one(place: str) -> str:
        engine, _, where = place.partition(":")
        if engine not in TRACKERS or not where.strip():
            near = "" if engine in TRACKERS else _hint(engine, TRACKERS)
            raise InvalidError(f"expected tensorboard:DIR, wandb:PROJECT or mlflow:URI{near}")
        is_path = engine == "tensorboard" or (engine == "mlflow" and ":" not in where)
        return f"{engine}:{base / Path(where).expanduser()}" if is_path else place

    return distinct(one(text(place)) for place in several(value))


def require_packages(places: Iterable[str]) -> None:
    for engine in dict.fromkeys(place.partition(":")[0] for place in places):
        spec = find_spec(engine)
        if spec is None or spec.origin is None:  # wandb writes a folder of its own name
            raise UsageError(
                f"--log {engine} needs the package {engine}: pip install 'skipbench[{engine}]'"
            )


def path(value: str | Path) -> Path:
    return Path(text(value))


def listed(value: Any) -> list[str]:
    """ "10,30", 10, [10, 30] → ["10", "30"]."""
    parts = value.split(",") if isinstance(value, str) else several(value)
    return [str(part).strip() for part in parts if str(part).strip()]


def integers(least: int, most: int | None = None, example: str = "0,1,2") -> Parse:
    """One or several, in the order given."""
    one = integer(least, most)

    def parse(value: int | str | Iterable[int | str]) -> tuple[int, ...]:
        try:
            found = tuple(map(one, listed(value)))
        except InvalidError:
            found = ()
        if not found:
            raise InvalidError(f"expected integers {_bounds(least, most)}, such as {example}")
        return distinct(found)

    return parse


def numbers(low: float, high: float, example: str) -> Parse:
    """One or several, bounds included; sorted."""

    def parse(value: float | str | Iterable[float | str]) -> tuple[float, ...]:
        found = [_number(part) for part in listed(value)]
        good = [one for one in found if one is not None and low <= one <= high]
        if not found or len(good) < len(found):
            raise InvalidError(f"expected numbers from {low:g} to {high:g}, such as {example}")
        return tuple(sorted(distinct(good)))

    return parse


def image_size(value: str | int) -> str:
    from skipbench.images import parse_size

    try:
        parse_size(str(value))
    except UsageError:
        raise InvalidError("expected N, HEIGHTxWIDTH, short:N, long:N or native") from None
    return str(value)


@offers(*NAMED)
def layer_set(value: str | int | Sequence[int]) -> str:
    """One set of blocks: a name or numbers."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ",".join(map(str, value))
    try:
        check_layers(str(value))
    except UsageError:
        known = ", ".join(NAMED)
        hint = _hint(str(value), NAMED)
        raise InvalidError(f"expected {known} or block numbers such as 2,5,-1{hint}") from None
    blocks = str(value).strip()
    distinct([blocks] if blocks in NAMED else map(int, blocks.split(",")))
    return blocks


@offers(*NAMED)
def layer_sets(value: str | int | Iterable[str | int | Sequence[int]]) -> tuple[str, ...]:
    """One or several; each gets its own records."""
    found = distinct(map(layer_set, several(value)))
    if not found:
        raise InvalidError("expected at least one set of layers")
    return found


def byte_count(value: int | str) -> int:
    from skipbench.files import parse_bytes

    try:
        return parse_bytes(str(value))
    except UsageError:
        raise InvalidError("expected an amount of space such as 50GB") from None


@offers("auto", "cpu", "cuda", "mps")
def device(value: Any) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", str(value)):
        raise InvalidError("expected auto, cpu, cuda, cuda:N or mps")
    return str(value)


def facts(known: Mapping[str, type], example: str) -> Parse:
    """["depth=12", "patch=16"], or a mapping → {"depth": 12, "patch": 16}. known: their types."""

    def parse(value: Mapping[str, str | int] | Iterable[str]) -> dict[str, Any]:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {k: v for k, v in vars(value).items() if v is not None}
        if isinstance(value, Mapping):
            pairs = list(value.items())
        else:
            pairs = [str(one).partition("=")[::2] for one in several(value)]
        names = distinct(str(name).strip() for name, _ in pairs)
        return {name: one(name, fact) for name, (_, fact) in zip(names, pairs, strict=True)}

    def one(name: str, value: Any) -> Any:
        if name not in known or not str(value).strip():
            near = _hint(name, known) if name not in known else ""
            raise InvalidError(f"expected {', '.join(known)}, as in {example}{near}")
        if known[name] is str:
            return str(value).strip()
        if (count := _integer(value)) is None:
            raise InvalidError(f"{name} is an integer, as in {example}")
        return count

    return parse


def _integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    digits = str(value).strip()
    good = digits.isdecimal() and digits.isascii() and len(digits) < 14
    return int(digits) if good else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
