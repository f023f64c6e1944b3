"""The way from settings to a record, as one line:

    settings → data opened → checkpoint opened → cells (one per record) → features → method → record

`open_run` prepares everything but the work, and `carry_out` does the work. `inspect`,
`load_backbone` and `extract` are its parts for use from Python.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args

import torch

from skipbench.backbones.base import Backbone, Model
from skipbench.backbones.health import Choice, choose_variant, examine
from skipbench.backbones.opening import open_model
from skipbench.checkpoints import Expected
from skipbench.datasets import Dataset
from skipbench.engine.device import choose_device, choose_precision
from skipbench.errors import NumbersError, UnclearVariant, UsageError, did_you_mean
from skipbench.features.cache import DEFAULT_LIMIT
from skipbench.features.layers import parse_layers
from skipbench.features.source import default_workers
from skipbench.features.store import FeatureStore, open_store
from skipbench.files import ensure_writable
from skipbench.images import ImageItem, find_images, padded, parse_size, part_of
from skipbench.record_store import find_result, relabel, write_result
from skipbench.records import (
    LABELS,
    TOLD,
    FeatureSpec,
    PositionRule,
    Preprocess,
    Residual,
    Result,
    RopeKeys,
    Side,
    StoreDtype,
    VariantHealth,
    Verdict,
)
from skipbench.sources import Given, ModelLike
from skipbench.tracking import log_results

if TYPE_CHECKING:
    from skipbench.evaluations import Evaluation
    from skipbench.evaluations.run import Run

log = logging.getLogger("skipbench")


def open_run(
    evaluation: "Evaluation",
    settings: Any,
    data: Sequence[Dataset] = (),
    inspections: "Sequence[Inspection]" = (),
) -> "Run":
    """data, inspections: if they are open already."""
    data = data or evaluation.open_data(settings)
    inspections = inspections or [
        inspect(ckpt, **reading) for ckpt, reading in settings.checkpoints()
    ]
    return evaluation.open(settings, data, inspections)


def carry_out(run: "Run") -> list[Result]:
    """The record of each cell: found in the results, or computed and stored. Resumable."""
    out = run.settings.out
    ensure_writable(out)
    results = {} if run.always else _existing(run)
    todo = [cell for cell in run.cells if cell.id not in results]
    drawn = run.drawn()
    if todo:
        run.check_once()
    if todo or drawn:
        with ExitStack() as stack:
            run.open_features(stack, todo, drawn)
            for group in run.groups():
                with run.out_of_memory_is_reported(group[0]):
                    for cell, result, arrays in run.compute([c for c in group if c in todo]):
                        write_result(out, result, arrays)
                        run.tidy(cell)
                        results[cell.id] = result
                    for cell in group:
                        if cell in drawn:
                            run.draw(cell, results[cell.id])
    found = [results[cell.id] for cell in run.cells]
    log_results(run.settings.log, found)
    return found


def _existing(run: "Run") -> dict[str, Result]:
    """Records that need not be computed again, by id."""
    missing, out, found = run.missing(), run.settings.out, {}
    for cell in run.cells:
        name = run.describe(cell)
        if cell not in missing and (result := find_result(out, cell.id)):
            log.info("%s: record exists (%s); --force recomputes it", name, cell.id)
            found[cell.id] = relabel(out, result, run.backbone.facts)
            run.tidy(cell)  # files left by a run that was killed after writing the record
        elif not run.settings.force and (out / f"{cell.id}.json").exists():
            log.warning("the record %s is damaged and is computed again", cell.id)
    return found


class Reading(TypedDict, total=False):
    """How a checkpoint is read: the keyword arguments of `inspect` and `load_backbone`."""

    residual: str  # skip, skipless or auto
    weights: str | None  # teacher, student, or its name in the file
    expected: Expected | None
    position_rule: PositionRule | None
    preprocess: Preprocess
    rope_keys: RopeKeys
    device: str
    labels: Mapping[str, str | int] | None  # name, epoch, optimizer, initialisation


@dataclass(frozen=True)
class Inspection:
    """Everything `skipbench inspect` shows."""

    model: Model
    verdict: Verdict
    choice: Choice | None  # None: skip or skipless is unclear
    device: torch.device

    @property
    def health(self) -> VariantHealth | None:
        """Of the variant that is run."""
        return getattr(self.verdict, self.choice.residual) if self.choice else None

    def require_sound(self) -> Choice:
        """The variant that is run; an error where it is broken, or unclear."""
        name = self.model.facts.name
        for health in [self.health] if self.health else self.verdict.variants:
            if health.finite:
                break
        else:
            block = next(b.block for b in health.blocks if not b.finite)
            raise NumbersError(f"{name}, run {health.residual}: NaN or Inf arises in block {block}")
        if self.choice is None:
            raise UnclearVariant(
                f"{name}: skip or skipless? Neither the file nor its weights say:\n"
                f"{self.verdict.reason}.\nSet --residual skip or --residual skipless (in a suite: "
                'residual = "skip" or residual = "skipless").'
            )
        return self.choice

    def backbone(self, precision: str = "auto") -> Backbone:
        how = choose_precision(precision, self.device)
        return self.model.backbone(self.require_sound().residual, self.device, how)


def inspect(
    source: ModelLike,
    *,
    residual: str = "auto",
    weights: str | None = None,
    expected: Expected | None = None,
    position_rule: PositionRule | None = None,
    preprocess: Preprocess = "model",
    rope_keys: RopeKeys = "before",
    device: str = "auto",
    labels: Mapping[str, str | int] | None = None,
) -> Inspection:
    """Open a model and find out, on a few photographs, whether it is skip or skipless."""
    source = source if isinstance(source, str | Path) else Given(source)
    if residual not in ("auto", *get_args(Residual)):
        raise UsageError(f"--residual {residual!r}: give skip, skipless or auto")
    asked: Residual | None = None if residual == "auto" else residual  # type: ignore[assignment]
    place = choose_device(device)
    model = open_model(
        source, residual=asked, weights=weights, expected=expected, position_rule=position_rule,
        preprocess=preprocess, rope_keys=rope_keys,
    )  # fmt: skip
    model = labelled(model, labels or {})
    facts = model.facts
    for note in facts.notes:
        log.info("%s: %s", facts.name, note)
    for doubt in facts.doubts:
        log.warning("%s: %s", facts.name, doubt)
    verdict = examine(model, place)
    choice = choose_variant(facts, asked, verdict)
    if choice and choice.warning:
        log.warning("%s", choice.warning)
    elif choice and asked is None and facts.residual is None:
        log.info("%s: taken as %s; %s", facts.name, choice.residual, verdict.reason)
    return Inspection(model, verdict, choice, place)


def labelled(model: Model, labels: Mapping[str, str | int]) -> Model:
    """With the facts given by the user, which override those of the file."""
    if unknown := set(labels) - set(LABELS):
        raise UsageError(f"no label {sorted(unknown)[0]!r}; give {', '.join(LABELS)}")
    sources = {**model.facts.sources, **dict.fromkeys(labels, TOLD)}
    facts = replace(model.facts, sources=sources, **labels)  # type: ignore[arg-type]
    return replace(model, facts=facts)


def load_backbone(
    source: ModelLike,
    *,
    precision: str = "auto",
    **reading: Unpack[Reading],
) -> Backbone:
    """A frozen backbone, run as the variant given by the user, the file or the weights.

    source: what `--ckpt` takes, or a function or module of yours.
    reading: residual, weights, expected, position_rule, preprocess, rope_keys, device, as for
    `inspect`.
    """
    for name in reading.keys() - Reading.__annotations__:
        near = did_you_mean(name, Reading.__annotations__)
        near = " Give expected=Expected(heads=…)." if name == "heads" else near
        raise TypeError(f"load_backbone() got an unexpected keyword argument {name!r}.{near}")
    device = choose_device(reading.get("device", "auto"))
    choose_precision(precision, device)  # a wrong one is reported before any work
    return inspect(source, **reading).backbone(precision)


def extract(
    backbone: Backbone,
    images: str | Path | Dataset | Iterable[str | Path | ImageItem],
    *,
    layers: str = "last",
    tensors: Sequence[str] = ("tokens_norm",),
    size: str | int = "448",
    store_dtype: str = "fp16",
    limit: int | None = None,
    sample: int | None = None,
    subset_seed: int = 0,
    cache: str | Path | None = None,
    cache_limit: int = DEFAULT_LIMIT,
    batch_size: int | None = None,
    workers: int | None = None,
) -> FeatureStore:
    """The features of images, folders or a data set: from the cache, or computed and stored there.

    limit: only of the first N images; sample: only of N random ones.
    """
    items: Sequence[ImageItem]
    if isinstance(images, Dataset):
        items = images.items
    else:
        items = find_images([images] if isinstance(images, str | Path) else images)
    if store_dtype not in get_args(StoreDtype):
        raise UsageError(f"no store dtype {store_dtype!r}; give fp16 or fp32")
    spec = FeatureSpec(
        blocks=parse_layers(layers, backbone.depth),
        tensors=tuple(dict.fromkeys(tensors)),
        size=parse_size(str(size)),
        store_dtype=store_dtype,  # type: ignore[arg-type]
    )
    log_adaptation(backbone, spec)
    return open_store(
        backbone, part_of(items, limit, sample, subset_seed), spec, cache=cache,
        limit_bytes=cache_limit, batch_size=batch_size, workers=workers or default_workers(),
    )  # fmt: skip


def log_adaptation(backbone: Backbone, spec: FeatureSpec) -> None:
    size_hw = None
    if spec.size is not None and not isinstance(spec.size, Side):
        size_hw = padded(spec.size, backbone.patch)
        if size_hw != spec.size:
            log.info("images are padded from %d×%d to %d×%d", *spec.size, *size_hw)
    strides = sorted({backbone.stride(block) for block in spec.blocks})
    if len(strides) > 1:
        log.info(
            "blocks with %s pixels per token: where they are used together, coarser grids are "
            "resized to the finest", " and ".join(map(str, strides)),
        )  # fmt: skip
    if adapted := backbone.adaptation(size_hw):
        log.info("%s", adapted)
