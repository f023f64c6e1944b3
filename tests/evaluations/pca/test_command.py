"""`skipbench pca` as a user meets it: every pixel and figure by plain code, and faults."""

import csv
import json
import logging
import math
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trees
from conftest import clean_environment, lasting, original_state, records
from PIL import Image
from scipy.linalg import orthogonal_procrustes
from scipy.ndimage import map_coordinates
from scipy.spatial.distance import pdist
from scipy.stats import entropy
from skipbench.evaluations.pca.calls import open_pca
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits
from torch.nn.functional import interpolate
from typer.testing import CliRunner

import skipbench as package
from skipbench.cli import app
from skipbench.datasets import open_dataset
from skipbench.evaluations.pca.run import PcaRun
from skipbench.evaluations.pca.settings import MARK
from skipbench.features.stream import Extractor
from skipbench.record_store import read_arrays, read_result

pytestmark = pytest.mark.usefixtures("nowhere_else")

# Three small models. The third has other patches, is deeper and narrower in heads.
STATES = {
    "a": {"depth": 3, "patch": 8, "seed": 0},
    "b": {"depth": 3, "patch": 8, "seed": 1},
    "c": {"depth": 5, "patch": 12, "seed": 2},
}
SIZES_HW = {"one": (41, 67), "two": (72, 50), "three": (48, 80)}  # patches do not fit
NAMES = ("one", "three", "two")  # as a folder is walked


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_blas():
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(autouse=True)
def quiet_log():
    yield
    logging.getLogger("skipbench").handlers = []
    logging.getLogger("skipbench").propagate = True


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


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Checkpoints a.pth, b.pth and c.pth, three pictures, one cache for the whole file."""
    folder = tmp_path_factory.mktemp("world")
    for name, shape in STATES.items():
        torch.save(original_state(width=64, **shape), folder / f"{name}.pth")
    for seed, (name, size_hw) in enumerate(SIZES_HW.items()):
        put(folder / "photos" / f"{name}.png", scene(size_hw, seed))
    return folder


@pytest.fixture(scope="module")
def run(world):
    """The command on these pictures and the models named, in this process."""

    def run(models, out, *more, images=None, residual="skip", size="native"):
        given = images if images is not None else [world / "photos"]
        given = given if isinstance(given, list) else [given]
        weights = [word for model in models for word in ("--ckpt", world / f"{model}.pth")]
        words = ["pca", *given, *weights, "--out", out, "--cache", world / "cache", *more]
        words += ["--residual", residual] if residual else []
        words += ["--size", size] if size else []
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


@pytest.fixture
def done(run):
    """The same, where nothing may go wrong; the records by checkpoint."""

    def done(models, out="out", *more, **rest):
        shown = run(models, out, *more, **rest)
        assert shown.exit_code == 0, shown.stderr
        return {record.checkpoint["name"]: record for record in records(out)}

    return done


@pytest.fixture
def bare(monkeypatch):
    """Each picture, the figures and the record, but no sheets, curves and tiles, which take longer;
    a checkpoint is examined once."""
    from skipbench.evaluations.pca import calls as picturing
    from skipbench.evaluations.pca import pictures as _pca_pictures

    inspect, known = picturing.inspect, examined

    def once(path, **reading):
        key = str((path, reading))
        return known.get(key) or known.setdefault(key, inspect(path, **reading))

    monkeypatch.setattr(picturing, "inspect", once)
    monkeypatch.setattr(_pca_pictures, "contact_sheet", lambda *given, **more: iter(()))
    monkeypatch.setattr(_pca_pictures, "save_curves", lambda panels, stem: [])
    monkeypatch.setattr(_pca_pictures.Folder, "draw_tiles", lambda self, number: None)


examined = {}


# -- the same by plain code, written from the protocol alone


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
        tokens = {name: self.tokens(model, name, block) for name in names}
        shown = {name: np.ones(tokens[name].shape[:2], bool) for name in names}
        fit = plain_pca([tokens[n][shown[n]] for n in names], components)
        if mask:
            shown = plain_foreground({n: plain_scores(fit, tokens[n])[..., 0] for n in names})
            fit = plain_pca([tokens[n][shown[n]] for n in names], components)
        return {n: (plain_scores(fit, tokens[n]), shown[n]) for n in names}

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


@pytest.fixture(scope="module")
def originals(world):
    return {name: pixels_of(world / "photos" / f"{name}.png") for name in SIZES_HW}


@pytest.fixture(scope="module")
def plain(world, originals):
    """By size: features are computed once."""
    return cache(lambda size: Plain(world, originals, size))


def close(path, expected):
    """Every pixel, within one level."""
    drawn = pixels_of(path)
    assert drawn.shape == expected.shape
    far = np.abs(drawn.astype(int) - expected).max()
    assert far <= 1, f"{path.name}: {far} levels"
    assert len(np.unique(expected)) > 20  # else nothing is shown here


@pytest.mark.parametrize(
    ("fit", "background", "upsample", "align", "size"),
    [
        ("image", "keep", "nearest", True, "native"),
        ("image", "keep", "bilinear", False, "native"),
        ("all", "keep", "nearest", True, "short:60"),
        ("all", "keep", "bilinear", True, "native"),
        ("image", "keep", "bilinear", True, "60x76"),
        ("image", "mask", "nearest", True, "native"),
        ("all", "mask", "bilinear", True, "short:60"),
        ("image", "keep", "nearest", False, "native"),
    ],
)
def test_pictures_by_plain_code(run, bare, plain, tmp_path, fit, background, upsample, align, size):
    """Two models with the same patches, every block."""
    how = ["--fit", fit, "--background", background, "--upsample", upsample, "--layers", "all"]
    shown = run("ab", tmp_path, *how, *([] if align else ["--no-align"]), size=size)
    assert shown.exit_code == 0, shown.stderr
    ours, turned, black = plain(size), 0, 0
    for group in [NAMES] if fit == "all" else [[name] for name in NAMES]:
        for block in range(3):
            mask = background == "mask"
            first, other = (ours.scores(m, block, group, mask=mask) for m in "ab")
            alone = ours.painted("b", other, upsample)
            if align:
                other = ours.aligned(first, other, "ab")
            drawn = {
                "a": ours.painted("a", first, upsample),
                "b": ours.painted("b", other, upsample),
            }
            for model, name in ((m, n) for m in "ab" for n in group):
                path = tmp_path / f"{model}.pth_skip" / f"{name}_block{block}.png"
                close(path, drawn[model][name])
                black += int((pixels_of(path) == 0).all(-1).sum())
            turned += sum((alone[name] != drawn["b"][name]).any() for name in group)
    assert bool(turned) is align
    assert black > 2000 if background == "mask" else black < 2000


@pytest.mark.parametrize("fit", ["image", "all"])
@pytest.mark.parametrize("background", ["keep", "mask"])
def test_other_patches_and_another_depth_by_plain_code(run, bare, plain, tmp_path, fit, background):
    """Three blocks lead five: each at about the same share of the depth, the last by the last."""
    how = ("--fit", fit, "--layers", "all", "--background", background)
    shown = run("ac", tmp_path, *how)
    assert shown.exit_code == 0, shown.stderr
    ours, mask = plain("native"), background == "mask"
    for group in [NAMES] if fit == "all" else [[name] for name in NAMES]:
        first = [ours.scores("a", block, group, mask=mask) for block in range(3)]
        for block in range(5):
            scores, fits = ours.scores("c", block, group, mask=mask), []
            for lead in range(3):
                drawn = ours.painted("c", ours.aligned(first[lead], scores, "ac"), "nearest")
                far = 0
                for name in group:
                    found = pixels_of(tmp_path / "c.pth_skip" / f"{name}_block{block}.png")
                    far = max(far, np.abs(found.astype(int) - drawn[name]).max())
                fits += [lead] if far <= 1 else []
            nearest = min(range(3), key=lambda lead: abs((lead + 1) / 3 - (block + 1) / 5))
            assert nearest in fits, (group, block)
            assert mask or fits == [nearest]  # few tokens are common: some turn alike


def test_the_deeper_first(run, bare, plain, tmp_path):
    assert run("ca", tmp_path, "--layers", "all").exit_code == 0
    ours = plain("native")
    for name in NAMES:
        first = ours.scores("c", 4, [name])
        turned = ours.aligned(first, ours.scores("a", 2, [name]), "ca")
        close(
            tmp_path / "a.pth_skip" / f"{name}_block2.png",
            ours.painted("a", turned, "nearest")[name],
        )
        close(
            tmp_path / "c.pth_skip" / f"{name}_block4.png",
            ours.painted("c", first, "nearest")[name],
        )


@pytest.mark.parametrize("components", [1, 2, 4, 7])
def test_components_by_plain_code(run, bare, plain, tmp_path, components):
    """Three make one picture; one alone is grey, and of two blue is even."""
    shown = run("a", tmp_path, "--components", components)
    assert shown.exit_code == 0, shown.stderr
    places = ["", "components4-4/"] if components == 4 else [""]
    places = ["", "components4-6/", "components7-7/"] if components == 7 else places
    folder = tmp_path / "a.pth_skip"
    assert files_in(folder) == {f"{place}{name}.png" for place in places for name in NAMES}
    ours = plain("native")
    for name in NAMES:
        scores = ours.scores("a", 2, [name], components)
        drawn = ours.painted("a", scores, "nearest")[name]
        for number, place in enumerate(places):
            part = drawn[..., 3 * number : 3 * number + 3]
            missing = 3 - part.shape[-1]
            if missing == 2:
                part = part.repeat(3, -1)
            elif missing == 1:
                part = np.concatenate([part, np.full_like(part[..., :1], 128)], -1)
            close(folder / f"{place}{name}.png", part)


def test_the_same_features_as_extract_gives(run, bare, world, plain, tmp_path):
    """Queries, stored as float16, of a block that is neither first nor last."""
    how = ("--feature", "queries", "--layers", "1", "--store-dtype", "fp16", "--fit", "all")
    assert run("a", tmp_path, *how, size="40x56").exit_code == 0
    with package.extract(
        load(world / "a.pth"), world / "photos", layers="1", tensors=["queries"], size="40x56",
        store_dtype="fp16", cache=tmp_path / "cache",
    ) as store:  # fmt: skip
        tokens = {name: store[i]["queries.1"].double().numpy() for i, name in enumerate(NAMES)}
    fit = plain_pca([values.reshape(-1, 64) for values in tokens.values()], 3)
    scores = {n: (plain_scores(fit, v), np.ones(v.shape[:2], bool)) for n, v in tokens.items()}
    for name, drawn in plain("40x56").painted("a", scores, "nearest").items():
        close(tmp_path / "a.pth_skip" / f"{name}.png", drawn)


# -- one pass


def test_one_pass_for_each_checkpoint_whatever_is_drawn(run, bare, seen, tmp_path):
    def counted(*more, models="ab"):
        seen.clear()
        cached = ("--cache", tmp_path / "cache")
        shown = run(models, tmp_path / "out", "--layers", "all", *more, *cached)
        assert shown.exit_code == 0, shown.stderr
        shutil.rmtree(tmp_path / "out")
        return sum(images for images, _ in seen), shown.stderr

    count, said = counted()
    assert count == 6 and {blocks for _, blocks in seen} == {(0, 1, 2)}
    assert "features of a.pth: 3 of 3 images" in said
    for more in (
        (), ("--fit", "all"), ("--background", "mask"), ("--layers", "1"), ("--no-align",),
        ("--upsample", "bilinear"), ("--components", "7"),
    ):  # fmt: skip
        count, said = counted(*more)
        assert count == 0 and "found in the cache" in said, more
    assert counted(models="cab")[0] == 3
    assert counted("--feature", "values")[0] == 6


def test_the_record_says_how_many_were_computed(done, bare, seen, tmp_path):
    how = ("--layers", "all", "--cache", tmp_path / "cache")
    first = done("ab", "first", *how)
    assert [r.timing["images_computed"] for r in first.values()] == [3, 3]
    again = done("ab", "again", *how)
    assert [r.timing["images_computed"] for r in again.values()] == [0, 0]
    assert sum(images for images, _ in seen) == 6
    assert list(map(lasting, first.values())) == list(map(lasting, again.values()))


def test_without_a_cache_and_elsewhere_the_same_to_the_last_bit(done, tmp_path):
    """Two folders, other batches, no store."""
    how = ("--layers", "0,2", "--fit", "all", "--background", "mask")
    first = done("ab", "first", *how)
    other = done("ab", "other", *how, "--no-cache", "--cache", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    ours, theirs = files_in("first"), files_in("other")
    assert ours == theirs
    for name in ours:
        if not name.endswith((".json", ".npz")) or "tiles" in name:
            assert Path("first", name).read_bytes() == Path("other", name).read_bytes(), name
    assert list(map(lasting, first.values())) == list(map(lasting, other.values()))
    for record in first.values():
        one, two = (read_arrays(Path(f, f"{record.id}.npz")) for f in ("first", "other"))
        assert set(one) == set(two)
        assert all(np.array_equal(one[k], two[k], equal_nan=True) for k in one)


# -- what is written


def test_files_of_one_block(done):
    [record] = done("a").values()
    assert files_in("out") == {
        "sheet.png", "sheet.pdf", "figures.csv", f"{record.id}.json", f"{record.id}.npz",
        f"{record.id}/tiles/index.json",
        *(f"a.pth_skip/{name}.png" for name in NAMES),
        *(f"{record.id}/tiles/{i:05d}_{w}.png" for i in range(3) for w in ("image", "pca")),
    }  # fmt: skip
    assert [p.name for p in Path("out").rglob(".*")] == [MARK]  # nothing half-written, no probe
    for name, size_hw in SIZES_HW.items():
        assert pixels_of(Path("out", "a.pth_skip", f"{name}.png")).shape[:2] == size_hw
    [named] = done("a", "named", "--name", "Größe & x/y").values()
    assert named.checkpoint["name"] == "Größe & x/y" and named.id == record.id


def test_files_of_several_blocks_and_checkpoints(done, originals):
    found = done("ab", "out", "--layers", "0,-1")
    ids = [record.id for record in found.values()]
    assert {n for n in files_in("out") if "tiles" not in n} == {
        "sheet.png", "sheet.pdf", "figures.csv", "curves.png", "curves.pdf", "curves.svg",
        *(f"{i}.{end}" for i in ids for end in ("json", "npz")),
        *(f"{m}.pth_skip/blocks/sheet.{end}" for m in "ab" for end in ("png", "pdf")),
        *(f"{m}.pth_skip/{n}_block{b}.png" for m in "ab" for n in NAMES for b in (0, 2)),
    }  # fmt: skip
    for stem, columns in (("sheet", 3), ("a.pth_skip/blocks/sheet", 3)):
        check_sheet(Path("out", stem), columns, originals)
    assert done("abc", "three")
    check_sheet(Path("three/sheet"), 4, originals)
    assert not list(Path("three").glob("curves*")) and not Path("three/a.pth_skip/blocks").exists()


def check_sheet(stem, columns, originals):
    """A row for each image, so many columns of one width, each picture as the image is shaped; at
    300 dots an inch or more, also as PDF."""
    with Image.open(stem.with_name(f"{stem.name}.png")) as sheet:
        page, dpi = np.asarray(sheet), sheet.info["dpi"][0]
    assert dpi >= 299.9
    ink = (page != 255).any(-1)
    corner = originals["one"][0, 0]
    widths = 340 * columns
    assert widths < page.shape[1] < 1.15 * widths
    # Rows are stripes of ink that go through all columns: as tall as the images are.
    full = [one for one in runs(ink.mean(1) > 0.6) if one[1] - one[0] > 20]
    shapes = [originals[name].shape for name in NAMES]
    tall = [min(340 * h / w, 1.51 * 340) for h, w, _ in shapes]
    assert [end - start for start, end in full] == pytest.approx(tall, abs=2)
    start, end = full[0]
    across = runs(ink[start:end].all(0) | (ink[start:end].mean(0) > 0.9))
    assert [b - a for a, b in across] == pytest.approx([340] * columns, abs=3)
    assert np.abs(page[start + 2, across[0][0] + 2].astype(int) - corner).max() < 60
    content = stem.with_name(f"{stem.name}.pdf").read_bytes()
    assert content.startswith(b"%PDF-1.4") and content.rstrip().endswith(b"%%EOF")
    boxes = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", content)
    assert [tuple(map(float, box)) for box in boxes] == [
        pytest.approx((72 * page.shape[1] / dpi, 72 * page.shape[0] / dpi), rel=1e-3)
    ]


def runs(flags):
    """(start, end) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.r_[False, flags, False].astype(int)))
    return list(zip(edges[::2], edges[1::2], strict=True))


def test_many_images_are_several_pages(run, world, tmp_path):
    for i in range(23):
        put(tmp_path / "many" / f"{i:02d}.png", scene((16, 24), i))
    assert run("a", "out", "--limit", "21", images=tmp_path / "many").exit_code == 0
    assert {p.name for p in Path("out").glob("sheet*")} == {
        "sheet.png", "sheet_2.png", "sheet_3.png", "sheet.pdf",
    }  # fmt: skip
    assert Path("out/sheet.pdf").read_bytes().count(b"/MediaBox") == 3
    assert sorted(files_in("out/a.pth_skip")) == [f"{i:02d}.png" for i in range(21)]
    shown = run("a", "out", "--limit", "3", images=tmp_path / "many")
    assert "the first 3 of 23 pictures" in shown.stderr
    assert {p.name for p in Path("out").glob("sheet*")} == {"sheet.png", "sheet.pdf"}


def test_tiles_for_the_page(done, originals):
    found = done("ab", "out", "--layers", "1,2")
    for model, record in zip("ab", found.values(), strict=True):
        folder = Path("out", record.id, "tiles")
        index = json.loads((folder / "index.json").read_text())
        assert [tile["image"] for tile in index["tiles"]] == [f"{name}.png" for name in NAMES]
        for tile, name in zip(index["tiles"], NAMES, strict=True):
            assert set(tile["shared"]) == {"image"} and set(tile["own"]) == {"pca"}
            assert "block 2" in tile["note"]
            image = pixels_of(folder / tile["shared"]["image"])
            drawn = pixels_of(folder / tile["own"]["pca"])
            height, width = SIZES_HW[name]
            assert image.shape == drawn.shape == (224, round(224 * width / height), 3)
            deepest = Path("out", f"{model}.pth_skip", f"{name}_block2.png")
            for small, whole in ((image, originals[name]), (drawn, pixels_of(deepest))):
                expected = Image.fromarray(whole).resize(
                    small.shape[1::-1], Image.Resampling.LANCZOS
                )
                assert np.abs(small.astype(int) - np.asarray(expected)).max() <= 1


def test_the_table_of_figures_is_the_records(done, bare):
    found = done("ab", "out", "--layers", "all", "--components", "4")
    rows = table("out/figures.csv")
    assert [(r["checkpoint"], r["residual"], int(r["block"])) for r in rows] == [
        (f"{model}.pth (skip)", "skip", block) for model in "ab" for block in range(3)
    ]
    for row in rows:
        told = found[row["checkpoint"].removesuffix(" (skip)")].metrics["blocks"][int(row["block"])]
        for name in ("explained", "effective_rank", "total_variation", "colour_variation"):
            assert float(row[name]) == pytest.approx(told[name], rel=1e-5)
        listed = [float(row[f"component_{i}"]) for i in range(1, 5)]
        assert listed == pytest.approx(told["components"], rel=1e-5)
        assert row["coherence"] == row["upside_down"] == row["colour_coherence"] == ""
        assert (row["agreement"] == "") is (row["checkpoint"] == "a.pth (skip)")
        assert row["degenerate"] == "0"


def test_a_record_says_how_it_was_made(done, bare):
    how = ("--layers", "0,2", "--fit", "all", "--background", "mask", "--components", "2")
    record = done("ab", "out", *how)["a.pth"]
    assert record.evaluation == "pca" and record.training is None
    assert record.dataset["name"] == "images" and record.dataset["images"] == 3
    assert record.dataset["names"] == [f"{name}.png" for name in NAMES]
    assert record.features == {
        "layers": "0,2", "blocks": [0, 2], "tensor": "tokens_norm", "size": "native",
        "precision": "fp32", "store_dtype": "fp32",
    }  # fmt: skip
    expected = {"fit": "all", "background": "mask", "components": 2, "size": "native"}
    assert {key: record.protocol[key] for key in expected} == expected
    assert record.protocol["changes"] == {
        "fit": ["image", "all"], "components": [3, 2], "background": ["keep", "mask"],
        "size": ["short:448", "native"],
    }  # fmt: skip
    assert record.timing["images"] == 3 and record.timing["peak_memory_bytes"] > 10**7
    [again] = [s.result for s in package.read_results("out") if s.result.id == record.id]
    assert again == read_result(Path("out", f"{record.id}.json")) == record
    arrays = read_arrays(Path("out", f"{record.id}.npz"))
    assert arrays["explained"].shape == (3, 2, 2) and arrays["total_variation"].shape == (3, 2)


def test_what_does_not_matter_is_the_same_record_with_the_same_figures(run, bare):
    """How it is drawn, and in whose company."""

    def made(models, *more):
        shown = run(models, "out", "--json", *more)
        assert shown.exit_code == 0, shown.stderr
        found = json.loads(shown.stdout)
        return {one["checkpoint"]["sha256"]: (one["id"], one["metrics"]) for one in found}

    usual = made("ab")
    assert made("ab", "--no-align", "--upsample", "bilinear", "--layers", "-1") == usual
    assert made("bca", "--batch-size", "1", "--no-cache").items() > usual.items()
    assert made("b", "--name", "x", "--workers", "1").items() < usual.items()


def test_what_matters_is_another_record(bare, world):
    how = {"size": "native", "residual": "skip", "precision": "fp32"}

    def identity(**more):
        """Known before anything is computed."""
        return open_pca(world / "a.pth", world / "photos", **(how | more)).ids[0]

    usual = identity()
    for more in (
        {"align": False}, {"upsample": "bilinear"}, {"names": ["x"]}, {"layers": "2"},
        {"in_memory": True}, {"batch_size": 1}, {"out": "x"}, {"precision": "auto"},
    ):  # fmt: skip
        assert identity(**more) == usual, more
    others = [
        identity(**more)
        for more in (
            {}, {"fit": "all"}, {"components": 2}, {"background": "mask"}, {"feature": "keys"},
            {"layers": "1"}, {"layers": "1,2"}, {"store_dtype": "fp16"}, {"limit": 2},
            {"precision": "bf16"}, {"size": "40x56"}, {"size": 40}, {"residual": "skipless"},
        )
    ]  # fmt: skip
    assert len(set(others)) == len(others)


# -- figures by plain code


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


@pytest.mark.parametrize("fit", ["image", "all"])
def test_figures_of_shapes_by_plain_code(run, bare, world, fit):
    shown = run("a", "out", "--layers", "0,2", "--limit", "4", "--fit", fit,
                images="dataset:shapes", size="short:70")  # fmt: skip
    assert shown.exit_code == 0, shown.stderr
    [record] = records("out")
    data = open_dataset("shapes", limit=4)
    images = {item.name: item.read() for item in data}
    segments = {i.name: np.where(i.mask() == 255, -1, i.mask().astype(int)) for i in data}
    arrays = read_arrays(Path("out", f"{record.id}.npz"))
    check_figures(record, arrays, Plain(world, images, "short:70"), list(images), segments, fit)
    assert record.dataset["name"] == "shapes" and record.dataset["partial"]
    for word in ("between segments %", "95 % interval", "upside down %", "own colours"):
        assert word in shown.stdout
    for row in record.metrics["blocks"]:
        assert re.search(rf" {row['block']} .* {row['coherence']:.1f} ", shown.stdout)


def test_figures_of_plain_pictures(done, bare, plain):
    [record] = done("a", "out", "--layers", "all").values()
    arrays = read_arrays(Path("out", f"{record.id}.npz"))
    check_figures(record, arrays, plain("native"), NAMES, None, "image")
    assert record.metrics["coherence"] is None


def annotated_coco(folder, rectangles):
    """COCO's val2017 with three images and objects by run lengths; segments by name.

    rectangles: of each image (top, left, bottom, right) and whether it is a crowd.
    """
    images, boxes, outlines, segments = [], [], [], {}
    for i, size_hw in enumerate(((30, 44), (24, 40), (41, 27))):
        number = 139 + i
        name = f"{number:012d}"
        put(folder / "val2017" / f"{name}.jpg", scene(size_hw, 7 + i))
        images.append((number, f"{name}.jpg", size_hw))
        drawn, placed = np.zeros(size_hw, int), 0
        for (top, left, bottom, right), crowd in rectangles[i]:
            inside = np.zeros(size_hw, int)
            inside[top:bottom, left:right] = 1
            placed += not crowd
            drawn[inside > 0] = -1 if crowd else placed
            edges = np.flatnonzero(np.diff(inside.T.ravel(), prepend=0)).tolist()
            lengths = np.diff([0, *edges, inside.size]).tolist()
            outlines.append({"size": list(size_hw), "counts": lengths})
            boxes.append((number, (left, top, right - left, bottom - top), 1, crowd))
        segments[name] = drawn
    path = folder / "annotations" / "instances_val2017.json"
    content = trees.coco_json(path, images, boxes)
    for annotation, outline in zip(content["annotations"], outlines, strict=True):
        annotation["segmentation"] = outline
    path.write_text(json.dumps(content))
    return segments


def test_figures_of_objects_in_coco_by_plain_code(run, bare, world):
    """Larger objects first, crowds count for nothing; nothing but background: no share at all."""
    segments = annotated_coco(Path("data", "coco"), [
        [((0, 20, 30, 44), False), ((16, 0, 30, 30), False)],
        [((0, 0, 9, 13), True), ((8, 8, 24, 33), False)],
        [],
    ])  # fmt: skip
    shown = run("a", "out", "--data-root", "data", "--layers", "all", images="dataset:coco")
    assert shown.exit_code == 0, shown.stderr
    [record] = records("out")
    assert record.dataset["names"] == sorted(segments) and record.dataset["partial"]
    images = {}
    for name in segments:
        with Image.open(Path("data/coco/val2017", f"{name}.jpg")) as image:
            images[name] = np.asarray(image.convert("RGB"))
    arrays = read_arrays(Path("out", f"{record.id}.npz"))
    check_figures(record, arrays, Plain(world, images), list(images), segments, "image")
    assert np.isnan(arrays["between"][2]).all() and not np.isnan(arrays["between"][:2]).any()
    usual = record.id
    # Other outlines on the same images are another record.
    annotated_coco(
        Path("data", "coco"), [[((0, 20, 30, 44), False)], [((8, 8, 24, 33), False)], []]
    )
    assert (
        run("a", "x", "--data-root", "data", "--layers", "all", images="dataset:coco").exit_code
        == 0
    )
    assert records("x")[0].id != usual
    # And without any, there is no headline.
    shutil.rmtree("data/coco/annotations")
    shown = run("a", "y", "--data-root", "data", images="dataset:coco")
    assert shown.exit_code == 0 and "no segments are known" in shown.stdout
    assert "headline" not in records("y")[0].metrics


def test_tables_gates_comparisons_and_pages_read_these_records(run, world, cli):
    shown = run("ab", "out", "--layers", "0,2", "--limit", "3", images="dataset:shapes",
                size="short:70")  # fmt: skip
    assert shown.exit_code == 0, shown.stderr
    found = {record.checkpoint["name"]: record for record in records("out")}
    one, other = (found[f"{model}.pth"] for model in "ab")
    values = [record.metrics["coherence"] for record in (one, other)]
    made = cli("table", "out", "--layout", "plain", "--format", "csv")
    assert made.exit_code == 0, made.stderr
    listed = [float(row["coherence"]) for row in csv.DictReader(made.stdout.splitlines())]
    assert listed == pytest.approx(values, abs=1e-3)
    compared = cli("compare", "out", one.id, other.id, "--json")
    assert compared.exit_code == 0, compared.stderr
    [pair] = json.loads(compared.stdout)
    assert pair["difference"] == pytest.approx(values[1] - values[0])
    assert cli("compare", "out", one.id, other.id).exit_code == 0
    assert cli("check", "out", "--baseline", "b.json", "--update").exit_code == 0
    met = cli("check", "out", "--baseline", "b.json")
    assert met.exit_code == 0 and f"{values[0]:.2f}" in met.stdout
    baseline = Path("b.json").read_text()
    assert str(values[0])[:6] in baseline
    Path("b.json").write_text(baseline.replace(str(values[0])[:6], str(values[0] + 5)[:6]))
    assert cli("check", "out", "--baseline", "b.json").exit_code == 5
    page = cli("report", "out", "--output", "page.html")
    assert page.exit_code == 0, page.stderr
    assert f"{values[0]:.1f}" in Path("page.html").read_text()


# -- pictures that are hard


def flat(world, folder):
    """A model to which positions are nothing, so that one colour is one token; and pictures."""
    state = original_state(width=64, **STATES["a"])
    torch.save(state | {"pos_embed": torch.zeros_like(state["pos_embed"])}, "flat.pth")
    for seed, name in enumerate(("a", "b", "c")):
        pixels = scene((40, 56), seed)
        put(folder / f"{name}.png", np.full_like(pixels, 90) if name == "b" else pixels)
    return Path("flat.pth").absolute()


@pytest.mark.parametrize("fit", ["image", "all"])
def test_constant_features_are_counted_and_grey(cli, bare, world, fit):
    """Fault 17."""
    ckpt = flat(world, Path("mine"))
    how = (
        "--ckpt",
        ckpt,
        "--residual",
        "skip",
        "--size",
        "native",
        "--fit",
        fit,
        "--layers",
        "1,2",
    )
    shown = cli("pca", "mine", *how, "--out", "out")
    assert shown.exit_code == 0, shown.stderr
    [record] = records("out")
    assert [row["degenerate"] for row in record.metrics["blocks"]] == [1, 1]
    assert record.metrics["degenerate"] == 1 and "flat images" in shown.stdout
    arrays = read_arrays(Path("out", f"{record.id}.npz"))
    assert arrays["degenerate"].tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert np.isnan(arrays["total_variation"][1]).all() and np.isnan(arrays["explained"][1]).all()
    drawn = pixels_of(Path("out", "flat.pth_skip", "b_block2.png"))
    assert (drawn == drawn[0, 0]).all()
    if fit == "image":
        assert (drawn == 128).all()
    # The others are as they would be without it.
    assert cli("pca", "mine/a.png", "mine/c.png", *how, "--out", "x").exit_code == 0
    assert records("x")[0].metrics["explained"] == pytest.approx(record.metrics["explained"])
    if fit == "image":
        for name in "ac":
            file = Path("flat.pth_skip", f"{name}_block2.png")
            assert Path("out", file).read_bytes() == Path("x", file).read_bytes()


def test_nothing_but_constant_features(cli, world):
    """No figure at all: no number where there is none, and readers leave the record out."""
    ckpt = flat(world, Path("mine"))
    how = ("--ckpt", ckpt, "--residual", "skip", "--size", "native", "--background", "mask")
    shown = cli("pca", "mine/b.png", *how, "--out", "out")
    assert shown.exit_code == 0, shown.stderr
    [record] = records("out")
    assert record.metrics.get("headline") is None and record.metrics["degenerate"] == 1
    assert record.metrics["total_variation"] is None and record.metrics["effective_rank"] is None
    assert (pixels_of("out/flat.pth_skip/b.png") == 128).all()
    assert "nan" not in shown.stdout.lower()
    assert cli("report", "out", "--output", "page.html").exit_code == 0
    assert "no figures" in cli("table", "out").stderr


@pytest.mark.parametrize("size_hw", [(8, 8), (3, 5), (16, 400), (400, 9), (9, 16), (1, 1)])
def test_pictures_of_any_shape(done, request, size_hw):
    """One patch, less than one, one row, very wide, one pixel; on sheets, too, the oddest."""
    if size_hw not in ((16, 400), (400, 9), (1, 1)):
        request.getfixturevalue("bare")
    put(Path("mine", "odd.png"), scene(size_hw))
    put(Path("mine", "usual.png"), scene((40, 56)))
    found = done("ac", images=Path("mine").absolute())
    for model in "ac":
        drawn = pixels_of(Path("out", f"{model}.pth_skip", "odd.png"))
        assert drawn.shape == (*size_hw, 3)
        tokens = math.prod(max(round(n / STATES[model]["patch"]), 1) for n in size_hw)
        assert (len(np.unique(drawn)) > 1) is (tokens > 1)
        assert found[f"{model}.pth"].metrics["degenerate"] == int(tokens == 1)
        assert "NaN" not in Path("out", f"{found[f'{model}.pth'].id}.json").read_text()
    request.getfixturevalue("bare")
    alone = Path("mine/odd.png").absolute()
    how = ("--background", "mask", "--upsample", "bilinear", "--fit", "all")
    assert done("a", "alone", *how, images=alone)
    assert pixels_of(Path("alone/a.pth_skip/odd.png")).shape == (*size_hw, 3)


def test_names_of_all_kinds(run, bare, world):
    names = ["x y.png", ".hidden.png", "größe→.png", "a_b.png", "a/b.png", "sub/same.png",
             "other/same.png", "same.bmp", "50%.jpeg", "[bold]x.png", "index.png"]  # fmt: skip
    for seed, name in enumerate(names):
        put(Path("mine", name), scene((16, 24), seed))
    given = [Path("mine", name).absolute() for name in names]
    shown = run("a", "out", images=given)
    assert shown.exit_code == 0, shown.stderr
    drawn = list(Path("out/a.pth_skip").iterdir())
    assert len(drawn) == len(names)
    [record] = records("out")
    assert len(set(record.dataset["names"])) == len(names)
    assert {"x y.png", "sub/same.png", "other/same.png"} <= set(record.dataset["names"])
    # Each has the colours that it has by itself.
    assert run("a", "alone", images=given[6]).exit_code == 0
    mine = pixels_of("alone/a.pth_skip/same.png").astype(int)
    assert sum(np.abs(pixels_of(path) - mine).max() <= 2 for path in drawn) == 1
    assert (run("a", "walked", images=Path("mine").absolute())).exit_code == 0
    assert len(files_in("walked/a.pth_skip")) == len(names) - 1  # the hidden one is not for folders


def test_a_turned_photograph_is_shown_as_it_is_seen(done):
    trees.photo(Path("mine", "a.jpg"), (24, 40), orientation=6)
    done("a", images=Path("mine").absolute())
    assert pixels_of("out/a.pth_skip/a.png").shape[:2] == (40, 24)


# -- faults


def test_checkpoints_of_one_name(run, world):
    """Told apart by their folders."""
    for folder, model in (("x", "a"), ("y", "b")):
        Path(folder).mkdir()
        shutil.copy(world / f"{model}.pth", Path(folder, "same.pth"))
    words = ["--ckpt", Path("x/same.pth").absolute(), "--ckpt", Path("y/same.pth").absolute()]
    shown = run("", "out", *words)
    assert shown.exit_code == 0, shown.stderr
    assert "x/same.pth (skip)" in shown.stdout and "y/same.pth (skip)" in shown.stdout
    folders = [path for path in Path("out").iterdir() if (path / "one.png").exists()]
    assert len(folders) == 2
    one, two = ((folder / "one.png").read_bytes() for folder in folders)
    assert one != two


def test_the_same_checkpoint_twice(run, bare, world):
    shutil.copy(world / "a.pth", "copy.pth")
    for words in (["--ckpt", world / "a.pth"], ["--ckpt", Path("copy.pth").absolute()]):
        shown = run("a", "out", *words)
        assert shown.exit_code == 2 and "twice" in shown.stderr, shown.stderr
    assert not records("out")


def test_one_file_with_and_without_residuals(run, bare, world):
    words = ["--ckpt", world / "a.pth", "--residual", "skip", "--residual", "skipless"]
    shown = run("a", "out", *words, residual=None)
    assert shown.exit_code == 0, shown.stderr
    assert {r.checkpoint["residual"] for r in records("out")} == {"skip", "skipless"}
    assert Path("out/a.pth_skip/one.png").exists() and Path("out/a.pth_skipless/one.png").exists()


FAULTS = [
    (("--ckpt", "WORLD/d.pth"), 3, "no checkpoint at"),
    (("--fit", "al"), 2, "Did you mean 'all'"),
    (("--upsample", "bilinar"), 2, "Did you mean 'bilinear'"),
    (("--background", "msk"), 2, "Did you mean 'mask'"),
    (("--feature", "token"), 2, "Did you mean 'tokens'"),
    (("--layers", "al"), 2, "Did you mean 'all'"),
    (("--layers", "7"), 2, "no block 7"),
    (("--size", "64xx"), 2, "64xx"),
    (("--components", "0"), 2, "--components 0: give a number from 1 to 12"),
    (("--components", "13"), 2, "--components 13"),
    (("--components", "few"), 2, "--components"),
    (("--limit", "0"), 2, "--limit"),
    (("--precision", "int8"), 2, "--precision"),
    (("--store-dtype", "fp8"), 2, "--store-dtype"),
    (("--batch-size", "0"), 2, "--batch-size"),
    (("--device", "gpu"), 2, "--device"),
    (("--cache-limit", "much"), 2, "'much'"),
    (("--residual", "skip", "--residual", "skiples"), 2, "skiples"),
    (("--name", "x", "--name", "y", "--name", "z"), 2, "--name: 3 for 2 checkpoints"),
    (("--split", "val"), 2, "--split goes with dataset:NAME"),
    (("dataset:shapes",), 2, "dataset:NAME stands by itself"),
    (("WORLD/photo",), 4, "Did you mean 'photos'"),
    (("WORLD/a.pth",), 4, "a.pth"),
    (("--out", "WORLD/a.pth"), 7, "cannot write"),
    (("--out", "WORLD/photos"), 2, "where the pictures lie"),
    (("--cache", "WORLD/a.pth"), 7, "cannot write"),
]


@pytest.mark.parametrize(("more", "code", "word"), FAULTS)
def test_faults(run, bare, world, monkeypatch, more, code, word):
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed
    monkeypatch.setattr(Extractor, "stream", None)
    before = files_in(world / "photos")
    given = [one.replace("WORLD", str(world)) for one in more]
    own = {"--residual": "residual", "--size": "size"}
    shown = run("ab", "out", *given, **{own[one]: None for one in own if one in given})
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert "Traceback" not in shown.stderr and shown.stdout == ""
    assert len(shown.stderr.strip().splitlines()) <= 7  # usage and a box, or three lines
    assert not records("out") and files_in(world / "photos") == before


@pytest.mark.parametrize(
    ("images", "more", "code", "word"),
    [
        ("dataset:vocc", (), 2, "Did you mean 'voc'"),
        ("dataset:nope", (), 2, "nope"),
        ("dataset:voc", (), 4, "--data-root"),
        ("dataset:shapes", ("--split", "vla"), 2, "Did you mean 'val'"),
        ("dataset:", (), 2, "no data set"),
        ("empty", (), 4, "no images in"),
        ("nowhere", (), 4, "no such image or folder"),
    ],
)
def test_faults_of_the_images(run, monkeypatch, images, more, code, word):
    monkeypatch.setattr(Extractor, "stream", None)
    Path("empty").mkdir()
    shown = run("a", "out", *more, images=images)
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert "Traceback" not in shown.stderr and not records("out")


def test_two_variants_for_three_checkpoints(run):
    words = ("--residual", "skip", "--residual", "skip")
    shown = run("abc", "out", *words, residual=None)
    assert shown.exit_code == 2 and "--residual: 2 for 3 checkpoints" in shown.stderr


def test_more_components_than_a_token_has_numbers(run, bare, world):
    torch.save(original_state(width=8, **STATES["a"]), "thin.pth")
    words = ("--ckpt", Path("thin.pth").absolute(), "--heads", "1", "--components", "9")
    shown = run("", "out", *words)
    assert shown.exit_code == 2 and "have 8 numbers" in shown.stderr, shown.stderr
    assert run("", "out", *words[:-1], "8").exit_code == 0


def test_a_damaged_picture(run, bare, world):
    """Fault 19."""
    shutil.copytree(world / "photos", "mine")
    path = Path("mine", "three.png")
    path.write_bytes(path.read_bytes()[:-900])
    shown = run("a", "out", images=Path("mine").absolute())
    assert shown.exit_code == 4 and "three.png" in shown.stderr and not records("out")
    assert "--skip-bad 1" in shown.stderr and "Traceback" not in shown.stderr
    shown = run("a", "out", "--skip-bad", "1", images=Path("mine").absolute())
    assert shown.exit_code == 0 and "three.png" in shown.stderr
    [record] = records("out")
    assert record.dataset["bad"] == ["three.png"]
    assert record.dataset["names"] == ["one.png", "two.png"]
    assert files_in("out/a.pth_skip") == {"one.png", "two.png"}
    Path("mine", "two.png").write_bytes(b"no picture")
    shown = run("a", "x", "--skip-bad", "1", images=Path("mine").absolute())
    assert shown.exit_code == 4 and "2 images cannot be decoded" in shown.stderr


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers(run, world, value):
    """Fault 15."""
    state = original_state(width=64, **STATES["a"])
    state["blocks.1.mlp.fc1.weight"][3, 4] = value
    torch.save(state, "bad.pth")
    shown = run("a", "out", "--ckpt", Path("bad.pth").absolute())
    assert shown.exit_code == 6 and "block" in shown.stderr and not records("out")
    assert "Traceback" not in shown.stderr and not list(Path("out").rglob("*.png"))


@pytest.mark.parametrize("what", ["one.png", "sheet.png", "figures.csv", "sheet.pdf", "index.json"])
def test_a_full_disk_while_pictures_are_drawn(run, monkeypatch, what):
    """Fault 30: in whatever thread it is met."""
    from skipbench.files import write_whole

    def full(path, data):
        if path.name == what:
            open_ = Path.open

            def refusing(self, *mode, **rest):
                if self.name.endswith(".partial") and what in self.name:
                    raise OSError(28, "No space left on device")
                return open_(self, *mode, **rest)

            monkeypatch.setattr(Path, "open", refusing)
            try:
                return write_whole(path, data)
            finally:
                monkeypatch.setattr(Path, "open", open_)
        return write_whole(path, data)

    for place in ("skipbench.files", "skipbench.drawing.sheet", "skipbench.drawing.contact_sheet",
                  "skipbench.evaluations.pictures"):  # fmt: skip
        monkeypatch.setattr(f"{place}.write_whole", full)
    shown = run("ab", "out")
    assert shown.exit_code == 7, shown.stderr
    assert "disk full" in shown.stderr or "No space left" in shown.stderr
    assert "bug" not in shown.stderr and "Traceback" not in shown.stderr
    assert not list(Path("out").rglob("*.partial")) and not records("out")


def test_a_file_where_a_folder_must_be(run, monkeypatch):
    """Fault 35: of a checkpoint's own folder, too."""
    Path("out").mkdir()
    Path("out", "a.pth_skip").write_text("in the way")
    shown = run("a", "out")
    assert shown.exit_code == 7 and "cannot write" in shown.stderr and not records("out")


# -- faults 31, 39: interruption

# Children of one process that has imported all that is slow, and computed nothing yet. Each gets a
# signal as it is about to put down its nth file: six pictures, two sheets with their PDF, three of curves,
# figures, seven files of tiles, arrays, record.
CHILDREN = """
import json, os, signal, sys
from pathlib import Path
from threading import Lock
import skipbench.features.plan, skipbench.evaluations.pca.calls
from skipbench.cli import main

fsync = os.fsync

def child(name, number, where, nth):
    Path(name).mkdir(exist_ok=True)
    log = os.open(f"{name}/log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    files, lock, replace = 0, Lock(), Path.replace

    def count(here):
        nonlocal files
        with lock:
            files += here == where
            now = here == where and files == nth
        if now:
            os.kill(os.getpid(), number)

    def replacing(path, target):
        count("out" if f"{name}/out/" in str(target) else "features")
        return replace(path, target)

    def syncing(file):
        fsync(file)
        count("synced")

    Path.replace, os.fsync = replacing, syncing
    sys.argv += ["--cache", f"{name}/cache", "--out", f"{name}/out"]
    main()

codes = {}
for job in json.loads(os.environ["JOBS"]):
    pid = os.fork()
    if not pid:
        try:
            child(*job)
        except SystemExit as end:
            sys.stdout.flush(), os._exit(end.code or 0)
        os._exit(0)
    codes[job[0]] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(codes))
"""
MOMENTS = {
    "kill-in-features": (signal.SIGKILL, "synced", 2),
    "ctrl-c-in-pictures": (signal.SIGINT, "out", 2),
    "sigterm-in-sheets": (signal.SIGTERM, "out", 9),
    "kill-in-tiles": (signal.SIGKILL, "out", 15),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory, world):
    folder = tmp_path_factory.mktemp("ended")
    jobs = [["undisturbed", 0, "", 0], *([k, int(n), *at] for k, (n, *at) in MOMENTS.items())]
    environment = clean_environment(folder) | {
        "JOBS": json.dumps(jobs),
        "OPENBLAS_NUM_THREADS": "1",
    }
    words = ["pca", world / "photos", "--ckpt", world / "a.pth", "--residual", "skip",
             "--size", "native", "--layers", "0,2"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, *map(str, words)],
        capture_output=True, text=True, timeout=120, cwd=folder, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(folder=folder, codes=json.loads(done.stdout))


@pytest.mark.parametrize("moment", MOMENTS)
def test_ended_at_any_moment_the_next_run_is_whole(run, ended, moment):
    assert ended.codes["undisturbed"] == 0
    mine, theirs = ended.folder / moment, ended.folder / "undisturbed"
    number, *_ = MOMENTS[moment]
    said = (mine / "log.txt").read_text()
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    assert ended.codes[moment] == codes[number], said
    assert "Traceback" not in said and "bug" not in said
    if number != signal.SIGKILL:
        assert "what was done is kept" in said
    before = files_in(theirs / "out")
    assert files_in(mine / "out") != before  # it did end before its time
    for path in (mine / "out").rglob("*.png"):
        if not path.name.startswith("."):
            pixels_of(path)  # whole
    shown = run("a", mine / "out", "--layers", "0,2", "--cache", mine / "cache")
    assert shown.exit_code == 0, shown.stderr
    left = {name for name in files_in(mine / "out") if not name.endswith(".partial")}
    assert left == before
    for name in left:
        if not name.endswith((".json", ".npz")) or "tiles" in name:
            assert (mine / "out" / name).read_bytes() == (theirs / "out" / name).read_bytes(), name
    ours, whole = records(mine / "out"), records(theirs / "out")
    assert list(map(lasting, ours)) == list(map(lasting, whole))
    if "features" not in moment:
        assert [record.timing["images_computed"] for record in ours] == [0]


# -- what is said


def test_json_on_stdout_is_the_records(run, bare):
    shown = run("ab", "out", "--json", "--layers", "all")
    found = json.loads(shown.stdout)  # nothing else stands there
    assert [one["checkpoint"]["name"] for one in found] == ["a.pth", "b.pth"]
    for one in found:
        assert one == json.loads(Path("out", f"{one['id']}.json").read_text())
    assert run("ab", "out", "--json", "--quiet").stderr == ""


def test_quiet_is_quiet(run, bare):
    shown = run("a", "out", "--quiet", "--no-cache")
    assert shown.exit_code == 0 and shown.stderr == "" and "explained" in shown.stdout


def test_the_page_names_what_was_made(run):
    shown = run("ab", "out", "--layers", "all", "--fit", "all", "--background", "mask")
    assert "\x1b" not in shown.stdout + shown.stderr and "\r" not in shown.stderr
    for path in re.findall(r"out/[\w./-]+\w", shown.stdout):
        assert Path(path).is_file(), path
    assert shown.stdout.count("record: out/") == 2 and "curves: out/curves.png" in shown.stdout
    assert "fitted to all images, foreground alone" in shown.stdout
    for record in records("out"):
        for row in record.metrics["blocks"]:
            line = rf"{record.checkpoint['name']} \(skip\) +{row['block']} +{row['explained']:.1f} "
            assert re.search(line, shown.stdout)


# -- Python


def test_python_twin(run, bare, world):
    shown = run("ab", "out", "--fit", "all", "--layers", "1,-1", "--components", "4", "--no-align")
    assert shown.exit_code == 0
    how = {"fit": "all", "layers": "1,-1", "components": 4, "align": False, "size": "native"}
    where = {"residual": "skip", "cache": str(world / "cache")}
    found = package.pca([world / "a.pth", str(world / "b.pth")], world / "photos", out="python",
                        **how, **where)  # fmt: skip
    assert [one.checkpoint["name"] for one in found] == ["a.pth", "b.pth"]
    assert sorted(map(str, map(lasting, found))) == sorted(map(str, map(lasting, records("out"))))
    for name in files_in("out"):
        if name.endswith((".png", ".pdf", ".csv")):
            assert Path("out", name).read_bytes() == Path("python", name).read_bytes(), name
    files = [world / "photos" / "two.png", str(world / "photos" / "one.png")]
    [one] = package.pca(str(world / "a.pth"), files, out="x", size=40, **where)
    assert one.dataset["names"] == ["two.png", "one.png"] and one.protocol["size"] == "40x40"
    [one] = package.pca(world / "a.pth", "dataset:shapes", out="y", limit=2, size=40, **where)
    assert one.dataset["name"] == "shapes" and one.metrics["headline"] == "coherence"


def test_python_refuses_what_it_does_not_know(world):
    images, ckpt = world / "photos", world / "a.pth"
    with pytest.raises(TypeError, match="'layer'"):
        package.pca(ckpt, images, layer="last")
    for more, word in (
        ({"fit": "none"}, "--fit"), ({"components": 0}, "--components"), ({"size": "big"}, "big"),
        ({"upsample": "cubic"}, "--upsample"), ({"background": "drop"}, "--background"),
        ({"residual": ["skip", "skip"]}, "--residual"), ({"names": ["x", "y"]}, "--name"),
        ({"split": "val"}, "--split"), ({"layers": "9"}, "no block 9"),
    ):  # fmt: skip
        with pytest.raises(package.SkipbenchError, match=word):
            package.pca(ckpt, images, **({"residual": "skip"} | more))
    with pytest.raises(package.SkipbenchError, match="no checkpoint"):
        package.pca([], images)
    assert not Path("pca").exists() or not records("pca")


# -- found while these tests were written


def test_pictures_are_not_drawn_over_the_originals(run, world):
    shutil.copytree(world / "photos", "pictures/mine")
    before = {path: path.read_bytes() for path in Path("pictures/mine").iterdir()}
    run("a", "pictures", "--name", "mine", images=Path("pictures/mine").absolute())
    assert {path: path.read_bytes() for path in before} == before


def test_one_name_for_two_checkpoints(run):
    shown = run("ab", "out", "--name", "x")
    assert shown.exit_code == 2 and "--name: 1 for 2 checkpoints" in shown.stderr


def test_a_record_can_be_made_again_from_what_it_says(run, bare, world):
    words = ("--name", "x", "--name", "y", "--residual", "skip", "--residual", "skipless")
    assert run("ab", "out", *words, "--fit", "all", residual=None).exit_code == 0
    for record in records("out"):
        call = dict(record.environment["call"])
        call.pop("expected", None)
        [again] = package.pca(call.pop("ckpt"), call.pop("images"), **call, out="again")
        assert lasting(again) == lasting(record)


def test_one_image_says_nothing_about_others(done, bare, world):
    [record] = done("a", images=world / "photos" / "one.png").values()
    low, high = record.metrics["interval"] or (0, 100)
    assert low < high


def test_block_0_is_a_block(run, bare):
    shown = run("a", "out", "--layers", "0")
    assert re.search(r"a\.pth \(skip\) +0 ", shown.stdout)


@pytest.mark.parametrize("name", ["sheet.png", "figures.csv"])
def test_names_that_are_those_of_files(run, name):
    assert run("a", "out", "--name", name).exit_code in (0, 2)


def test_python_refuses_a_store_dtype(world):
    with pytest.raises(package.SkipbenchError, match="fp8"):
        package.pca(world / "a.pth", world / "photos", store_dtype="fp8", residual="skip")


def test_nothing_is_explained_of_nothing(cli, bare, world):
    ckpt = flat(world, Path("mine"))
    how = ("--ckpt", ckpt, "--residual", "skip", "--size", "native", "--out", "out")
    assert cli("pca", "mine/b.png", *how).exit_code == 0
    assert records("out")[0].metrics["explained"] is None
    assert table("out/figures.csv")[0]["explained"] == ""


def nearly_flat(path, deviation):
    """A model whose tokens differ by so small a part of what they have in common."""
    state = original_state(width=64, **STATES["a"])
    common = {"norm.weight": deviation * state["norm.weight"], "norm.bias": torch.full((64,), 3.0)}
    torch.save(state | common, path)
    return Path(path).absolute()


@pytest.mark.parametrize("deviation", [1e-4, 1e-3])
def test_figures_are_not_those_of_rounding(cli, bare, world, deviation):
    """Tokens that have almost collapsed have the figures of those that have not: all are relative.
    Where float16 has room for rounding alone, that is said."""
    found = {}
    for ckpt in (world / "a.pth", nearly_flat("near.pth", deviation)):
        how = ("--ckpt", ckpt, "--residual", "skip", "--limit", "3", "--size", "64")
        shown = cli("pca", "dataset:shapes", *how, "--out", ckpt.stem)
        assert shown.exit_code == 0 and "rounding" not in shown.stderr, shown.stderr
        found[ckpt.stem] = records(ckpt.stem)[0].metrics
    for key in ("coherence", "total_variation", "effective_rank", "explained"):
        assert found["near"][key] == pytest.approx(found["a"][key], rel=0.01), key
    coarse = cli("pca", "dataset:shapes", *how, "--store-dtype", "fp16", "--out", "coarse")
    assert coarse.exit_code == 0 and "rounding of float16" in coarse.stderr


def test_flat_images_do_not_move_the_colours_of_others(cli, bare, world):
    ckpt = flat(world, Path("mine"))
    how = ("--ckpt", ckpt, "--residual", "skip", "--size", "native", "--fit", "all")
    assert cli("pca", "mine/a.png", "mine/c.png", *how, "--out", "x").exit_code == 0
    for i in range(6):
        put(Path("mine", f"flat{i}.png"), np.full((120, 160, 3), 90, np.uint8))
    assert cli("pca", "mine", *how, "--out", "out").exit_code == 0
    one, other = (pixels_of(Path(f, "flat.pth_skip/a.png")).astype(int) for f in ("x", "out"))
    assert np.abs(one - other).max() <= 1


@pytest.mark.parametrize("name", ["x" * 240 + ".png", "d" * 120 + "/" + "e" * 120 + "/usual.png"])
def test_long_names(run, bare, name):
    """Folders' names are part of what is drawn."""
    put(Path("mine", name), scene((24, 40)))
    shown = run("a", "out", images=Path("mine").absolute())
    assert shown.exit_code == 0, shown.stderr[-200:]


def test_names_like_those_of_further_components(run, bare):
    for seed, name in enumerate(("a", "a_components4-4")):
        put(Path("mine", f"{name}.png"), scene((24, 40), seed))
    assert run("a", "out", "--components", "4", images=Path("mine").absolute()).exit_code == 0
    assert len(files_in("out/a.pth_skip")) == 4


def test_every_block_leads_as_many_of_a_model_twice_as_deep():
    models = [SimpleNamespace(blocks=range(12)), SimpleNamespace(blocks=range(24))]
    led = [len(list(PcaRun._followers(SimpleNamespace(models=models), b))) for b in range(12)]
    assert set(led) == {2}


def test_nothing_of_an_earlier_run_stands_for_this_one(run):
    assert run("a", "out", "--layers", "0,2").exit_code == 0
    assert run("b", "out").exit_code == 0
    assert not list(Path("out").glob("curves*"))  # they show the other model


@pytest.mark.parametrize("name", ["sheet", "sheet_2", "sheet_7"])
def test_a_picture_named_as_a_page(run, name):
    put(Path("mine", f"{name}.png"), scene((24, 40)))
    put(Path("mine", "usual.png"), scene((24, 40), 1))
    shown = run("a", "out", images=Path("mine").absolute())
    assert shown.exit_code == 0, shown.stderr
    assert len(files_in("out/a.pth_skip")) == 2


def test_a_pixel_more_moves_nothing_much(done, bare):
    """Images are resized to whole patches: a row of padding would have colours, and count."""
    for i in range(3):
        small = np.random.default_rng(i).integers(0, 256, (6, 8, 3), np.uint8)
        for folder, size_wh in (("exact", (64, 48)), ("more", (65, 49))):
            whole = Image.fromarray(small).resize(size_wh, Image.Resampling.BICUBIC)
            put(Path(folder, f"{i}.png"), np.asarray(whole))
    found = [
        done("a", f"{folder}-pca", images=Path(folder).absolute())["a.pth"].metrics
        for folder in ("exact", "more")
    ]
    for key in ("effective_rank", "explained", "total_variation"):
        assert found[0][key] == pytest.approx(found[1][key], rel=0.03), key


def test_what_an_earlier_run_has_drawn_is_not_drawn_again(run, bare, world):
    shutil.copytree(world / "photos", "mine")
    for _ in range(2):
        shown = run("a", "mine/pca", images=Path("mine").absolute())
        assert shown.exit_code == 0, shown.stderr
        assert "\n3 images" in shown.stdout


@pytest.mark.parametrize("names", [("x", "x"), ("x", " ")])
def test_names_that_tell_nothing_apart(run, names):
    shown = run("ab", "out", *(word for name in names for word in ("--name", name)))
    assert shown.exit_code == 2 and "a name of its own" in shown.stderr


def test_a_data_set_called_by_its_bare_name(run):
    shown = run("a", "out", images="coco")
    assert shown.exit_code == 4 and "Did you mean dataset:coco?" in shown.stderr


@pytest.mark.parametrize("own", ["figures.csv", "sheet.png", "a.pth_skip/mine.png"])
def test_nothing_of_the_users_is_drawn_over(run, own):
    put(Path("mine", "x.png"), scene((24, 40)))
    Path("out", own).parent.mkdir(parents=True)
    Path("out", own).write_text("mine")
    shown = run("a", "out", images=Path("mine").absolute())
    assert shown.exit_code == 2 and "is there already" in shown.stderr
    assert files_in("out") == {own} and Path("out", own).read_text() == "mine"


def test_pictures_of_another_run_are_no_photographs(run, bare, world):
    shutil.copytree(world / "photos", "mine")
    for out in ("mine/pca", "mine/other"):
        shown = run("a", out, images=Path("mine").absolute())
        assert shown.exit_code == 0 and "\n3 images" in shown.stdout, shown.stderr


def test_two_folders_of_one_name(run, bare, world):
    for place, model in (("x/runs", "a"), ("y/runs", "b")):
        Path(place).mkdir(parents=True)
        shutil.copy(world / f"{model}.pth", Path(place, "same.pth"))
    shown = run("", "out", "--ckpt", "x/runs/same.pth", "--ckpt", "y/runs/same.pth")
    assert shown.exit_code == 0, shown.stderr
    titles = [row["checkpoint"] for row in table("out/figures.csv")]
    assert titles == ["runs/same.pth (skip)", "runs/same.pth (skip) (2)"]


def test_records_of_pictures_alone_have_nothing_to_compare(run, bare, cli):
    assert run("ab", "out").exit_code == 0
    ids = [record.id for record in records("out")]
    shown = cli("compare", "out", *ids)
    assert shown.exit_code == 2 and "pictures alone" in shown.stderr


def test_why_there_is_no_coherence(cli, bare, world):
    """Segments are known, but the deepest block has nothing to say of them."""
    ckpt = flat(world, Path("mine"))
    how = ("--ckpt", ckpt, "--residual", "skip", "--size", "64", "--limit", "2", "--out", "out")
    state = torch.load(ckpt)
    torch.save(state | {"norm.weight": torch.zeros(64)}, ckpt)
    shown = cli("pca", "dataset:shapes", *how)
    assert shown.exit_code == 0, shown.stderr
    assert "are all alike" in shown.stdout and "no segments are known" not in shown.stdout
    assert "own colours" in shown.stdout


def test_all_images_are_all_images_again(bare, world):
    run = open_pca(world / "a.pth", world / "photos", limit=None, residual="skip", names="x")
    assert run.models[0].call["limit"] is None and run.models[0].title == "x"
