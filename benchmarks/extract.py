"""Throughput of feature extraction, relative to timm's bare forward_intermediates.

    python benchmarks/extract.py [--images 64] [--rounds 3] [--memory 100 1000]

ViT-S/16 with random weights, 448 px, last block with the final norm, 2 threads. The variants take
turns in one process, 16 images each, with timm before and after them, so that a change in the
machine's speed affects all of them. Ratios are computed within a turn; reported is the median over
all turns, with quartiles.

    timm       forward_intermediates on normalised tensors, at timm's fastest batch size
    decoded    skipbench on decoded uint8 images: normalisation, forward pass, check for NaN and Inf
    jpeg       skipbench on JPEG files: decoding and resizing in threads, too
    stored     the same, with the features written to a store on disk

Then the peak memory of a fresh process that stores the features of few and of many images.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from _shared import divide, photographs, print_peak_memory, quartiles, seconds, vit_s16
from PIL import Image
from timm.models.vision_transformer import VisionTransformer

from skipbench.backbones.vit import ViTBackbone
from skipbench.engine import progress
from skipbench.engine.machine import peak_bytes
from skipbench.features.store import open_store
from skipbench.features.stream import Extractor, make_plan
from skipbench.images import ImageItem, find_images, normalise, read_image, stack
from skipbench.records import FeatureSpec

SIZE_HW = (448, 448)
TURN = 16  # images
SPEC = FeatureSpec(blocks=(11,), size=SIZE_HW)


def make_jpegs(folder: Path, count: int) -> None:
    """Crops of photographs, 500×375 as in PASCAL VOC."""
    folder.mkdir(parents=True, exist_ok=True)
    photos = photographs()
    random = np.random.default_rng(0)
    for i in range(count):
        photo = photos[i % len(photos)]
        top, left = random.integers(0, 60, 2)
        crop = Image.fromarray(photo[top:, left:]).resize((500, 375))
        crop.save(folder / f"{i:05d}.jpg", quality=90)


def make_timm(backbone: ViTBackbone) -> VisionTransformer:
    """The same weights in timm's class, with a position embedding of the input size."""
    model = VisionTransformer(
        img_size=448, patch_size=16, embed_dim=384, depth=12, num_heads=6, num_classes=0,
        no_embed_class=True,
    )  # fmt: skip
    state = dict(backbone.vit.state_dict())
    state["pos_embed"] = torch.zeros(1, 784, 384)
    model.load_state_dict(state)
    return model.eval()


@torch.inference_mode()
def run_timm(model: VisionTransformer, tensors: torch.Tensor, batch_size: int) -> None:
    for batch in tensors.split(batch_size):
        model.forward_intermediates(
            batch, [11], norm=True, stop_early=True, intermediates_only=True, output_fmt="NLC"
        )


def best_batch(model: VisionTransformer, tensors: torch.Tensor) -> int:
    """The batch size with the fastest of three passes; the sizes take turns."""
    run_timm(model, tensors, 4)  # warm-up
    fastest = dict.fromkeys((4, 8, 16), float("inf"))
    for _ in range(3):
        for size in fastest:
            fastest[size] = min(fastest[size], seconds(run_timm, model, tensors, size))
    return min(fastest, key=fastest.__getitem__)


def run_decoded(extractor: Extractor, pictures: torch.Tensor) -> None:
    size = max(1, extractor.token_budget // 784)
    for images in torch.arange(len(pictures)).split(size):
        batch = pictures[images]
        for _ in extractor.run(images.tolist(), batch, [SIZE_HW] * len(batch)):
            pass


def run_jpeg(extractor: Extractor, items: list[ImageItem]) -> None:
    for _ in extractor.stream(items, make_plan(items, SIZE_HW, 16, 768)):
        pass


def run_stored(backbone: ViTBackbone, items: list[ImageItem], folder: Path) -> None:
    open_store(backbone, items, SPEC, cache=folder).close()


def throughput(images: int, rounds: int, folder: Path) -> None:
    make_jpegs(folder / "jpeg", images)
    items = find_images([folder / "jpeg"])
    backbone = vit_s16()
    extractor = Extractor(backbone, SPEC)
    model = make_timm(backbone)
    pictures = torch.cat([stack([read_image(item.path, SIZE_HW)], 16) for item in items])
    tensors = normalise(pictures, [SIZE_HW] * images)
    batch = best_batch(model, tensors[:TURN])
    print(f"timm's best batch: {batch}; ours: {extractor.token_budget // 784}")
    spent: dict[str, list[float]] = {"timm": [], "decoded": [], "jpeg": [], "stored": []}
    for turn in range(rounds * (images // TURN)):
        start = turn * TURN % images
        part = slice(start, start + TURN)
        before = seconds(run_timm, model, tensors[part], batch)
        spent["decoded"].append(seconds(run_decoded, extractor, pictures[part]))
        spent["jpeg"].append(seconds(run_jpeg, extractor, items[part]))
        cache = folder / f"cache{turn}"
        spent["stored"].append(seconds(run_stored, backbone, items[part], cache))
        after = seconds(run_timm, model, tensors[part], batch)
        spent["timm"].append((before + after) / 2)
        rates = ", ".join(f"{variant} {TURN / took[-1]:.2f}" for variant, took in spent.items())
        print(f"turn {turn + 1}, images per second: {rates}", flush=True)
    for variant in ("decoded", "jpeg", "stored"):
        print(f"{variant:8} {quartiles(divide(spent['timm'], spent[variant]))} × timm's throughput")


def child(folder: Path, count: int) -> None:
    items = find_images([folder / "jpeg"])[:count]
    spec = FeatureSpec(blocks=(11,), size=(224, 224))
    with open_store(vit_s16(), items, spec, cache=folder / f"cache{count}") as store:
        for image in range(len(store)):
            store[image]["tokens_norm.11"].float().mean()
    print(peak_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(2)
    progress.quiet = True
    if options.child:
        child(Path(options.child[0]), int(options.child[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        throughput(options.images, options.rounds, Path(name))
    if options.memory:
        with tempfile.TemporaryDirectory() as name:
            make_jpegs(Path(name) / "jpeg", max(options.memory))
            print_peak_memory(__file__, name, options.memory)


if __name__ == "__main__":
    main()
