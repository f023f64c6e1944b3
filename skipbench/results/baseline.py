"""Expected figures, in a file that lives in a repository: one line a figure, sorted.

baseline.json   figures, and the protocols they refer to
baseline.npz    counts by image, for --paired; only where asked for
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.errors import DataError, UsageError
from skipbench.files import ensure_writable, write_whole
from skipbench.results.scores import (
    FACTS,
    Entry,
    Score,
    differing,
    entries,
    fits,
    only,
    parse_where,
)
from skipbench.results.read import Source, read_results
from skipbench.record_store import is_number, parse_json, read_arrays, write_arrays

SCHEMA = 1

NEWER = ("method",)  # facts that the first baselines do not have

# Settings that a name tells where they are not these: the same model may be judged by several.
USUAL: dict[str, dict[str, Any]] = {
    "tokencut": {"method": "tokencut", "tensor": "keys", "score": "boxes"},
    "knn": {"k": 30, "temperature": 0.02},
    "cluster": {"clusters": "classes"},
}


@dataclass(frozen=True)
class Expected:
    """One line."""

    figure: str  # "model.pth, probe, voc val, single, paper"
    metric: str
    value: float
    interval: Sequence[float] | None
    seeds: int
    noise: float | None  # deviation over seeds, by `skipbench calibrate`
    noise_seeds: int
    protocol: str  # a key of `Baseline.protocols`
    sha256: str  # of the checkpoint
    images: Mapping[str, Any]
    precision: str | None
    facts: Mapping[str, Any]  # for --where
    record: str  # id of the first


@dataclass(frozen=True)
class Baseline:
    figures: Mapping[str, Expected]
    protocols: Mapping[str, Mapping[str, Any]]
    counts: Mapping[str, np.ndarray] = field(default_factory=dict)  # of `counts_key`, by image


def counts_key(figure: str, number: int) -> str:
    """A name of an array in an archive, whatever signs a file name may have; for each seed."""
    digest = hashlib.sha256(figure.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{digest}-{number}"


def name_of(entry: Entry) -> str:
    """What stays the same from release to release: not the weights, but what they are called."""
    facts = entry.facts
    return ", ".join(
        str(word)
        for word in (
            facts["checkpoint"], facts["evaluation"], f"{facts['dataset']} {facts['split']}",
            facts["features"], facts["protocol"], *unusual(entry.first),
        )
    )  # fmt: skip


def unusual(figure: Score) -> list[str]:
    """Settings that a name is not complete without: "lost", "k 5"."""
    settings, usual = figure.settings, USUAL.get(figure.facts["evaluation"], {})
    told = {n: settings[n] for n in usual if settings.get(n) not in (None, usual[n])}
    return [
        value if isinstance(value, str) else f"{n} {f'{value:g}' if is_number(value) else value}"
        for n, value in told.items()
    ]


def named(found: Sequence[Entry]) -> dict[str, list[Entry]]:
    groups: dict[str, list[Entry]] = {}
    for entry in found:
        groups.setdefault(name_of(entry), []).append(entry)
    return groups


def expected(entry: Entry, before: Baseline | None = None) -> Expected:
    """The line of an entry; the noise is kept where the figure is made as before."""
    key = protocol_key(entry.first.settings)
    old = before.figures.get(name_of(entry)) if before else None
    images = json.loads(json.dumps(entry.first.images))
    kept = old if old and (old.protocol, old.images) == (key, images) else None
    return Expected(
        figure=name_of(entry),
        metric=entry.first.metric,
        value=round(entry.value, 4),
        interval=[round(end, 4) for end in entry.interval] if entry.interval else None,
        seeds=len(entry.figures),
        noise=kept.noise if kept else None,
        noise_seeds=kept.noise_seeds if kept else 0,
        protocol=key,
        sha256=entry.first.result.checkpoint["sha256"],
        images=images,
        precision=entry.first.computing["precision"],
        facts={name: entry.facts[name] for name in FACTS if name != "seed"},
        record=entry.first.result.id,
    )


def protocol_key(settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True)
    return f"{settings['protocol']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def make_baseline(
    found: Sequence[Entry],
    before: Baseline | None = None,
    *,
    counts: bool = False,
    prune: Mapping[str, set[str]] | None = None,
) -> Baseline:
    """Of these figures. Those of the one before that are not among them stay, unless they fit
    `prune`, which is as --where has it."""
    groups = named(found)
    for name, group in groups.items():
        if len(group) > 1:
            ways = differing([_ways(entry) for entry in group])
            raise UsageError(
                f"{len(group)} figures are called {name!r}; they differ in "
                f"{', '.join(ways) or 'nothing but the record'}. Choose with --where, or give the "
                "checkpoints names with --label name=…"
            )
    figures = {name: expected(group[0], before) for name, group in groups.items()}
    protocols: dict[str, Mapping[str, Any]] = {
        protocol_key(entry.first.settings): entry.first.settings for entry in found
    }
    arrays: dict[str, np.ndarray] = {}
    if counts:
        for name, (entry,) in groups.items():
            for i, figure in enumerate(entry.figures):
                arrays[counts_key(name, i)] = figure.stored.counts()
    if before:
        kept = {
            name: old
            for name, old in before.figures.items()
            if name not in figures and (prune is None or not fits(old.facts, prune))
        }
        figures |= kept
        protocols |= {old.protocol: before.protocols[old.protocol] for old in kept.values()}
        keys = {counts_key(name, i) for name, old in kept.items() for i in range(old.seeds)}
        arrays |= {key: counts for key, counts in before.counts.items() if key in keys}
    return Baseline(figures, protocols, arrays)


def update_baseline(
    results: Source | Iterable[Source] = "results",
    baseline: str | Path = "baseline.json",
    *,
    where: Iterable[str] = (),
    strict: bool = False,
    paired: bool = False,
    prune: bool = False,
) -> tuple[Baseline | None, Baseline]:
    """`skipbench check --update`: what was expected, and what is now.

    paired: keep the counts by image that a paired check needs; prune: drop figures that are not
    among these results, of those that fit `where`.
    """
    path, chosen = Path(baseline), parse_where(where)
    found = only(read_results(results, strict=strict), chosen)
    if not found:
        raise UsageError("no record to make a baseline of")
    before = read_baseline(path, counts=True) if path.exists() else None
    counts = paired or path.with_suffix(".npz").exists()  # old counts beside new figures mislead
    pruned = chosen if prune else None
    made = make_baseline(entries(found), before, counts=counts, prune=pruned)
    ensure_writable(path.parent)
    write_baseline(path, made)
    return before, made


def _ways(entry: Entry) -> dict[str, Any]:
    sha256 = entry.first.result.checkpoint["sha256"]
    return {**entry.first.settings, **entry.first.images, **entry.facts, "sha256": sha256}


def write_baseline(path: Path, baseline: Baseline) -> None:
    lines = [
        json.dumps(vars(baseline.figures[name]), ensure_ascii=False)
        for name in sorted(baseline.figures)
    ]
    protocols = [
        f"{json.dumps(key)}: {json.dumps(baseline.protocols[key], sort_keys=True)}"
        for key in sorted(baseline.protocols)
    ]
    text = (
        f'{{\n"schema": {SCHEMA},\n"figures": [\n' + ",\n".join(lines)
        + '\n],\n"protocols": {\n' + ",\n".join(protocols) + "\n}\n}\n"
    )  # fmt: skip
    if baseline.counts:
        write_arrays(path.with_suffix(".npz"), baseline.counts)
    write_whole(path, text.encode("utf-8", "surrogateescape"))


def read_baseline(path: Path, *, counts: bool = False) -> Baseline:
    try:
        content = parse_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except FileNotFoundError:
        raise UsageError(
            f"no baseline at {path}; `skipbench check RESULTS --baseline {path} --update` makes one"
        ) from None
    except IsADirectoryError:
        raise UsageError(
            f"{path} is a folder: give the baseline a name, as baseline.json"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged baseline ({error})") from None
    try:
        if content["schema"] > SCHEMA:
            raise DataError(f"{path}: a baseline of schema {content['schema']}, of a newer version")
        figures = [_line(line) for line in content["figures"]]
        found = {one.figure: one for one in figures}
        protocols = {one.protocol: dict(content["protocols"][one.protocol]) for one in figures}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: not a baseline of skipbench, or a damaged one ({error})"
        ) from None
    if len(found) < len(figures):
        twice = next(one.figure for one in figures if found[one.figure] is not one)
        raise DataError(f"{path}: two lines for {twice!r}; take one out")
    arrays = path.with_suffix(".npz")
    return Baseline(found, protocols, read_arrays(arrays) if counts and arrays.exists() else {})


def _line(content: Mapping[str, Any]) -> Expected:
    """One that was edited may hold anything."""
    known = {one.name for one in fields(Expected)}
    if odd := known ^ set(content):
        raise ValueError(f"{sorted(odd)[0]!r} in a line is missing, or unknown")
    line = Expected(**content)
    if isinstance(line.facts, dict):  # a baseline may be older than a fact
        line = replace(line, facts={**dict.fromkeys(NEWER), **line.facts})
    for name, kind in (
        ("figure", str), ("metric", str), ("value", int | float), ("seeds", int),
        ("noise", int | float | None), ("noise_seeds", int), ("protocol", str), ("sha256", str),
        ("images", dict), ("facts", dict), ("precision", str | None),
    ):  # fmt: skip
        if not isinstance(getattr(line, name), kind) or isinstance(getattr(line, name), bool):
            raise ValueError(f"{name} {getattr(line, name)!r}")
    if line.seeds < 1 or not set(FACTS) - {"seed"} <= set(line.facts):
        raise ValueError(f"{line.figure}: seeds or facts")
    return line
