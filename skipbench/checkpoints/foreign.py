"""Weights that a bare file does not describe well enough to be run: what they are, and what to do.

Tensors show neither activations nor norms nor rotary frequencies, so such a model is opened by
name: timm's, or the config.json of a transformers folder.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from skipbench.checkpoints.layouts import tensors_of
from skipbench.checkpoints.timm_hub import fits, make
from skipbench.errors import printable, some_of

# Architecture → a key that no plain vision transformer has, and where timm has such models.
KNOWN = {
    "a Swin Transformer": (r"\blayers\.\d+\.(blocks\.\d+|downsample)\.",
                           ("swin_transformer", "swin_transformer_v2")),
    "a BEiT": (r"relative_position_bias_table", ("beit",)),
    "a ConvNeXt": (r"\bstages\.\d+\.(blocks\.)?\d+\.(dwconv|conv_dw)\.|\bdownsample_layers\.",
                   ("convnext",)),
    "a ResNet": (r"\blayer[1-4]\.\d+\.conv\d\.|\.layer\.\d+\.convolution\.", ("resnet",)),
    "a SigLIP": (r"\battn_pool\.latent$|\bvision_model\.head\.probe$", ("vision_transformer",)),
    "a CLIP": (r"\btransformer\.resblocks\.|\bvision_model\.pre_layrnorm\.|^norm_pre\.",
               ("vision_transformer",)),
    "a DINOv3": (r"\brope_embed\.|\bstorage_tokens$|^(model\.)?layer\.\d+\.attention\.q_proj\.",
                 ("eva",)),
    "an EVA or Perception Encoder": (r"\battn\.(q_bias$|q_proj\.|inner_attn_ln\.)|\bmlp\.fc1_g\.",
                                     ("eva",)),
}  # fmt: skip
BLOCK = r"\bblocks\.\d+\.attn\.qkv\.weight$"
TRANSFORMERS = r"(^|\.)(embeddings\.|vision_model\.|layer\.\d+\.attention\.q_proj\.)"
# Only names with these words are tried, by the width of the patch embedding.
SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}
NAMED_BY_PATCH = ("vision_transformer", "eva", "beit")
MOST_NAMES = 4


def explained(tree: Any, name: str, file: str) -> str:
    """The message for weights of a recognised architecture; else empty."""
    tensors = {".".join([*path, key]): state[key] for path, key, state in tensors_of(tree)}
    found = _recognised(tensors)
    if found is None:
        return ""
    what, key, modules = found
    seen = f"{name} looks like {what} (it has {printable(key)}). "
    if any(re.search(TRANSFORMERS, one) for one in tensors):
        return seen + (
            "Its tensors have\ntransformers' names: give the folder with its config.json, "
            "--ckpt hf:FOLDER."
        )
    names = some_of(_names_that_fit(tree, tensors, modules), MOST_NAMES)
    return seen + (
        "Its tensors alone do\nnot identify the model; give timm's name for it: "
        f"--ckpt timm:NAME@{file}" + (f"\nThese fit: {names}." if names else "")
    )


def _recognised(tensors: Mapping[str, torch.Tensor]) -> tuple[str, str, tuple[str, ...]] | None:
    """Architecture, key, modules of timm."""
    for what, (pattern, modules) in KNOWN.items():
        if key := next((key for key in tensors if re.search(pattern, key)), None):
            return what, key, modules
    if not any(re.search(BLOCK, key) for key in tensors):
        return None
    positions = next((x for key, x in tensors.items() if key.endswith("pos_embed")), None)
    if positions is None:
        return "a vision transformer with rotary positions", "no pos_embed", ("eva",)
    has_class = any(key.endswith("cls_token") for key in tensors)
    count = positions.shape[1] if positions.ndim == 3 else 2  # not a square
    if not has_class and math.isqrt(count) ** 2 == count:
        return "a vision transformer without a class token", "no cls_token", ("vision_transformer",)
    return None


def _names_that_fit(
    tree: Any, tensors: Mapping[str, torch.Tensor], modules: tuple[str, ...]
) -> Iterator[str]:
    """Models of timm with exactly these tensors."""
    import timm

    kernel = next((x for key, x in tensors.items() if re.search(r"patch_embed|conv1", key)), None)
    words = []
    if kernel is not None and kernel.ndim == 4 and modules[0] in NAMED_BY_PATCH:
        words = [f"patch{kernel.shape[2]}_", SIZES.get(kernel.shape[0], "")]
    for module in modules:
        for model in timm.list_models(module=module):
            if all(word in model for word in words) and _fits(tree, model):
                yield model


def _fits(tree: Any, model: str) -> bool:
    with torch.device("meta"):
        module, _ = make(model)
    own = module.state_dict()
    return any(
        fit.is_whole
        and all(x.shape == own[key].shape for key, x in fit.state.items() if key in own)
        for fit in fits(module, tree)
    )
