"""`skipbench results export`: one row per record, as Parquet, CSV or JSON lines."""

import csv
import io
import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skipbench.errors import UsageError, printable
from skipbench.files import ensure_writable, write_whole
from skipbench.results.read import Source, Stored, read_results
from skipbench.results.scores import CHOSEN, FACTS, Score, only, parse_where
from skipbench.results.tables.render import no_formula

TYPES: dict[str, type] = {
    "id": str, **dict.fromkeys(FACTS, str), "depth": int, "epoch": int, "seed": int,
    "metric": str, "value": float, "low": float, "high": float, "chosen_on": str,
    "images": int, "partial": bool, "training_images": int,
    "sha256": str, "path": str, "layout": str, "width": int, "patch": int, "heads": int,
    "initialisation": str,
    "layers": str, "blocks": str, "tensor": str, "size": str, "precision": str,
    "store_dtype": str,
    "remarks": str, "finished": str, "seconds": float, "skipbench": str, "file": str,
}  # fmt: skip


def export(
    results: Source | Iterable[Source],
    path: Path,
    *,
    where: Iterable[str] = (),
    strict: bool = False,
) -> int:
    """The format follows the suffix. Returns the number of records."""
    suffix = path.suffix.lower()
    if suffix not in WRITERS:
        raise UsageError(f"{path}: unknown format; give .parquet, .csv or .jsonl")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError(f"{path} needs the package pyarrow: pip install 'skipbench[parquet]'")
    ensure_writable(path.parent)
    stored = only(read_results(results, strict=strict), parse_where(where))
    if not stored:
        raise UsageError("no records to export")
    write_whole(path, WRITERS[suffix]([row_of(one) for one in stored]))
    return len(stored)


def row_of(stored: Stored) -> dict[str, Any]:
    """By column; pictures have no metric."""
    score, result = Score(stored), stored.result
    low, high = score.interval or (None, None)
    seconds = [v for k, v in result.timing.items() if k.endswith("_seconds")]
    checkpoint, features = result.checkpoint, result.features
    blocks = features.get("blocks") or ()
    known: dict[str, Any] = {
        **checkpoint,
        **features,
        **score.facts,
        "id": result.id,
        "metric": score.metric if score.known else None,
        "value": score.value if score.known else None,
        "low": low,
        "high": high,
        "chosen_on": score.settings[CHOSEN],
        "images": result.dataset["images"],
        "partial": score.partial,
        "training_images": result.training and result.training["images"],
        "path": stored.ckpt or None,
        "blocks": ",".join(map(str, blocks)),
        "remarks": "; ".join(score.remarks) or None,
        "finished": result.timing.get("finished"),
        "seconds": round(sum(seconds), 3) if seconds else None,
        "skipbench": result.environment.get("skipbench"),
        "file": str(stored.path),
    }
    return {name: _plain(known.get(name), kind) for name, kind in TYPES.items()}


def _plain(value: Any, kind: type) -> Any:
    return value if value is None else printable(str(value)) if kind is str else kind(value)


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    arrow = {
        str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }  # fmt: skip
    schema = pyarrow.schema([(name, arrow[kind]) for name, kind in TYPES.items()])
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), out)
    return out.getvalue()


def _csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, TYPES, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: no_formula(v) if isinstance(v, str) else v for k, v in row.items()})
    return out.getvalue().encode()


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


WRITERS = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
