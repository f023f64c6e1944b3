"""A suite as data: TOML in, checked dataclasses out. No torch here: a mistake is said at once.

out = "results"                     # these are optional; options of the command come first
data_root = "~/datasets"

[[checkpoint]]
name = "skip"
path = "runs/skip/checkpoint*.pth"  # relative to this file; a pattern is one a file
residual = "skip"

[[evaluation]]
kind = "probe"
datasets = ["voc", "ade20k"]
layers = ["last", "multiscale"]     # and any other option of `skipbench probe`
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from skipbench.errors import SkipbenchError, UsageError, did_you_mean
from skipbench.files import user_path
from skipbench.records import PositionRule, Residual
from skipbench.suites import _keys
from skipbench.suites._files import checkpoint_files, epochs_in, names_of
from skipbench.suites._keys import Check, checked
from skipbench.suites._problems import At, Lines, Problems
from skipbench.suites._toml import parsed, text_of
from skipbench.suites.kinds import KINDS

SUITE_KEYS: dict[str, Check] = {
    "out": _keys.text,
    "data_root": _keys.text,
    "cache": _keys.text,
    "cache_limit": _keys.space,
    "device": _keys.device,
}
CHECKPOINT_KEYS: dict[str, Check] = {
    "name": _keys.text,
    "path": _keys.text,
    "sha256": _keys.sha256,
    "residual": _keys.one_of(*get_args(Residual), "auto"),
    "epochs": _keys.whole(0),
    "optimizer": _keys.text,
    "initialisation": _keys.text,
    "depth": _keys.whole(1),
    "heads": _keys.whole(1),
    "weights": _keys.one_of("teacher", "student"),
    "position_rule": _keys.one_of(*get_args(PositionRule)),
}
EVALUATION_KEYS: dict[str, Check] = {
    "kind": _keys.text,
    "name": _keys.text,
    "datasets": _keys.several(_keys.text),
}
OF_ONE_FILE = ("epochs", "sha256")  # what cannot be said of a pattern


@dataclass(frozen=True, eq=False)
class CheckpointEntry:
    """One weights file, and what the suite says of it."""

    name: str
    path: str  # absolute, or timm:NAME
    index: int  # of its table
    group: str  # name of the table: --only takes it for all files of a pattern
    residual: str = "auto"
    sha256: str | None = None  # the whole, or its beginning
    depth: int | None = None
    heads: int | None = None
    weights: str | None = None
    position_rule: PositionRule | None = None
    labels: Mapping[str, str | int] = field(default_factory=dict)
    name_epoch: int | None = None  # in the file's name; counts where the file has none


@dataclass(frozen=True)
class EvaluationEntry:
    name: str
    kind: str
    index: int
    datasets: tuple[str, ...]
    options: Mapping[str, Any]  # of its kind


@dataclass(frozen=True)
class Suite:
    path: Path
    lines: Lines
    checkpoints: tuple[CheckpointEntry, ...]
    evaluations: tuple[EvaluationEntry, ...]
    settings: Mapping[str, Any]  # those of SUITE_KEYS that it has, paths made absolute


def read_suite(path: str | Path) -> Suite:
    """All that is wrong in it is said together."""
    path = user_path(path)
    text = text_of(path)
    tree = parsed(text, path)
    problems = Problems(path, Lines(text))
    top = At(problems, "")
    known = {**SUITE_KEYS, "checkpoint": lambda value: value, "evaluation": lambda value: value}
    settings = checked(tree, known, top)
    base = path.absolute().parent
    checkpoints = [
        entry
        for at, table in _tables(settings.pop("checkpoint", None), "checkpoint", top)
        for entry in _checkpoints(table, at, base)
    ]
    evaluations = [
        entry
        for at, table in _tables(settings.pop("evaluation", None), "evaluation", top)
        if (entry := _evaluation(table, at, base))
    ]
    _refuse_doubles("checkpoint", checkpoints, problems)
    evaluations = _with_names(evaluations)
    _refuse_doubles("evaluation", evaluations, problems)
    for key in ("out", "data_root", "cache"):
        if key in settings:
            _put_path(settings, key, base, top)
    problems.raise_if_any()
    return Suite(path, problems.lines, tuple(checkpoints), tuple(evaluations), settings)


def _tables(value: Any, name: str, top: At) -> Iterator[tuple[At, dict[str, Any]]]:
    if value is None:
        top.add(name, f"is missing; a suite has at least one [[{name}]]")
    elif not isinstance(value, list) or not value or not all(isinstance(t, dict) for t in value):
        top.add(name, f"write [[{name}]], in two brackets, above each")
    else:
        for index, table in enumerate(value):
            yield At(top.problems, name, index), table


def _checkpoints(table: dict[str, Any], at: At, base: Path) -> list[CheckpointEntry]:
    """One, or one for each file of a pattern."""
    good = checked(table, CHECKPOINT_KEYS, at)
    if "path" not in table:
        at.add("path", "is missing")
    if "path" not in good:
        return []
    try:
        files, is_pattern = checkpoint_files(good.pop("path"), base)
    except SkipbenchError as error:
        at.add("path", error)
        return []
    for key in OF_ONE_FILE:
        if is_pattern and key in table:
            at.add(key, "cannot be said of a pattern; give each file its own [[checkpoint]]")
    group = good.pop("name", None)
    labels = {
        label: good.pop(key)
        for key, label in (
            ("epochs", "epoch"),
            ("optimizer", "optimizer"),
            ("initialisation", "initialisation"),
        )
        if key in good
    }
    names = names_of(files, group, is_pattern)
    epochs = epochs_in(files) if is_pattern else [None]
    return [
        CheckpointEntry(
            name, file, at.index, group or name, labels=labels | _name_label(name, file),
            name_epoch=epoch, **good,
        )
        for name, file, epoch in zip(names, files, epochs, strict=True)
    ]  # fmt: skip


def _name_label(name: str, file: str) -> dict[str, str | int]:
    """What the file is called without being told needs no label."""
    own = file if file.startswith("timm:") else Path(file).name
    return {} if name == own else {"name": name}


def _evaluation(table: dict[str, Any], at: At, base: Path) -> EvaluationEntry | None:
    before = len(at.problems)
    kind = KINDS.get(table["kind"]) if isinstance(table.get("kind"), str) else None
    if kind is None:
        word = str(table.get("kind", ""))
        missing = f"{word!r}: give" if word else "is missing; give"
        at.add("kind", f"{missing} {', '.join(KINDS)}.{did_you_mean(word, KINDS)}")
        common = {key: value for key, value in table.items() if key in EVALUATION_KEYS}
        for name in checked(common, EVALUATION_KEYS, at).get("datasets", ()):
            _dataset(name, at, base)  # what can be said of it without knowing the kind
        return None
    good = checked(table, {**EVALUATION_KEYS, **kind.keys}, at)
    if "datasets" not in table:
        at.add("datasets", "is missing")
    names = [_dataset(name, at, base) for name in good.pop("datasets", ())]
    name = good.pop("name", "")
    good.pop("kind", None)
    for key, error in kind.problems(good):
        at.add(key, error)
    if len(at.problems) > before:
        return None
    return EvaluationEntry(name, table["kind"], at.index, tuple(filter(None, names)), good)


def _dataset(name: str, at: At, base: Path) -> str | None:
    from skipbench.datasets import source

    try:
        source(name)
        word, colon, folder = name.partition(":")
        return f"{word}:{base / user_path(folder)}" if colon else name
    except UsageError as error:
        at.add("datasets", error)
        return None


def _with_names(entries: list[EvaluationEntry]) -> list[EvaluationEntry]:
    """probe, probe-2, …: where the suite gives none."""
    count = Counter[str]()
    named = []
    for entry in entries:
        count[entry.kind] += 1
        number = count[entry.kind]
        default = entry.kind if number == 1 else f"{entry.kind}-{number}"
        named.append(entry if entry.name else replace(entry, name=default))
    return named


def _refuse_doubles(
    table: str, entries: list[CheckpointEntry] | list[EvaluationEntry], problems: Problems
) -> None:
    first: dict[str, int] = {}
    for entry in entries:
        if entry.name in first:
            line = problems.lines.of(table, first[entry.name], "name")
            words = f"{entry.name!r} is the one of line {line} too; give each a name of its own"
            At(problems, table, entry.index).add("name", words)
        first.setdefault(entry.name, entry.index)


def _put_path(settings: dict[str, Any], key: str, base: Path, top: At) -> None:
    try:
        settings[key] = str(base / user_path(settings[key]))
    except UsageError as error:
        top.add(key, error)
