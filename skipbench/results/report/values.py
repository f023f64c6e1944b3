"""Values of records on the page: checked, named, and in order."""

import re
from collections.abc import Sequence
from typing import Any

from skipbench.evaluations import evaluations
from skipbench.record_store import is_number
from skipbench.results.scores import Score
from skipbench.results.words import DATASETS

VARIANTS = ("skip", "skipless")
LONG_NAME = 60  # characters; longer names are shortened in the middle


def number(value: object) -> float | None:
    """One that can be drawn, or nothing."""
    return float(value) if is_number(value) else None


def ends(value: object) -> tuple[float, float] | None:
    """An interval, or nothing."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else (low, high)


def short(name: object, most: int = LONG_NAME) -> str:
    text = str(name)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def features_name(features: Any) -> str:
    return "all blocks" if features == "all" else str(features)


def in_order(value: Any, fact: str) -> tuple[int, str]:
    """Known values first, in the paper's order; then by name, block 2 before block 10."""
    known: Sequence[Any] = {
        "dataset": list(DATASETS),
        "features": ["single", "multiscale"],
        "evaluation": list(evaluations()),
        "method": [method for one in evaluations().values() for method in one.methods],
    }.get(fact, [])
    return (known.index(value) if value in known else len(known)), natural(value)


def natural(value: Any) -> str:
    """Sorts numbers in words by their value: 0.02 before 0.1, 2 before 10."""
    whole = re.compile(r"(?<![.\d])\d+")
    return whole.sub(lambda digits: digits.group().zfill(9), str(value))


def order_of(score: Score) -> list[Any]:
    """skip directly before the skipless that it is compared with."""
    names = ("evaluation", "method", "dataset", "features", "residual", "checkpoint", "epoch")
    return [in_order(score.facts[name], name) for name in (*names, "seed")]
