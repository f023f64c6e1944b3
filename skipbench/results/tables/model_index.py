"""A table's scores as the `model-index` of a Hugging Face model card."""

from collections.abc import Sequence
from typing import Any

from skipbench.errors import printable
from skipbench.files import unlike
from skipbench.results.entries import Entry, grouped
from skipbench.results.tables.structure import Table
from skipbench.results.words import dataset_name


def model_index(tables: Sequence[Table]) -> str:
    """YAML, with one model per checkpoint."""
    import yaml

    found = [entry for table in tables for entry in table.entries]
    models = grouped(found, lambda entry: (entry.first.sha256, entry.facts["residual"]))
    names = unlike([str(group[0].facts["checkpoint"]) for group in models.values()])
    content = [
        {"name": printable(name), "results": list(map(_result, group))}
        for name, group in zip(names, models.values(), strict=True)
    ]
    return yaml.safe_dump({"model-index": content}, sort_keys=False, allow_unicode=True)


def _result(entry: Entry) -> dict[str, Any]:
    first, facts = entry.first, entry.facts
    args: dict[str, Any] = {"features": facts["features"], "protocol": facts["protocol"]}
    if first.unusual_settings:
        args["settings"] = ", ".join(first.unusual_settings)
    if entry.interval:
        args["interval_95"] = [round(end, 4) for end in entry.interval]
    if entry.spread is not None:
        args |= {"seeds": len(entry.scores), "deviation": round(entry.spread, 4)}
    if entry.remarks:
        args["remarks"] = "; ".join(entry.remarks)
    metric = {
        "type": first.metric,
        "name": first.metric_name,
        "value": round(entry.value, 4),
        "args": {k: printable(v) if isinstance(v, str) else v for k, v in args.items()},
    }
    data = printable(facts["dataset"])
    return {
        "task": {"type": first.evaluation.task, "name": first.title},
        "dataset": {"type": data, "name": dataset_name(data), "split": facts["split"]},
        "metrics": [metric],
    }
