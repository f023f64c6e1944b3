"""What can be made from a declaration alone: command lines, right and wrong values."""

import re

from skipbench.errors import SkipbenchError
from skipbench.settings import flag_of
from skipbench.settings.parsers import InvalidError

SMALL = {
    "size": "64x80", "limit": 4, "seeds": [0, 1], "epochs": 2, "pictures": 0, "device": "cpu",
}  # fmt: skip
WORDS = ["?!", " ", "-7", "1e99"]
VALUES = [1, 2, 3, 0.5, "48x64", True, False, "1MB", "cpu", "cuda:7"]


def small(evaluation, **more):
    """Its first run in the demo, on a few tiny images; of two seeds, if it has any."""
    known = evaluation.settings.options()
    return {
        **evaluation.demo[0], **{k: v for k, v in SMALL.items() if k in known}, **more
    }  # fmt: skip


def arguments(evaluation, given):
    """As they are typed."""
    typed = []
    for name, value in given.items():
        option = evaluation.settings.options()[name]
        flag = flag_of(name, option)
        if option.switch:
            typed.append(flag if value else f"--no-{name.replace('_', '-')}")
            continue
        listed = value if isinstance(value, list | tuple) else [value]
        texts = list(map(str, listed)) if option.several else [",".join(map(str, listed))]
        typed += texts if option.argument else [f"{flag}={text}" for text in texts]
    return typed


def wrong_text(option):
    """(text that it refuses, what it says); None if it takes any text, or is a switch."""
    if option.switch:
        return None
    for text in WORDS:
        try:
            option.parse([text] if option.several else text)
        except InvalidError as error:
            return text, str(error)
        except SkipbenchError:
            continue
    return None


def others(option, usual):
    """Values other than the usual one: plain ones, and the words of its help and its complaint."""
    _, complaint = wrong_text(option) or ("", "")
    words = re.findall(r"[A-Za-z][\w-]*", f"{complaint} {option.help}")
    found = []
    for value in [*VALUES, *words]:
        try:
            if option.parse(value) not in (usual, *map(option.parse, found)):
                found.append(value)
        except (SkipbenchError, InvalidError):
            continue
    return found
