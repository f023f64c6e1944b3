"""A suite as data: TOML in, checked dataclasses out. No torch here: mistakes are reported at once.

out = "results"                     # optional; options of the command take precedence
data_root = "~/datasets"

[[checkpoint]]
name = "skip"
path = "runs/skip/checkpoint*.pth"  # relative to this file; a pattern is one checkpoint per file
residual = "skip"

[[evaluation]]
kind = "probe"
datasets = ["voc", "ade20k"]
layers = ["last", "multiscale"]     # and any other setting of `skipbench probe`
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError, UsageError, did_you_mean
from skipbench.evaluations import Evaluation, evaluations
from skipbench.files import user_path
from skipbench.records import PositionRule
from skipbench.settings import flag_of, parsers
from skipbench.settings.groups import ReadingSettings, StoredFeatureSettings
from skipbench.settings.parsers import InvalidError, Parse
from skipbench.suites.checkpoint_files import checkpoint_files, epochs_in, names_of
from skipbench.suites.problems import Problems, Table, read_toml


def parse_sha256(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{8,64}", value):
        raise InvalidError("expected the 64 hex digits of the file, or its first 8 or more")
    return value.lower()


def parse_names(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not names:
        raise InvalidError("expected at least one data set")
    return parsers.distinct(map(parsers.text, names))


READING = {name: option.parse for name, option in ReadingSettings.options().items()}
SUITE_KEYS: dict[str, Parse] = {
    "out": parsers.text, "data_root": parsers.text, "cache": parsers.text,
    "cache_limit": StoredFeatureSettings.options()["cache_limit"].parse,
    "device": READING["device"],
}  # fmt: skip
CHECKPOINT_KEYS: dict[str, Parse] = {
    "name": parsers.text, "path": parsers.text, "sha256": parse_sha256,
    "epochs": parsers.integer(0), "optimizer": parsers.text, "initialisation": parsers.text,
    "depth": parsers.integer(1),
    **{name: READING[name] for name in ("residual", "heads", "weights", "position_rule")},
}  # fmt: skip
EVALUATION_KEYS: dict[str, Parse] = {
    "kind": parsers.text, "name": parsers.text, "datasets": parse_names,
}  # fmt: skip
LABELS = {"epochs": "epoch", "optimizer": "optimizer", "initialisation": "initialisation"}
OF_ONE_FILE = ("epochs", "sha256")  # not with a pattern
FROM_THE_SUITE = {*SUITE_KEYS, *READING, "force"}  # never settings of one evaluation


@dataclass(frozen=True, eq=False)
class CheckpointEntry:
    """One weights file, and what the suite says of it."""

    name: str
    path: str  # absolute, or timm:NAME
    table: str  # path of its table
    group: str  # name of the table: --only takes it for all files of a pattern
    residual: str = "auto"
    sha256: str | None = None  # the whole, or its beginning
    depth: int | None = None
    heads: int | None = None
    weights: str | None = None
    position_rule: PositionRule | None = None
    labels: Mapping[str, str | int] = field(default_factory=dict)
    name_epoch: int | None = None  # in the file's name; used if the file has none


@dataclass(frozen=True)
class EvaluationEntry:
    name: str
    kind: str
    table: str  # path of its table
    datasets: tuple[str, ...]
    options: Mapping[str, Any]  # settings of this evaluation, as they are written


@dataclass(frozen=True)
class Suite:
    path: Path
    checkpoints: tuple[CheckpointEntry, ...]
    evaluations: tuple[EvaluationEntry, ...]
    settings: Mapping[str, Any]  # those of SUITE_KEYS that it has, paths made absolute


def read_suite(path: str | Path) -> Suite:
    """All mistakes in it are reported together."""
    path = user_path(path)
    problems = Problems(path)
    top = Table(problems, "", read_toml(path))
    as_it_is = {"checkpoint": lambda value: value, "evaluation": lambda value: value}
    settings = top.checked({**SUITE_KEYS, **as_it_is})
    base = path.absolute().parent
    checkpoints = [
        entry
        for table in _tables(settings.pop("checkpoint", None), "checkpoint", top)
        for entry in _checkpoints(table, base)
    ]
    found = [
        _evaluation(table, base)
        for table in _tables(settings.pop("evaluation", None), "evaluation", top)
    ]
    _refuse_equal_names(checkpoints, problems)
    _refuse_equal_files(checkpoints, problems)
    named = _with_names(found)
    _refuse_equal_names(named, problems)
    for key in ("out", "data_root", "cache"):
        if key in settings:
            _make_absolute(settings, key, base, top)
    problems.raise_if_any()
    return Suite(path, tuple(checkpoints), tuple(named), settings)


def _tables(value: Any, name: str, top: Table) -> Iterator[Table]:
    if value is None:
        top.add(name, f"missing; a suite has at least one [[{name}]]")
    elif not isinstance(value, list) or not value or not all(isinstance(t, dict) for t in value):
        top.add(name, f"write [[{name}]], with double brackets, above each")
    else:
        for number, values in enumerate(value, 1):
            yield Table(top.problems, f"{name}[{number}]", values)


# -- checkpoints


def _checkpoints(table: Table, base: Path) -> list[CheckpointEntry]:
    """One, or one for each file of a pattern. Of a wrong path there is the name alone."""
    good = table.checked(CHECKPOINT_KEYS)
    if "path" not in table.values:
        table.add("path", "missing")
    files: list[str] = []
    is_pattern = False
    if "path" in good:
        try:
            files, is_pattern = checkpoint_files(good.pop("path"), base)
        except SkipbenchError as error:
            table.add("path", error)
    if not files:
        name = good.get("name")
        return [CheckpointEntry(name, "", table.path, name)] if name else []
    for key in OF_ONE_FILE:
        if is_pattern and key in table.values:
            table.add(key, "not allowed with a pattern; give each file its own [[checkpoint]]")
    group = good.pop("name", None)
    labels = {label: good.pop(key) for key, label in LABELS.items() if key in good}
    names = names_of(files, group, is_pattern)
    epochs = epochs_in(files) if is_pattern else [None]
    return [
        CheckpointEntry(
            name, file, table.path, group or name, labels=labels | _name_label(name, file),
            name_epoch=epoch, **good,
        )
        for name, file, epoch in zip(names, files, epochs, strict=True)
    ]  # fmt: skip


def _name_label(name: str, file: str) -> dict[str, str | int]:
    """The default name needs no label."""
    own = file if file.startswith("timm:") else Path(file).name
    return {} if name == own else {"name": name}


# -- evaluations


def _evaluation(table: Table, base: Path) -> EvaluationEntry:
    known = evaluations()
    word = str(table.values.get("kind", ""))
    options = {k: v for k, v in table.values.items() if k not in EVALUATION_KEYS}
    if word not in known:
        given = f"{word!r}: expected" if word else "missing; expected"
        table.add("kind", f"{given} {parsers.one_of(list(known))}.{did_you_mean(word, known)}")
    any_setting: dict[str, Parse] = dict.fromkeys(options, str)
    keys = settings_keys(known[word]) if word in known else any_setting
    good = table.checked({**EVALUATION_KEYS, **keys})
    if "datasets" not in table.values:
        table.add("datasets", "missing")
    datasets = [_dataset(name, table, base) for name in good.pop("datasets", ())]
    if word in known:
        right = {key: value for key, value in options.items() if key in good}
        _check_together(known[word], right, next(filter(None, datasets), "shapes"), table)
    found = tuple(filter(None, datasets))
    return EvaluationEntry(good.get("name", ""), word, table.path, found, options)


def settings_keys(evaluation: Evaluation) -> dict[str, Parse]:
    """The settings that an [[evaluation]] of this kind may have."""
    fixed = FROM_THE_SUITE | set(evaluation.fixed_in_suites) | set(evaluation.target(["x"], "x"))
    return {
        name: option.parse
        for name, option in evaluation.settings.options().items()
        if name not in fixed
    }


def _check_together(
    evaluation: Evaluation, options: Mapping[str, Any], dataset: str, table: Table
) -> None:
    target = evaluation.target(["checkpoint"], dataset)
    try:
        evaluation.settings.make({**options, **evaluation.fixed_in_suites, **target})
    except SkipbenchError as error:
        flags = {flag_of(name, one): name for name, one in evaluation.settings.options().items()}
        flag, _, words = str(error).partition(" ")
        flag = flag.rstrip(":")
        if flags.get(flag) in options:
            table.add(flags[flag], type(error)(words))
        else:
            table.problems.add(table.path, error)


def _dataset(name: str, table: Table, base: Path) -> str | None:
    from skipbench.datasets import source

    try:
        source(name)
        word, colon, folder = name.partition(":")
        return f"{word}:{base / user_path(folder)}" if colon else name
    except UsageError as error:
        table.add("datasets", error)
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


def _refuse_equal_names(
    entries: list[CheckpointEntry] | list[EvaluationEntry], problems: Problems
) -> None:
    first: dict[str, str] = {}
    for entry in entries:
        if entry.name in first:
            words = f"{entry.name!r} is also {first[entry.name]}; names must be unique"
            problems.add(f"{entry.table}.name", words)
        first.setdefault(entry.name, entry.table)


def _refuse_equal_files(entries: list[CheckpointEntry], problems: Problems) -> None:
    """They would overwrite each other's records."""
    by_file: dict[str, list[CheckpointEntry]] = {}
    for entry in [entry for entry in entries if entry.path]:
        before = by_file.setdefault(os.path.realpath(entry.path), [])
        if first := next((one for one in before if _is_same_model(one, entry)), None):
            problems.add(
                f"{entry.table}.path",
                f"{Path(entry.path).name} is also in {first.table}, whose records it would "
                "overwrite; remove one of the two, or run one as skip and the other as skipless",
            )
        before.append(entry)


def _is_same_model(one: CheckpointEntry, other: CheckpointEntry) -> bool:
    """Of two entries with the same file; what `auto` finds is not known yet."""
    variants = {one.residual, other.residual}
    return (
        (len(variants) == 1 or "auto" in variants)
        and (one.weights or "teacher") == (other.weights or "teacher")
        and one.position_rule == other.position_rule
    )


def _make_absolute(settings: dict[str, Any], key: str, base: Path, top: Table) -> None:
    try:
        settings[key] = str(base / user_path(settings[key]))
    except UsageError as error:
        top.add(key, error)
