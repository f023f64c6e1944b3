"""The linear probe against the loop people write, and against one forward pass over the images.

    python benchmarks/probe.py [speed] [scoring] [loss] [memory] [--images 48] [--rounds 2] …

ViT-S/16 with random weights, 448 px, 2 threads, on drawn pictures of VOC's size (or on --ckpt and a
--dataset of yours). All ways of one part take turns in one process; ratios are taken within a turn.

    speed     6 rates × 30 epochs × two feature sets (last and multiscale), training and scoring:
              a  the loop people write: backbone in every step, one rate after another, logits
                 resized to 448². A few steps are measured, the rest is extrapolated
              b  ours, nothing stored    c  ours, features stored    d  one forward pass, no more
              (reading the checkpoint and deciding skip or skipless are in none of them)
    scoring   seconds per million pixels, with trained heads, against interpolate, argmax and
              torchmetrics' MulticlassJaccardIndex
    loss      mIoU with 1,024 pixels of an image and step, and with all of them, over seeds
    memory    peak of the command on 3,000 images and 171 classes, with 6 and with 24 rates
"""

import argparse
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from skipbench.engine.machine import wait_politely

wait_politely()  # as the command does, before torch is loaded

# ruff: noqa: E402
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from skimage import data, filters

from skipbench.checkpoints import save_checkpoint
from skipbench.demo import make_weights, small_facts
from skipbench.engine import progress
from skipbench.evaluations.data import open_splits
from skipbench.evaluations.probe import method as evaluation
from skipbench.evaluations.probe.protocols import PROTOCOLS, SWEEP
from skipbench.evaluations.probe.run import Asked, Keeping, Probe
from skipbench.evaluations.segmentation.images import Split
from skipbench.features.plan import make_plan
from skipbench.features.stream import Extractor
from skipbench.images import normalise, stack
from skipbench.pipeline import inspect

SIZE_HW = (375, 500)
LAYERS = ("last", "multiscale")
TEXTURES = 342  # 2 · 171; class = texture modulo the number of classes


# -- data: photographs with textured regions painted over them, one texture a class


def draw(number: int, photos: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """An image, HWC uint8, and which texture each pixel has, HW int."""
    random = np.random.default_rng(number)
    fields = [filters.gaussian(random.normal(size=SIZE_HW), 45) for _ in range(6)]
    regions = np.argmax(fields, axis=0)
    textures = np.concatenate([[0], random.integers(0, TEXTURES, 5)])[regions]
    photo = photos[number % len(photos)]
    image = photo.astype(np.float64)
    y, x = np.mgrid[: SIZE_HW[0], : SIZE_HW[1]]
    for texture in np.unique(textures)[np.unique(textures) > 0]:
        look = np.random.default_rng(10_000 + texture)
        angle, period, colour = look.uniform(0, np.pi), look.uniform(6, 30), look.uniform(0, 255, 3)
        waves = np.sin((np.cos(angle) * x + np.sin(angle) * y) * 2 * np.pi / period)
        painted = colour + 60 * waves[..., None]
        inside = textures == texture
        image[inside] = 0.35 * image[inside] + 0.65 * painted[inside]
    return image.clip(0, 255).astype(np.uint8), textures


def make_folder(folder: Path, train: int, val: int, classes: int) -> None:
    """A data set in the layout of folder:PATH."""
    photos = [
        np.asarray(Image.fromarray(photo()).resize(SIZE_HW[::-1]))
        for photo in (data.chelsea, data.coffee, data.astronaut, data.rocket)
    ]
    for split, count, first in (("train", train, 0), ("val", val, 100_000)):
        for kind in ("images", "masks"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image, textures = draw(first + i, photos)
            Image.fromarray(image).save(folder / "images" / split / f"{i:05d}.jpg", quality=90)
            mask = (textures % classes).astype(np.uint8)
            mask[filters.sobel(textures.astype(float)) > 0] = 255  # borders, as VOC ignores them
            Image.fromarray(mask).save(folder / "masks" / split / f"{i:05d}.png")
    (folder / "classes.txt").write_text("".join(f"class {i}\n" for i in range(classes)))


def make_checkpoint(path: Path, depth: int = 12) -> Path:
    facts = small_facts(width=384, depth=depth, heads=6)
    told = {"layout": "dino", "residual": "skip", "heads": 6}
    return save_checkpoint(path, make_weights("skip", facts), told)


def make_probe(options, folder: Path, ckpt: Path, cache: Path, **asked) -> Probe:
    protocol = asked.pop("protocol", PROTOCOLS["paper"])
    name = options.dataset or f"folder:{folder}"
    train, val = open_splits(name, protocol, root=options.data_root, limit=options.images)
    how = Asked(
        protocol=protocol, layers=LAYERS, keeping=Keeping(str(cache)), out=cache / "results",
        force=True, **asked,
    )  # fmt: skip
    return Probe(inspect(ckpt, residual="skip", device="cpu"), train, val, how)


# -- speed


def forward_pass(run: Probe) -> float:
    """d: every image once through the backbone, decoding included; nothing kept."""
    started = time.perf_counter()
    spec = dataclasses.replace(run.spec(run.cells), blocks=(run.backbone.depth - 1,))
    for items in (run.train.items, run.val.items):
        for _ in Extractor(run.backbone, spec).stream(
            items, make_plan(items, spec.size, run.backbone.facts.patch, 768)
        ):
            pass
    return time.perf_counter() - started


def usual_loop(run: Probe, steps: int = 2) -> float:
    """a: seconds of the whole, extrapolated from a few steps of each feature set."""
    classes, batch, total = len(run.train.classes), 16, 0.0
    items = run.train[:batch]
    pictures = stack([item.read((448, 448)) for item in items], 16)
    masks = [Image.fromarray(item.mask()).resize((448, 448), 0) for item in items]
    truth = torch.from_numpy(np.stack([np.asarray(mask) for mask in masks]).astype(np.int64))
    for cell in run.cells:
        head = torch.nn.Conv2d(384 * len(cell.blocks), classes, 1)
        optimiser = torch.optim.AdamW(head.parameters(), 1e-3)

        def features(images, blocks=cell.blocks):
            found = run.backbone(normalise(images, [(448, 448)] * len(images)), blocks)
            tokens = torch.cat([found.patches[b, "tokens_norm"] for b in blocks], 3)
            return tokens.permute(0, 3, 1, 2).clone()

        for step in range(1 + steps):
            if step == 1:  # the first one warms up
                started = time.perf_counter()
            logits = F.interpolate(head(features(pictures)), (448, 448), mode="bilinear")
            optimiser.zero_grad()
            F.cross_entropy(logits, truth, ignore_index=255).backward()
            optimiser.step()
        per_image = (time.perf_counter() - started) / (steps * len(items))
        with torch.no_grad():
            started = time.perf_counter()
            logits = F.interpolate(head(features(pictures[:4])), SIZE_HW, mode="bilinear")
            logits.argmax(1)
            scoring = (time.perf_counter() - started) / 4
        total += len(SWEEP) * (30 * len(run.train) * per_image + len(run.val) * scoring)
    return total


def speed(options, folder: Path) -> None:
    ckpt = options.ckpt or make_checkpoint(folder / "vit_s16.safetensors")
    for classes in options.classes:
        place = folder / f"classes{classes}"
        if not options.dataset:
            make_folder(place, options.images, options.images, classes)
        ratios: dict[str, list[float]] = {"b / d": [], "c / d": [], "a / b": []}
        for turn in range(options.rounds):
            cache = folder / f"cache{classes}.{turn}"
            run = make_probe(options, place, ckpt, cache)
            before = forward_pass(run)
            cold = timed(run.run)
            warm = timed(make_probe(options, place, ckpt, cache).run)
            floor = (before + forward_pass(run)) / 2
            usual = usual_loop(run)
            shutil.rmtree(cache)
            print(
                f"{classes} classes, turn {turn + 1}: a {usual:,.0f} s (extrapolated), "
                f"b {cold:.1f} s, c {warm:.1f} s, d {floor:.1f} s; "
                f"{len(run.train)} + {len(run.val)} images",
                flush=True,
            )
            for name, ratio in zip(ratios, (cold / floor, warm / floor, usual / cold), strict=True):
                ratios[name].append(ratio)
        for name, found in ratios.items():
            print(f"{classes} classes: {name} {spread(found)}", flush=True)


def timed(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


# -- scoring


class Relabelled:
    """The same pictures with another number of classes."""

    def __init__(self, split: Split, textures: list[np.ndarray], classes: int) -> None:
        self.split, self.masks = split, [(t % classes).astype(np.uint8) for t in textures]
        self.grid, self.tokens, self.seen = split.grid, split.tokens, split.seen

    def __len__(self) -> int:
        return len(self.masks)

    def mask(self, image: int) -> np.ndarray:
        return self.masks[image]


def scoring(options, folder: Path) -> None:
    from torchmetrics.classification import MulticlassJaccardIndex

    place, count = folder / "scoring", min(options.images, 32)
    make_folder(place, count, count, 171)
    ckpt = options.ckpt or make_checkpoint(folder / "vit_s16.safetensors")
    options = argparse.Namespace(**{**vars(options), "dataset": None, "images": count})
    run = make_probe(options, place, ckpt, folder / "scoring_cache")
    spec, cell = run.spec(run.cells), run.cells[1]
    photos = [np.zeros((*SIZE_HW, 3), np.uint8)]
    splits = []
    for items, first in ((run.train, 0), (run.val, 100_000)):
        features = Keeping(in_memory=True).features(run.backbone, items.items, spec, "features")
        textures = [draw(first + i, photos)[1] for i in range(count)]
        splits.append((Split(features, items, run.columns(cell), None), textures))
    for classes in (21, 150, 171):
        train, val = (Relabelled(split, textures, classes) for split, textures in splits)
        trained = evaluation.fit(lambda epoch, t=train: t, count, classes, PROTOCOLS["paper"], 0)
        weight, bias = trained.heads(trained.full)
        pixels = len(SWEEP) * sum(mask.size for mask in val.masks) / 1e6
        ratios, differ = [], 0
        for _ in range(options.rounds + 1):
            started = time.perf_counter()
            counts = evaluation.score(val, weight, bias, classes)
            ours = time.perf_counter() - started
            metric = [
                MulticlassJaccardIndex(classes, ignore_index=255, validate_args=False)
                for _ in SWEEP
            ]
            started = time.perf_counter()
            for image in range(count):
                tokens = torch.from_numpy(val.tokens(image)).float()
                logits = (tokens @ weight + bias).T.reshape(len(SWEEP), classes, 28, 28)
                truth = torch.from_numpy(val.mask(image).astype(np.int64))[None]
                for head in range(len(SWEEP)):
                    found = F.interpolate(logits[head : head + 1], SIZE_HW, mode="bilinear")
                    metric[head].update(found.argmax(1), truth)
            usual = time.perf_counter() - started
            ratios.append(usual / ours)
        for head, theirs in enumerate(metric):
            total = counts[:, head].sum(0)
            differ += int(np.abs(np.diag(theirs.confmat.numpy()) - total[0]).sum())
        best = max(100 * float(m.compute()) for m in metric)
        print(
            f"{classes} classes: ours {ours / pixels:.3f} s per million pixels, "
            f"interpolate + argmax + torchmetrics {usual / pixels:.3f} s: "
            f"{spread(ratios[1:])} times as fast; {differ} of {pixels:.0f} million pixels differ "
            f"(best mIoU {best:.1f})",
            flush=True,
        )


# -- the loss on a sample of pixels


def loss(options, folder: Path) -> None:
    place = folder / "loss"
    if not options.dataset:
        make_folder(place, options.images, options.images, 21)
    ckpt = options.ckpt or make_checkpoint(folder / "vit_s16.safetensors")
    found: dict[str, list[float]] = {}
    for name, pixels in (("1,024 pixels", 1024), ("all pixels", None)):
        # Masks of 112×112 for the loss, in both, so that all of them can be afforded over seeds.
        protocol = dataclasses.replace(
            PROTOCOLS["paper"], loss_pixels=pixels, loss_size=112, rates=(options.loss_rate,)
        )
        run = make_probe(
            options, place, ckpt, folder / "loss_cache", protocol=protocol,
            seeds=tuple(range(options.seeds)),
        )  # fmt: skip
        started = time.perf_counter()
        for result in run.run():
            key = f"{result.features['layers']}, {name}"
            found.setdefault(key, []).append(result.metrics["miou"])
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    for layers in LAYERS:
        some, every = found[f"{layers}, 1,024 pixels"], found[f"{layers}, all pixels"]
        apart = [a - b for a, b in zip(some, every, strict=True)]
        error = statistics.stdev(apart) / len(apart) ** 0.5
        print(
            f"{layers}: mIoU {statistics.mean(some):.2f} with 1,024 pixels, "
            f"{statistics.mean(every):.2f} with all; difference {statistics.mean(apart):+.2f} "
            f"± {error:.2f} (standard error over {len(apart)} seeds; "
            f"seeds among themselves ± {statistics.stdev(every):.2f})"
        )


# -- memory


def memory(options, folder: Path) -> None:
    """The command itself, with four blocks instead of twelve: features as large, in less time."""
    place, ckpt = folder / "memory", make_checkpoint(folder / "four_blocks.safetensors", depth=4)
    make_folder(place, 50, 50, 171)
    for kind, suffix in (("images", "jpg"), ("masks", "png")):
        for split, count in (("train", options.memory_images), ("val", options.memory_val)):
            for i in range(50, count):
                copy = place / kind / split / f"{i:05d}.{suffix}"
                os.link(place / kind / split / f"{i % 50:05d}.{suffix}", copy)
    rates = [f"{10 ** (-4 + 2.5 * i / 23):.3g}" for i in range(24)]
    for number, lengths in ((6, ("1", "30")), (24, ("30",))):
        peak = 0
        for epochs in lengths:  # to the end; and with as many pixels drawn ahead as ever
            cache = folder / "memory_cache"
            arguments = [
                "probe", "--ckpt", ckpt, "--dataset", f"folder:{place}", "--layers", "multiscale",
                "--lr", ",".join(rates[:: 24 // number]), "--epochs", epochs, "--cache", cache,
                "--out", folder / "memory_results", "--force", "--residual", "skip",
            ]  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-m", "skipbench", *map(str, arguments)],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            while process.poll() is None:
                status = Path(f"/proc/{process.pid}/status").read_text()
                held = [line for line in status.splitlines() if line.startswith("VmHWM")]
                peak = max(peak, int(held[0].split()[1]) * 1024 if held else 0)
                if epochs == "30" and list((cache / "training").glob("*.state")):
                    process.terminate()  # one epoch has been through
                    process.wait()
                time.sleep(0.5)
            if epochs == "1" and process.returncode:
                raise SystemExit(f"the command ended with {process.returncode}")
            for state in (cache / "training").glob("*.state"):
                state.unlink()
        print(
            f"{options.memory_images:,} training and {options.memory_val:,} validation images, "
            f"171 classes, multiscale, {number} rates: "
            f"peak memory {peak / 2**30:.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"speed": speed, "scoring": scoring, "loss": loss, "memory": memory}
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[])
    parser.add_argument("--images", type=int, default=48, help="of each split")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--classes", type=int, nargs="*", default=[21, 150])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--loss-rate", type=float, default=1e-2)
    parser.add_argument("--memory-images", type=int, default=3000)
    parser.add_argument("--memory-val", type=int, default=300)
    parser.add_argument("--ckpt", help="instead of random weights")
    parser.add_argument("--dataset", help="instead of drawn pictures; with --data-root")
    parser.add_argument("--data-root")
    options = parser.parse_args()
    torch.set_num_threads(2)
    progress.quiet = True
    with tempfile.TemporaryDirectory() as name:
        for part in options.parts or parts:
            print(f"-- {part}", flush=True)
            parts[part](options, Path(name))
