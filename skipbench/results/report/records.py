"""How a score was made: every setting, where it was read, and the command for it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skipbench.evaluations import evaluations
from skipbench.records import LABELS, TOLD, Result
from skipbench.results.entries import Entry
from skipbench.results.read import Stored
from skipbench.results.scores import Score
from skipbench.results.words import (
    dataset_name,
    features_name,
    in_order,
    prose,
    score_text,
    setting_text,
)
from skipbench.settings import flag_of

LONG_LIST = 12  # of names; longer ones are counted
ELSEWHERE = {"per_class", "rates", "blocks", "chosen", "headline"}  # in the page's bars and curves

Rows = list[tuple[str, str, str]]  # fact, value, where it was read


def page_records(records: Sequence[Stored], found: Sequence[Entry]) -> list[dict[str, Any]]:
    """Those that belong together side by side, each with the anchor that scores link to."""
    entry_of = {one.result.id: entry for entry in found for one in entry.stored}
    anchors = anchors_of(records)
    made = []
    for score in sorted(map(Score, records), key=pairs_together):
        result = score.result
        entry = entry_of.get(result.id)
        others = [one.result.id for one in entry.stored if one != score.stored] if entry else []
        made.append(
            {
                "anchor": anchors[result.id],
                "title": _title(score, with_seed=bool(others)),
                "score": f"{score.metric_name} {score_text(score.value, score.interval)}"
                if score.known
                else "",
                "residual": result.checkpoint["residual"],
                "command": command(result),
                "parts": parts(result),
                "others": [(anchors[i], i) for i in others],
            }
        )
    return made


def anchors_of(records: Iterable[Stored]) -> dict[str, str]:
    """Numbers, because an id may have any character in it."""
    return {stored.result.id: f"record-{i}" for i, stored in enumerate(records, 1)}


def pairs_together(score: Score) -> list[Any]:
    """Sorts skip directly before the skipless that it is compared with."""
    names = ("evaluation", "method", "dataset", "features", "residual", "checkpoint", "epoch")
    return in_order(score.facts, (*names, "seed"))


def _title(score: Score, with_seed: bool) -> str:
    facts = score.facts
    data, features = dataset_name(facts["dataset"]), features_name(facts["features"])
    words = [str(facts["checkpoint"]), score.title, data, features]
    return ", ".join(words + ([f"seed {facts['seed']}"] if with_seed else []))


# -- every setting


def parts(result: Result) -> list[dict[str, Any]]:
    sources = result.checkpoint.get("sources")
    read = sources if isinstance(sources, Mapping) else {}
    checkpoint = {k: v for k, v in result.checkpoint.items() if k != "sources"}
    environment = {k: v for k, v in result.environment.items() if k != "call"}
    metrics = {k: v for k, v in result.metrics.items() if k not in ELSEWHERE}
    record = {"id": result.id, "file": f"{result.id}.json", "schema": result.schema}
    told = {
        "Score": rows(metrics | _other_choices(result)),
        "Checkpoint": [(n, v, prose(read.get(n, ""))) for n, v, _ in rows(checkpoint)],
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
    """The scores of blocks chosen on other images: unlike the rates of a probe, no curve has
    them."""
    chosen = result.metrics.get("chosen") if "blocks" in result.metrics else None
    others = chosen.items() if isinstance(chosen, Mapping) else ()
    used = result.metrics.get("selected_on")
    return {f"chosen on {where}": choice for where, choice in others if where != used}


def rows(facts: Mapping[str, Any], before: str = "") -> Rows:
    """Nested facts one below the other; long lists of names are counted, not listed."""
    found: Rows = []
    for name, value in facts.items():
        name = f"{before}{name}".replace("_", " ")
        if isinstance(value, Mapping) and value:
            found += rows(value, f"{name}: ")
        elif isinstance(value, list) and (len(value) > LONG_LIST or name == "names"):
            found.append((name, f"{len(value):,}", ""))
        else:
            found.append((name, prose(value), ""))
    return found


# -- the command


def command(result: Result) -> str:
    """Quoted for a shell; empty if the record does not have its settings."""
    call = result.environment.get("call")
    if not isinstance(call, Mapping) or not call:
        return ""
    words = [word for name, value in call.items() for word in _option(result, str(name), value)]
    sources = result.checkpoint.get("sources")
    for label in LABELS:
        if isinstance(sources, Mapping) and sources.get(label) == TOLD:
            words += ["--label", f"{label}={result.checkpoint.get(label)}"]
    return shlex.join(["skipbench", result.evaluation, *words])


def _option(result: Result, name: str, value: Any) -> list[str]:
    """standardize False → --no-standardize; expected {"depth": 12} → --expect depth=12."""
    evaluation = evaluations().get(result.evaluation)
    option = evaluation.settings.options().get(name) if evaluation else None
    flag = flag_of(name, option) if option else "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, Mapping):
        values = [f"{k}={v}" for k, v in value.items()]
    elif isinstance(value, list) and option and option.several:
        values = list(map(str, value))
    else:
        values = [setting_text(value)]
    if option and option.argument:
        return values
    return [word for one in values for word in (flag, one)]
