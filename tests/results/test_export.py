"""Records for other programs: Parquet, CSV, JSON lines, and the model-index of a model card."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from made import data_part, make_result, put_tokencut

import skipbench as sb
from skipbench.errors import UsageError
from skipbench.record_store import write_result
from skipbench.results.export import export
from skipbench.results.read import read_results

pytestmark = pytest.mark.usefixtures("nowhere_else")


def put(**facts):
    result = make_result(**facts)
    write_result(Path("results"), result, {})
    return result


@pytest.fixture
def stored():
    put(value=61.25, interval=[58.5, 63.0], seed=0, training=data_part("voc", "train"))
    put(value=62.75, interval=[59.5, 64.0], seed=1, training=data_part("voc", "train"))
    put(name="=x\n2.pth", residual="skipless", value=40.123456, epoch=None)
    put_tokencut(Path("results"), np.random.default_rng(0).random((40, 3)), name="skip.pth")
    return {one.result.id: one.result for one in read_results("results")}


# -- results export


def check(rows, stored, name_of_hostile):
    assert [row["id"] for row in rows] == sorted(stored)
    for row in rows:
        result = stored[row["id"]]
        assert row["metric"] == result.metrics["headline"]
        assert row["value"] == result.metrics[row["metric"]]
        assert (row["low"], row["high"]) == tuple(result.metrics["interval"] or (None, None))
        assert row["epoch"] == result.checkpoint["epoch"]
        assert row["sha256"] == result.checkpoint["sha256"]
        assert row["images"] == result.dataset["images"]
        assert row["training_images"] == (result.training and result.training["images"])
        assert row["blocks"] == ",".join(map(str, result.features["blocks"]))
        assert row["partial"] is False
    assert [row["checkpoint"] for row in rows if row["residual"] == "skipless"] == [name_of_hostile]
    assert {row["seed"] for row in rows if row["evaluation"] == "probe"} == {0, 1}


def test_parquet(stored, cli):
    parquet = pytest.importorskip("pyarrow.parquet")
    done = cli("results", "export", "all.parquet")
    assert done.exit_code == 0 and done.stdout == "all.parquet  4 records\n"
    table = parquet.read_table("all.parquet")
    check(table.to_pylist(), stored, "=x\\n2.pth")
    assert str(table.schema.field("epoch").type) == "int64"  # also if all were unknown
    assert str(table.schema.field("method").type) == "string"


def test_json_lines(stored, cli):
    assert cli("results", "export", "all.jsonl").exit_code == 0
    rows = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    check(rows, stored, "=x\\n2.pth")


def test_csv(stored, cli):
    assert cli("results", "export", "all.csv").exit_code == 0
    with Path("all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {
        "value": float, "low": float, "high": float, "epoch": int, "images": int, "seed": int,
        "training_images": int,
    }  # fmt: skip
    for row in rows:
        row |= {name: kind(row[name]) if row[name] else None for name, kind in numbers.items()}
        row["partial"] = {"False": False, "True": True}[row["partial"]]
    check(rows, stored, "'=x\\n2.pth")  # no spreadsheet takes it for a formula


def test_only_some_records(stored, cli):
    done = cli("results", "export", "some.jsonl", "--where", "evaluation=tokencut")
    assert done.stdout == "some.jsonl  1 record\n"
    assert cli("results", "export", "no.jsonl", "--where", "epoch=7").exit_code == 2
    assert not Path("no.jsonl").exists()


def test_a_record_of_pictures_has_no_value(tmp_path):
    made = make_result(evaluation="pca", metric="coherence")
    del made.metrics["headline"], made.metrics["coherence"]
    assert export(made, tmp_path / "one.jsonl") == 1
    row = json.loads((tmp_path / "one.jsonl").read_text())
    assert row["evaluation"] == "pca" and row["metric"] is None and row["value"] is None


def test_a_file_that_cannot_be_written(stored, cli, monkeypatch):
    wrong = cli("results", "export", "all.xlsx")
    assert wrong.exit_code == 2
    assert "all.xlsx: unknown format; give .parquet, .csv or .jsonl" in wrong.stderr
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    missing = cli("results", "export", "all.parquet")
    assert missing.exit_code == 2 and "pip install 'skipbench[parquet]'" in missing.stderr


# -- model-index


def parsed(text):
    """{model: [EvalResult]}, as huggingface_hub reads it."""
    models = yaml.safe_load(text)["model-index"]
    return dict(model_index_to_eval_results([model]) for model in models)


def test_a_model_card_has_the_scores_of_the_table(stored, cli):
    done = cli("table", "--format", "model-index")
    assert done.exit_code == 0, done.output
    found = parsed(done.stdout)
    assert sorted(found) == ["=x\\n2.pth", "model.pth", "skip.pth"]
    [probe] = found["model.pth"]
    assert (probe.task_type, probe.task_name) == ("image-segmentation", "linear probe")
    assert (probe.dataset_type, probe.dataset_name) == ("voc", "VOC2012")
    assert (probe.dataset_split, probe.metric_type, probe.metric_name) == ("val", "miou", "mIoU")
    assert probe.metric_value == 62.0  # the mean over seeds
    assert probe.metric_args["interval_95"] == [59.0, 63.5]
    assert probe.metric_args["seeds"] == 2 and "mean over 2 seeds" in probe.metric_args["remarks"]
    [other] = found["=x\\n2.pth"]
    assert other.metric_value == 40.1235
    [objects] = found["skip.pth"]
    [record] = [one for one in stored.values() if one.evaluation == "tokencut"]
    assert objects.task_type == "object-detection"
    assert objects.metric_value == round(record.metrics["corloc"], 4)


def test_huggingface_hub_accepts_it_in_a_readme(stored, cli):
    done = cli("table", "--format", "model-index", "--where", "checkpoint=model.pth")
    card = ModelCard(f"---\nlicense: apache-2.0\n{done.stdout}---\n# A model\n")
    assert card.data.model_name == "model.pth"
    assert [one.metric_value for one in card.data.eval_results] == [62.0]


def test_two_checkpoints_of_one_name_are_two_models():
    for sha256, value in (("a" * 64, 50.0), ("b" * 64, 60.0)):
        put(sha256=sha256, value=value)
    found = parsed(sb.table("results").text("model-index"))
    assert {name: one.metric_value for name, [one] in found.items()} == {
        "model.pth": 50.0, "model.pth_2": 60.0,
    }  # fmt: skip


def test_a_yaml_file_is_a_model_index(stored, cli):
    assert cli("table", "--out", "index.yaml").exit_code == 0
    assert "model.pth" in parsed(Path("index.yaml").read_text())
    with pytest.raises(UsageError, match="model-index"):
        sb.table("results").text("yaml")
