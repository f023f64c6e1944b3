"""Throughput of extraction against timm's bare forward_intermediates, side by side in one process.

    python benchmarks/extract.py [--images 64] [--rounds 3] [--memory 100 1000]

ViT-S/16 with random weights, 448 px, last block with the final norm, 2 threads. The ways take turns
every 16 images, with timm before and after, so that a machine that slows down slows all of them; a
ratio is taken within a turn, and given as the median over all turns with the quartiles.

    timm       forward_intermediates on normalised tensors, in the batch size that suits timm best
    decoded    skipbench on decoded uint8 images: normalising, forward pass, finite check
    jpeg       skipbench on JPEG files: decoding and resizing in threads as well
    stored     the same, written to a store on disk

Then peak memory of a fresh process that stores the features of few and of many images.
"""

import argparse
import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from skimage import data
from timm.models.vision_transformer import VisionTransformer

from skipbench.backbones.vit import Backbone
from skipbench.checkpoints import Checkpoint
from skipbench.demo import make_weights, small_facts
from skipbench.engine import progress
from skipbench.engine.machine import peak_bytes
from skipbench.features.plan import make_plan
from skipbench.features.store import open_store
from skipbench.features.stream import Extractor
from skipbench.images import find_images, normalise, read_image, stack
from skipbench.records import FeatureSpec

SIZE_HW = (448, 448)
TURN = 16  # images
SPEC = FeatureSpec(blocks=(11,), size=SIZE_HW)


def make_jpegs(folder: Path, count: int) -> None:
    """Crops of real photographs, the size of PASCAL VOC's."""
    folder.mkdir(parents=True, exist_ok=True)
    photos = [photo() for photo in (data.chelsea, data.coffee, data.astronaut, data.rocket)]
    random = np.random.default_rng(0)
    for i in range(count):
        photo = photos[i % len(photos)]
        top, left = random.integers(0, 60, 2)
        crop = Image.fromarray(photo[top:, left:]).resize((500, 375))
        crop.save(folder / f"{i:05d}.jpg", quality=90)


def make_backbone() -> Backbone:
    facts = small_facts(width=384, depth=12, heads=6)
    facts = dataclasses.replace(facts, name="random ViT-S/16", sha256="0" * 64)
    return Backbone(Checkpoint(make_weights("skip", facts), facts), "skip")


def make_timm(backbone: Backbone) -> VisionTransformer:
    """The same weights in timm's own class, positions already at the size."""
    model = VisionTransformer(
        img_size=448, patch_size=16, embed_dim=384, depth=12, num_heads=6, num_classes=0,
        no_embed_class=True,
    )  # fmt: skip
    state = dict(backbone.vit.state_dict())
    state["pos_embed"] = torch.zeros(1, 784, 384)
    model.load_state_dict(state)
    return model.eval()


@torch.inference_mode()
def run_timm(model: VisionTransformer, tensors: torch.Tensor, batch_size: int) -> float:
    start = time.perf_counter()
    for batch in tensors.split(batch_size):
        model.forward_intermediates(
            batch, [11], norm=True, stop_early=True, intermediates_only=True, output_fmt="NLC"
        )
    return time.perf_counter() - start


def best_batch(model: VisionTransformer, tensors: torch.Tensor) -> int:
    """The batch size with the fastest of three passes, the sizes taking turns."""
    run_timm(model, tensors, 4)  # warm-up
    fastest = {4: float("inf"), 8: float("inf"), 16: float("inf")}
    for _ in range(3):
        for size in fastest:
            fastest[size] = min(fastest[size], run_timm(model, tensors, size))
    return min(fastest, key=lambda size: fastest[size])


def run_decoded(extractor: Extractor, pictures: torch.Tensor) -> float:
    start = time.perf_counter()
    size = max(1, extractor.token_budget // 784)
    for images in torch.arange(len(pictures)).split(size):
        batch = pictures[images]
        for _ in extractor.run(images.tolist(), batch, [SIZE_HW] * len(batch)):
            pass
    return time.perf_counter() - start


def run_jpeg(extractor: Extractor, items) -> float:
    start = time.perf_counter()
    for _ in extractor.stream(items, make_plan(items, SIZE_HW, 16, 768)):
        pass
    return time.perf_counter() - start


def run_stored(backbone: Backbone, items, folder: Path) -> float:
    start = time.perf_counter()
    open_store(backbone, items, SPEC, cache=folder).close()
    return time.perf_counter() - start


def throughput(images: int, rounds: int) -> None:
    torch.set_num_threads(2)
    progress.quiet = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_jpegs(folder / "jpeg", images)
        items = find_images([folder / "jpeg"])
        backbone = make_backbone()
        extractor = Extractor(backbone, SPEC)
        model = make_timm(backbone)
        pictures = torch.cat([stack([read_image(item.path, SIZE_HW)], 16) for item in items])
        tensors = normalise(pictures, [SIZE_HW] * images)
        best = best_batch(model, tensors[:TURN])
        print(f"timm's best batch: {best}; ours: {extractor.token_budget // 784}")
        ratios: dict[str, list[float]] = {"decoded": [], "jpeg": [], "stored": []}
        for turn in range(rounds * (images // TURN)):
            part = slice(turn * TURN % images, turn * TURN % images + TURN)
            before = run_timm(model, tensors[part], best)
            times = {
                "decoded": run_decoded(extractor, pictures[part]),
                "jpeg": run_jpeg(extractor, items[part]),
                "stored": run_stored(backbone, items[part], folder / f"cache{turn}"),
            }
            base = (before + run_timm(model, tensors[part], best)) / 2
            rates = ", ".join(f"{way} {TURN / seconds:.2f}" for way, seconds in times.items())
            print(f"turn {turn + 1}: images/s: timm {TURN / base:.2f}, {rates}", flush=True)
            for way, seconds in times.items():
                ratios[way].append(base / seconds)
    for way, found in ratios.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{way:8} {middle:.3f} of timm's throughput (quartiles {low:.3f} to {high:.3f})")


def memory(counts: list[int]) -> None:
    """Peak resident memory of a child that stores the features of so many 224 px images."""
    with tempfile.TemporaryDirectory() as name:
        make_jpegs(Path(name) / "jpeg", max(counts))
        peaks = {}
        for count in counts:
            done = subprocess.run(
                [sys.executable, __file__, "--child", name, str(count)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            peaks[count] = int(done.stdout.split()[-1]) / 1e6
            print(f"{count:6,} images: peak memory {peaks[count]:.0f} MB")
    few, many = peaks[counts[0]], peaks[counts[-1]]
    print(f"growth from {counts[0]:,} to {counts[-1]:,} images: {many / few - 1:+.1%}")


def child(folder: str, count: int) -> None:
    torch.set_num_threads(2)
    items = find_images([Path(folder) / "jpeg"])[:count]
    spec = FeatureSpec(blocks=(11,), size=(224, 224))
    with open_store(make_backbone(), items, spec, cache=Path(folder) / f"cache{count}") as store:
        for image in range(len(store)):
            store[image]["tokens_norm.11"].float().mean()
    print(peak_bytes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]))
    else:
        throughput(options.images, options.rounds)
        if options.memory:
            memory(options.memory)
