"""For `--dry-run`: how long both methods take, from trials on random vectors."""

import time
from dataclasses import replace

import numpy as np
import torch

from skipbench.engine import vectors
from skipbench.evaluations.classify.linear import Training, fit
from skipbench.evaluations.classify.protocols import K

IMAGES = 2000


def search_seconds(width: int, images: tuple[int, int]) -> float:
    """images: training images, and evaluated ones."""
    bank = np.random.default_rng(0).standard_normal((IMAGES, width), np.float32)
    index = vectors.Flat(lambda: [bank], *bank.shape)
    started = time.monotonic()
    index.search(bank, K)
    return (time.monotonic() - started) * images[0] * images[1] / IMAGES**2


def training_seconds(
    width: int, labels: np.ndarray, classes: int, training: Training, device: torch.device
) -> float:
    """From the second of two epochs; the first is slower. labels: of all training images."""
    count, ends = min(2 * training.batch, len(labels)), list[float]()
    few = np.random.default_rng(0).standard_normal((count, width), np.float32)
    fit(
        few, labels[:count], classes, replace(training, epochs=2), device=device,
        after_epoch=lambda *_: ends.append(time.monotonic()),
    )  # fmt: skip
    return (ends[1] - ends[0]) * training.epochs * len(labels) / count
