"""Records on disk:

    results/<id>.json    one evaluation
    results/<id>.npz     its arrays by image, for paired comparisons

The arrays are written first, so that no record is ever without them. Two more entries of the file
detect changes: `arrays`, the sha256 of the .npz, and `digest`, that of everything else in the
record. Records of schema 1 have neither.
"""

import hashlib
import io
import json
import logging
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from skipbench.errors import DataError
from skipbench.files import write_whole
from skipbench.records import LABELS, RESULT_SCHEMA, TOLD, CheckpointFacts, Result

log = logging.getLogger("skipbench")


def result_id(evaluation: str, dataset: str, determines: Mapping[str, Any]) -> str:
    """ "probe-voc-3f2a9c01b7de": the same for the same work on every machine."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", dataset).strip("-.")[:60] or "data"
    return f"{evaluation}-{name}-{digest_of(determines)[:12]}"


def digest_of(content: Mapping[str, Any]) -> str:
    """Independent of the file's layout."""
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def plain_result(**parts: Any) -> Result:
    """With lists instead of tuples and so on: equal to the record once read back."""
    return Result(**json.loads(json.dumps(parts, allow_nan=False)))


def write_result(folder: Path, result: Result, arrays: Mapping[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = packed(arrays)
    write_whole(folder / f"{result.id}.npz", data)
    return _write_record(folder, result, hashlib.sha256(data).hexdigest())


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """As the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _write_record(folder: Path, result: Result, arrays: str) -> Path:
    """arrays: the sha256 of their file. A record of schema 1 stays one."""
    path, content = folder / f"{result.id}.json", result.to_json()
    if result.determines is None:
        del content["determines"]
    else:
        content["arrays"] = arrays
        content["digest"] = digest_of(content)
    write_whole(path, _readable(content).encode("utf-8", "surrogateescape"))
    return path


def relabel(folder: Path, found: Result, facts: CheckpointFacts) -> Result:
    """The record with the user's current labels of the checkpoint: name, epoch, …"""
    labels = {label: getattr(facts, label) for label in LABELS if facts.sources.get(label) == TOLD}
    if all(found.checkpoint.get(label) == value for label, value in labels.items()):
        return found
    name = found.checkpoint["name"]
    if labels.get("name", name) != name:
        log.warning("%s: checkpoint renamed from %s to %s", found.id, name, labels["name"])
    sources = {**found.checkpoint.get("sources", {}), **dict.fromkeys(labels, TOLD)}
    checkpoint = {**found.checkpoint, **labels, "sources": sources}
    changed = replace(found, checkpoint=checkpoint)
    _write_record(folder, changed, _content(folder / f"{found.id}.json")["arrays"])
    return changed


def _readable(value: Any, indent: str = "") -> str:
    """JSON with one line per entry; lists of strings or numbers are on one line."""
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
    content = _content(path)
    return Result(**{name: content[name] for name in PARTS})


PARTS = {field.name for field in fields(Result)}
DIGESTS = {"arrays", "digest"}


def _content(path: Path) -> dict[str, Any]:
    """All parts and digests of a valid record; None for those that schema 1 lacks."""
    try:
        content = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"no record at {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged record ({error})") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > RESULT_SCHEMA:
        raise DataError(
            f"{path}: a record of schema {schema}, made by a newer skipbench; "
            f"this one reads up to {RESULT_SCHEMA}"
        )
    lacking = {"determines", *DIGESTS} if schema == 1 else set()
    if not isinstance(schema, int) or set(content) != (PARTS | DIGESTS) - lacking:
        raise DataError(f"{path}: not a skipbench record, or damaged")
    if wrong := _wrong_shape(content) or ("" if lacking else _changed(path.stem, content)):
        raise DataError(f"{path}: damaged record ({wrong})")
    return dict.fromkeys(lacking) | content


def _changed(stem: str, content: Mapping[str, Any]) -> str:
    """What was changed after writing; empty if nothing."""
    try:
        digest = digest_of({k: v for k, v in content.items() if k != "digest"})
        identity = result_id(
            content["evaluation"], content["dataset"]["name"], content["determines"]
        )
    except ValueError as error:  # 1e999
        return str(error)
    if digest != content["digest"]:
        return "changed after it was written; run its evaluation again"
    if identity != content["id"]:
        return "its id is not that of its settings"
    return "" if stem == identity else f"rename it to {identity}.json"


def parse_json(data: bytes) -> Any:
    """File names in it may be any bytes; NaN and Infinity are errors."""

    def no_number(name: str) -> None:
        raise ValueError(f"{name} is not a number")

    try:
        return json.loads(data.decode("utf-8", "surrogateescape"), parse_constant=no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


# What readers of records rely on. A record may come from anywhere, and may have been edited.
_DATA: dict[str, Any] = {
    "name": str, "split": str, "images": int, "official_images": int | None,
    "partial": bool, "classes": int, "fingerprint": str, "names": list,
}  # fmt: skip
_PARTS: dict[str, dict[str, Any]] = {
    "metrics": {"headline": str | None, "per_class": dict | None},
    "checkpoint": {
        "name": str, "sha256": str, "residual": str | None,
        "depth": int | None, "epoch": int | None, "optimizer": str | None,
    },
    "features": {"layers": str | None, "blocks": list | None},
    "protocol": {
        "name": str | None, "seed": int | None, "method": str | None, "changes": dict | None,
    },
    "dataset": _DATA,
    "timing": {},
    "environment": {"call": dict | None},
}  # fmt: skip


def _wrong_shape(content: Mapping[str, Any]) -> str:
    """What is missing or has the wrong type; empty if nothing."""
    identity = content["id"]
    if not isinstance(identity, str) or not identity or Path(identity).name != identity:
        return f"id {identity!r}"
    if not isinstance(content["evaluation"], str):
        return f"evaluation {content['evaluation']!r}"
    trained = {} if content["training"] is None else {"training": _DATA}
    for part, keys in (_PARTS | trained).items():
        if not isinstance(content[part], dict):
            return f"{part} is not an object"
        for key, kind in keys.items():
            if not isinstance(content[part].get(key), kind):
                return f"{part}.{key} is missing or has the wrong type"
    metrics, changes = content["metrics"], content["protocol"].get("changes") or {}
    headline, ends = metrics.get("headline"), metrics.get("interval")  # pictures have neither
    blocks = content["features"].get("blocks") or []
    names = [*content["dataset"]["names"], *(content["training"] or {"names": []})["names"]]
    valid = {
        f"metrics: no number {headline!r}": headline is None or is_number(metrics.get(headline)),
        "metrics.interval": ends is None or is_interval(ends),
        "no checkpoint.residual": "residual" in content["checkpoint"],
        "names of images": all(isinstance(name, str) for name in names),
        "features.blocks": all(isinstance(block, int) for block in blocks),
        "protocol.changes": all(isinstance(v, list) and len(v) == 2 for v in changes.values()),
    }
    return next((what for what, is_valid in valid.items() if not is_valid), "")


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def is_interval(value: object) -> TypeGuard[Sequence[float]]:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(is_number, value))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Of a record, checked against its digest."""
    return read_npz(path, sha256=_content(path.with_suffix(".json"))["arrays"])


def read_npz(path: Path, sha256: str | None = None) -> dict[str, np.ndarray]:
    try:
        content = path.read_bytes()
        if sha256 not in (None, hashlib.sha256(content).hexdigest()):
            raise ValueError("not the arrays of its record; run its evaluation again")
        return unpacked(content)
    except (  # what numpy and zipfile raise for damaged bytes
        OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zlib.error,
        zipfile.BadZipFile,
    ) as error:  # fmt: skip
        raise DataError(f"{path}: missing or damaged ({error})") from None


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def find_result(folder: Path, result_id: str) -> Result | None:
    """The record with this id, if it and its arrays are readable."""
    try:
        found = read_result(folder / f"{result_id}.json")
        read_arrays(folder / f"{result_id}.npz")
    except DataError:
        return None
    return found if found.id == result_id else None
