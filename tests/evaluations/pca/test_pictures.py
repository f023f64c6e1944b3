"""Every pixel of PCA pictures by plain code; which files there are."""

import math
from pathlib import Path

import numpy as np
import pytest
import trees
from PIL import Image
from plain_pca import (
    NAMES,
    STATES,
    close,
    files_in,
    flat,
    load,
    pixels_of,
    plain_pca,
    plain_scores,
    put,
    scene,
)

import skipbench as package
from skipbench.evaluations.pca.run import followers

pytestmark = pytest.mark.usefixtures("nowhere_else")


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


def test_a_turned_photograph_is_shown_as_it_is_seen(done, bare):
    trees.photo(Path("mine", "a.jpg"), (24, 40), orientation=6)
    done("a", images=Path("mine").absolute())
    assert pixels_of("out/a.pth_skip/a.png").shape[:2] == (40, 24)


def test_flat_images_do_not_move_the_colours_of_others(cli, bare, world):
    ckpt = flat(Path("mine"))
    how = ("--ckpt", ckpt, "--residual", "skip", "--size", "native", "--fit", "all")
    assert cli("pca", "mine/a.png", "mine/c.png", *how, "--out", "x").exit_code == 0
    for i in range(6):
        put(Path("mine", f"flat{i}.png"), np.full((120, 160, 3), 90, np.uint8))
    assert cli("pca", "mine", *how, "--out", "out").exit_code == 0
    one, other = (pixels_of(Path(f, "flat.pth_skip/a.png")).astype(int) for f in ("x", "out"))
    assert np.abs(one - other).max() <= 1


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


def test_every_block_leads_as_many_of_a_model_twice_as_deep():
    led = [len(list(followers([12, 24], block))) for block in range(12)]
    assert set(led) == {2}
