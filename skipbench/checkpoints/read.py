"""open_checkpoint: the one function that opens weights, from a file or through timm."""

from dataclasses import dataclass
from pathlib import Path

import torch

from skipbench.checkpoints.facts import Expected, Metadata, gather_facts, stated_grid
from skipbench.checkpoints.files import RawFile, read_file
from skipbench.checkpoints.foreign import explained
from skipbench.checkpoints.layouts import find_backbone
from skipbench.checkpoints.shape import canonical
from skipbench.checkpoints.timm_hub import is_plain, open_timm
from skipbench.errors import CheckpointError
from skipbench.records import CheckpointFacts, PositionRule
from skipbench.sources import source_of


@dataclass(frozen=True)
class Checkpoint:
    state: dict[str, torch.Tensor]  # canonical names, float32, on the CPU
    facts: CheckpointFacts


def open_checkpoint(
    source: str | Path,
    *,
    weights: str | None = None,
    expected: Expected | None = None,
    position_rule: PositionRule | None = None,
) -> Checkpoint:
    """Open the weights of a plain vision transformer: a file, a folder with `config.json`, or
    `timm:NAME[@FILE]`.

    weights: which model, if it contains several: teacher, student, or its name there (default: the
    teacher).
    expected: anything else is a CheckpointError with both values.
    """
    where = source_of(source)
    if where.kind == "timm":
        opened = open_timm(where)
        if not is_plain(opened.module):
            raise CheckpointError(f"{where}: no plain vision transformer: use load_backbone")
        raw = opened.raw
    elif where.path:
        raw = read_file(where.path)
    else:
        raise CheckpointError(f"{where}: no weights file: use load_backbone")
    return as_checkpoint(raw, where.title, weights, expected or Expected(), position_rule)


def as_checkpoint(
    raw: RawFile,
    name: str,
    weights: str | None,
    expected: Expected,
    position_rule: PositionRule | None,
) -> Checkpoint:
    # The hash first: nothing else matters about the wrong file.
    require_hash(raw, expected, name)
    metadata = Metadata(raw)
    try:
        found = find_backbone(raw.tree, weights, name)
        state, shape = canonical(found.state, stated_grid(metadata, found), name)
    except CheckpointError as error:
        raise CheckpointError(explained(raw.tree, name, str(raw.path)) or str(error)) from None
    facts = gather_facts(raw, found, metadata, shape, expected, name, position_rule)
    return Checkpoint(state, facts)


def require_hash(raw: RawFile, expected: Expected, name: str) -> None:
    if expected.sha256 and expected.sha256.lower() != raw.sha256:
        raise CheckpointError(
            f"{name} is not the expected file:\nsha256 {raw.sha256}\nexpected {expected.sha256}"
        )
