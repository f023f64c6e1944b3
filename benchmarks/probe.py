"""The linear probe compared with the conventional loop and with one forward pass over the images.

    python benchmarks/probe.py [speed] [scoring] [loss] [memory] [--images 48] [--rounds 2] …

ViT-S/16 with random weights, 448 px, 2 threads, on synthetic images of VOC's size (or your own
--ckpt and --dataset). The variants of a part take turns in one process; ratios are computed within
a turn.

    speed     6 rates × 30 epochs × two sets of layers (last and multiscale), training and scoring:
              a  conventional loop: backbone in every step, one rate after another, logits resized
                 to 448²; extrapolated from a few steps
              b  ours, nothing cached    c  ours, features cached    d  one bare forward pass
              (without reading the checkpoint and detecting skip or skipless)
    scoring   seconds per million pixels with trained heads, compared with interpolate, argmax and
              torchmetrics' MulticlassJaccardIndex
    loss      mIoU with the loss on 1,024 pixels per image and step, and on all, over seeds
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
from functools import cached_property
from pathlib import Path

from skipbench.engine.machine import wait_politely

wait_politely()  # before torch is loaded, as the command does

# ruff: noqa: E402
import numpy as np
import torch
import torch.nn.functional as F
from _shared import divide, photographs, save_vit_s16, seconds
from PIL import Image
from skimage import filters

from skipbench.engine import progress
from skipbench.evaluations.probe import EVALUATION
from skipbench.evaluations.probe.method import fit, score
from skipbench.evaluations.probe.run import ProbeRun
from skipbench.evaluations.probe.settings import PROTOCOLS, SWEEP, ProbeSettings, Protocol
from skipbench.evaluations.segmentation.run import StoredSplit
from skipbench.features.source import compute
from skipbench.features.stream import Extractor, make_plan
from skipbench.images import normalise, stack
from skipbench.pipeline import carry_out, open_run

SIZE_HW = (375, 500)
LAYERS = ("last", "multiscale")
TEXTURES = 342  # 2 · 171; class = texture modulo the number of classes


# -- data: photographs with textured regions painted over them; the texture gives the class


def draw(number: int, photos: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """An image, HWC uint8, and the texture of each pixel, HW int."""
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
    photos = [np.asarray(Image.fromarray(p).resize(SIZE_HW[::-1])) for p in photographs()]
    for split, count, first in (("train", train, 0), ("val", val, 100_000)):
        for kind in ("images", "masks"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image, textures = draw(first + i, photos)
            Image.fromarray(image).save(folder / "images" / split / f"{i:05d}.jpg", quality=90)
            mask = (textures % classes).astype(np.uint8)
            mask[filters.sobel(textures.astype(float)) > 0] = 255  # borders are ignored, as in VOC
            Image.fromarray(mask).save(folder / "masks" / split / f"{i:05d}.png")
    (folder / "classes.txt").write_text("".join(f"class {i}\n" for i in range(classes)))


def make_run(
    options: argparse.Namespace,
    folder: Path,
    ckpt: Path,
    cache: Path,
    settings: type[ProbeSettings] = ProbeSettings,
    **changes: object,
) -> ProbeRun:
    """Opened, on the data set in the folder or the user's own."""
    given = {
        "ckpt": ckpt, "dataset": options.dataset or f"folder:{folder}", "residual": "skip",
        "data_root": options.data_root, "limit": options.images, "layers": LAYERS, "cache": cache,
        "out": cache / "results", "force": True, "device": "cpu", **changes,
    }  # fmt: skip
    return open_run(EVALUATION, settings.make(given))


# -- speed


def forward_pass(run: ProbeRun) -> None:
    """d: every image once through the backbone, decoding included; nothing is kept."""
    spec = dataclasses.replace(run.spec(run.cells), blocks=(run.backbone.depth - 1,))
    for items in (run.train.items, run.val.items):
        plan = make_plan(items, spec.size, run.backbone.facts.patch, 768)
        for _ in Extractor(run.backbone, spec).stream(items, plan):
            pass


def conventional_loop(run: ProbeRun, steps: int = 2) -> float:
    """a: seconds in all, extrapolated from a few steps with each set of layers."""
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
            if step == 1:  # the first is a warm-up
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


def speed(options: argparse.Namespace, folder: Path) -> None:
    ckpt = options.ckpt or save_vit_s16(folder / "vit_s16.safetensors")
    for classes in options.classes:
        place = folder / f"classes{classes}"
        if not options.dataset:
            make_folder(place, options.images, options.images, classes)
        spent: dict[str, list[float]] = {"a": [], "b": [], "c": [], "d": []}
        for turn in range(options.rounds):
            cache = folder / f"cache{classes}.{turn}"
            run = make_run(options, place, ckpt, cache)
            before = seconds(forward_pass, run)
            spent["b"].append(seconds(carry_out, run))
            spent["c"].append(seconds(carry_out, make_run(options, place, ckpt, cache)))
            spent["d"].append((before + seconds(forward_pass, run)) / 2)
            spent["a"].append(conventional_loop(run))
            shutil.rmtree(cache)
            listed = ", ".join(f"{variant} {took[-1]:,.1f} s" for variant, took in spent.items())
            print(
                f"{classes} classes, turn {turn + 1}: {listed}; "
                f"{len(run.train)} + {len(run.val)} images",
                flush=True,
            )
        for above, below in (("b", "d"), ("c", "d"), ("a", "b")):
            ratios = spread(divide(spent[above], spent[below]))
            print(f"{classes} classes: {above} / {below} {ratios}", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


# -- scoring


class Relabelled:
    """The same images with another number of classes."""

    def __init__(self, split: StoredSplit, textures: list[np.ndarray], classes: int) -> None:
        self.split, self.masks = split, [(t % classes).astype(np.uint8) for t in textures]
        self.grid, self.tokens, self.image_tokens = split.grid, split.tokens, split.image_tokens

    def __len__(self) -> int:
        return len(self.masks)

    def mask(self, image: int) -> np.ndarray:
        return self.masks[image]


def scoring(options: argparse.Namespace, folder: Path) -> None:
    place, count = folder / "scoring", min(options.images, 32)
    make_folder(place, count, count, 171)
    ckpt = options.ckpt or save_vit_s16(folder / "vit_s16.safetensors")
    options = argparse.Namespace(**{**vars(options), "dataset": None, "images": count})
    run = make_run(options, place, ckpt, folder / "scoring_cache")
    spec, cell = run.spec(run.cells), run.cells[1]
    photos = [np.zeros((*SIZE_HW, 3), np.uint8)]
    splits = []
    for dataset, first in ((run.train, 0), (run.val, 100_000)):
        features = compute(run.backbone, dataset.items, spec)
        textures = [draw(first + i, photos)[1] for i in range(count)]
        splits.append((StoredSplit(features, dataset, run.columns(cell), None), textures))
    for classes in (21, 150, 171):
        train, val = (Relabelled(split, textures, classes) for split, textures in splits)
        compare_scoring(train, val, classes, options.rounds)


def compare_scoring(train: Relabelled, val: Relabelled, classes: int, rounds: int) -> None:
    from torchmetrics.classification import MulticlassJaccardIndex

    trained = fit(lambda epoch: train, len(train), classes, PROTOCOLS["paper"], 0)
    weight, bias = trained.heads(trained.full)
    pixels = len(SWEEP) * sum(mask.size for mask in val.masks) / 1e6
    ratios = []
    for _ in range(rounds + 1):  # the first is a warm-up
        started = time.perf_counter()
        counts = score(val, weight, bias, classes)
        ours = time.perf_counter() - started
        metrics = [
            MulticlassJaccardIndex(classes, ignore_index=255, validate_args=False) for _ in SWEEP
        ]
        theirs = seconds(conventional_scoring, metrics, val, weight, bias, classes)
        ratios.append(theirs / ours)
    differ = 0
    for head, metric in enumerate(metrics):
        correct = counts[:, head, 0].sum(0)
        differ += int(np.abs(np.diag(metric.confmat.numpy()) - correct).sum())
    best = max(100 * float(metric.compute()) for metric in metrics)
    print(
        f"{classes} classes: ours {ours / pixels:.3f} s per million pixels, "
        f"interpolate + argmax + torchmetrics {theirs / pixels:.3f} s: "
        f"{spread(ratios[1:])} times as fast; {differ} of {pixels:.0f} million pixels differ "
        f"(best mIoU {best:.1f})",
        flush=True,
    )


def conventional_scoring(
    metrics: list, val: Relabelled, weight: torch.Tensor, bias: torch.Tensor, classes: int
) -> None:
    """metrics: one per rate."""
    for image in range(len(val)):
        tokens = torch.from_numpy(val.tokens(image)).float()
        logits = (tokens @ weight + bias).T.reshape(len(metrics), classes, 28, 28)
        truth = torch.from_numpy(val.mask(image).astype(np.int64))[None]
        for head, metric in enumerate(metrics):
            resized = F.interpolate(logits[head : head + 1], SIZE_HW, mode="bilinear")
            metric.update(resized.argmax(1), truth)


# -- the loss on a sample of pixels


class SmallMasks(ProbeSettings):
    """Masks are resized to 112×112 for the loss, so that all pixels are affordable over seeds."""

    @cached_property
    def resolved(self) -> Protocol:
        return dataclasses.replace(super().resolved, loss_size=112)


def loss(options: argparse.Namespace, folder: Path) -> None:
    place = folder / "loss"
    if not options.dataset:
        make_folder(place, options.images, options.images, 21)
    ckpt = options.ckpt or save_vit_s16(folder / "vit_s16.safetensors")
    found: dict[tuple[str, int | str], list[float]] = {}
    for pixels in (1024, "all"):
        run = make_run(
            options, place, ckpt, folder / "loss_cache", SmallMasks, loss_pixels=pixels,
            lr=options.loss_rate, seeds=range(options.seeds),
        )  # fmt: skip
        started = time.perf_counter()
        for result in carry_out(run):
            key = result.features["layers"], pixels
            found.setdefault(key, []).append(result.metrics["miou"])
        print(f"{pixels} pixels: {time.perf_counter() - started:.0f} s", flush=True)
    for layers in LAYERS:
        some, every = found[layers, 1024], found[layers, "all"]
        differences = [a - b for a, b in zip(some, every, strict=True)]
        mean, seeds = statistics.mean(differences), len(differences)
        error = statistics.stdev(differences) / seeds**0.5
        print(
            f"{layers}: mIoU {statistics.mean(some):.2f} with 1,024 pixels, "
            f"{statistics.mean(every):.2f} with all; difference {mean:+.2f} ± {error:.2f} "
            f"(standard error over {seeds} seeds; "
            f"standard deviation over seeds {statistics.stdev(every):.2f})"
        )


# -- memory


def memory(options: argparse.Namespace, folder: Path) -> None:
    """Of the command, with 4 blocks instead of 12: as many features, computed faster."""
    place, ckpt = folder / "memory", save_vit_s16(folder / "four_blocks.safetensors", depth=4)
    make_folder(place, 50, 50, 171)
    for kind, suffix in (("images", "jpg"), ("masks", "png")):
        for split, count in (("train", options.memory_images), ("val", options.memory_val)):
            for i in range(50, count):
                copy = place / kind / split / f"{i:05d}.{suffix}"
                os.link(place / kind / split / f"{i % 50:05d}.{suffix}", copy)
    rates = [f"{10 ** (-4 + 2.5 * i / 23):.3g}" for i in range(24)]
    for number, epochs in ((6, ("1", "30")), (24, ("30",))):
        arguments = [
            "probe", "--ckpt", ckpt, "--dataset", f"folder:{place}", "--layers", "multiscale",
            "--lr", ",".join(rates[:: 24 // number]), "--cache", folder / "memory_cache",
            "--out", folder / "memory_results", "--force", "--residual", "skip",
        ]  # fmt: skip
        peak = max(peak_of_command(arguments, e, folder / "memory_cache") for e in epochs)
        print(
            f"{options.memory_images:,} training and {options.memory_val:,} validation images, "
            f"171 classes, multiscale, {number} rates: "
            f"peak memory {peak / 2**30:.2f} GiB",
            flush=True,
        )


def peak_of_command(arguments: list[object], epochs: str, cache: Path) -> int:
    """Bytes. One epoch is run to the end; of 30, the first only, with pixels drawn for all."""
    states, peak = cache / "probe", 0
    process = subprocess.Popen(
        [sys.executable, "-m", "skipbench", *map(str, arguments), "--epochs", epochs],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
        peak = max(peak, int(lines[0].split()[1]) * 1024 if lines else 0)
        if epochs == "30" and list(states.glob("*.state")):
            process.terminate()  # one epoch is complete
            process.wait()
        time.sleep(0.5)
    if epochs == "1" and process.returncode:
        raise SystemExit(f"the command ended with {process.returncode}")
    for state in states.glob("*.state"):
        state.unlink()
    return peak


def main() -> None:
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
    parser.add_argument("--dataset", help="instead of synthetic images; with --data-root")
    parser.add_argument("--data-root")
    options = parser.parse_args()
    torch.set_num_threads(2)
    progress.quiet = True
    with tempfile.TemporaryDirectory() as name:
        for part in options.parts or parts:
            print(f"-- {part}", flush=True)
            parts[part](options, Path(name))


if __name__ == "__main__":
    main()
