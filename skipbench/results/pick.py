"""Records by what a user types: an id, or the name or path of a checkpoint."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from skipbench.errors import UsageError, did_you_mean, printable, some_of
from skipbench.files import sha256_of, user_path, weights_file
from skipbench.records import Result
from skipbench.results.read import Source, Stored, read_results
from skipbench.results.scores import Score
from skipbench.sources import absolute

MOST = 20  # lines of a list to choose from


def pick(stored: Sequence[Stored], name: str) -> list[Stored]:
    """One record by its id or the beginning of it, or all of a checkpoint, by path or name. If
    these leave a choice, an existing file is identified by its hash: it may be a renamed copy."""
    path = user_path(name)
    place, exists = path.resolve(), path.exists()
    of_id = [one for one in stored if one.result.id == name]
    typed = absolute(name)
    at_path = [
        one for one in stored
        if one.ckpt and (one.ckpt == typed or Path(one.ckpt).resolve() == place)
    ]  # fmt: skip
    named = [one for one in stored if name in _names(one)]
    end = path.parts  # /on/another/machine/runA/checkpoint.pth ends with runA/checkpoint.pth
    elsewhere = [one for one in stored if not exists and Path(one.ckpt).parts[-len(end) :] == end]
    both = [one for one in at_path if name in _names(one)]  # of a file with several models
    found = of_id or both or at_path or named or elsewhere
    if exists and len(_checkpoints(found)) != 1:
        digest = sha256_of(weights_file(path))
        found = [one for one in stored if one.result.checkpoint["sha256"] == digest] or found
    if len(_checkpoints(found)) > 1:
        raise UsageError(_choices(name, found))
    found = found or _by_prefix(stored, name)
    if not found:
        raise UsageError(_not_found(stored, name, exists))
    by_path = found[0] not in named and (exists or found[0] in elsewhere)
    return [_shown_as(one, name) for one in found] if by_path else found


def pick_one(record: Source, results: Source | Iterable[Source]) -> Stored:
    """A file, or the one record in `results` that a name stands for."""
    if isinstance(record, Stored):
        return record
    if isinstance(record, Result):  # its counts are where it was written
        record = record.id
    alone = user_path(record).suffix == ".json" and user_path(record).exists()
    if alone:
        found = read_results(user_path(record), strict=True)
    else:
        found = pick(read_results(results), str(record))
    if len(found) > 1:
        ids = some_of([one.result.id for one in found])
        raise UsageError(f"{str(record)!r} matches {len(found)} records: {ids}")
    return found[0]


def _names(stored: Stored) -> tuple[str, str]:
    name = stored.result.checkpoint["name"]
    return name, Path(name).stem


def _checkpoints(stored: Iterable[Stored]) -> set[tuple[str, str | None]]:
    """Hashes, with the model in the file: teacher or student."""
    facts = (one.result.checkpoint for one in stored)
    return {(fact["sha256"], fact.get("weights")) for fact in facts}


def _shown_as(stored: Stored, name: str) -> Stored:
    checkpoint = {**stored.result.checkpoint, "name": name}
    return replace(stored, result=replace(stored.result, checkpoint=checkpoint))


def _by_prefix(stored: Sequence[Stored], name: str) -> list[Stored]:
    """ "probe-voc-3f2a" and "3f2a" both match probe-voc-3f2a9c01b7de."""
    ids = [one.result.id for one in stored]
    begun = [i for i in ids if i.startswith(name) or i.rpartition("-")[2].startswith(name)]
    if len(begun) > 1:
        raise UsageError(f"{name!r} is the beginning of {len(begun)} ids: {some_of(begun)}")
    return [one for one in stored if one.result.id in begun]


def _choices(name: str, found: Sequence[Stored]) -> str:
    rows = [_row(one) for one in sorted(found, key=lambda one: (one.ckpt, one.result.id))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows[:MOST]]
    more = [f"  … {len(rows) - MOST} more: skipbench results list"] if len(rows) > MOST else []
    what = f"{printable(name)} matches {len(_checkpoints(found))} checkpoints"
    return "\n".join([f"{what}: give the path, the name or an id of one.", *lines, *more])


def _row(one: Stored) -> tuple[str, ...]:
    score = Score(one)
    number = f"{score.metric_name} {score.value:.1f}" if score.known else "pictures"
    data = f"{score.facts['dataset']} {score.facts['split']}"
    model = map(printable, (score.facts["checkpoint"], one.ckpt))
    return one.result.id, *model, data, number


def _not_found(stored: Sequence[Stored], name: str, exists: bool) -> str:
    names = list(dict.fromkeys(one.result.checkpoint["name"] for one in stored))
    paths = ["/".join(Path(one.ckpt).parts[-2:]) for one in stored]
    near = did_you_mean(name, [*names, *paths, *(one.result.id for one in stored)])
    hint = (
        "its weights were not evaluated, or their records are in another folder."
        if exists
        else f"give an id (`skipbench results list`), or the name or path of a checkpoint.{near}"
    )
    return f"no record {name!r}: {hint}\nCheckpoints here: {some_of(names) if names else 'none'}"
