"""Pictures of a record, and of plain images (`--images`)."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import records
from PIL import Image
from plain_tokencut import by_image, masked_folder, only, put, scene, table

import skipbench as package
from skipbench.features.stream import Extractor

pytestmark = pytest.mark.usefixtures("nowhere_else")


@pytest.mark.parametrize("method", ["tokencut", "lost"])
def test_pictures_of_what_was_done_before(run, cli, method):
    how = ("--limit", "6", "--layers", "all", "--method", method)
    assert run(quick=how).exit_code == 0
    shown = run("--pictures", "3", quick=how)
    assert shown.exit_code == 0 and "record exists" in shown.stderr
    record, _ = only()
    folder = Path("results", record.id)
    best = [max(map(float, row["ious"].split())) for row in by_image(record)]
    order = [record.dataset["names"][i] for i in np.argsort(best, kind="stable")]
    expected = [f"01_worst_{order[0]}.png", f"02_best_{order[-1]}.png", f"03_worst_{order[1]}.png"]
    assert sorted(path.name for path in folder.glob("0*.png")) == expected
    with Image.open(folder / "sheet.png") as sheet, Image.open(folder / expected[0]) as first:
        assert sheet.height > 2.5 * (first.height - 60) and sheet.width > 300
    index = json.loads((folder / "tiles" / "index.json").read_text())
    assert [tile["image"] for tile in index["tiles"]] == record.dataset["names"][:3]
    kind = {"tokencut": "eigenvector", "lost": "correlation"}[method]
    for i, tile in enumerate(index["tiles"]):
        assert set(tile["shared"]) == {"image", "truth"} and set(tile["own"]) == {"box", kind}
        assert f"{best[i]:.2f}" in tile["note"]
        for file in (tile["shared"] | tile["own"]).values():
            with Image.open(folder / "tiles" / file) as image:
                assert image.height == 224 and image.width != image.height
    assert cli("report", "results", "--out", "page.html").exit_code == 0
    assert "CorLoc" in Path("page.html").read_text()


def test_more_pictures_than_images_and_masks(run):
    masked_folder(set())
    shown = run("--pictures", "9", dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    folder = Path("results", record.id)
    names = sorted(path.name for path in folder.glob("0*.png"))
    order = np.argsort(arrays["score"][:, 0], kind="stable").tolist()
    chosen = [order[0], order[3], order[1], order[2]]
    assert [int(name[-5]) for name in names] == chosen
    tiles = json.loads((folder / "tiles" / "index.json").read_text())["tiles"]
    assert len(tiles) == 4 and "IoU" in tiles[0]["note"]


def plain_pictures(names, folder="photos"):
    for seed, name in enumerate(names):
        put(Path(folder, name), scene((41, 67), (9, 9, 40, 33), seed))


def test_pictures_alone(run):
    plain_pictures(["one.png", "sub/two.png", "sub/deep/three.png", "same.png", "same.bmp"])
    shown = run("--images", "photos", "--out", "out", dataset=None, quick=())
    assert shown.exit_code == 0 and shown.stdout == "pictures: out\n", shown.stderr
    made = {path.name for path in Path("out").iterdir()}
    assert made == {
        "one.png", "sub_two.png", "sub_deep_three.png", "same.png.png", "same.bmp.png",
        "sheet.png", "objects.csv",
    }  # fmt: skip
    rows = table("out/objects.csv")
    assert list(rows[0]) == [
        "image", "block", "xmin", "ymin", "xmax", "ymax", "tokens", "solver", "degenerate", "tied",
    ]  # fmt: skip
    names = ["one.png", "same.bmp", "same.png", "sub/deep/three.png", "sub/two.png"]
    assert [row["image"] for row in rows] == names and {row["block"] for row in rows} == {"2"}
    for name in made - {"objects.csv"}:
        with Image.open(Path("out", name)) as image:
            assert image.width > 100 and len(image.convert("RGB").getcolors(1 << 20)) > 50
    with Image.open("out/one.png") as one, Image.open("out/sheet.png") as sheet:
        assert sheet.height > 4 * one.height
    assert not records("out") and not Path("results").exists()


def test_every_block_has_a_row(run):
    plain_pictures(["one.png"])
    how = ("--images", "photos/one.png")
    assert run(*how, "--out", "last", dataset=None, quick=()).exit_code == 0
    shown = run(*how, "--out", "all", "--layers", "all", "--json", dataset=None, quick=())
    assert json.loads(shown.stdout) == {"pictures": "all"}
    rows = table("all/objects.csv")
    assert [(row["image"], row["block"]) for row in rows] == [("one.png", b) for b in "012"]
    assert rows[2:] == table("last/objects.csv")
    with Image.open("last/one.png") as one, Image.open("all/one.png") as three:
        assert three.height > 2.5 * one.height and three.width == one.width


@pytest.mark.parametrize(
    "names", [("a/x.png", "b/x.png"), ("a/x.png", "a_x.png"), ("a/x.png", "a/sheet.png")]
)
def test_no_picture_takes_the_place_of_another(run, names):
    """One folder or several, whatever the names."""
    plain_pictures(names)
    folders = {"photos"} if "a_x.png" in names else {str(Path("photos", n).parent) for n in names}
    given = [word for folder in sorted(folders) for word in ("--images", folder)]
    assert run(*given, "--out", "out", dataset=None, quick=()).exit_code == 0
    made = [path.name for path in Path("out").glob("*.png")]
    assert len(made) == 3 and "sheet.png" in made, made
    assert len(table("out/objects.csv")) == 2


def test_pictures_are_not_drawn_over_the_originals(run):
    plain_pictures(["one.png", "sheet.png"])
    before = {path: path.read_bytes() for path in Path("photos").iterdir()}
    run("--images", "photos", "--out", "photos", dataset=None, quick=())
    assert {path: path.read_bytes() for path in before} == before


def test_a_picture_that_cannot_be_read(run):
    plain_pictures(["one.png"])
    Path("photos", "bad.png").write_bytes(b"no picture")
    shown = run("--images", "photos", "--out", "out", dataset=None, quick=())
    assert shown.exit_code == 4 and "bad.png" in shown.stderr and "Traceback" not in shown.stderr
    shown = run("--images", "photos", "--out", "x", "--skip-bad", "1", dataset=None, quick=())
    assert shown.exit_code == 0 and "bad.png" in shown.stderr  # as the message above advises
    assert [row["image"] for row in table("x/objects.csv")] == ["one.png"]


def test_a_trial_of_pictures_draws_none(run):
    plain_pictures(["one.png"])
    shown = run("--images", "photos", "--out", "out", "--dry-run", dataset=None, quick=())
    assert shown.exit_code == 2 and "--dry-run goes with --dataset" in shown.stderr
    assert not Path("out", "one.png").exists()


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        ((), 2, "--dataset"),
        (("--images", "photo"), 4, "Did you mean 'photos'"),
        (("--images", "empty"), 4, "no images in"),
        (("--images", "photos", "--out", "skip.pth"), 7, "cannot write"),
        (("--images", "photos", "--tau", "2"), 2, "--tau"),
    ],
)
def test_faults_of_pictures_alone(run, monkeypatch, more, code, word):
    monkeypatch.setattr(Extractor, "run", None)
    plain_pictures(["one.png"])
    Path("empty").mkdir()
    shown = run(*more, dataset=None, quick=())
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert "Traceback" not in shown.stderr


def test_python_finds_objects_in_pictures(ckpt):
    plain_pictures(["one.png", "two.png"])
    made = package.find_objects(ckpt, "photos", out="out", residual="skip", layers="all")
    assert made == Path("out") and len(table("out/objects.csv")) == 6
    paths = [Path("photos", "two.png")]
    assert package.find_objects(ckpt, paths, out="x", residual="skip") == Path("x")
    assert [row["image"] for row in table("x/objects.csv")] == ["two.png"]


def test_python_refuses_what_it_does_not_know(ckpt):
    with pytest.raises(TypeError, match="'taus'"):
        package.find_objects(ckpt, "photos", taus=0.2)
