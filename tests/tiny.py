"""A data set of eleven small images with masks, a small checkpoint, and evaluations of them.

Also what their figures are by plain code. Nothing is square, and no size is whole patches.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
import trees
from conftest import lasting
from PIL import Image
from torch.nn.functional import grid_sample, interpolate

import skipbench
from skipbench.demo import make_weights, small_facts
from skipbench.evaluations import find_evaluation
from skipbench.pipeline import carry_out, open_run
from skipbench.record_store import read_arrays

CLASSES = ["nothing", "cat", "dog", "bird"]
SIZES_HW = [(41, 57), (33, 64), (56, 40), (48, 72)]
PATCH = 8
TRAIN, VAL = 6, 5
SIZE = "40x56"
TOKENS = 35  # of an image at that size


def tiny_mask(size_hw, split, image):
    """Bands with a strip across them, and pixels that do not count; no bird in val."""
    mask = trees.blocks(size_hw, [image % 4, 1, 3, 255] if split == "train" else [0, 1, 2, 255])
    mask[:5] = 2
    mask[-6:, :10] = 255
    return mask


def truth(split, image):
    return tiny_mask(SIZES_HW[image % len(SIZES_HW)], split, image)


def tiny_folder(folder, train=TRAIN, val=VAL):
    """Coloured by class under much noise: some of it can be found."""
    colours = np.array([[40, 60, 80], [200, 60, 60], [60, 200, 90], [90, 90, 220]])
    for split, count in (("train", train), ("val", val)):
        for i in range(count):
            mask = truth(split, i)
            rng = np.random.default_rng([split == "val", i])
            pixels = rng.integers(0, 256, (*mask.shape, 3)) // 2 + colours[mask % 4] // 2
            path = folder / "images" / split / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
            trees.grey_png(folder / "masks" / split / f"{i}.png", mask)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))


def without_labels(path):
    """This mask, or all of this folder."""
    for one in path.iterdir() if path.is_dir() else [path]:
        trees.grey_png(one, np.full_like(np.array(Image.open(one)), 255))


def tiny_checkpoint(path, seed=0, residual="skip", spoil=None):
    weights = make_weights(residual, small_facts(width=64, depth=3, patch=PATCH, heads=1), seed)
    if spoil:
        spoil(weights)
    said = {"num_heads": 1, "position_rule": "offset"}
    torch.save({"model": weights, "args": said}, path)
    return path


def nan_in_a_block(weights):
    weights["blocks.1.mlp.fc1.weight"][3, 3] = float("nan")


def all_alike(weights):
    weights["patch_embed.proj.weight"].zero_()
    weights["pos_embed"].zero_()


class Home:
    """The data set, a checkpoint and a cache, for all tests of a session."""

    def __init__(self, folder):
        self.folder, self.ckpt = folder, tiny_checkpoint(folder / "skip.pth")
        tiny_folder(folder / "tiny")
        self.dataset, self.cache = f"folder:{folder / 'tiny'}", str(folder / "cache")

    def options(self, **more):
        usual = {"size": SIZE, "residual": "skip", "device": "cpu", "cache": self.cache}
        return usual | more

    def arguments(self, command, *more):
        return (
            command, "--ckpt", self.ckpt, "--dataset", self.dataset, "--residual", "skip",
            "--size", SIZE, "--device", "cpu", *more,
        )  # fmt: skip

    @cached_property
    def inspection(self):
        return skipbench.inspect(self.ckpt, residual="skip", device="cpu")

    def open(self, name, **more):
        return open_one(name, self.given(**more), [self.inspection])

    def open_in_shards(self, name, **more):
        """Of two images: 2 + 2 + 1."""
        run = self.open(name, **more)
        run.shard_images = 2
        return run

    def evaluate(self, name, **more):
        """Records, as from the Python function; the checkpoint is inspected once a session."""
        return carry_out(self.open(name, **more))

    def given(self, **more):
        return {"ckpt": str(self.ckpt), "dataset": self.dataset, **self.options(**more)}

    def tokens(self, split, size=SIZE, layers="last"):
        """By image, (height, width, channels) of length 1."""
        backbone = skipbench.load_backbone(self.ckpt, residual="skip", device="cpu")
        data = skipbench.open_dataset(self.dataset, split)
        with skipbench.extract(backbone, data, layers=layers, size=size, cache=self.cache) as store:
            read = [np.concatenate([t.numpy() for t in one.values()], axis=2) for one in store]
        read = [tokens.astype(np.float64) for tokens in read]
        return [tokens / np.linalg.norm(tokens, axis=2, keepdims=True) for tokens in read]


def open_one(name, given, inspections=()):
    evaluation = find_evaluation(name)
    return open_run(evaluation, evaluation.settings.make(given), inspections=inspections)


def arrays_of(result, folder="results"):
    return read_arrays(Path(folder) / f"{result.id}.npz")


def same(one, other, folders=("results", "results")):
    """Whether two records agree in all but seconds and memory, arrays and all."""
    mine, theirs = (arrays_of(r, f) for r, f in zip((one, other), folders, strict=True))
    assert lasting(one) == lasting(other) and set(mine) == set(theirs)
    return all(np.array_equal(mine[name], theirs[name]) for name in mine)


# -- interruption


def interrupted(monkeypatch, owner, name, at, before=False):
    """A Ctrl-C when this is called for the n-th time: after its work, or before."""
    plain, count = getattr(owner, name), 0

    def stopping(*arguments, **options):
        nonlocal count
        count += 1
        if count == at and before:
            raise KeyboardInterrupt
        found = plain(*arguments, **options)
        if count == at:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, name, stopping)


# -- suites


def suite(home, *evaluations):
    """evaluations: kind, and lines of its table."""
    text = f'[[checkpoint]]\npath = "{home.ckpt}"\nresidual = "skip"\n'
    for kind, *lines in evaluations:
        keys = "".join(f"{line}\n" for line in (f'size = "{SIZE}"', *lines))
        text += f'[[evaluation]]\nkind = "{kind}"\ndatasets = ["{home.dataset}"]\n{keys}'
    Path("suite.toml").write_text(text)


# -- plain code


def seen_hw(size, image_hw):
    """Pixels that the model sees."""
    if size == "native":
        return image_hw
    if size.startswith("short:"):
        factor = int(size[6:]) / min(image_hw)
        return tuple(round(side * factor) for side in image_hw)
    return tuple(map(int, size.split("x")))


def resized(maps, hw, size_hw):
    """(height, width, channels) to (*size_hw, channels). hw: pixels that the model saw; beyond them
    the last patches are padding."""
    whole = torch.from_numpy(maps).permute(2, 0, 1)[None]
    if all(side % PATCH == 0 for side in hw):
        found = interpolate(whole, size=size_hw, mode="bilinear", align_corners=False)
    else:
        y, x = (
            (torch.arange(n, dtype=torch.float64) + 0.5) / n * seen / (PATCH * tokens) * 2 - 1
            for n, seen, tokens in zip(size_hw, hw, maps.shape[:2], strict=True)
        )
        places = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=2)[None]
        found = grid_sample(whole, places, padding_mode="border", align_corners=False)
    return found[0].permute(1, 2, 0).numpy()


def plain_counts(predict, images=VAL):
    """(images, 3, classes). predict: the (height, width) classes of a validation image."""
    counts = np.zeros((images, 3, len(CLASSES)), int)
    for image in range(images):
        mask = truth("val", image)
        found = np.where(mask == 255, -1, predict(image, mask.shape))
        for c in range(len(CLASSES)):
            right = (found == c) & (mask == c)
            counts[image, :, c] = right.sum(), (found == c).sum(), (mask == c).sum()
    return counts


def check_figures(result, counts):
    """The record has the figures of these counts."""
    right, predicted, true = counts.sum(0)
    either = predicted + true - right
    ious = {n: 100 * r / e if e else None for n, r, e in zip(CLASSES, right, either, strict=True)}
    metrics = result.metrics
    assert metrics["per_class"] == pytest.approx(ious)
    assert metrics["miou"] == pytest.approx(np.mean([v for v in ious.values() if v is not None]))
    assert metrics["pixel_accuracy"] == pytest.approx(100 * right.sum() / true.sum())
    assert metrics["mean_accuracy"] == pytest.approx(100 * np.mean(right[:3] / true[:3]))
    assert metrics["absent_classes"] == ["bird"] and true[3] == 0
    low, high = metrics["interval"]
    assert low <= metrics["miou"] <= high and low < high
