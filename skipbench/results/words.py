"""Names, numbers and settings as text, and their order, in tables, comparisons and pages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skipbench.evaluations import evaluations

DASH = "–"
VARIANTS = ("skip", "skipless")
DATASETS = {
    "voc": "VOC2012", "cocostuff": "COCOStuff", "ade20k": "ADE20K", "coco20k": "COCO20k",
    "voc07": "VOC2007", "coco": "COCO", "ecssd": "ECSSD", "duts": "DUTS", "dutomron": "DUT-OMRON",
    "imagenet": "ImageNet",
}  # fmt: skip


def dataset_name(name: Any) -> str:
    return DATASETS.get(str(name), str(name))


def features_name(features: Any) -> str:
    return "all blocks" if features == "all" else str(features)


def short(name: object, most: int = 60) -> str:
    """Shortened in the middle to at most so many characters."""
    text = str(name)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def signed(value: float, digits: int = 1) -> str:
    """With a real minus, and no "−0.0"."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        text = f"{0:.{digits}f}"
    return text.replace("-", "−")


def p_text(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def score_text(value: float, interval: tuple[float, float] | None) -> str:
    """ "50.0 [48.1, 52.3]" """
    return f"{value:.1f}" + (f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else "")


def setting_text(value: Any, none: str = DASH) -> str:
    """One setting in a table: "0.1,0.2"."""
    if isinstance(value, Mapping):
        return " ".join(f"{k} {setting_text(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ",".join(setting_text(one, none) for one in value)
    return none if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def value_text(value: Any) -> str:
    """A setting, or a number of images and their fingerprint: "30 (2a5f0348ff4e)"."""
    if isinstance(value, list | tuple) and [type(one) for one in value] == [int, str]:
        return f"{value[0]:,} ({value[1]})"
    return setting_text(value, "none")


def prose(value: Any) -> str:
    """Anything from a record on one line: "0.1, 0.2"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {prose(one)}" for key, one in value.items()) or DASH
    if isinstance(value, list | tuple):
        return ", ".join(map(prose, value)) or DASH
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else setting_text(value)


# -- order


def in_order(facts: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    """A sort key: known values first, in the paper's order; then by name."""
    known: dict[str, Sequence[Any]] = {
        "dataset": list(DATASETS),
        "features": ["single", "multiscale"],
        "evaluation": list(evaluations()),
        "method": [method for one in evaluations().values() for method in one.methods],
    }
    values = [(known.get(name, []), facts[name]) for name in names]
    return [
        (order.index(value) if value in order else len(order), natural(value))
        for order, value in values
    ]


def natural(value: Any) -> str:
    """A sort key that orders numbers in text by value: block 2 before block 10."""
    return re.sub(r"(?<![.\d])\d+", lambda digits: digits.group().zfill(9), str(value))
