"""open_checkpoint: the one function that opens weights, from a file or through timm."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from skipbench.checkpoints.facts import TIMM_SOURCE, Expected, Metadata, gather_facts, stated_grid
from skipbench.checkpoints.files import RawFile, digest_of_tensors, read_file
from skipbench.checkpoints.layouts import find_backbone, name_foreign
from skipbench.checkpoints.shape import canonical
from skipbench.errors import CheckpointError, did_you_mean
from skipbench.records import CheckpointFacts, PositionRule

SECONDS_TO_ANSWER = 5.0  # of the hub


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
    """Open a weights file, a Hugging Face style folder, or `timm:NAME`.

    weights: "teacher" or "student", if it contains both (default: the teacher).
    expected: anything else is a CheckpointError with both values.
    """
    expected = expected or Expected()
    name = str(source)
    if name.startswith("timm:"):
        raw = _read_timm(name)
    else:
        raw = read_file(Path(source).expanduser())
        name = Path(source).name or name
    # The hash first: nothing else matters about the wrong file.
    if expected.sha256 and expected.sha256.lower() != raw.sha256:
        raise CheckpointError(
            f"{source} is not the expected file:\nsha256 {raw.sha256}\nexpected {expected.sha256}"
        )
    metadata = Metadata(raw)
    try:
        found = find_backbone(raw.tree, weights, name)
        state, shape = canonical(found.state, stated_grid(metadata, found), name)
    except CheckpointError as error:
        raise CheckpointError(name_foreign(raw.tree, name) or str(error)) from None
    facts = gather_facts(raw, found, metadata, shape, expected, name, position_rule)
    return Checkpoint(state, facts)


# -- timm:NAME, from the hub or its cache


def _read_timm(source: str) -> RawFile:
    import timm
    from timm.models.vision_transformer import VisionTransformer

    name = source.removeprefix("timm:")
    known = timm.list_models(pretrained=True)
    if name not in known and name not in timm.list_models():
        raise CheckpointError(f"timm has no model {name!r}.{did_you_mean(name, known)}")
    with _quick_answer() as reachable:
        try:
            model = timm.create_model(name, pretrained=True, num_classes=0)
        except Exception as error:  # the hub's client raises exceptions of many kinds
            raise CheckpointError(_why(name, error, reachable)) from None
    if not isinstance(model, VisionTransformer):
        raise CheckpointError(f"timm's {name} is a {type(model).__name__}, not a VisionTransformer")
    metadata = {
        "num_heads": model.blocks[0].attn.num_heads,
        "img_size": tuple(model.patch_embed.img_size),
        "layer_norm_eps": model.norm.eps if hasattr(model.norm, "eps") else 1e-6,
        "residual": "skip",
    }
    state = dict(model.state_dict())
    return RawFile(
        Path(name), state, metadata, TIMM_SOURCE, digest_of_tensors(state), "hash of the tensors"
    )


@contextmanager
def _quick_answer() -> Iterator[bool]:
    """Use only the cache if the hub is unreachable: its client would retry for a minute and log
    every attempt."""
    from huggingface_hub import constants

    reachable = not constants.HF_HUB_OFFLINE and _can_reach(constants.ENDPOINT)
    logger = logging.getLogger("huggingface_hub")
    before = constants.HF_HUB_OFFLINE, logger.level
    logger.setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = not reachable
    try:
        yield reachable
    finally:
        constants.HF_HUB_OFFLINE = before[0]
        logger.setLevel(before[1])


def _can_reach(address: str) -> bool:
    if getproxies():
        return True  # behind a proxy, reachability cannot be tested
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    with suppress(OSError):
        socket.create_connection((parts.hostname or "", port), SECONDS_TO_ANSWER).close()
        return True
    return False


def _why(name: str, error: Exception, reachable: bool) -> str:
    from huggingface_hub import constants

    text = " ".join(str(error).split()) or type(error).__name__
    reason = text[:160] if reachable else f"{constants.ENDPOINT} cannot be reached"
    return (
        f"timm:{name} could not be loaded: the download failed ({reason}),\n"
        f"and there is no copy in {constants.HF_HUB_CACHE}."
    )
