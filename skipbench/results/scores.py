"""What tables, gates and comparisons read out of records: figures, and what they are figures of.

A record gives one figure; those that differ in nothing but the seed are one `Entry`.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

from skipbench.errors import UsageError, did_you_mean
from skipbench.records import Result
from skipbench.results.tables.layouts import DATASETS
from skipbench.results.read import Stored
from skipbench.record_store import is_number

log = logging.getLogger("skipbench")

# What a figure can be asked about with --where, and what tables have on their axes.
FACTS = (
    "evaluation", "method", "dataset", "split", "checkpoint", "residual", "depth", "epoch",
    "optimizer", "features", "protocol", "seed",
)  # fmt: skip

MANY_DEGENERATE = 0.05  # of the images: more are told wherever the figure is shown
METRICS = {
    "miou": "mIoU", "corloc": "CorLoc", "iou": "IoU", "coherence": "coherence",
}  # fmt: skip
BY_BLOCK = ("tokencut", "pca")  # evaluations that score each block by itself
OPTIMIZERS = {"adamw": "AdamW", "soap": "SOAP", "sgd": "SGD", "lars": "LARS", "adam": "Adam"}

CHOSEN = "chosen on"  # the setting that says on which images a rate or a block was chosen

# Settings of a protocol that do not make it another protocol, or that are told otherwise: the
# feature of TokenCut as the tensor, the matching of clusters by their number.
USUAL_PROTOCOLS = ("paper", "hummingbird", "k-means", None)  # that need no remark
NOT_SETTINGS = {
    "name", "seed", "held_out", "interval", "select", "splits", "changes", "feature",
    "matching",
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """One record, seen as a number."""

    stored: Stored

    @property
    def result(self) -> Result:
        return self.stored.result

    @property
    def known(self) -> bool:
        """Records of pictures have no figure."""
        metrics = self.result.metrics
        return is_number(metrics.get(metrics.get("headline", "")))

    @property
    def metric(self) -> str:
        return str(self.result.metrics["headline"])

    @property
    def value(self) -> float:
        return float(self.result.metrics[self.metric])

    @property
    def interval(self) -> tuple[float, float] | None:
        ends = self.result.metrics.get("interval")
        return (float(ends[0]), float(ends[1])) if ends else None

    @cached_property
    def facts(self) -> dict[str, Any]:
        result, checkpoint = self.result, self.result.checkpoint
        optimizer = checkpoint.get("optimizer")
        return {
            "evaluation": result.evaluation,
            "method": result.protocol.get("method"),
            "dataset": result.dataset["name"],
            "split": result.dataset["split"],
            "checkpoint": checkpoint["name"],
            "residual": checkpoint["residual"],
            "depth": checkpoint.get("depth"),
            "epoch": checkpoint.get("epoch"),
            "optimizer": OPTIMIZERS.get(str(optimizer).lower(), optimizer),
            "features": self._features(),
            "protocol": result.protocol.get("name"),
            "seed": result.protocol.get("seed"),
        }

    def _features(self) -> str:
        """The paper's words: "single" is the last block."""
        features = self.result.features
        layers, blocks = features.get("layers"), features.get("blocks") or []
        depth = self.result.checkpoint.get("depth")
        if depth and list(blocks) == [depth - 1]:
            return "single"
        if layers and not re.fullmatch(r"[-\d,\s]+", layers):
            return "single" if layers == "last" else str(layers)
        return f"block {blocks[0]}" if len(blocks) == 1 else "blocks " + ",".join(map(str, blocks))

    @property
    def by_block(self) -> bool:
        """Of several blocks, its figure is that of one: blocks are chosen, not put together."""
        return self.result.evaluation in BY_BLOCK

    @cached_property
    def blocks(self) -> list[Mapping[str, Any]]:
        """What each block scored by itself; nothing where blocks are put together."""
        rows = self.result.metrics.get("blocks") if self.by_block else None
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    @cached_property
    def settings(self) -> dict[str, Any]:
        """How it was made, whatever the checkpoint and the data set."""
        result = self.result
        return {
            "protocol": result.protocol.get("name"),
            **{k: v for k, v in result.protocol.items() if k not in NOT_SETTINGS},
            CHOSEN: result.metrics.get("selected_on"),
            "tensor": result.features.get("tensor"),
        }

    @cached_property
    def images(self) -> dict[str, Any]:
        """Which images it was made on: to be the same for one data set."""
        parts = {"evaluated": self.result.dataset, "trained": self.result.training}
        return {
            f"images {what} on": (part["images"], part["fingerprint"][:12])
            for what, part in parts.items()
            if part
        }

    @cached_property
    def computing(self) -> dict[str, Any]:
        """In which precision features were computed and kept."""
        names = ("precision", "store_dtype")
        return {name: self.result.features.get(name) for name in names}

    @cached_property
    def model(self) -> dict[str, Any]:
        """What else of the model, of one weights file, moves the figure."""
        names = ("weights", "heads", "norm_eps", "position_rule")
        return {name: self.result.checkpoint.get(name) for name in names}

    @property
    def partial(self) -> bool:
        return any(part and part["partial"] for part in (self.result.dataset, self.result.training))

    @property
    def remarks(self) -> list[str]:
        """What stands in a footnote wherever the figure is shown."""
        found = []
        if self.partial:
            found.append(f"partial: {self._how_many()}")
        found += [words] if (words := _other_protocol(self.result.protocol)) else []
        found += [words] if (words := self._choice()) else []
        if edge := self.result.metrics.get("edge"):
            found.append(f"the {edge} rate of the sweep was chosen: a wider one may be better")
        found += [words for words in (self._degenerate(), self._approximate()) if words]
        if self.result.checkpoint.get("warning"):
            residual = self.result.checkpoint["residual"]
            found.append(f"run {residual}, though its weights do not look so")
        return found

    def _choice(self) -> str:
        """What was chosen, and with which images; nothing where there was nothing to say of it."""
        where = self.settings[CHOSEN]
        if not self.by_block:
            told = where == "val"
            return "learning rate chosen on the validation images, as papers do" if told else ""
        if len(self.blocks) < 2:
            return ""
        if where is None:
            return f"of block {self.result.metrics.get('block')}, the deepest"
        if where == "holdout":
            return "block chosen on one half of the images, scored on the other"
        block = self.result.metrics.get("block")
        which = "" if block is None else f" (block {block})"
        many = f"best of {len(self.blocks)} blocks{which}"
        return f"{many}, chosen on the evaluated images, as the paper does"

    def _degenerate(self) -> str:
        """Of object discovery: a box around the whole image is often right, and no discovery."""
        count, images = self.result.metrics.get("degenerate"), self.result.dataset["images"]
        if not isinstance(count, int) or count <= MANY_DEGENERATE * images:
            return ""
        return f"{count:,} of {images:,} images degenerate: their box is the whole image"

    def _approximate(self) -> str:
        """Of nearest neighbours: where not all of the bank was searched."""
        bank = self.result.metrics.get("bank")
        recall = bank.get("recall") if isinstance(bank, dict) else None
        if not is_number(recall):
            return ""
        return f"approximate search: {100 * recall:.0f} % of the nearest neighbours found"

    def _how_many(self) -> str:
        parts = [self.result.dataset, self.result.training]
        words = [
            f"{part['images']:,}"
            + (f" of {part['official_images']:,}" if part["official_images"] else "")
            + f" images of {part['split']}"
            for part in parts
            if part and part["partial"]
        ]
        return ", ".join(words)


def _other_protocol(protocol: Mapping[str, Any]) -> str:
    """ "protocol paper with epochs 10 instead of 30"; nothing where it is the paper's as it is."""
    changes = protocol.get("changes") or {}
    told = [
        f"{name} {_short(new)} instead of {_short(old)}" for name, (old, new) in changes.items()
    ]
    if told:
        return f"protocol {protocol['name']} with {', '.join(told)}"
    return "" if protocol.get("name") in USUAL_PROTOCOLS else f"protocol {protocol['name']}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Entry:
    """The mean of figures that differ only in their seed."""

    figures: tuple[Score, ...]
    remark: str = ""  # of the table's making, as "best of 12 blocks"

    @property
    def first(self) -> Score:
        return self.figures[0]

    @property
    def facts(self) -> dict[str, Any]:
        return self.first.facts

    @property
    def value(self) -> float:
        return fmean(figure.value for figure in self.figures)

    @property
    def spread(self) -> float | None:
        """Deviation over the seeds."""
        return stdev(f.value for f in self.figures) if len(self.figures) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Over images: the mean of the seeds' intervals."""
        ends = [figure.interval for figure in self.figures]
        known = [pair for pair in ends if pair]
        if len(known) < len(ends):
            return None
        return fmean(low for low, _ in known), fmean(high for _, high in known)

    @property
    def remarks(self) -> list[str]:
        several = [f"mean over {len(self.figures)} seeds"] if len(self.figures) > 1 else []
        return [*self.first.remarks, *([self.remark] if self.remark else []), *several]

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "interval": self.interval,
            "deviation": self.spread,
            "seeds": [figure.facts["seed"] for figure in self.figures],
            "records": [figure.result.id for figure in self.figures],
        }


def entries(stored: Iterable[Stored]) -> list[Entry]:
    """Records that differ only in their seed together, in the order they come in. Those without a
    figure, as of pictures, are left out."""
    groups: dict[str, dict[Any, Score]] = {}
    for one in stored:
        figure = Score(one)
        if not figure.known:
            continue
        seeds = groups.setdefault(_but_for_the_seed(figure), {})
        first = seeds.setdefault(figure.facts["seed"], figure)
        if first is not figure:
            log.warning("%s is of the same thing as %s: left out", one.path, first.stored.path)
    return [Entry(tuple(group.values())) for group in groups.values()]


def _but_for_the_seed(figure: Score) -> str:
    facts = {name: value for name, value in figure.facts.items() if name != "seed"}
    features = {
        k: v for k, v in figure.result.features.items() if k not in ("degenerate", "layers")
    }
    sha256 = figure.result.checkpoint["sha256"]
    same = [sha256, figure.model, facts, features, figure.settings, figure.images]
    return json.dumps(same, sort_keys=True)


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
    """Those whose facts are among the wanted ones."""
    return [one for one in stored if not where or fits(Score(one).facts, where)]


def fits(facts: Mapping[str, Any], where: Mapping[str, set[str]]) -> bool:
    """Whichever word is used: "last" or "single", "voc" or "VOC2012"."""
    said = {fact: {str(facts[fact]).lower()} for fact in where}
    features, dataset = str(facts["features"]), str(facts["dataset"])
    if "features" in said:  # as --layers has it, too
        said["features"].add("last" if features == "single" else features.rpartition(" ")[2])
    if "dataset" in said:
        said["dataset"].add(DATASETS.get(dataset, dataset).lower())
    return all(said[fact] & values for fact, values in where.items())


def differing(
    dicts: Sequence[Mapping[str, Any]], keys: Iterable[str] | None = None
) -> dict[str, list[Any]]:
    """Each key with its different values, for those keys that have more than one."""
    found = {}
    for key in keys or dict.fromkeys(key for one in dicts for key in one):
        values: list[Any] = []
        for one in dicts:
            if (value := one.get(key)) not in values:
                values.append(value)
        if len(values) > 1:
            found[key] = values
    return found
