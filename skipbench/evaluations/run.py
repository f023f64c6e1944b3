"""What evaluations of stored features have in common: features seen once, a record for each cell.

A cell is what makes one record: a set of layers, a seed, and what the evaluation adds to them.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skipbench.backbones.vit import Backbone
from skipbench.engine.device import is_out_of_memory
from skipbench.errors import OutOfMemory
from skipbench.evaluations.segmentation.images import Keeping
from skipbench.features.held import Features
from skipbench.features.layers import parse_layers
from skipbench.features.store import model_part
from skipbench.images import Picture, padded, parse_size, size_name, target_hw
from skipbench.pipeline import Inspection
from skipbench.records import FeatureSpec, Result, StoreDtype
from skipbench.results.store import find_result, relabel

log = logging.getLogger("skipbench")


@dataclass(frozen=True, kw_only=True)
class AskedOfFeatures:
    """All that the figures depend on, but for the checkpoint and the data."""

    layers: tuple[str, ...] = ("last",)
    seeds: tuple[int, ...] = (0,)
    norm: bool = True  # block outputs after the final norm
    store_dtype: StoreDtype = "fp16"
    precision: str = "auto"
    keeping: Keeping = field(default_factory=Keeping)
    out: Path = Path("results")
    force: bool = False
    pictures: int = 0
    call: Mapping[str, Any] = field(default_factory=dict)  # as it was asked for, for the record


@dataclass(frozen=True)
class Cell:
    id: str
    layers: str
    blocks: tuple[int, ...]
    seed: int


class FeatureRun:
    """Every stage is done when it is first needed."""

    asked: Any  # of a kind of `AskedOfFeatures`
    cells: list[Any]  # of a kind of `Cell`
    stages: tuple[str, ...]  # whose seconds are told, after those of features

    def __init__(self, inspection: Inspection, asked: AskedOfFeatures, size: str) -> None:
        self.inspection, self.asked = inspection, asked
        self.size = parse_size(size)
        self.backbone: Backbone = inspection.backbone(asked.precision)
        self.tensor = "tokens_norm" if asked.norm else "tokens"
        self.layers: dict[tuple[int, ...], str] = {}
        for text in asked.layers:  # "last" and "11" may be one set
            self.layers.setdefault(parse_layers(text, self.backbone.depth), text)
        self.seconds = dict.fromkeys(("features", *self.stages), 0.0)
        self.computed = 0  # images of which features were computed, not found

    def run(self) -> list[Result]:
        """One for each cell, in their order."""
        raise NotImplementedError

    def spec(self, cells: Sequence[Cell]) -> FeatureSpec:
        """One pass over the images for all of them."""
        return FeatureSpec(
            blocks=tuple(sorted({block for cell in cells for block in cell.blocks})),
            tensors=(self.tensor,),
            size=self.size,
            store_dtype=self.asked.store_dtype,
        )

    def columns(self, cell: Cell) -> tuple[str, ...]:
        return FeatureSpec(blocks=cell.blocks, tensors=(self.tensor,)).columns

    def width(self, cell: Cell) -> int:
        """Of its tokens."""
        return self.backbone.facts.width * len(cell.blocks)

    def features(self, pictures: Sequence[Picture], spec: FeatureSpec, what: str) -> Features:
        with self.timed("features"):
            label = f"features of {what}"
            found = self.asked.keeping.features(self.backbone, pictures, spec, label)
        self.computed += found.computed
        return found

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] += time.monotonic() - started

    def seconds_since(self, before: Mapping[str, float]) -> dict[str, float]:
        """By stage; before: what `seconds` was. Features are shared by all cells."""
        return {
            stage: spent if stage == "features" else spent - before[stage]
            for stage, spent in self.seconds.items()
        }

    def done_before(self) -> dict[str, Result]:
        """Records that are there, by id."""
        found, out = {}, self.asked.out
        for cell in self.cells if not self.asked.force else ():
            if result := find_result(out, cell.id):
                log.info("%s: done before (%s); --force does it again", self.named(cell), cell.id)
                found[cell.id] = relabel(out, result, self.backbone.facts)
                self.tidy(cell)
            elif (out / f"{cell.id}.json").exists():
                log.warning("the record %s is damaged, and is made anew", cell.id)
        return found

    def drawn(self) -> list[Any]:
        """Cells whose pictures are asked for: of several seeds, the first is enough to look at."""
        first = self.asked.seeds[0]
        return [cell for cell in self.cells if self.asked.pictures and cell.seed == first]

    def determined_by(self, blocks: tuple[int, ...]) -> dict[str, Any]:
        """What every figure depends on, for its id."""
        return {
            "model": model_part(self.backbone),
            "features": [list(blocks), self.tensor, self.asked.store_dtype],
        }

    def features_part(self, cell: Cell, features: Features) -> dict[str, Any]:
        """For the record. features: of the images that were scored."""
        return {
            "layers": cell.layers,
            "blocks": cell.blocks,
            "tensor": self.tensor,
            "size": size_name(self.size),
            "precision": self.backbone.precision,
            "store_dtype": self.asked.store_dtype,
            "degenerate": {c: len(features.degenerate[c]) for c in self.columns(cell)},
        }

    def label(self, what: str, cell: Cell) -> str:
        seed = f" seed {cell.seed}" if len(self.asked.seeds) > 1 else ""
        return f"{what} {cell.layers}{seed}"

    def tidy(self, cell: Any) -> None:
        """What is left of a record that was written, if it was ended at the very next moment."""

    def named(self, cell: Any) -> str:
        """What tells it from other cells."""
        return self.label("", cell).strip()

    def tokens_of(self, items: Sequence[Picture], enough: int) -> int:
        """How many these images have, without seeing them; counted no further than `enough`."""
        patch, count = self.backbone.facts.patch, 0
        for item in items:
            size_hw = self.size if isinstance(self.size, tuple) else item.size_hw()
            height, width = padded(target_hw(size_hw, self.size), patch)
            count += (height // patch) * (width // patch)
            if count >= enough:
                return enough
        return count


@contextmanager
def memory_is_short_at(layers: str, doing: str, advice: str) -> Iterator[None]:
    """Features have their own way of making do with less; what comes after them has not."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        words = (str(error) or type(error).__name__).splitlines()[0][:80]
        raise OutOfMemory(
            f"{layers}: out of memory in {doing} ({words}).\n{advice}; what was done is kept."
        ) from None
