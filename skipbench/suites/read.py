"""A suite: TOML in, checked dataclasses out. No torch here: mistakes are reported at once.

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
from functools import partial
from glob import escape, glob
from pathlib import Path
from typing import Any

from skipbench.errors import CheckpointError, SkipbenchError, UsageError, did_you_mean
from skipbench.evaluations import Evaluation, evaluations
from skipbench.files import missing_checkpoint, user_path
from skipbench.settings import flag_of, parsers
from skipbench.settings.groups import ReadingSettings, StoredFeatureSettings
from skipbench.settings.parsers import InvalidError, Parse
from skipbench.sources import source_of
from skipbench.suites.problems import Problems, Table, read_toml


def parse_sha256(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{8,64}", value):
        raise InvalidError("expected the 64 hex digits of the file, or its first 8 or more")
    return value.lower()


def parse_names(value: Any) -> tuple[str, ...]:
    names = parsers.texts(value)
    if not names:
        raise InvalidError("expected at least one data set")
    return parsers.distinct(names)


READING = {name: option.parse for name, option in ReadingSettings.options().items()}
READ_AS = [name for name in READING if name not in ("expected", "labels", "device")]
SUITE_KEYS: dict[str, Parse] = {
    "out": parsers.text, "data_root": parsers.text, "cache": parsers.text,
    "cache_limit": StoredFeatureSettings.options()["cache_limit"].parse,
    "device": READING["device"], "log": parsers.trackers,
}  # fmt: skip
CHECKPOINT_KEYS: dict[str, Parse] = {
    "name": parsers.text, "path": parsers.text, "sha256": parse_sha256,
    "epochs": parsers.integer(0), "optimizer": parsers.text, "initialisation": parsers.text,
    "depth": parsers.integer(1),
    **{name: READING[name] for name in READ_AS},
}  # fmt: skip
EVALUATION_KEYS: dict[str, Parse] = {
    "kind": parsers.text, "name": parsers.text, "datasets": parse_names,
}  # fmt: skip
LABELS = {"epochs": "epoch", "optimizer": "optimizer", "initialisation": "initialisation"}
OF_ONE_FILE = ("epochs", "sha256")  # not with a pattern
FROM_THE_SUITE = {*SUITE_KEYS, *READING, "force"}  # never settings of one evaluation


@dataclass(frozen=True, eq=False)
class CheckpointEntry:
    """One weights file, and what the suite states about it."""

    name: str
    path: str  # what `--ckpt` takes, absolute
    table: str  # path of its table
    group: str  # name of the table, which --only accepts for all files of a pattern
    sha256: str | None = None  # complete, or its first digits
    depth: int | None = None
    how: Mapping[str, Any] = field(default_factory=dict)  # settings of `READ_AS`
    labels: Mapping[str, str | int] = field(default_factory=dict)
    name_epoch: int | None = None  # from the file name; used if the file states none

    def reading(self) -> dict[str, Any]:
        """The `ReadingSettings` of its evaluations, without the device."""
        whole = self.sha256 if self.sha256 and len(self.sha256) == 64 else None
        expected = {"depth": self.depth, "sha256": whole}
        known = {fact: value for fact, value in expected.items() if value is not None}
        return {**self.how, "expected": known, "labels": self.labels}


@dataclass(frozen=True)
class EvaluationEntry:
    name: str
    kind: str
    table: str  # path of its table
    datasets: tuple[str, ...]
    options: Mapping[str, Any]  # settings of this evaluation, as written


@dataclass(frozen=True)
class Suite:
    path: Path
    checkpoints: tuple[CheckpointEntry, ...]
    evaluations: tuple[EvaluationEntry, ...]
    settings: Mapping[str, Any]  # by SUITE_KEYS; paths are absolute


def read_suite(path: str | Path) -> Suite:
    """All mistakes in it are reported together."""
    path = user_path(path)
    base = path.absolute().parent
    problems = Problems(path)
    top = Table(problems, "", read_toml(path))

    def absolute(value: Any) -> str:
        return str(base / user_path(parsers.text(value)))

    folders: dict[str, Parse] = dict.fromkeys(("out", "data_root", "cache"), absolute)
    folders["log"] = partial(parsers.trackers, base=base)
    tables = dict.fromkeys(("checkpoint", "evaluation"), lambda value: value)
    settings = top.checked({**SUITE_KEYS, **folders, **tables})
    checkpoints = [
        entry
        for table in _tables(settings.pop("checkpoint", None), "checkpoint", top)
        for entry in _checkpoints(table, base)
    ]
    evaluations = _with_names(
        [
            _evaluation(table, base)
            for table in _tables(settings.pop("evaluation", None), "evaluation", top)
        ]
    )
    _refuse_equal_names(checkpoints, problems)
    _refuse_equal_files(checkpoints, problems)
    _refuse_equal_names(evaluations, problems)
    problems.raise_if_any()
    return Suite(path, tuple(checkpoints), tuple(evaluations), settings)


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
    """One, or one for each file of a pattern. If its path is wrong, its name is checked alone."""

    def find_files(value: Any) -> tuple[list[str], bool]:
        return _find_files(parsers.text(value), base)

    good = table.checked({**CHECKPOINT_KEYS, "path": find_files})
    if "path" not in table.values:
        table.add("path", "missing")
    files, is_pattern = good.pop("path", ([], False))
    if not files:
        name = good.get("name")
        return [CheckpointEntry(name, "", table.path, name)] if name else []
    for key in OF_ONE_FILE:
        if is_pattern and key in table.values:
            table.add(key, "not allowed with a pattern; give each file its own [[checkpoint]]")
    group = good.pop("name", None)
    labels = {label: good.pop(key) for key, label in LABELS.items() if key in good}
    good["how"] = {key: good.pop(key) for key in READ_AS if key in good}
    names = _names(files, group) if is_pattern else [group or _default_name(files[0])]
    epochs = epochs_in(files) if is_pattern else [None]
    entries = []
    for name, file, epoch in zip(names, files, epochs, strict=True):
        named = {} if name == _default_name(file) else {"name": name}
        entry = CheckpointEntry(
            name, file, table.path, group or name, labels=labels | named, name_epoch=epoch, **good
        )
        entries.append(entry)
    return entries


def _find_files(text: str, base: Path) -> tuple[list[str], bool]:
    """(absolute paths, whether `text` is a pattern), in the order of the numbers in their names."""
    source = source_of(text, base)
    if source.kind != "file":
        source.ensure_exists()
        return [str(source)], False
    path = base / user_path(text)
    if path.exists():  # its name may contain a bracket
        return [str(path)], False
    if not re.search(r"[*?\[]", text):
        raise CheckpointError(missing_checkpoint(path))
    pattern = str(user_path(text))
    if not Path(pattern).is_absolute():
        pattern = str(Path(escape(str(base))) / pattern)  # its brackets are no pattern
    found = sorted(glob(pattern, recursive=True), key=_by_number)  # noqa: PTH207 - any pattern
    if not found:
        raise CheckpointError(f"no file matches {path}")
    return found, True


def _by_number(path: str) -> list[tuple[int, str]]:
    """checkpoint9 before checkpoint10."""
    parts = re.split(r"(\d+)", path)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _default_name(file: str) -> str:
    return source_of(file).title


def _names(files: list[str], group: str | None) -> list[str]:
    """Of the files of a pattern: its group and the file name, or what tells the files apart."""
    own = [Path(file).stem for file in files]
    if len(set(own)) < len(own):
        folder = os.path.commonpath(files)
        own = [str(Path(file).relative_to(folder).with_suffix("")) for file in files]
    return [f"{group}-{name}" if group else name for name in own]


def epochs_in(files: list[str]) -> list[int | None]:
    """The number in each name: checkpoint0200.pth → 200; none if several files share a number,
    as the 16 of vit_s16."""
    found = [_number(Path(file).stem) for file in files]
    numbers = [number for number in found if number is not None]
    return found if len(set(numbers)) == len(numbers) else [None] * len(files)


def _number(stem: str) -> int | None:
    marked = re.search(r"(?<![A-Za-z])ep(?:och)?s?[^0-9A-Za-z]?(\d+)", stem, re.IGNORECASE)
    found = marked or re.search(r"(\d+)\D*$", stem)
    return int(found[1]) if found and len(found[1]) < 10 else None


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
    first, second = ({"residual": "auto", "weights": "teacher", **e.how} for e in (one, other))
    variants = {first.pop("residual"), second.pop("residual")}
    return (len(variants) == 1 or "auto" in variants) and first == second
