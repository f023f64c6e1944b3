"""Records on disk.

    results/<id>.json    one evaluation
    results/<id>.npz     its arrays by image, for paired comparisons

The arrays are put down first: a record that is there is whole.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.errors import DataError
from skipbench.files import write_whole
from skipbench.records import LABELS, RESULT_SCHEMA, TOLD, CheckpointFacts, Result


def result_id(evaluation: str, dataset: str, determines: Mapping[str, Any]) -> str:
    """ "probe-voc-3f2a9c01b7de": the same for the same work, on every machine."""
    content = json.dumps(determines, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", dataset).strip("-.")[:60] or "data"
    return f"{evaluation}-{name}-{digest}"


def plain_result(**parts: Any) -> Result:
    """With lists for tuples and so on: the same as it will be when it is read back."""
    return Result(**json.loads(json.dumps(parts, allow_nan=False)))


def write_result(folder: Path, result: Result, arrays: Mapping[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_whole(folder / f"{result.id}.npz", buffer.getvalue())
    return _write_record(folder, result)


def _write_record(folder: Path, result: Result) -> Path:
    path = folder / f"{result.id}.json"
    text = _readable(result.to_json())
    write_whole(path, text.encode("utf-8", "surrogateescape"))
    return path


def relabel(folder: Path, found: Result, facts: CheckpointFacts) -> Result:
    """The same record, with what a user has said of the checkpoint since: its name, epoch, …"""
    told = {label: getattr(facts, label) for label in LABELS if facts.sources.get(label) == TOLD}
    if all(found.checkpoint.get(label) == value for label, value in told.items()):
        return found
    sources = {**found.checkpoint.get("sources", {}), **dict.fromkeys(told, TOLD)}
    checkpoint = {**found.checkpoint, **told, "sources": sources}
    changed = replace(found, checkpoint=checkpoint)
    _write_record(folder, changed)
    return changed


def _readable(value: Any, indent: str = "") -> str:
    """JSON, a line for each entry; but lists of words or numbers on one line, however long."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        inside = [
            f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_readable(entry, deeper)}"
            for key, entry in value.items()
        ]
        return "{\n" + ",\n".join(inside) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        inside = [deeper + _readable(entry, deeper) for entry in value]
        return "[\n" + ",\n".join(inside) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def read_result(path: Path) -> Result:
    try:
        content = json.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
    except FileNotFoundError:
        raise DataError(f"no record at {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged record ({error})") from None
    known = {field.name for field in fields(Result)}
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > RESULT_SCHEMA:
        raise DataError(
            f"{path}: a record of schema {schema}, made by a newer skipbench; "
            f"this one reads up to {RESULT_SCHEMA}"
        )
    if not isinstance(schema, int) or set(content) != known:
        raise DataError(f"{path}: not a record of skipbench, or a damaged one")
    return Result(**content)


def read_arrays(folder: Path, result_id: str) -> dict[str, np.ndarray]:
    path = folder / f"{result_id}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise DataError(f"{path}: missing or damaged ({error})") from None


def find_result(folder: Path, result_id: str) -> Result | None:
    """The record of this work, if it is there and whole, arrays included."""
    try:
        found = read_result(folder / f"{result_id}.json")
        read_arrays(folder, result_id)
    except DataError:
        return None
    return found if found.id == result_id else None
