"""PCA pictures and their figures by scikit-learn, scipy and loops, written from the protocol."""

import csv
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import original_state
from PIL import Image
from scipy.linalg import orthogonal_procrustes
from scipy.ndimage import map_coordinates
from scipy.spatial.distance import pdist
from scipy.stats import entropy
from sklearn.decomposition import PCA
from torch.nn.functional import interpolate

import skipbench as package
from skipbench.evaluations.pca.settings import MARK

# Three small models. The third has other patches, is deeper and narrower in heads.
STATES = {
    "a": {"depth": 3, "patch": 8, "seed": 0},
    "b": {"depth": 3, "patch": 8, "seed": 1},
    "c": {"depth": 5, "patch": 12, "seed": 2},
}


SIZES_HW = {"one": (41, 67), "two": (72, 50), "three": (48, 80)}  # patches do not fit


NAMES = ("one", "three", "two")  # as a folder is walked


def scene(size_hw, seed=0):
    """HWC uint8: stripes in a box, on a ground that changes slowly."""
    rng = np.random.default_rng(seed)
    height, width = size_hw
    y, x = np.mgrid[:height, :width]
    ground = 60 + 90 * np.stack([x / width, y / height, (x + y) / (height + width)], -1)
    stripes = 255 * ((x[..., None] // 3 + y[..., None] // 2) % 2) * rng.uniform(0.4, 1, 3)
    inside = (abs(x - 0.4 * width) < 0.2 * width) & (abs(y - 0.6 * height) < 0.25 * height)
    pixels = np.where(inside[..., None], stripes, ground) + rng.normal(0, 6, (height, width, 3))
    return pixels.round().clip(0, 255).astype(np.uint8)


def put(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def pixels_of(path):
    with Image.open(path) as image:
        assert image.mode == "RGB"
        return np.asarray(image)


def table(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def files_in(folder):
    """But for the mark that it is a folder of pictures."""
    found = {p.relative_to(folder).as_posix() for p in Path(folder).rglob("*") if p.is_file()}
    return found - {MARK}


def flat(folder):
    """A model to which positions are nothing, so that one colour is one token; and pictures."""
    state = original_state(width=64, **STATES["a"])
    torch.save(state | {"pos_embed": torch.zeros_like(state["pos_embed"])}, "flat.pth")
    for seed, name in enumerate(("a", "b", "c")):
        pixels = scene((40, 56), seed)
        put(folder / f"{name}.png", np.full_like(pixels, 90) if name == "b" else pixels)
    return Path("flat.pth").absolute()


# -- pictures


def seen_hw(size_hw, size, patch):
    """What an image is resized to: of short:N the shorter side has N pixels, or as many as are
    nearest to it in whole patches."""
    which, _, side = size.partition(":")
    if which == "short":
        scale = int(side) / min(size_hw)
        size_hw = round(size_hw[0] * scale), round(size_hw[1] * scale)
    elif size != "native":
        size_hw = tuple(map(int, size.split("x")))
    return tuple(max(round(length / patch), 1) * patch for length in size_hw)


class Plain:
    """Pictures of one run, by scikit-learn, scipy and loops."""

    def __init__(self, world, images, size="native"):
        """images: HWC uint8 by name."""
        self.world, self.images, self.size = world, images, size
        self.tokens = cache(self._tokens)

    def _tokens(self, model, name, block):
        """(height, width, channels) float64."""
        backbone = load(self.world / f"{model}.pth")
        pixels = self.images[name]
        height, width = self.seen(model, name)
        small = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
        mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        canvas = (np.asarray(small) / 255 - mean) / deviation
        batch = torch.from_numpy(canvas.transpose(2, 0, 1)[None].astype(np.float32))
        found = backbone(batch, [block], ["tokens_norm"]).patches[block, "tokens_norm"]
        return found[0].double().numpy()

    def seen(self, model, name):
        return seen_hw(self.images[name].shape[:2], self.size, STATES[model]["patch"])

    def scores(self, model, block, names, components=3, mask=False):
        """(height, width, components) and what is shown, by name: of one fit on all of these."""
        fit, shown = self.fit(model, block, names, components, mask)
        tokens = {name: self.tokens(model, name, block) for name in names}
        return {n: (plain_scores(fit, tokens[n]), shown[n]) for n in names}

    def fit(self, model, block, names, components, mask):
        """scikit-learn's, and what is shown; of one image, with the signs of the one before."""
        tokens = {name: self.tokens(model, name, block) for name in names}
        shown = {name: np.ones(tokens[name].shape[:2], bool) for name in names}
        fit = plain_pca([tokens[n][shown[n]] for n in names], components)
        if mask:
            shown = plain_foreground({n: plain_scores(fit, tokens[n])[..., 0] for n in names})
            fit = plain_pca([tokens[n][shown[n]] for n in names], components)
        order = list(NAMES) if set(NAMES) == set(self.images) else list(self.images)
        if len(names) == 1 and (number := order.index(names[0])):
            before, _ = self.fit(model, block, [order[number - 1]], components, mask)
            for axis, other in zip(fit.components_, before.components_, strict=True):
                axis *= np.sign(axis @ other)
        return fit, shown

    def aligned(self, reference, scores, models):
        """scores turned onto those of the reference; models: of both."""
        ours, theirs = [], []
        patches = [STATES[model]["patch"] for model in models]
        for name, (values, shown) in scores.items():
            wanted, wanted_shown = reference[name]
            if patches[0] != patches[1]:
                rows, columns = (
                    (np.arange(there) + 0.5) / there * here - 0.5
                    for there, here in zip(wanted.shape[:2], values.shape[:2], strict=True)
                )
                values = plain_linear(values, rows, columns)
                near = [(p + 0.5).astype(int).clip(0, n - 1)
                        for p, n in zip((rows, columns), shown.shape, strict=True)]  # fmt: skip
                shown = shown[np.ix_(*near)]
            both = shown & wanted_shown
            ours.append(values[both])
            theirs.append(wanted[both])
        a, b = np.concatenate(theirs), np.concatenate(ours)
        turn, _ = orthogonal_procrustes(b - b.mean(0), a - a.mean(0))
        return {name: (values @ turn, shown) for name, (values, shown) in scores.items()}

    def painted(self, model, scores, upsample):
        """HWC uint8 by name, one range of colours for all."""
        every = np.concatenate([values[shown] for values, shown in scores.values()])
        low, high = np.percentile(every, 1, axis=0), np.percentile(every, 99, axis=0)
        drawn = {}
        for name, (values, shown) in scores.items():
            colours = ((values - low) / (high - low)).clip(0, 1)
            colours[~shown] = 0
            drawn[name] = self.enlarged(name, colours, upsample)
        return drawn

    def enlarged(self, name, colours, upsample):
        size_hw = self.images[name].shape[:2]
        if upsample == "bilinear":
            grid = torch.from_numpy(colours.transpose(2, 0, 1)[None])
            large = interpolate(grid, size=size_hw, mode="bilinear")[0].numpy().transpose(1, 2, 0)
        else:
            rows, columns = (
                (np.arange(shown) + 0.5) / shown * seen
                for shown, seen in zip(size_hw, colours.shape[:2], strict=True)
            )
            large = colours[np.ix_(rows.astype(int), columns.astype(int))]
        return np.round(255 * large).astype(np.uint8)


@cache
def load(path):
    return package.load_backbone(path, residual="skip", device="cpu")


def plain_pca(pieces, components):
    """scikit-learn's, each component's largest loading made positive."""
    fit = PCA(components, svd_solver="full").fit(np.concatenate(pieces))
    for axis in fit.components_:
        axis *= np.sign(axis[np.abs(axis).argmax()])
    return fit


def plain_scores(fit, tokens):
    return fit.transform(tokens.reshape(-1, tokens.shape[-1])).reshape(*tokens.shape[:2], -1)


def plain_foreground(firsts):
    """The side of zero that has fewer tokens at the pictures' borders; if as many, the smaller; if
    as large, the upper."""
    sides = []
    for sign in (1, -1):
        rim = whole = 0
        for values in firsts.values():
            height, width = values.shape
            for y, x in np.argwhere(sign * values > 0).tolist():
                whole += 1
                rim += y in (0, height - 1) or x in (0, width - 1)
        sides.append((rim, whole, -sign))
    sign = -min(sides)[2]
    return {name: sign * values > 0 for name, values in firsts.items()}


def plain_linear(values, rows, columns):
    """Between the four nearest; beyond the outermost as they are."""
    at = np.meshgrid(rows, columns, indexing="ij")
    channels = [map_coordinates(v, at, order=1, mode="nearest") for v in np.moveaxis(values, -1, 0)]
    return np.stack(channels, -1)


def close(path, expected):
    """Every pixel, within one level."""
    drawn = pixels_of(path)
    assert drawn.shape == expected.shape
    far = np.abs(drawn.astype(int) - expected).max()
    assert far <= 1, f"{path.name}: {far} levels"
    assert len(np.unique(expected)) > 20  # else nothing is shown here


# -- figures


def plain_segments(mask, hw, patch):
    """(rows, columns) of tokens: the number most of the pixels have; -1 counts for nothing."""
    rows, columns = (
        (np.arange(new) + 0.5) * old / new for new, old in zip(hw, mask.shape, strict=True)
    )
    small = mask[np.ix_(rows.astype(int), columns.astype(int))]
    grid = np.full([-(-side // patch) for side in hw], -1)
    for y, x in np.ndindex(*grid.shape):
        inside = small[patch * y : patch * (y + 1), patch * x : patch * (x + 1)].ravel()
        inside = inside[inside >= 0]
        if len(inside):
            values, counts = np.unique(inside, return_counts=True)
            grid[y, x] = values[counts.argmax()]
    return grid


def plain_share(tokens, segments):
    """Of the variance, what is left when each token is replaced by its segment's mean."""
    values, names = tokens[segments >= 0], segments[segments >= 0]
    if len(set(names.tolist())) < 2:
        return math.nan
    means = np.stack([values[names == name].mean(0) for name in names])
    return means.var(0).sum() / values.var(0).sum()


def plain_variation(values):
    """Mean distance of neighbours, by the root mean square of that of any two."""
    height, width, channels = values.shape
    lengths = [np.linalg.norm(values[y, x] - values[y + 1, x])
               for y in range(height - 1) for x in range(width)]  # fmt: skip
    lengths += [np.linalg.norm(values[y, x] - values[y, x + 1])
                for y in range(height) for x in range(width - 1)]  # fmt: skip
    return np.mean(lengths) / np.sqrt((pdist(values.reshape(-1, channels)) ** 2).mean())


def plain_own_colours(plain, name, segments):
    """The share of the mean colours of patches, without a model."""
    height, width = plain.seen("a", name)
    small = Image.fromarray(plain.images[name]).resize((width, height), Image.Resampling.BILINEAR)
    rows = np.split(np.asarray(small, float), height // 8, axis=0)
    colours = np.array([[p.mean((0, 1)) for p in np.split(r, width // 8, axis=1)] for r in rows])
    return plain_share(colours, plain_segments(segments, (height, width), 8))


def check_figures(record, arrays, plain, names, segments, fit):
    """segments: HW integers by name, or None of an image that has none."""
    blocks = record.features["blocks"]
    for place, block in enumerate(blocks):
        groups = [names] if fit == "all" else [[name] for name in names]
        by_image = {}
        for group in groups:
            tokens = {name: plain.tokens("a", name, block) for name in group}
            theirs = PCA(svd_solver="full").fit(
                np.concatenate([t.reshape(-1, 64) for t in tokens.values()])
            )
            scores = plain.scores("a", block, group)
            for name in group:
                found = {
                    "explained": theirs.explained_variance_ratio_[:3],
                    "effective_rank": np.exp(entropy(theirs.explained_variance_)),
                    "total_variation": plain_variation(tokens[name]),
                    "colour_variation": plain_variation(scores[name][0]),
                }
                if segments:
                    grid = plain_segments(segments[name], plain.seen("a", name), 8)
                    found["between"] = plain_share(tokens[name], grid)
                    found["upside_down"] = plain_share(tokens[name], grid[::-1, ::-1])
                    found["colour_between"] = plain_share(scores[name][0], grid)
                by_image[name] = found
        for key in found:
            expected = np.array([by_image[name][key] for name in names])
            np.testing.assert_allclose(arrays[key][:, place], expected, rtol=2e-3, err_msg=key)
        row = record.metrics["blocks"][place]
        means = {k: np.nanmean([by_image[n][k] for n in names], axis=0) for k in found}
        assert row["block"] == block and row["degenerate"] == 0
        assert row["components"] == pytest.approx(100 * means["explained"], rel=2e-3)
        assert row["explained"] == pytest.approx(100 * means["explained"].sum(), rel=2e-3)
        for key in ("effective_rank", "total_variation", "colour_variation"):
            assert row[key] == pytest.approx(means[key], rel=2e-3)
        if segments:
            shares = {
                "coherence": "between",
                "upside_down": "upside_down",
                "colour_coherence": "colour_between",
            }
            for key, of in shares.items():
                assert row[key] == pytest.approx(100 * means[of], rel=2e-3)
            low, high = row["interval"]
            assert low <= row["coherence"] <= high and low < high
        else:
            assert row["coherence"] is None and row["interval"] is None
    assert record.metrics["block"] == blocks[-1]
    assert record.metrics["coherence"] == record.metrics["blocks"][-1]["coherence"]
    assert record.metrics.get("headline") == ("coherence" if segments else None)
    if not segments:
        assert "counts" not in arrays and "pixels" not in arrays
        return
    own = [plain_own_colours(plain, name, segments[name]) for name in names]
    np.testing.assert_allclose(arrays["pixels"], own, rtol=2e-3)
    assert record.metrics["pixels"] == pytest.approx(100 * np.nanmean(own), rel=2e-3)
    score = arrays["between"]
    known = ~np.isnan(score[:, -1])
    assert arrays["counts"][:, 1].tolist() == known.tolist()
    np.testing.assert_allclose(arrays["counts"][known, 0], score[known, -1], rtol=1e-6)
