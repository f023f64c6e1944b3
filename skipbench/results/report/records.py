"""How a figure was made: every setting, where it was read, and the command for it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skipbench.records import LABELS, TOLD, Result
from skipbench.results.read import Stored
from skipbench.results.report.curves import figure_words
from skipbench.results.report.variants import (
    dataset_name,
    features_name,
    kind_name,
    metric_name,
    order_of,
    words,
)
from skipbench.results.scores import Entry, Score

LONG_LIST = 12  # of names; longer ones are counted
SWITCHES = {"norm", "standardize"}  # --norm and --no-norm
ELSEWHERE = {"per_class", "rates", "blocks", "chosen", "headline"}  # in the page's bars and curves

Rows = list[tuple[str, str, str]]  # fact, value, where it was read


def page_records(records: Sequence[Stored], found: Sequence[Entry]) -> list[dict[str, Any]]:
    """What belongs together side by side, each with the anchor that figures point to."""
    seeds = {f.result.id: entry for entry in found for f in entry.figures}
    anchors = anchors_of(records)
    made = []
    for stored in sorted(records, key=order_of):
        result = stored.result
        entry = seeds.get(result.id)
        others = [f.result.id for f in entry.figures if f.stored != stored] if entry else []
        made.append(
            {
                "id": result.id,
                "anchor": anchors[result.id],
                "title": _title(stored),
                "figure": _figure(stored),
                "residual": result.checkpoint["residual"],
                "command": command(result),
                "parts": parts(result),
                "others": [(anchors[i], i) for i in others],
            }
        )
    return made


def anchors_of(records: Iterable[Stored]) -> dict[str, str]:
    """Numbers, because an id may have any sign in it."""
    return {stored.result.id: f"record-{i}" for i, stored in enumerate(records, 1)}


def _title(stored: Stored) -> str:
    facts = Score(stored).facts
    data, features = dataset_name(facts["dataset"]), features_name(facts["features"])
    return ", ".join((str(facts["checkpoint"]), kind_name(facts), data, features))


def _figure(stored: Stored) -> str:
    if not Score(stored).known:
        return ""
    entry = Entry((Score(stored),))
    return f"{metric_name(entry)} {figure_words(entry.value, entry.interval)}"


# -- every setting


def parts(result: Result) -> list[dict[str, Any]]:
    sources = result.checkpoint.get("sources")
    read = sources if isinstance(sources, Mapping) else {}
    checkpoint = {k: v for k, v in result.checkpoint.items() if k != "sources"}
    environment = {k: v for k, v in result.environment.items() if k != "call"}
    metrics = {k: v for k, v in result.metrics.items() if k not in ELSEWHERE}
    record = {"id": result.id, "file": f"{result.id}.json", "schema": result.schema}
    told = {
        "Figure": rows(metrics | _other_choices(result)),
        "Checkpoint": [(n, v, words(read.get(n, ""))) for n, v, _ in rows(checkpoint)],
        "Features": rows(result.features),
        "Protocol": rows(result.protocol),
        "Evaluated on": rows(result.dataset),
        "Trained on": rows(result.training or {}),
        "Environment": rows(environment),
        "Timing": rows(result.timing),
        "Record": rows(record),
    }
    return [{"name": name, "rows": found} for name, found in told.items() if found]


def _other_choices(result: Result) -> dict[str, Any]:
    """What a block chosen on other images scores: no curve has it, unlike the rates of a probe."""
    chosen = result.metrics.get("chosen") if "blocks" in result.metrics else None
    others = chosen.items() if isinstance(chosen, Mapping) else ()
    taken = result.metrics.get("selected_on")
    return {f"chosen on {where}": choice for where, choice in others if where != taken}


def rows(facts: Mapping[str, Any], before: str = "") -> Rows:
    """Nested ones one below the other; long lists of names are counted, not listed."""
    found: Rows = []
    for name, value in facts.items():
        name = f"{before}{name}".replace("_", " ")
        if isinstance(value, Mapping) and value:
            found += rows(value, f"{name}: ")
        elif isinstance(value, list) and (len(value) > LONG_LIST or name == "names"):
            found.append((name, f"{len(value):,}", ""))
        else:
            found.append((name, words(value), ""))
    return found


# -- the command


def command(result: Result) -> str:
    """Quoted for a shell; nothing where the record does not say how it was asked for."""
    call = result.environment.get("call")
    if not isinstance(call, Mapping) or not call:
        return ""
    arguments = [word for name, value in call.items() for word in _option(str(name), value)]
    sources = result.checkpoint.get("sources")
    for label in LABELS:
        if isinstance(sources, Mapping) and sources.get(label) == TOLD:
            arguments += ["--label", f"{label}={result.checkpoint.get(label)}"]
    return shlex.join(["skipbench", result.evaluation, *arguments])


def _option(name: str, value: Any) -> list[str]:
    """standardize False → --no-standardize; expected {"depth": 12} → --expect depth=12."""
    flag = "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"] if value or name in SWITCHES else []
    if isinstance(value, Mapping):
        flag = "--expect" if name == "expected" else flag
        return [word for k, v in value.items() for word in (flag, f"{k}={v}")]
    if isinstance(value, list):
        return [flag, ",".join(map(_number, value))]
    return [flag, _number(value)]


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
