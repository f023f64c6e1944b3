"""`timm:NAME`: pretrained weights through timm, from the hub or its cache."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from skipbench.checkpoints.files import RawFile, digest_of_tensors
from skipbench.errors import CheckpointError, did_you_mean

TIMM_SOURCE = "timm's model"
SECONDS_TO_ANSWER = 5.0


def read_timm(source: str) -> RawFile:
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
        return True  # behind a proxy, nothing can be known in advance
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), SECONDS_TO_ANSWER).close()
    except OSError:
        return False
    return True


def _why(name: str, error: Exception, reachable: bool) -> str:
    from huggingface_hub import constants

    text = " ".join(str(error).split()) or type(error).__name__
    reason = text[:160] if reachable else f"{constants.ENDPOINT} cannot be reached"
    return (
        f"timm:{name} could not be loaded: the download failed ({reason}),\n"
        f"and there is no copy in {constants.HF_HUB_CACHE}."
    )
