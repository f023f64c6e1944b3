"""`timm:NAME`: timm's own pretrained loading, from the hub's cache or the hub."""

import logging
from pathlib import Path

from skipbench.checkpoints.files import RawFile, digest_of_tensors
from skipbench.errors import CheckpointError, did_you_mean

log = logging.getLogger("skipbench")
TIMM_SOURCE = "timm's model"


def read_timm(source: str) -> RawFile:
    import timm
    from timm.models.vision_transformer import VisionTransformer

    name = source.removeprefix("timm:")
    known = timm.list_models(pretrained=True)
    if name not in known and name not in timm.list_models():
        raise CheckpointError(f"timm has no model {name!r}.{did_you_mean(name, known)}")
    log.debug("loading %s through timm", name)
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub's client raises about everything
        raise CheckpointError(_why(name, error)) from None
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


def _why(name: str, error: Exception) -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return (
        f"timm:{name} could not be had: the download failed, and no copy lies in {HF_HUB_CACHE}.\n"
        f"({first_line})"
    )
