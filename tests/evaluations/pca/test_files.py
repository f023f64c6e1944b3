"""What is written where: pictures, sheets, curves, tiles; nobody's files are drawn over."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import records
from PIL import Image
from plain_pca import NAMES, SIZES_HW, files_in, pixels_of, put, scene, table

from skipbench.evaluations.pca.settings import MARK

pytestmark = pytest.mark.usefixtures("nowhere_else")


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
    assert done("b")
    assert not list(Path("out").glob("curves*"))  # they show the other model


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
    for i in range(13):
        put(tmp_path / "many" / f"{i:02d}.png", scene((16, 24), i))
    assert run("a", "out", "--limit", "11", images=tmp_path / "many").exit_code == 0
    assert {p.name for p in Path("out").glob("sheet*")} == {
        "sheet.png", "sheet_2.png", "sheet.pdf",
    }  # fmt: skip
    assert Path("out/sheet.pdf").read_bytes().count(b"/MediaBox") == 2
    assert sorted(files_in("out/a.pth_skip")) == [f"{i:02d}.png" for i in range(11)]
    shown = run("a", "out", "--limit", "3", images=tmp_path / "many")
    assert "the first 3 of 13 pictures" in shown.stderr
    assert {p.name for p in Path("out").glob("sheet*")} == {"sheet.png", "sheet.pdf"}


def test_tiles_for_the_page(done, no_sheets, originals):
    found = done("ab", "out", "--layers", "1,2")
    for record in found.values():
        model = record.checkpoint["name"].removesuffix(".pth")
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


def alike_but_for_signs(pixels, others):
    channels = zip(np.moveaxis(pixels, -1, 0), np.moveaxis(others, -1, 0), strict=True)
    return pixels.shape == others.shape and all(
        min(abs(a - b).max(), abs(255 - a - b).max()) <= 2
        for a, b in ((a.astype(int), b.astype(int)) for a, b in channels)
    )


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
    # Each has the colours that it has by itself, but for the signs of components: of those its
    # neighbours decide.
    assert run("a", "alone", images=given[6]).exit_code == 0
    mine = pixels_of("alone/a.pth_skip/same.png").astype(int)
    assert sum(alike_but_for_signs(pixels_of(path), mine) for path in drawn) == 1
    assert (run("a", "walked", images=Path("mine").absolute())).exit_code == 0
    assert len(files_in("walked/a.pth_skip")) == len(names) - 1  # the hidden one is not for folders


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


@pytest.mark.parametrize("name", ["sheet.png", "figures.csv"])
def test_names_that_are_those_of_files(run, world, name):
    one = world / "photos" / "one.png"
    assert run("a", "out", "--name", name, images=one).exit_code in (0, 2)


@pytest.mark.parametrize("name", ["sheet", "sheet_2", "sheet_7"])
def test_a_picture_named_as_a_page(run, name):
    put(Path("mine", f"{name}.png"), scene((24, 40)))
    put(Path("mine", "usual.png"), scene((24, 40), 1))
    shown = run("a", "out", images=Path("mine").absolute())
    assert shown.exit_code == 0, shown.stderr
    assert len(files_in("out/a.pth_skip")) == 2


def test_checkpoints_of_one_name(run, bare, world):
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


def test_two_folders_of_one_name(run, bare, world):
    for place, model in (("x/runs", "a"), ("y/runs", "b")):
        Path(place).mkdir(parents=True)
        shutil.copy(world / f"{model}.pth", Path(place, "same.pth"))
    shown = run("", "out", "--ckpt", "x/runs/same.pth", "--ckpt", "y/runs/same.pth")
    assert shown.exit_code == 0, shown.stderr
    titles = [row["checkpoint"] for row in table("out/figures.csv")]
    assert titles == ["runs/same.pth (skip)", "runs/same.pth (skip) (2)"]


def test_one_file_with_and_without_residuals(run, bare, world):
    words = ["--ckpt", world / "a.pth", "--residual", "skip", "--residual", "skipless"]
    shown = run("a", "out", *words, residual=None)
    assert shown.exit_code == 0, shown.stderr
    assert {r.checkpoint["residual"] for r in records("out")} == {"skip", "skipless"}
    assert Path("out/a.pth_skip/one.png").exists() and Path("out/a.pth_skipless/one.png").exists()


def test_what_an_earlier_run_has_drawn_is_not_drawn_again(run, bare, world):
    shutil.copytree(world / "photos", "mine")
    for _ in range(2):
        shown = run("a", "mine/pca", images=Path("mine").absolute())
        assert shown.exit_code == 0, shown.stderr
        assert "\n3 images" in shown.stdout


def test_pictures_of_another_run_are_no_photographs(run, bare, world):
    shutil.copytree(world / "photos", "mine")
    for out in ("mine/pca", "mine/other"):
        shown = run("a", out, images=Path("mine").absolute())
        assert shown.exit_code == 0 and "\n3 images" in shown.stdout, shown.stderr


def test_pictures_are_not_drawn_over_the_originals(run, world):
    shutil.copytree(world / "photos", "pictures/mine")
    before = {path: path.read_bytes() for path in Path("pictures/mine").iterdir()}
    run("a", "pictures", "--name", "mine", images=Path("pictures/mine").absolute())
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("own", ["figures.csv", "sheet.png", "a.pth_skip/mine.png"])
def test_nothing_of_the_users_is_drawn_over(run, own):
    put(Path("mine", "x.png"), scene((24, 40)))
    Path("out", own).parent.mkdir(parents=True)
    Path("out", own).write_text("mine")
    shown = run("a", "out", images=Path("mine").absolute())
    assert shown.exit_code == 2 and "already exists" in shown.stderr
    assert files_in("out") == {own} and Path("out", own).read_text() == "mine"
