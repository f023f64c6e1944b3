"""Helpers of several benchmarks. Imports nothing heavy: some of them measure memory."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from skipbench.backbones.vit import ViTBackbone


def seconds(work: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def divide(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def quartiles(
    values: Sequence[float], method: Literal["exclusive", "inclusive"] = "exclusive"
) -> str:
    """The median, with the quartiles in brackets."""
    if len(values) < 2:
        return f"{values[0]:.3g}"
    low, middle, high = statistics.quantiles(values, n=4, method=method)
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def photographs() -> list[np.ndarray]:
    """HWC uint8, of different sizes."""
    from skimage import data

    return [photo() for photo in (data.chelsea, data.coffee, data.astronaut, data.rocket)]


def vit_s16() -> "ViTBackbone":
    """With random weights."""
    from skipbench.backbones.vit import ViTBackbone
    from skipbench.checkpoints import Checkpoint
    from skipbench.demo import make_weights, small_facts

    facts = small_facts(width=384, depth=12, heads=6)
    facts = replace(facts, name="random ViT-S/16", sha256="0" * 64)
    return ViTBackbone(Checkpoint(make_weights("skip", facts), facts), "skip")


def save_vit_s16(path: Path, depth: int = 12) -> Path:
    from skipbench.checkpoints import save_checkpoint
    from skipbench.demo import make_weights, small_facts

    metadata = {"layout": "dino", "residual": "skip", "heads": 6}
    weights = make_weights("skip", small_facts(width=384, depth=depth, heads=6))
    return save_checkpoint(path, weights, metadata)


def print_peak_memory(script: str, folder: str, counts: Sequence[int]) -> None:
    """`script --child FOLDER COUNT` prints its peak memory in bytes; each in a fresh process."""
    peaks = {}
    for count in counts:
        command = [sys.executable, script, "--child", folder, str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[count] = int(done.stdout.split()[-1]) / 1e6
        print(f"{count:6,} images: peak memory {peaks[count]:.0f} MB", flush=True)
    first, last = counts[0], counts[-1]
    print(f"growth from {first:,} to {last:,} images: {peaks[last] / peaks[first] - 1:+.1%}")
