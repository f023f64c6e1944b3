"""A record as a score, with everything that tables, checks and comparisons read; and --where."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from skipbench.errors import UsageError, did_you_mean
from skipbench.evaluations import Evaluation, evaluation_of
from skipbench.record_store import is_number
from skipbench.records import IMAGENET, Result, chosen_words
from skipbench.results.read import Stored
from skipbench.results.words import dataset_name, setting_text

OPTIMIZERS = {"adamw": "AdamW", "soap": "SOAP", "sgd": "SGD", "lars": "LARS", "adam": "Adam"}
CHOSEN = "chosen on"  # the setting: images on which a rate or block was chosen

FACTS = (
    "evaluation", "method", "dataset", "split", "checkpoint", "residual", "depth", "epoch",
    "optimizer", "features", "protocol", "seed",
)  # fmt: skip

# Parts of a protocol that do not distinguish it, or that other facts have.
NOT_SETTINGS = {"name", "seed", "held_out", "interval", "select", "splits", "changes"}


@dataclass(frozen=True)
class Score:
    """The headline number of one record."""

    stored: Stored

    @property
    def result(self) -> Result:
        return self.stored.result

    @cached_property
    def evaluation(self) -> Evaluation:
        return evaluation_of(self.result)

    @property
    def known(self) -> bool:
        """Records of pictures have no score."""
        metrics = self.result.metrics
        return is_number(metrics.get(metrics.get("headline", "")))

    @property
    def metric(self) -> str:
        return str(self.result.metrics["headline"])

    @property
    def metric_name(self) -> str:
        return self.evaluation.metrics.get(self.metric, self.metric)

    @property
    def value(self) -> float:
        return float(self.result.metrics[self.metric])

    @property
    def interval(self) -> tuple[float, float] | None:
        ends = self.result.metrics.get("interval")
        return (float(ends[0]), float(ends[1])) if ends else None

    @property
    def title(self) -> str:
        """The evaluation, or which of its methods."""
        method = str(self.result.protocol.get("method"))
        return self.evaluation.methods.get(method, self.evaluation.title)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """For --where, and the axes of tables."""
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
        """In the paper's terms: "single" is the last block."""
        features = self.result.features
        layers, blocks = features.get("layers"), features.get("blocks") or []
        depth = self.result.checkpoint.get("depth")
        if depth and list(blocks) == [depth - 1]:
            return "single"
        if layers and not re.fullmatch(r"[-\d,\s]+", layers):
            return "single" if layers == "last" else str(layers)
        return f"block {blocks[0]}" if len(blocks) == 1 else "blocks " + ",".join(map(str, blocks))

    @cached_property
    def blocks(self) -> list[Mapping[str, Any]]:
        """The scores of each block; empty if blocks are used together."""
        rows = self.result.metrics.get("blocks") if self.evaluation.by_block else None
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The protocol, independent of checkpoint and data set."""
        result = self.result
        hidden = NOT_SETTINGS | self.evaluation.hidden_settings
        return {
            "protocol": result.protocol.get("name"),
            **{k: v for k, v in result.protocol.items() if k not in hidden},
            CHOSEN: result.metrics.get("selected_on"),
            "tensor": result.features.get("tensor"),
        }

    @property
    def unusual_settings(self) -> list[str]:
        """Settings that a name of this score must include: "lost", "k 5"."""
        settings, usual = self.settings, self.evaluation.named_by
        named = {n: settings[n] for n in usual if settings.get(n) not in (None, usual[n])}
        return [v if isinstance(v, str) else f"{n} {setting_text(v)}" for n, v in named.items()]

    @cached_property
    def images(self) -> dict[str, Any]:
        """Number and fingerprint of the images evaluated and trained on."""
        parts = {"evaluated": self.result.dataset, "trained": self.result.training}
        return {
            f"images {what} on": (part["images"], part["fingerprint"][:12])
            for what, part in parts.items()
            if part
        }

    @cached_property
    def computing(self) -> dict[str, Any]:
        """Precision in which features were computed and stored."""
        names = ("precision", "store_dtype")
        return {name: self.result.features.get(name) for name in names}

    @cached_property
    def model(self) -> dict[str, Any]:
        """What else changes the score with the same weights file."""
        names = ("weights", "heads", "norm_eps", "position_rule", "rope_keys")
        facts = {name: self.result.checkpoint.get(name) for name in names}
        return {**facts, "preprocessing": self._preprocessing() or None}

    @property
    def sha256(self) -> str:
        return str(self.result.checkpoint["sha256"])

    # -- footnotes

    @property
    def partial(self) -> bool:
        return any(part and part["partial"] for part in (self.result.dataset, self.result.training))

    @property
    def remarks(self) -> list[str]:
        """Footnotes wherever the score is shown."""
        found = [
            self._partial_data(),
            self._other_protocol(),
            self._chosen_block(),
            self._constant_features(),
            self._preprocessing(),
            *self.evaluation.remarks(self.result),
        ]
        if self.result.checkpoint.get("warning"):
            residual = self.result.checkpoint["residual"]
            found.append(f"run as {residual}, although its file or its weights suggest otherwise")
        return [words for words in found if words]

    def _partial_data(self) -> str:
        words = []
        for part in (self.result.dataset, self.result.training):
            if part and part["partial"]:
                whole = f" of {part['official_images']:,}" if part["official_images"] else ""
                images = f"{part['images']:,}{whole} images of {part['split']}"
                words.append(chosen_words(part.get("chosen"), images))
        return f"partial: {', '.join(words)}" if words else ""

    def _other_protocol(self) -> str:
        """ "protocol paper with epochs 10 instead of 30"; empty for the default protocol."""
        protocol = self.result.protocol
        changes = [
            f"{name} {setting_text(new, 'none')} instead of {setting_text(old, 'none')}"
            for name, (old, new) in (protocol.get("changes") or {}).items()
        ]
        name = protocol.get("name")
        if changes:
            return f"protocol {name} with {', '.join(changes)}"
        usual = self.evaluation.protocol or name
        return "" if name in (usual, None) else f"protocol {name}"

    def _constant_features(self) -> str:
        """Also a constant may score: one class everywhere is right in places."""
        constant = self.result.features.get("degenerate")
        counts = constant.values() if isinstance(constant, dict) else ()
        most = max(filter(is_number, counts), default=0)
        images = self.result.dataset["images"]
        return f"constant features in {most:,} of {images:,} images" if most else ""

    def _preprocessing(self) -> str:
        """Other than ImageNet's, which most models were trained with."""
        how, usual = self.result.checkpoint.get("preprocessing"), asdict(IMAGENET)
        if not isinstance(how, dict):
            return ""
        mean, std = (" ".join(f"{x:.3g}" for x in how[name]) for name in ("mean", "std"))
        words = []
        if any(list(how[name]) != list(usual[name]) for name in ("mean", "std")):
            words.append(f"normalised with mean {mean} and deviation {std}")
        if how["interpolation"] != usual["interpolation"]:
            words.append(f"{how['interpolation']} resizing")
        return ", ".join(words)

    def _chosen_block(self) -> str:
        if len(self.blocks) < 2:
            return ""
        where, block = self.settings[CHOSEN], self.result.metrics.get("block")
        if where is None:
            return f"of block {block}, the deepest"
        if where == "holdout":
            return "block chosen on one half of the images, scored on the other"
        which = "" if block is None else f" (block {block})"
        best = f"best of {len(self.blocks)} blocks{which}"
        return f"{best}, chosen on the evaluated images, as the paper does"


# -- --where FACT=VALUE


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
    """Both names match: "last" and "single", "voc" and "VOC2012"."""
    names = {fact: {str(facts[fact]).lower()} for fact in where}
    features = str(facts["features"])
    if "features" in names:  # also as in --layers
        names["features"].add("last" if features == "single" else features.rpartition(" ")[2])
    if "dataset" in names:
        names["dataset"].add(dataset_name(facts["dataset"]).lower())
    return all(names[fact] & values for fact, values in where.items())
