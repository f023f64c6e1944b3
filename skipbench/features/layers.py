"""`--layers`: names or numbers → block indices. Blocks count from 0; negative from the end."""

from skipbench.errors import UsageError, did_you_mean


def multiscale(depth: int) -> tuple[int, ...]:
    """Four evenly spaced blocks, ending with the last: 2, 5, 8, 11 of twelve."""
    return tuple(sorted({max(round((i + 1) * depth / 4) - 1, 0) for i in range(4)}))


NAMED = ("last", "multiscale", "last4", "ibot", "all")


def check_layers(text: str) -> None:
    """Everything that can be checked before the depth of the model is known."""
    if text.strip() not in NAMED:
        _numbers(text)


def parse_layers(text: str, depth: int) -> tuple[int, ...]:
    name, blocks = text.strip(), tuple(range(depth))
    if name == "ibot" and depth != 12:
        raise UsageError(f"--layers ibot means 3,5,7,11 of 12 blocks; this model has {depth}")
    named = {"last": blocks[-1:], "multiscale": multiscale(depth), "last4": blocks[-4:],
             "ibot": (3, 5, 7, 11), "all": blocks}  # fmt: skip
    if name in named:
        return named[name]
    numbers = _numbers(text)
    for block in numbers:
        if not -depth <= block < depth:
            raise UsageError(f"--layers: no block {block}; the model has blocks 0 to {depth - 1}")
    return tuple(sorted({block % depth for block in numbers}))


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        near = did_you_mean(text, NAMED)
        raise UsageError(
            f"--layers {text!r}: expected {', '.join(NAMED)} or block numbers such as 2,5,-1.{near}"
        ) from None
