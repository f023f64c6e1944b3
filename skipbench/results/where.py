"""--where FACT=VALUE: records chosen by what they are of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skipbench.errors import UsageError, did_you_mean
from skipbench.results.read import Stored
from skipbench.results.scores import Score
from skipbench.results.words import dataset_name

FACTS = (
    "evaluation", "method", "dataset", "split", "checkpoint", "residual", "depth", "epoch",
    "optimizer", "features", "protocol", "seed",
)  # fmt: skip


def parse_where(pairs: Iterable[str]) -> dict[str, set[str]]:
    """["epoch=200", "epoch=300"] → {"epoch": {"200", "300"}}."""
    wanted: dict[str, set[str]] = {}
    for pair in pairs:
        fact, equals, value = pair.partition("=")
        fact = fact.strip()
        if fact not in FACTS or not equals:
            near = did_you_mean(fact, FACTS) if fact not in FACTS else ""
            raise UsageError(f"--where {pair}: give FACT=VALUE with {', '.join(FACTS)}.{near}")
        wanted.setdefault(fact, set()).add(value.strip().lower())
    return wanted


def only(stored: Sequence[Stored], where: Mapping[str, set[str]]) -> list[Stored]:
    return [one for one in stored if not where or fits(Score(one).facts, where)]


def fits(facts: Mapping[str, Any], where: Mapping[str, set[str]]) -> bool:
    """Either name is accepted: "last" or "single", "voc" or "VOC2012"."""
    said = {fact: {str(facts[fact]).lower()} for fact in where}
    features = str(facts["features"])
    if "features" in said:  # also as --layers has it
        said["features"].add("last" if features == "single" else features.rpartition(" ")[2])
    if "dataset" in said:
        said["dataset"].add(dataset_name(facts["dataset"]).lower())
    return all(said[fact] & values for fact, values in where.items())
