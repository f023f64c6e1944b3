"""Figures by plain code; which settings make another record."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import trees
from conftest import lasting, original_state, records
from PIL import Image
from plain_pca import (
    NAMES,
    STATES,
    Plain,
    check_figures,
    files_in,
    flat,
    pixels_of,
    put,
    scene,
    table,
)

import skipbench as package
from skipbench.datasets import open_dataset
from skipbench.record_store import read_arrays, read_result

pytestmark = pytest.mark.usefixtures("nowhere_else")


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


def test_what_matters_is_another_record(opened, world):
    def identity(**more):
        """Known before anything is computed."""
        return (
            opened(world / "a.pth", world / "photos", **{"precision": "fp32", **more}).cells[0].id
        )

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


def test_records_of_pictures_alone_have_nothing_to_compare(run, bare, cli):
    assert run("ab", "out").exit_code == 0
    ids = [record.id for record in records("out")]
    shown = cli("compare", "out", *ids)
    assert shown.exit_code == 2 and "only pictures" in shown.stderr


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


def test_all_images_are_all_images_again(opened, world):
    run = opened(world / "a.pth", world / "photos", limit="all", names="x")
    assert run.settings.call_of(0)["limit"] == "all" and run.models[0].title == "x"


@pytest.mark.parametrize("fit", ["image", "all"])
def test_constant_features_are_counted_and_grey(cli, bare, world, fit):
    """Fault 17."""
    ckpt = flat(Path("mine"))
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
    ckpt = flat(Path("mine"))
    how = ("--ckpt", ckpt, "--residual", "skip", "--size", "native", "--background", "mask")
    shown = cli("pca", "mine/b.png", *how, "--out", "out")
    assert shown.exit_code == 0, shown.stderr
    [record] = records("out")
    assert record.metrics.get("headline") is None and record.metrics["degenerate"] == 1
    assert record.metrics["total_variation"] is None and record.metrics["effective_rank"] is None
    assert (pixels_of("out/flat.pth_skip/b.png") == 128).all()
    assert "nan" not in shown.stdout.lower()
    assert cli("report", "out", "--output", "page.html").exit_code == 0
    assert "no scores" in cli("table", "out").stderr


def test_nothing_is_explained_of_nothing(cli, bare, world):
    ckpt = flat(Path("mine"))
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


def test_why_there_is_no_coherence(cli, bare, world):
    """Segments are known, but the deepest block has nothing to say of them."""
    ckpt = flat(Path("mine"))
    how = ("--ckpt", ckpt, "--residual", "skip", "--size", "64", "--limit", "2", "--out", "out")
    state = torch.load(ckpt)
    torch.save(state | {"norm.weight": torch.zeros(64)}, ckpt)
    shown = cli("pca", "dataset:shapes", *how)
    assert shown.exit_code == 0, shown.stderr
    assert "block are constant" in shown.stdout and "no segments are known" not in shown.stdout
    assert "own colours" in shown.stdout
