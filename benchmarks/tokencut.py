"""TokenCut compared with a dense implementation, its graph alone, and the forward pass.

    python benchmarks/tokencut.py [speed] [memory] [--tokens 900 1600 3600] [--images 8] [--ckpt F]

Keys of ViT-S/16 (random weights, or --ckpt) on crops of photographs, 2 threads. The variants take
turns in one process, one batch at a time. Ratios are computed within a turn; reported is the median
over all turns, with quartiles.

    forward    forward pass of the backbone, up to the keys of the last block
    dense      dense implementation, independent of ours: affinity in float64, scipy's
               eigh(D − A, D, subset_by_index), seed, component, box
    eigh       the part of dense that is spent in eigh
    graph      lower bound: one matrix product of unit vectors and a comparison with τ
    links      the same graph by our code, which computes half of it
    cut        ours, from tokens to box, graph included; as many images at once as in a run's batch
    solve      ours, from links to box
    twelve     cut on all twelve blocks

Then the peak memory of a fresh process that evaluates all blocks of few and of many images.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from skipbench.engine.machine import wait_politely

wait_politely()  # before torch is loaded, as the command does

# ruff: noqa: E402
import numpy as np
import torch
import torch.nn.functional as F
from _shared import (
    divide,
    photographs,
    print_peak_memory,
    quartiles,
    save_vit_s16,
    seconds,
    vit_s16,
)
from PIL import Image
from scipy import ndimage
from scipy.linalg import eigh

import skipbench
from skipbench.backbones.vit import ViTBackbone
from skipbench.engine import progress
from skipbench.evaluations.tokencut.graph import Graphs, link
from skipbench.evaluations.tokencut.method import cut, tokencut
from skipbench.features.stream import TOKENS_ON_CPU
from skipbench.images import normalise, stack
from skipbench.pipeline import load_backbone

TAU, EPS = 0.2, 1e-5
BOX = tuple[int, int, int, int]
eigh_seconds: list[float] = []  # of every call


def square_crops(count: int, side: int) -> list[np.ndarray]:
    """Of photographs, resized to side × side."""
    photos = photographs()
    random = np.random.default_rng(0)
    crops = []
    for i in range(count):
        photo = photos[i % len(photos)]
        edge = int(min(photo.shape[:2]) * random.uniform(0.6, 1.0))
        top, left = (int(random.integers(0, size - edge + 1)) for size in photo.shape[:2])
        crop = Image.fromarray(photo[top : top + edge, left : left + edge])
        crops.append(np.asarray(crop.resize((side, side), Image.Resampling.BICUBIC)))
    return crops


def dense(tokens: torch.Tensor, side: int, patch: int) -> BOX:
    """The box of one image, computed as in the published code. tokens: (n, channels)."""
    unit = F.normalize(tokens, dim=-1)
    affinity = np.where((unit @ unit.T).numpy() > TAU, 1.0, EPS)
    degrees = np.diag(affinity.sum(1))
    start = time.perf_counter()
    _, vectors = eigh(degrees - affinity, degrees, subset_by_index=[1, 2])
    eigh_seconds.append(time.perf_counter() - start)
    second = vectors[:, 0]
    partition, seed = second > second.mean(), int(np.argmax(np.abs(second)))
    if not partition[seed]:
        partition = ~partition
    parts = ndimage.label(partition.reshape(side, side))[0]
    rows, columns = np.where(parts == parts[np.unravel_index(seed, (side, side))])
    x0, y0, x1, y1 = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    return int(x0) * patch, int(y0) * patch, int(x1) * patch, int(y1) * patch


def plain_graph(tokens: torch.Tensor) -> torch.Tensor:
    unit = F.normalize(tokens, dim=-1)
    return unit @ unit.mT > TAU


class Turn:
    """One batch of images, processed by every variant."""

    def __init__(self, backbone: ViTBackbone, pictures: list[np.ndarray], tensor: str) -> None:
        self.backbone, self.tensor = backbone, tensor
        self.patch = backbone.facts.patch
        self.side = pictures[0].shape[0] // self.patch
        sizes = [picture.shape[:2] for picture in pictures]
        self.pixels = normalise(stack(pictures, self.patch), sizes)
        self.last = (backbone.depth - 1,)
        features = backbone(self.pixels, range(backbone.depth), (tensor,)).patches
        blocks = [features[block, tensor].flatten(1, 2) for block in range(backbone.depth)]
        self.tokens = blocks[-1].contiguous()  # (images, n, channels)
        self.all_blocks = torch.stack(blocks, 1).flatten(0, 1)  # (images × blocks, n, channels)

    def measure(self) -> dict[str, float]:
        """Seconds per image."""
        count, grid = len(self.tokens), (self.side, self.side)
        links = link(self.tokens, TAU)
        quick = {
            "graph": lambda: [plain_graph(image) for image in self.tokens],
            "links": lambda: link(self.tokens, TAU),
            "cut": lambda: tokencut(self.tokens, grid, TAU, EPS),
            "solve": lambda: cut(Graphs(links, EPS), grid),
        }
        long = {
            "forward": lambda: self.backbone(self.pixels, self.last, (self.tensor,)),
            "twelve": lambda: tokencut(self.all_blocks, grid, TAU, EPS),
            "dense": lambda: [dense(image, self.side, self.patch) for image in self.tokens],
        }
        found = {
            name: statistics.median(seconds(work) for _ in range(5)) / count
            for name, work in quick.items()
        }
        found |= {name: seconds(work) / count for name, work in long.items()}
        eigh_seconds.clear()
        long["dense"]()
        return found | {"eigh": sum(eigh_seconds) / count}

    def same_boxes(self) -> tuple[int, int]:
        """Last block: number of boxes equal to the dense implementation's; of degenerate images."""
        size = (self.side * self.patch,) * 2
        found = tokencut(self.tokens, (self.side, self.side), TAU, EPS)
        clear = [(o, t) for o, t in zip(found, self.tokens, strict=True) if not o.degenerate]
        same = [o.box(self.patch, size) == dense(t, self.side, self.patch) for o, t in clear]
        return sum(same), len(found) - len(clear)


def speed(counts: list[int], images: int, ckpt: str | None, tensor: str) -> None:
    torch.set_num_threads(2)
    backbone = load_backbone(ckpt, device="cpu") if ckpt else vit_s16()
    for count in counts:
        side = round(count**0.5)
        at_once = max(1, TOKENS_ON_CPU // side**2)
        pictures = square_crops(images, side * backbone.facts.patch)
        turns, same, degenerate = [], 0, 0
        for start in range(0, images, at_once):
            turn = Turn(backbone, pictures[start : start + at_once], tensor)
            if not start:
                turn.measure()  # warm-up
            turns.append(turn.measure())
            equal, unclear = turn.same_boxes()
            same, degenerate = same + equal, degenerate + unclear
        report(side**2, turns)
        print(f"  identical boxes: {same} of {images - degenerate}; degenerate: {degenerate}\n")


def report(tokens: int, turns: list[dict[str, float]]) -> None:
    spent = {name: [turn[name] for turn in turns] for name in turns[0]}
    listed = ", ".join(f"{name} {1e3 * statistics.median(t):.1f}" for name, t in spent.items())
    print(f"{tokens:,} tokens, milliseconds per image: {listed}")
    for above, below in (
        ("dense", "cut"),
        ("eigh", "solve"),
        ("cut", "graph"),
        ("solve", "graph"),
        ("cut", "forward"),
        ("twelve", "forward"),
    ):
        ratios = quartiles(divide(spent[above], spent[below]))
        print(f"  {f'{above} / {below}':18} {ratios}", flush=True)


def memory(counts: list[int]) -> None:
    """Peak of a fresh process that evaluates the first images of a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images").mkdir()
        for i, photo in enumerate(square_crops(max(counts), 240)):
            Image.fromarray(photo[:200]).save(folder / "images" / f"{i:05d}.jpg", quality=90)
        rows = [f"{i:05d}.jpg,20,30,150,170" for i in range(max(counts))]
        (folder / "boxes.csv").write_text("\n".join(["image,xmin,ymin,xmax,ymax", *rows]))
        save_vit_s16(folder / "model.safetensors")
        print("all 12 blocks:")
        print_peak_memory(__file__, name, counts)


def child(folder: str, count: int) -> None:
    progress.quiet = True
    path = Path(folder)
    record = skipbench.tokencut(
        path / "model.safetensors", f"folder:{folder}", layers="all", limit=count, device="cpu",
        out=path / f"results{count}", cache=path / f"cache{count}",
    )  # fmt: skip
    print(record.timing["peak_memory_bytes"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["speed", "memory"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[900, 1600, 3600])
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--ckpt", help="weights of a ViT; its patch size gives that of the images")
    parser.add_argument("--feature", default="keys")
    parser.add_argument("--memory-images", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]))
        sys.exit()
    if "speed" in options.parts:
        speed(options.tokens, options.images, options.ckpt, options.feature)
    if "memory" in options.parts:
        memory(options.memory_images)
