"""Expected scores, in a file to commit: sorted, one line each.

baseline.json   the scores and their protocols
baseline.npz    counts by image, for --paired; only if asked for
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
from skipbench.record_store import packed, parse_json, read_npz
from skipbench.results.entries import Entry, differing, entries, grouped
from skipbench.results.read import Source, read_results
from skipbench.results.scores import FACTS, fits, only, parse_where

SCHEMA = 1

NEWER = ("method",)  # facts that the first baselines do not have


@dataclass(frozen=True)
class Expected:
    """One line of the file."""

    figure: str  # its name: "model.pth, probe, voc val, single, paper"
    metric: str
    value: float
    interval: Sequence[float] | None
    seeds: int
    noise: float | None  # standard deviation over seeds, by `skipbench calibrate`
    noise_seeds: int
    protocol: str  # a key of `Baseline.protocols`
    sha256: str  # of the checkpoint
    images: Mapping[str, Any]
    precision: str | None
    facts: Mapping[str, Any]  # for --where
    record: str  # id of the first


@dataclass(frozen=True)
class Baseline:
    figures: Mapping[str, Expected]  # by name
    protocols: Mapping[str, Mapping[str, Any]]
    counts: Mapping[str, np.ndarray] = field(default_factory=dict)  # by image; of `counts_key`


def counts_key(name: str, seed: int) -> str:
    """The name of an array in the .npz: a hash, as checkpoint names may have any characters."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{digest}-{seed}"


def name_of(entry: Entry) -> str:
    """Stable across releases: the checkpoint's name, not the hash of its weights."""
    facts = entry.facts
    data = f"{facts['dataset']} {facts['split']}"
    words = [facts["checkpoint"], facts["evaluation"], data, facts["features"], facts["protocol"]]
    return ", ".join(map(str, [*words, *entry.first.unusual_settings]))


def expected(entry: Entry, before: Baseline | None = None) -> Expected:
    """The line of an entry. Its noise is kept if protocol and images are the same as before."""
    first, name = entry.first, name_of(entry)
    settings = json.dumps(first.settings, sort_keys=True)
    key = f"{first.settings['protocol']}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
    images = json.loads(json.dumps(first.images))
    old = before.figures.get(name) if before else None
    kept = old if old and (old.protocol, old.images) == (key, images) else None
    return Expected(
        figure=name,
        metric=first.metric,
        value=round(entry.value, 4),
        interval=[round(end, 4) for end in entry.interval] if entry.interval else None,
        seeds=len(entry.scores),
        noise=kept.noise if kept else None,
        noise_seeds=kept.noise_seeds if kept else 0,
        protocol=key,
        sha256=first.sha256,
        images=images,
        precision=first.computing["precision"],
        facts={name: entry.facts[name] for name in FACTS if name != "seed"},
        record=first.result.id,
    )


# -- a new one


def update_baseline(
    results: Source | Iterable[Source] = "results",
    baseline: str | Path = "baseline.json",
    *,
    where: Iterable[str] = (),
    strict: bool = False,
    paired: bool = False,
    prune: bool = False,
) -> tuple[Baseline | None, Baseline]:
    """`skipbench check --update`: the old baseline and the new one.

    paired: store the counts by image that a paired check needs; prune: drop scores that match
    `where` and are not among these results.
    """
    path, chosen = Path(baseline), parse_where(where)
    found = only(read_results(results, strict=strict), chosen)
    if not found:
        raise UsageError("no records to make a baseline from")
    before = read_baseline(path, counts=True) if path.exists() else None
    counts = paired or path.with_suffix(".npz").exists()  # old counts must not outlive their scores
    made = make_baseline(entries(found), counts, before, chosen if prune else None)
    ensure_writable(path.parent)
    write_baseline(path, made)
    return before, made


def make_baseline(
    found: Sequence[Entry],
    counts: bool,
    before: Baseline | None,
    prune: Mapping[str, set[str]] | None,
) -> Baseline:
    """Other scores of `before` are kept, unless they match `prune`."""
    groups = grouped(found, name_of)
    for name, group in groups.items():
        if len(group) > 1:
            facts = [
                {
                    **e.first.settings,
                    **e.first.images,
                    **e.facts,
                    **e.first.model,
                    "sha256": e.first.sha256,
                }
                for e in group
            ]
            ways = ", ".join(differing(facts)) or "nothing but the record"
            raise UsageError(
                f"{len(group)} scores are called {name!r}; they differ in {ways}. "
                "Choose with --where, give single records (files), or name the checkpoints with "
                "--label name=…"
            )
    chosen = {name: entry for name, (entry,) in groups.items()}
    figures = {name: expected(entry, before) for name, entry in chosen.items()}
    protocols = {figures[name].protocol: e.first.settings for name, e in chosen.items()}
    arrays = {
        counts_key(name, i): stored.counts()
        for name, entry in chosen.items()
        for i, stored in enumerate(entry.stored if counts else ())
    }
    if before:
        for name, old in before.figures.items():
            if name not in figures and (prune is None or not fits(old.facts, prune)):
                figures[name] = old
                protocols[old.protocol] = dict(before.protocols[old.protocol])
                keys = {counts_key(name, i) for i in range(old.seeds)} & set(before.counts)
                arrays |= {key: before.counts[key] for key in keys}
    return Baseline(figures, protocols, arrays)


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
        write_whole(path.with_suffix(".npz"), packed(baseline.counts))
    write_whole(path, text.encode("utf-8", "surrogateescape"))


# -- reading one


def read_baseline(path: Path, *, counts: bool = False) -> Baseline:
    try:
        content = parse_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except FileNotFoundError:
        raise UsageError(
            f"no baseline at {path}; create it: skipbench check RESULTS --baseline {path} --update"
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder: give a file, such as baseline.json") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged baseline ({error})") from None
    try:
        if content["schema"] > SCHEMA:
            raise DataError(f"{path}: baseline of schema {content['schema']}, by a newer skipbench")
        figures = [_line(line) for line in content["figures"]]
        found = {one.figure: one for one in figures}
        protocols = {one.protocol: dict(content["protocols"][one.protocol]) for one in figures}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not a skipbench baseline, or damaged ({error})") from None
    if len(found) < len(figures):
        twice = next(one.figure for one in figures if found[one.figure] is not one)
        raise DataError(f"{path}: two lines for {twice!r}; remove one")
    arrays = path.with_suffix(".npz")
    return Baseline(found, protocols, read_npz(arrays) if counts and arrays.exists() else {})


def _line(content: Mapping[str, Any]) -> Expected:
    """Checked: the file may have been edited."""
    known = {one.name for one in fields(Expected)}
    if odd := known ^ set(content):
        raise ValueError(f"{sorted(odd)[0]!r} in a line is missing or unknown")
    line = Expected(**content)
    if isinstance(line.facts, dict):
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
    if not all(isinstance(fact, str | float | int | None) for fact in line.facts.values()):
        raise ValueError(f"{line.figure}: facts")
    for images in line.images.values():
        if not isinstance(images, list) or [type(one) for one in images] != [int, str]:
            raise ValueError(f"{line.figure}: images")
    return line
