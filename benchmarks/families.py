"""Extraction speed of other libraries' models, relative to the bare model.

    python benchmarks/families.py [--images 8] [--rounds 5] [--size 448]

Random weights, last block with the final norm, 2 threads. The bare model gets normalised tensors;
skipbench gets decoded uint8 images, normalises them, and checks its features for NaN and Inf. Both
use skipbench's batch size and take turns in one process, the bare model before and after, so that
a change in the machine's speed affects both. Reported is the median of the ratios of all rounds,
with quartiles.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import transformers
from _shared import divide, photographs, quartiles, seconds

from skipbench import load_backbone
from skipbench.backbones.base import Backbone
from skipbench.features.stream import Extractor
from skipbench.images import normalise, resize, stack
from skipbench.records import FeatureSpec

TIMM = ("vit_small_patch16_dinov3", "vit_base_patch16_siglip_224", "swin_tiny_patch4_window7_224",
        "convnext_tiny")  # fmt: skip
SMALL = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6,
         "intermediate_size": 1536, "patch_size": 16}  # fmt: skip
Bare = Callable[[torch.Tensor], object]


class Own(torch.nn.Module):
    """timm's ViT-S/16 as a user might wrap it."""

    patch_size, num_prefix_tokens = 16, 1

    def __init__(self) -> None:
        super().__init__()
        self.vit = timm.create_model("vit_small_patch16_224", num_classes=0, dynamic_img_size=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.vit.forward_features(images)


def of_timm(name: str, folder: Path) -> tuple[Backbone, Bare]:
    torch.save(timm.create_model(name, num_classes=0).state_dict(), folder / "w.pth")
    backbone = load_backbone(f"timm:{name}@{folder / 'w.pth'}", device="cpu")
    module, last = backbone.module, [backbone.depth - 1]
    return backbone, lambda images: module.forward_intermediates(
        images, last, norm=True, stop_early=True, intermediates_only=True, output_fmt="NCHW"
    )


def of_transformers(folder: Path) -> tuple[Backbone, Bare]:
    model = transformers.AutoModel.from_config(transformers.DINOv3ViTConfig(**SMALL))
    model.save_pretrained(folder / "hf")
    backbone = load_backbone(f"hf:{folder / 'hf'}", device="cpu")
    return backbone, lambda images: backbone.module(pixel_values=images)


def of_user() -> tuple[Backbone, Bare]:
    backbone = load_backbone(Own, device="cpu")
    return backbone, backbone.module


def compare(title: str, backbone: Backbone, bare: Bare, options: argparse.Namespace) -> None:
    size_hw = (options.size, options.size)
    photos = photographs()
    images = [resize(photos[i % len(photos)], size_hw) for i in range(options.images)]
    pictures = stack(images, backbone.patch)
    sizes = [size_hw] * len(images)
    tensors = normalise(pictures, sizes, backbone.preprocessing)
    extractor = Extractor(backbone, FeatureSpec(blocks=(backbone.depth - 1,), size=size_hw))
    grid = (options.size // backbone.patch) ** 2
    batch = max(1, min(options.images, extractor.token_budget // grid))
    parts = torch.arange(len(images)).split(batch)

    @torch.inference_mode()
    def run_bare() -> None:
        for part in parts:
            bare(tensors[part])

    def run_ours() -> None:
        for part in parts:
            for _ in extractor.run(part.tolist(), pictures[part], [size_hw] * len(part)):
                pass

    run_bare()
    run_ours()
    ours, around = [], []
    for _ in range(options.rounds):
        before = seconds(run_bare)
        ours.append(seconds(run_ours))
        around.append((before + seconds(run_bare)) / 2)
    print(f"{title:33} {quartiles(divide(around, ours))} × the bare model's speed", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=448)
    options = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as name:
        for model in TIMM:
            compare(f"timm {model}", *of_timm(model, Path(name)), options)
        compare("transformers DINOv3 ViT-S/16", *of_transformers(Path(name)), options)
        compare("your own module, ViT-S/16", *of_user(), options)


if __name__ == "__main__":
    main()
