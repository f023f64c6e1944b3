"""Tokens and masks made by hand, for evaluations of segmentation."""

import numpy as np

from skipbench.datasets import open_dataset
from skipbench.evaluations.knn.method import patch_counts
from skipbench.evaluations.segmentation.tokens import Grid

WIDTH = 6


def of_length_one(tokens):
    return (tokens / np.linalg.norm(tokens, axis=1, keepdims=True)).astype(np.float32)


def unit(count=300, width=WIDTH, seed=0):
    """(count, width) float32 of length 1, in every direction."""
    return of_length_one(np.random.default_rng(seed).normal(size=(count, width)))


def groups_of(count, width=WIDTH, groups=12, spread=0.4, seed=0):
    """Tokens that lie together, as those of pictures do."""
    rng = np.random.default_rng(seed)
    middles = np.random.default_rng(99).normal(size=(groups, width))
    around = middles[rng.integers(groups, size=count)]
    return of_length_one(around + spread * rng.normal(size=(count, width)))


def some_mask(size_hw, classes, seed=0, ignored=0.15):
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, classes, size_hw).astype(np.uint8)
    mask[rng.random(size_hw) < ignored] = 255
    return mask


class TokenImages:
    """Images that are arrays: tokens, masks with holes, and pictures that end within a patch."""

    def __init__(self, count=5, classes=4, seed=0, grid_hw=(4, 6), patch=5):
        rng = np.random.default_rng(seed)
        self.grids, self.values, self.masks = [], [], []
        for i in range(count):
            height, width = grid_hw[0] + i % 2, grid_hw[1]
            size_hw = height * patch - i % 3, width * patch - 2 * (i % 2)
            self.grids.append(Grid((height, width), (size_hw[0] / patch, size_hw[1] / patch)))
            values = rng.normal(size=(height * width, WIDTH)) * rng.uniform(1, 9)
            self.values.append(values.astype(np.float16))
            self.masks.append(some_mask((2 * size_hw[0], 2 * size_hw[1]), classes, seed + i))

    def grid(self, image):
        return self.grids[image]

    def tokens(self, image):
        return self.values[image]

    def mask(self, image):
        return self.masks[image]


class ShapesTokens:
    """`shapes` with tokens that carry the main class of their patch, and noise."""

    patch = 4

    def __init__(self, split, count, shuffled=False):
        self.data = open_dataset("shapes", split, limit=count)
        self.classes = len(self.data.classes)
        self.masks = [item.mask() for item in self.data]
        self.sizes = [mask.shape for mask in self.masks]
        rng = np.random.default_rng(len(split))
        codes = np.random.default_rng(99).normal(size=(self.classes, 10))
        self.counts = [
            patch_counts(mask, self.grid(i).size_hw, self.patch, self.classes)
            for i, mask in enumerate(self.masks)
        ]
        every = codes[np.concatenate(self.counts).argmax(1)]
        every = every + 0.3 * rng.normal(size=every.shape)
        if shuffled:  # over all images: within one they would still tell which classes it has
            every = rng.permutation(every)
        ends = np.cumsum([len(counts) for counts in self.counts])
        self.values = np.split(every.astype(np.float16), ends[:-1])

    def __len__(self):
        return len(self.masks)

    def grid(self, image):
        height, width = self.sizes[image]
        tokens_hw = -(-height // self.patch), -(-width // self.patch)
        return Grid(tokens_hw, (height / self.patch, width / self.patch))

    def tokens(self, image, rows=None):
        return self.values[image] if rows is None else self.values[image][rows]

    def mask(self, image):
        return self.masks[image]
