"""What `skipbench tokencut` writes: figures by hand, which settings make another record."""

import csv
import json
from pathlib import Path

import numpy as np
import plain_tokencut as plain
import pytest
import torch
from conftest import records
from plain_tokencut import by_image, only, stable

import skipbench as package
from skipbench.datasets import open_dataset
from skipbench.evaluations import find_evaluation
from skipbench.features.stream import Extractor
from skipbench.pipeline import carry_out, open_run

pytestmark = pytest.mark.usefixtures("nowhere_else")


def test_a_record_says_how_it_was_made(run):
    shown = run("--layers", "all")
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert f"results/{record.id}.json" in shown.stdout and "CorLoc" in shown.stdout
    assert f"results/{record.id}/images.csv" in shown.stdout and "partial" in shown.stdout
    assert record.evaluation == "tokencut" and record.training is None
    assert record.dataset["name"] == "shapes" and record.dataset["split"] == "val"
    assert record.dataset["partial"] and len(record.dataset["names"]) == 12
    assert record.checkpoint["residual_source"] == "--residual"
    assert record.features == {
        "layers": "all", "blocks": [0, 1, 2], "tensor": "keys", "size": "40x56",
        "precision": "fp32",
    }  # fmt: skip
    protocol = record.protocol
    expected = {
        "name": "paper", "method": "tokencut", "tau": 0.2, "eps": 1e-5, "feature": "keys",
        "size": "40x56", "score": "boxes", "hard": True, "select": "val", "splits": 100,
        "changes": {"size": ["native", "40x56"]},
    }  # fmt: skip
    assert {key: protocol[key] for key in expected} == expected
    assert "bootstrap" in protocol["interval"]
    metrics = record.metrics
    assert metrics["headline"] == "corloc" and metrics["selected_on"] == "val"
    assert [row["block"] for row in metrics["blocks"]] == [0, 1, 2]
    counted = {"degenerate", "whole_image_if_degenerate", "dense", "tied"}
    assert all(set(row) == counted | {"block", "corloc", "interval"} for row in metrics["blocks"])
    assert set(metrics["chosen"]) == {"val", "holdout"}
    assert record.timing["images_computed"] == record.timing["images"] == 12
    assert record.timing["features_seconds"] > 0 and record.timing["cutting_seconds"] > 0
    assert record.timing["peak_memory_bytes"] > 10**7
    assert record.environment["threads"] == torch.get_num_threads()
    assert arrays["boxes"].shape == (12, 3, 4) and arrays["score"].shape == (12, 3)
    assert arrays["tokens"].shape == arrays["solver"].shape == arrays["tied"].shape == (12, 3)
    assert {"counts", "counts_val", "counts_holdout", "ious", "ious_of"} <= set(arrays)


@pytest.fixture(scope="module")
def fourteen(tmp_path_factory, inspection, weights_file):
    """The folder with the record of all blocks on fourteen images."""
    evaluation, out = find_evaluation("tokencut"), tmp_path_factory.mktemp("fourteen")
    settings = evaluation.settings.make(
        {"ckpt": weights_file, "dataset": "shapes", "residual": "skip", "layers": "all",
         "limit": 14, "in_memory": True, "out": out}
    )  # fmt: skip
    carry_out(open_run(evaluation, settings, inspections=[inspection]))
    return out


def test_hits_and_corloc_by_hand(fourteen):
    """Boxes as they are stored, against the true ones."""
    record, arrays = only(fourteen)
    data = open_dataset("shapes", limit=14)
    truths = [item.boxes().xyxy.tolist() for item in data]
    assert arrays["ious_of"].tolist() == list(map(len, truths))
    ious = [
        [[plain.iou(true, box) for box in boxes.tolist()] for true in boxes_of]
        for boxes_of, boxes in zip(truths, arrays["boxes"].astype(float), strict=True)
    ]
    np.testing.assert_allclose(arrays["ious"], np.concatenate(ious), atol=1e-6)
    hits = np.array([np.max(rows, axis=0) >= 0.5 for rows in ious])
    assert 0 < hits.sum() < hits.size  # else nothing is shown here
    assert np.array_equal(arrays["score"], hits)
    metrics = record.metrics
    corloc = 100 * hits.mean(0)
    assert [row["corloc"] for row in metrics["blocks"]] == pytest.approx(corloc.tolist())
    best = int(corloc.argmax())
    assert metrics["corloc"] == pytest.approx(corloc.max()) and metrics["block"] == best
    assert metrics["chosen"]["val"]["block"] == best
    for row in (metrics, *metrics["blocks"], *metrics["chosen"].values()):
        low, high = row["interval"]
        assert 0 <= low <= row["corloc"] <= high <= 100
    low, high = metrics["interval"]
    assert low < metrics["corloc"] < high  # fourteen images say little
    assert np.array_equal(arrays["counts_val"], np.stack([hits[:, best], np.ones(14)], 1))
    assert np.array_equal(arrays["counts"], arrays["counts_val"])
    rows = by_image(record, fourteen)
    assert list(rows[0]) == [
        "image", "block", "xmin", "ymin", "xmax", "ymax", "hit", "ious", "tokens", "solver",
        "degenerate", "tied",
    ]  # fmt: skip
    assert [row["image"] for row in rows] == list(data.names)
    for i, row in enumerate(rows):
        corners = [float(row[key]) for key in ("xmin", "ymin", "xmax", "ymax")]
        assert int(row["block"]) == best and int(row["hit"]) == hits[i, best]
        assert corners == pytest.approx(arrays["boxes"][i, best].tolist(), abs=0.01)
        expected = [iou[best] for iou in ious[i]]
        assert [float(iou) for iou in row["ious"].split()] == pytest.approx(expected, abs=1e-4)
        assert int(row["tokens"]) == arrays["tokens"][i, best]
    for key in ("degenerate", "tied"):
        assert [row[key] for row in metrics["blocks"]] == arrays[key].sum(0).tolist()


def test_the_unbiased_figure_by_hand(fourteen):
    record, arrays = only(fourteen)
    unbiased = record.metrics["chosen"]["holdout"]
    assert unbiased["corloc"] == pytest.approx(
        plain.chosen_on_the_other_half(arrays["score"].tolist())
    )
    assert unbiased["corloc"] <= record.metrics["chosen"]["val"]["corloc"]
    assert unbiased["block"] is None and sum(unbiased["blocks"].values()) == 200
    counts = arrays["counts_holdout"]
    assert (counts[:, 1] == 100).all()
    assert 100 * counts[:, 0].sum() / counts[:, 1].sum() == pytest.approx(unbiased["corloc"])


def test_the_unbiased_figure_may_be_the_headline(run, fourteen):
    usual, _ = only(fourteen)
    shown = run("--layers", "all", "--select", "holdout", quick=("--limit", "14"))
    assert shown.exit_code == 0
    record, arrays = only()
    assert record.id != usual.id and record.metrics["selected_on"] == "holdout"
    assert record.metrics["chosen"] == usual.metrics["chosen"]
    assert record.metrics["corloc"] == usual.metrics["chosen"]["holdout"]["corloc"]
    assert np.array_equal(arrays["counts"], arrays["counts_holdout"])
    assert "chosen on one half" in shown.stdout and "best of 3" in shown.stdout


def test_one_image_is_too_few_to_choose_on(run):
    shown = run("--layers", "all", "--limit", "1", "--select", "holdout")
    assert shown.exit_code == 0 and "too few" in shown.stderr
    record, arrays = only()
    assert record.metrics["selected_on"] == "val" and record.metrics["chosen"]["holdout"] is None
    assert "counts_holdout" not in arrays


def test_all_layers_at_once_are_each_layer_alone(opened, seen):
    carry_out(opened(layers="all", out="all", limit=4))
    assert seen == [(4, (0, 1, 2))]  # one pass, all in one batch
    whole, arrays = only("all")
    for block in range(3):
        carry_out(opened(layers=str(block), out=f"b{block}", limit=4))
        record, mine = only(f"b{block}")
        assert record.metrics["blocks"] == [whole.metrics["blocks"][block]]
        assert record.metrics["chosen"] == {} and record.metrics["selected_on"] is None
        assert record.metrics["corloc"] == whole.metrics["blocks"][block]["corloc"]
        assert record.metrics["block"] == block and "counts_val" not in mine
        for name in ("boxes", "score", "ious", "tokens", "solver"):
            assert np.array_equal(mine[name][:, 0], arrays[name][:, block]), name
    carry_out(opened(layers="1,-1", out="two", limit=4))
    record, _ = only("two")
    assert record.features["blocks"] == [1, 2]
    assert record.metrics["blocks"] == whole.metrics["blocks"][1:]


def test_the_same_twice_is_done_once(run, twelve, monkeypatch):
    first = run("--layers", "all", dataset=twelve)
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed again
    again = run("--layers", "all", dataset=twelve)
    assert again.exit_code == 0 and "record exists" in again.stderr
    assert again.stdout == first.stdout
    assert run("--layers", "all", "--force", dataset=twelve).exit_code == 1  # it would have been


def test_force_does_it_again(opened, caplog):
    carry_out(opened())
    record, arrays = only()
    path = Path("results", f"{record.id}.json")
    path.write_text(path.read_text().replace('"tau": 0.2', '"tau": 0.9'))
    carry_out(opened(force=True))
    assert "record exists" not in caplog.text
    again, others = only()
    assert stable(again, others) == stable(record, arrays)
    assert again.timing["images_computed"] == 12


@pytest.mark.parametrize("what", ["record", "end of the arrays", "middle of the arrays"])
def test_a_damaged_record_is_made_anew(opened, caplog, what):
    carry_out(opened())
    record, arrays = only()
    path = Path("results", f"{record.id}.{'json' if what == 'record' else 'npz'}")
    content = bytearray(path.read_bytes())
    if what == "middle of the arrays":
        flip(content)
    else:
        del content[-30:]
    path.write_bytes(content)
    carry_out(opened())
    assert "damaged" in caplog.text and "WARNING" in caplog.text
    assert stable(*only()) == stable(record, arrays)


def flip(content):
    """The first array of an .npz: its compressed bytes are now of no kind that there is."""
    lengths = int.from_bytes(content[26:28], "little"), int.from_bytes(content[28:30], "little")
    content[30 + sum(lengths)] |= 6


def test_what_matters_is_another_record(opened):
    base = {"dataset": "shapes", "limit": 4, "layers": "all"}
    others = [
        opened(**(base | more)).id
        for more in (
            {}, {"tau": 0.3}, {"eps": 1e-4}, {"feature": "queries"}, {"layers": "0,1"},
            {"method": "lost"}, {"size": "56x40"}, {"size": "short:40"}, {"hard": False},
            {"split": "train"}, {"score": "masks"}, {"precision": "bf16"}, {"limit": 3},
            {"select": "holdout"},
        )
    ]  # fmt: skip
    assert len(set(others)) == len(others)


def test_what_does_not_matter_is_the_same_record(opened, run, twelve, monkeypatch):
    carry_out(opened())
    record, arrays = only()
    for more in (
        {"batch_size": 1}, {"workers": 1}, {"pictures": 1}, {"cache": "elsewhere"},
        {"in_memory": True}, {"layers": "2"}, {"layers": "-1"}, {"precision": "fp32"},
        {"size": "40X56"}, {"select": "holdout"}, {"labels": {"epoch": 7}}, {"hard": True},
        {"score": "boxes"}, {"out": "x"}, {"limit": 12},
    ):  # fmt: skip
        assert opened(**more).id == record.id, more
    carry_out(opened(batch_size=1, out="x"))
    other, theirs = only("x")
    assert other.id == record.id and np.array_equal(theirs["boxes"], arrays["boxes"])
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed again
    shown = run("--resize", "40x56", "--label", "epoch=7", dataset=twelve, quick=())
    assert shown.exit_code == 0 and "record exists" in shown.stderr, shown.stderr
    assert only()[0].checkpoint["epoch"] == 7


def test_tokencut_and_lost_in_a_table_and_compared(opened, cli):
    for method in ("tokencut", "lost"):
        carry_out(opened(layers="all", method=method))
    found = {record.protocol["method"]: record for record in records()}
    made = cli("table", "results", "--format", "csv")
    assert made.exit_code == 0, made.stderr
    rows = {row["method"]: float(row["CorLoc"]) for row in csv.DictReader(made.stdout.splitlines())}
    assert rows == pytest.approx({m: r.metrics["corloc"] for m, r in found.items()}, abs=0.05)
    one, other = found["tokencut"], found["lost"]
    shown = cli("compare", "results", one.id, other.id, "--json")
    assert shown.exit_code == 0, shown.stderr
    [pair] = json.loads(shown.stdout)
    difference = other.metrics["corloc"] - one.metrics["corloc"]
    assert pair["difference"] == pytest.approx(difference)
    assert cli("compare", "results", one.id, other.id).exit_code == 0
    unbiased = cli("compare", "results", one.id, other.id, "--select", "holdout", "--json")
    values = [record.metrics["chosen"]["holdout"]["corloc"] for record in (one, other)]
    assert json.loads(unbiased.stdout)[0]["difference"] == pytest.approx(values[1] - values[0])


def test_python_takes_numbers_and_switches(ckpt):
    how = {"residual": "skip", "size": 40, "limit": 2, "hard": False}
    result = package.tokencut(ckpt, "shapes", **how)
    assert result == only()[0] and result.protocol["size"] == "40x40"
    assert result.protocol["hard"] is False and result.protocol["feature"] == "keys"


def test_a_record_can_be_made_again_from_what_it_says(run):
    how = ("--layers", "1,-1", "--method", "lost", "--no-hard", "--split", "train", "--limit", "3")
    assert run(*how, "--expect", "depth=3", "--skip-bad", "1").exit_code == 0
    record, arrays = only()
    call = dict(record.environment["call"])
    assert "out" not in call and "cache" not in call
    call.pop("expected", None)
    package.tokencut(call.pop("ckpt"), call.pop("dataset"), **call, out="again")
    assert stable(*only("again")) == stable(record, arrays)
