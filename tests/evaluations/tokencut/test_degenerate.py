"""Images in which nothing was found are misses; what stands beside that; records of version 1."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import plain_tokencut as plain
import pytest
from conftest import records
from made import scores_by_block, tokencut_result
from PIL import Image
from plain_tokencut import BOXES, SIZES_HW, by_image, masked_folder, only, put, scene, table

from skipbench.datasets import Boxes, Item, open_dataset
from skipbench.evaluations import evaluation_of
from skipbench.evaluations.tokencut.method import Found, nothing_stands_out
from skipbench.evaluations.tokencut.record import ImageObjects, log_remarks, score_boxes
from skipbench.evaluations.tokencut.settings import TokencutSettings
from skipbench.pipeline import carry_out
from skipbench.record_store import read_result, result_id, write_result

pytestmark = pytest.mark.usefixtures("nowhere_else")

SOME = {"dataset": "shapes", "limit": 14, "layers": "all", "tau": -0.7}  # 5, 7 and 8 of them


def test_the_whole_image_is_a_miss_where_nothing_was_found():
    """Beside an object of the same box that was found."""
    whole = np.ones((2, 3), bool)
    found = [Found(whole, whole * 1.0, 0), nothing_stands_out((2, 3))]
    item = Item("a", Path("a.png"), read_boxes=None)
    put(item.path, np.zeros((16, 24, 3), np.uint8))
    truth = Boxes(np.array([[0.0, 0, 24, 16]]), ("thing",), np.zeros(1, bool))
    object.__setattr__(item, "read_boxes", lambda: truth)
    scored = score_boxes(item, ImageObjects(found, [8] * len(found), (16, 24), (16, 24)))
    assert scored["score"].tolist() == [1, 0] and scored["whole_image"] == 1
    assert scored["ious"].tolist() == [[1, 1]]  # of the boxes as they are


def test_corloc_with_and_without_the_whole_image_by_hand(opened):
    carry_out(opened(**SOME, select="holdout"))
    record, arrays = only()
    degenerate = arrays["degenerate"]
    assert len(set(degenerate.sum(0).tolist())) == 3 and not degenerate.all()
    hits, others = [], []
    for i, item in enumerate(open_dataset("shapes", limit=14)):
        truth, (height, width) = item.boxes().xyxy.tolist(), item.read().shape[:2]
        boxes = arrays["boxes"][i].astype(float).tolist()
        right = [max(plain.iou(true, box) for true in truth) >= 0.5 for box in boxes]
        whole = max(plain.iou(true, [0, 0, width, height]) for true in truth) >= 0.5
        hits.append([hit and not none for hit, none in zip(right, degenerate[i], strict=True)])
        others.append(
            [whole if none else hit for hit, none in zip(right, degenerate[i], strict=True)]
        )
    assert np.sum(others) > np.sum(hits) > 0  # else nothing is shown here
    assert np.array_equal(arrays["score"], hits)
    metrics, best = record.metrics, int(np.mean(hits, 0).argmax())
    for place, row in enumerate(metrics["blocks"]):
        assert row["corloc"] == pytest.approx(100 * np.mean(hits, 0)[place])
        assert row["whole_image_if_degenerate"] == pytest.approx(100 * np.mean(others, 0)[place])
        assert row["degenerate"] == degenerate[:, place].sum()
    val, holdout = metrics["chosen"]["val"], metrics["chosen"]["holdout"]
    assert val["block"] == best and val["degenerate"] == degenerate[:, best].sum()
    assert val["whole_image_if_degenerate"] == pytest.approx(100 * np.mean(others, 0)[best])
    for name, values in (("corloc", hits), ("whole_image_if_degenerate", others)):
        expected = plain.chosen_on_the_other_half(hits, values)
        assert metrics[name] == holdout[name] == pytest.approx(expected)
    assert metrics["degenerate"] == holdout["degenerate"]
    number = plain.chosen_on_the_other_half(hits, degenerate) * 14 / 100
    assert abs(holdout["degenerate"] - number) <= 0.5


@pytest.mark.parametrize("select", ["val", "holdout"])
def test_the_page_and_the_files_say_which_images_are_misses(opened, run, select):
    more = ("--tau", "-0.7", "--layers", "all", "--pictures", "14", "--select", select)
    shown = run(*more, quick=("--size", "40x56", "--limit", "14"))
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    blocks, chosen = record.metrics["blocks"], record.metrics["chosen"]
    lines = [line for line in shown.stdout.splitlines() if re.match(r" *(block|\d) ", line)]
    title, *rows = lines[:4]
    assert "whole if degenerate" in title
    for line, row in zip(rows, blocks, strict=True):
        assert f" {row['corloc']:.1f} " in line and f" {row['degenerate']} " in line
        assert f" {row['whole_image_if_degenerate']:.1f} " in line
    for choice in chosen.values():
        words = rf"CorLoc {choice['whole_image_if_degenerate']:.1f} .*object of degenerate images"
        assert re.search(words, shown.stdout)
    count = sum(row["degenerate"] for row in blocks)
    assert f"{count} of 42 degenerate (nothing stands out: counted as misses)" in shown.stdout
    assert f"degenerate images: {record.metrics['degenerate']} of 14" in shown.stderr
    best = chosen["val"]["block"]
    for i, row in enumerate(by_image(record)):
        none, ious = arrays["degenerate"][i, best], list(map(float, row["ious"].split()))
        assert row["degenerate"] == str(int(none))
        assert row["hit"] == str(int(max(ious) >= 0.5 and not none))
    folder = Path("results", record.id)
    tiles = json.loads((folder / "tiles" / "index.json").read_text())["tiles"]
    for tile, none in zip(tiles, arrays["degenerate"][:, best], strict=True):
        assert ("degenerate, a miss" in tile["note"]) == none
        drawn = [
            np.asarray(Image.open(folder / "tiles" / file))
            for file in (tile["own"]["box"], tile["shared"]["image"])
        ]
        assert np.array_equal(*drawn) == none  # no box is drawn where none was found
    [worst] = folder.glob("01_worst_*.png")
    missed = arrays["degenerate"][record.dataset["names"].index(worst.stem[9:]), best]
    assert missed  # the first of those without any overlap


def test_a_page_without_degenerate_images_has_no_word_of_them(run, twelve):
    shown = run("--layers", "all", dataset=twelve)
    assert only()[0].metrics["degenerate"] == 0
    assert "degenerate" not in shown.stderr and "whole if" not in shown.stdout
    assert "object of degenerate" not in shown.stdout


def test_an_iou_is_0_where_nothing_was_found(run):
    """With τ so low that all is one object; F-beta too, and nothing is right where there is
    nothing to find. The accuracy is that of an empty mask."""
    masked_folder({2})
    path = Path("mine", "masks", "3.png")
    Image.fromarray(np.zeros(SIZES_HW[3], np.uint8)).save(path)  # nothing but background
    shown = run("--tau", "-0.999", dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    masks = [np.asarray(Image.open(Path("mine", "masks", f"{i}.png"))) for i in (0, 1, 3)]
    shares = [(mask > 0).mean() for mask in masks]
    assert arrays["degenerate"].all() and record.metrics["iou"] == 0
    for name in ("score", "f_beta"):
        assert arrays[name][[0, 1, 3], 0].tolist() == [0, 0, 0] and np.isnan(arrays[name][2, 0])
    assert arrays["accuracy"][[0, 1, 3], 0] == pytest.approx(1 - np.array(shares))
    assert record.metrics["f_beta"] == record.metrics["max_f_beta"] == 0
    whole = 100 * np.mean(shares)
    assert record.metrics["whole_image_if_degenerate"] == pytest.approx(whole)
    assert record.metrics["whole_image"] == pytest.approx(whole)
    assert [row["iou"] for row in by_image(record)] == ["0.0000", "0.0000", "nan", "0.0000"]


def test_plain_pictures_show_no_object_where_nothing_was_found(run):
    put(Path("photos", "a.png"), scene(SIZES_HW[0], BOXES[0]))
    how = ("--images", "photos", "--tau", "-0.999", "--out", "out")
    assert run(*how, dataset=None, quick=()).exit_code == 0
    (row,) = table("out/objects.csv")
    height, width = SIZES_HW[0]
    assert row["degenerate"] == "1" and row["xmax"] == str(width) and row["ymax"] == str(height)
    drawn = np.asarray(Image.open("out/a.png").convert("RGB"), int)
    assert not (np.abs(drawn - (230, 57, 70)).max(-1) < 20).any()


# -- the footnote and the warning


@pytest.mark.parametrize(("count", "told"), [(0, False), (19, False), (20, True), (1000, True)])
def test_from_two_percent_of_the_images_on_a_footnote_says_so(count, told):
    record, _ = tokencut_result(scores_by_block(np.random.default_rng(0), images=1000))
    record.metrics.update(degenerate=count, whole_image_if_degenerate=61.24)
    words = [f"{count:,} of 1,000 images degenerate: counted as misses; with the whole image as "
             "their object 61.2"]  # fmt: skip
    assert evaluation_of(record).remarks(record) == (words if told else [])


@pytest.mark.parametrize(("count", "told"), [(0, False), (19, False), (20, True)])
@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, "--feature tokens, another --tau, --layers all"),
        ({"method": "lost", "feature": "tokens", "layers": "all"}, "another --feature"),
    ],
)
def test_from_two_percent_of_the_images_on_a_warning_says_so(caplog, count, told, settings, advice):
    found = {
        "headline": "corloc", "degenerate": count, "whole_image_if_degenerate": 61.24,
        "selected_on": "val",
    }  # fmt: skip
    log_remarks(found, 1000, TokencutSettings(ckpt="x", dataset="voc", **settings))
    assert [one.levelname for one in caplog.records] == ["WARNING"] * told
    words = "degenerate images: 20 of 1000; they count as misses (CorLoc 61.2 with the whole "
    assert caplog.messages == [f"{words}image as their object); try {advice}"] * told


def test_a_table_has_the_footnote_of_the_figure_that_it_shows(opened, cli):
    carry_out(opened(**SOME))
    choices = only()[0].metrics["chosen"]
    for select, choice in choices.items():
        shown = cli("table", "results", "--select", select, "--format", "md")
        assert f"{choice['corloc']:.1f}" in shown.stdout
        other = choice["whole_image_if_degenerate"]
        words = f"{choice['degenerate']} of 14 images degenerate: counted as misses; with the"
        assert f"{words} whole image as their object {other:.1f}" in shown.stdout


# -- records of version 1, which counted these images as hits where the whole image is one


@pytest.fixture
def of_version_1(opened):
    """Makes what version 1 wrote of the same run."""

    def of_version_1(folder):
        (out,) = carry_out(opened(**SOME))
        arrays = only()[1]
        protocol = {k: v for k, v in out.protocol.items() if k != "degenerate"}
        metrics = {k: v for k, v in out.metrics.items() if k != "whole_image_if_degenerate"}
        determines = {**out.determines, "version": 1}
        determines["protocol"] = {
            k: v for k, v in determines["protocol"].items() if k != "degenerate"
        }
        old = replace(
            out,
            id=result_id("tokencut", "shapes", determines),
            protocol=protocol,
            metrics={**metrics, "corloc": out.metrics["whole_image_if_degenerate"]},
            determines=determines,
        )
        write_result(Path(folder), old, arrays)
        return out, old

    return of_version_1


def test_records_of_version_1_are_read_and_shown_beside_new_ones(of_version_1, cli):
    new, old = of_version_1("results")
    assert new.id != old.id and read_result(Path("results", f"{old.id}.json")) == old
    assert {one.id for one in records()} == {new.id, old.id}
    shown = cli("table", "results", "--format", "md")
    assert shown.exit_code == 0 and "left out" not in shown.stderr, shown.stderr
    for record in (new, old):
        assert f"{record.metrics['corloc']:.1f}" in shown.stdout
    assert "degenerate" in shown.stdout and "miss" in shown.stdout  # a column tells them apart
    many = old.metrics["degenerate"]  # rounding decides some of them, which differs by version
    assert many and f"{many} of 14 images degenerate: their box is the whole image" in shown.stdout


def test_compare_names_the_version_that_differs(of_version_1, cli):
    new, old = of_version_1("results")
    (pair,) = json.loads(cli("compare", "results", old.id, new.id, "--json").stdout)
    assert pair["differs"] == {"degenerate": [None, "miss"]}


def test_check_refuses_a_baseline_of_version_1(of_version_1, cli):
    of_version_1("old")
    how = ("--baseline", "b.json")
    assert cli("check", "old", *how, "--update").exit_code == 0
    shown = cli("check", "results", *how)
    assert shown.exit_code == 2 and "degenerate: none in the baseline, miss now" in shown.stderr
