"""TokenCut against the dense reference, the graph it cuts, and the forward pass it follows.

    python benchmarks/tokencut.py [speed] [memory] [--tokens 900 1600 3600] [--images 8] [--ckpt F]

Keys of ViT-S/16 (random weights, or --ckpt) on crops of photographs, 2 threads. All ways take turns
in one process, image by image; a ratio is taken within a turn, and given as the median over all
turns with the quartiles.

    forward    the backbone's pass over the image, as far as the keys of the last block need
    dense      the reference: affinity in float64, scipy's eigh(D − A, D, subset_by_index), seed,
               component, box; nothing of ours
    eigh       of these, the time within eigh alone
    graph      the floor: one matrix product of unit vectors and a comparison with τ
    links      the same graph by our code, which computes half of it
    cut        ours, from the tokens to the box, graph included; of as many images at once as a run
               has in a batch
    solve      ours, from the links to the box
    twelve     the same as cut, of all blocks, per image

Then peak memory of a fresh process that cuts all blocks of few and of many images.
"""

import argparse
import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from skipbench.engine.machine import wait_politely

wait_politely()  # as the command does, before torch is loaded

# ruff: noqa: E402
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from scipy.linalg import eigh
from skimage import data

from skipbench.backbones.vit import Backbone
from skipbench.checkpoints import Checkpoint, save_checkpoint
from skipbench.demo import make_weights, small_facts
from skipbench.engine import progress
from skipbench.evaluations.tokencut.graph import Graphs, link
from skipbench.evaluations.tokencut.method import cut, tokencut
from skipbench.features.stream import TOKENS_ON_CPU
from skipbench.images import normalise, stack
from skipbench.pipeline import load_backbone

TAU, EPS = 0.2, 1e-5
BOX = tuple[int, int, int, int]
inside: list[float] = []  # seconds within eigh


def photographs(count: int, side: int) -> list[np.ndarray]:
    """Square crops of real photographs, at this size."""
    photos = [photo() for photo in (data.chelsea, data.coffee, data.astronaut, data.rocket)]
    random = np.random.default_rng(0)
    crops = []
    for i in range(count):
        photo = photos[i % len(photos)]
        edge = int(min(photo.shape[:2]) * random.uniform(0.6, 1.0))
        top, left = (int(random.integers(0, size - edge + 1)) for size in photo.shape[:2])
        crop = Image.fromarray(photo[top : top + edge, left : left + edge])
        crops.append(np.asarray(crop.resize((side, side), Image.Resampling.BICUBIC)))
    return crops


def make_backbone(ckpt: str | None) -> Backbone:
    if ckpt:
        return load_backbone(ckpt, device="cpu")
    facts = small_facts(width=384, depth=12, heads=6)
    facts = dataclasses.replace(facts, name="random ViT-S/16", sha256="0" * 64)
    return Backbone(Checkpoint(make_weights("skip", facts), facts), "skip")


def dense(tokens: torch.Tensor, side: int, patch: int) -> BOX:
    """One image, as the published code does it. tokens: (n, channels)."""
    unit = F.normalize(tokens, dim=-1)
    affinity = np.where((unit @ unit.T).numpy() > TAU, 1.0, EPS)
    degrees = np.diag(affinity.sum(1))
    start = time.perf_counter()
    _, vectors = eigh(degrees - affinity, degrees, subset_by_index=[1, 2])
    inside.append(time.perf_counter() - start)
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


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """The median of so many."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


class Turn:
    """One batch of images, measured in all ways."""

    def __init__(self, backbone: Backbone, pictures: list[np.ndarray], tensor: str) -> None:
        self.backbone, self.tensor = backbone, tensor
        self.patch = backbone.facts.patch
        self.side = pictures[0].shape[0] // self.patch
        sizes = [picture.shape[:2] for picture in pictures]
        self.pixels = normalise(stack(pictures, self.patch), sizes)
        self.last = (backbone.depth - 1,)
        features = backbone(self.pixels, range(backbone.depth), (tensor,)).patches
        blocks = [features[block, tensor].flatten(1, 2) for block in range(backbone.depth)]
        self.tokens = blocks[-1].contiguous()  # (images, n, channels)
        self.all = torch.stack(blocks, 1).flatten(0, 1)  # image by image, every block

    def measure(self) -> dict[str, float]:
        """Seconds an image."""
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
            "twelve": lambda: tokencut(self.all, grid, TAU, EPS),
            "dense": lambda: [dense(image, self.side, self.patch) for image in self.tokens],
        }
        found = {way: seconds(work, times=5) / count for way, work in quick.items()}
        found |= {way: seconds(work) / count for way, work in long.items()}
        inside.clear()
        long["dense"]()
        return found | {"eigh": sum(inside) / count}

    def same_boxes(self) -> tuple[int, int]:
        """Of all images, last block: how many are the reference's; how many are degenerate."""
        size = (self.side * self.patch,) * 2
        found = tokencut(self.tokens, (self.side, self.side), TAU, EPS)
        told = [one for one in zip(found, self.tokens, strict=True) if not one[0].degenerate]
        same = [o.box(self.patch, size) == dense(t, self.side, self.patch) for o, t in told]
        return sum(same), len(found) - len(told)


def speed(counts: list[int], images: int, ckpt: str | None, tensor: str) -> None:
    torch.set_num_threads(2)
    backbone = make_backbone(ckpt)
    for count in counts:
        side = round(count**0.5)
        at_once = max(1, TOKENS_ON_CPU // side**2)
        pictures = photographs(images, side * backbone.facts.patch)
        turns, same, degenerate = [], 0, 0
        for start in range(0, images, at_once):
            turn = Turn(backbone, pictures[start : start + at_once], tensor)
            if not start:
                turn.measure()  # warm-up
            turns.append(turn.measure())
            right, unclear = turn.same_boxes()
            same, degenerate = same + right, degenerate + unclear
        report(side**2, turns)
        print(f"  identical boxes: {same} of {images - degenerate}; degenerate: {degenerate}\n")


def report(tokens: int, turns: list[dict[str, float]]) -> None:
    ways = {way: statistics.median(t[way] for t in turns) for way in turns[0]}
    listed = ", ".join(f"{way} {1e3 * spent:.1f}" for way, spent in ways.items())
    print(f"{tokens:,} tokens, milliseconds an image: {listed}")
    for words, above, below in (
        ("dense / cut", "dense", "cut"),
        ("eigh / solve", "eigh", "solve"),
        ("cut / graph", "cut", "graph"),
        ("solve / graph", "solve", "graph"),
        ("cut / forward", "cut", "forward"),
        ("twelve / forward", "twelve", "forward"),
    ):
        print(f"  {words:18} {spread([turn[above] / turn[below] for turn in turns])}", flush=True)


def spread(ratios: list[float]) -> str:
    if len(ratios) < 2:
        return f"{ratios[0]:.3g}"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3g} (quartiles {low:.3g} to {high:.3g})"


def memory(counts: list[int]) -> None:
    """Peak resident memory of a child that runs the command's own function."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images").mkdir()
        for i, photo in enumerate(photographs(max(counts), 240)):
            Image.fromarray(photo[:200]).save(folder / "images" / f"{i:05d}.jpg", quality=90)
        rows = [f"{i:05d}.jpg,20,30,150,170" for i in range(max(counts))]
        (folder / "boxes.csv").write_text("\n".join(["image,xmin,ymin,xmax,ymax", *rows]))
        told = {"layout": "dino", "residual": "skip", "heads": 6}
        weights = make_weights("skip", small_facts(width=384, depth=12, heads=6))
        save_checkpoint(folder / "model.safetensors", weights, told)
        peaks = {}
        for count in counts:
            done = subprocess.run(
                [sys.executable, __file__, "--child", name, str(count)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            peaks[count] = int(done.stdout.split()[-1]) / 1e6
            print(f"{count:6,} images, 12 blocks: peak memory {peaks[count]:.0f} MB", flush=True)
    few, many = peaks[counts[0]], peaks[counts[-1]]
    print(f"growth from {counts[0]:,} to {counts[-1]:,} images: {many / few - 1:+.1%}")


def child(folder: str, count: int) -> None:
    from skipbench.evaluations.tokencut.calls import tokencut as run

    progress.quiet = True
    place = Path(folder)
    made = run(
        place / "model.safetensors", f"folder:{folder}", layers="all", limit=count, device="cpu",
        out=place / f"results{count}", cache=str(place / f"cache{count}"),
    )  # fmt: skip
    print(made.timing["peak_memory_bytes"])


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
