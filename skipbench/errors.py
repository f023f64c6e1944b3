"""Everything skipbench raises on purpose. The exit code of the command line is the class's.

    SkipbenchError
    ├── UsageError          2   invalid command or option, including an unavailable device
    │   └── UnclearVariant  2   neither the file nor its weights say whether skip or skipless
    ├── CheckpointError     3   the weights file
    ├── DataError           4   an image, a mask, a data set
    ├── NumbersError        6   NaN or Inf
    └── ResourceError       7   memory, disk, device
        └── OutOfMemory     7

A message is one to three lines: what is wrong, with the path or value; what to do.
"""

from collections.abc import Iterable


class SkipbenchError(Exception):
    exit_code = 1


class UsageError(SkipbenchError):
    exit_code = 2


class UnclearVariant(UsageError):  # noqa: N818 - reads as what it says
    pass


class CheckpointError(SkipbenchError):
    exit_code = 3


class DataError(SkipbenchError):
    exit_code = 4


class NumbersError(SkipbenchError):
    exit_code = 6


class ResourceError(SkipbenchError):
    exit_code = 7


class OutOfMemory(ResourceError):  # noqa: N818
    pass


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'voc'?" for the nearest of the known words, or nothing."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{printable(near[0])}'?" if near else ""


def some_of(names: Iterable[str], most: int = 6) -> str:
    """ "a, b, c … (12 in total)": a list short enough for a message."""
    names = list(names)
    shown = ", ".join(map(printable, names[:most]))
    return shown if len(names) <= most else f"{shown} … ({len(names)} in total)"


def count_of(number: int, one: str, several: str = "") -> str:
    """ "1 image", "2,000 images"."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def first_line(error: BaseException) -> str:
    """Its message, or its kind."""
    return " ".join(str(error).split())[:160] or type(error).__name__


def printable(text: str) -> str:
    """On one line, with control and undecodable characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same line by line."""
    return "\n".join(map(printable, text.split("\n")))
