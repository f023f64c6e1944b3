"""What a checkpoint states about itself: training arguments, config.json, safetensors header.

Every fact is returned with the place it was read from; contradictions about the architecture are an
error.
"""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from skipbench.errors import CheckpointError
from skipbench.records import Residual

ARGUMENT_KEYS = ("args", "config", "cfg", "hyper_parameters", "opt", "model_args")

Stated = tuple[Any, str]  # a value, and where it was read from


class Metadata:
    """All (name, value, place) of a checkpoint, nearest to the weights first."""

    def __init__(self, tree: Any, extra: Mapping[str, Any], extra_place: str) -> None:
        self.entries: list[tuple[str, Any, str]] = []
        top = tree if isinstance(tree, Mapping) else {}
        for key in ARGUMENT_KEYS:
            self._add(top.get(key), key)
        self._add({k: v for k, v in top.items() if _is_plain(v)}, "")
        self._add(extra, extra_place)
        self._add(extra.get("model_args"), f"{extra_place}: model_args")

    def _add(self, values: Any, place: str) -> None:
        if isinstance(values, argparse.Namespace):
            values = vars(values)
        if not isinstance(values, Mapping):
            return
        for name, value in values.items():
            if isinstance(name, str) and _is_plain(value):
                if place == "" or ":" in place or "." in place:
                    where = f"{place} {name}".strip()
                else:
                    where = f"{place}.{name}"
                self.entries.append((name, value, where))

    def find(self, *names: str) -> Stated | None:
        """The value of the first of these names that has one."""
        for wanted in names:
            for name, value, place in self.entries:
                if name == wanted and value is not None and value != "":
                    return value, place
        return None

    def number(self, *names: str) -> tuple[float, str] | None:
        stated = self.find(*names)
        try:
            return None if stated is None else (float(stated[0]), stated[1])
        except (TypeError, ValueError):
            return None

    def integer(self, *names: str) -> tuple[int, str] | None:
        stated = self.number(*names)
        return None if stated is None or not stated[0].is_integer() else (int(stated[0]), stated[1])

    def text(self, *names: str) -> tuple[str, str] | None:
        stated = self.find(*names)
        return None if stated is None else (str(stated[0]), stated[1])


def _is_plain(value: Any) -> bool:
    import numpy as np

    return isinstance(value, bool | int | float | str | tuple | list | np.generic)


# There is no standard name for it. These mean "with residual connections" …
SAYS_SKIP = ("residual", "residuals", "skip", "use_skip", "use_residual", "skip_connection",
             "skip_connections", "residual_connections")  # fmt: skip
# … and these mean "without".
SAYS_SKIPLESS = (
    "skipless",
    "no_skip",
    "no_residual",
    "residual_free",
    "remove_skip",
    "without_skip",
)
WORDS_SKIP = frozenset({"skip", "residual", "true", "yes", "1", "1.0"})
WORDS_SKIPLESS = frozenset({"skipless", "none", "no", "false", "0", "0.0", "residual-free"})


def residual_of(metadata: Metadata, name: str) -> tuple[Residual, str] | None:
    stated: list[tuple[Residual, str]] = []
    for names, affirms in ((SAYS_SKIP, "skip"), (SAYS_SKIPLESS, "skipless")):
        for wanted in names:
            found = metadata.find(wanted)
            if found is None:
                continue
            variant = _variant(found[0], affirms)
            if variant is not None:
                stated.append((variant, f"{found[1]}={found[0]}"))
    if len({variant for variant, _ in stated}) > 1:
        places = " but ".join(f"{place} ({variant})" for variant, place in stated)
        raise CheckpointError(f"{name} contradicts itself: {places}")
    return stated[0] if stated else None


def _variant(value: Any, affirms: str) -> Residual | None:
    word = str(value).strip().lower()
    if affirms == "skipless" and word in ("true", "false", "yes", "no", "1", "0"):
        word = {"true": "false", "yes": "no", "1": "0"}.get(word, "true")
    if word in WORDS_SKIP:
        return "skip"
    return "skipless" if word in WORDS_SKIPLESS else None


def optimizer_of(metadata: Metadata, tree: Any) -> tuple[str, str] | None:
    if stated := metadata.text("optimizer", "opt", "optim", "optimizer_name"):
        return stated[0].lower(), stated[1]
    state = tree.get("optimizer") if isinstance(tree, Mapping) else None
    if not isinstance(state, Mapping) or not isinstance(state.get("state"), Mapping):
        return None
    slots = _slots(state["state"].values())
    for slot, optimizer in (("GG", "soap"), ("exp_avg_sq", "adam(w)"), ("momentum_buffer", "sgd")):
        if slot in slots:
            return optimizer, f"optimizer: its state has {slot}"
    return None


def _slots(states: Iterable[Any]) -> set[str]:
    first = next(iter(states), None)
    return set(first) if isinstance(first, Mapping) else set()
