"""`--log`: what is read back by TensorBoard's, MLflow's and wandb's own readers."""

import importlib.util
import json
import logging
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from doors import python_refusal, without
from made import make_result, tokencut_result

import skipbench as sb
from skipbench import suites
from skipbench.demo import make_weights, small_facts
from skipbench.errors import UsageError
from skipbench.tracking import WRITERS, log_results

pytestmark = pytest.mark.usefixtures("nowhere_else")

TENSORBOARD = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="TensorBoard is not installed"
)
QUICK = {"size": "64x80", "limit": 4, "device": "cpu", "clusters": 3, "seeds": 0}
SUITE = """
[[checkpoint]]
path = "skip.pth"

[[evaluation]]
kind = "cluster"
datasets = ["shapes"]
size = "64x80"
limit = 4
clusters = 3
seeds = 0
"""
PER_CLASS = {"cat": 61.5, "potted plant, other": 12.25, "absent": None}


@pytest.fixture(autouse=True)
def quiet_log():
    yield
    logging.getLogger("skipbench").handlers = []
    logging.getLogger("skipbench").propagate = True


def at_epoch(result, epoch, folder="runA"):
    """As the same evaluation of another checkpoint of a training run gives it."""
    name = f"checkpoint{epoch:04d}.pth"
    model = {"sha256": f"{folder} {epoch}", "residual": result.checkpoint["residual"]}
    return replace(
        result,
        id=f"{result.evaluation}-voc-{folder}{epoch}",
        checkpoint={**result.checkpoint, "name": name, "epoch": epoch, "sha256": model["sha256"]},
        environment={"call": {"ckpt": f"/work/{folder}/{name}"}},
        determines={"version": 1, "model": model, "dataset": "voc", "seed": 0},
    )


def of_epochs(*epochs, folder="runA"):
    metrics = {"per_class": PER_CLASS, "pixel_accuracy": 80.5, "edge": None}
    return [
        at_epoch(make_result(value=40 + epoch / 10, metrics=metrics), epoch, folder)
        for epoch in epochs
    ]


def tensorboard_runs(folder):
    """By run: {tag: [(step, value)]}, read by TensorBoard."""
    multiplexer = pytest.importorskip("tensorboard.backend.event_processing.event_multiplexer")
    found = multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder))
    found.Reload()
    return {
        run: {tag: [(e.step, e.value) for e in found.Scalars(run, tag)] for tag in tags["scalars"]}
        for run, tags in found.Runs().items()
    }


# -- TensorBoard


@TENSORBOARD
def test_epochs_of_one_folder_are_one_curve():
    log_results(["tensorboard:tb"], of_epochs(100, 300, 200))
    [(run, tags)] = tensorboard_runs("tb").items()
    assert run.startswith("runA-checkpoint/probe-voc-last-")
    assert sorted(tags["probe-voc/miou"]) == [(100, 50.0), (200, 60.0), (300, 70.0)]
    assert tags["probe-voc/class/cat"] == [(100, 61.5), (300, 61.5), (200, 61.5)]
    assert tags["probe-voc/class/potted plant- other"][0] == (100, 12.25)
    assert tags["probe-voc/pixel_accuracy"][0] == (100, 80.5)
    assert not [tag for tag in tags if "absent" in tag or "edge" in tag]


@TENSORBOARD
def test_other_folders_and_settings_are_other_curves():
    one, other = of_epochs(100), of_epochs(100, folder="runB")
    seeded = replace(one[0], id="seed", determines={**one[0].determines, "seed": 1})
    log_results(["tensorboard:tb"], [*one, *other, seeded])
    assert len(tensorboard_runs("tb")) == 3


@TENSORBOARD
@pytest.mark.parametrize(
    "files, names",
    [
        (
            ["/a/run1_ep100.pth", "/a/run1_ep200.pth", "/a/run2_ep100.pth"],
            ["a-run1_ep", "a-run2_ep"],
        ),
        (["/a/vit_s16.pth", "/b/vit_s16.pth"], ["a-vit_s", "b-vit_s"]),
        (["/a/checkpoint0100.pth", "/a/checkpoint.pth"], ["a-checkpoint"]),
        (["/a/100.pth", "/a/200.pth"], ["a"]),
    ],
)
def test_which_files_are_of_one_curve(files, names):
    made = of_epochs(*range(100, 100 + len(files)))
    records = [
        replace(one, environment={"call": {"ckpt": file}})
        for one, file in zip(made, files, strict=True)
    ]
    log_results(["tensorboard:tb"], records)
    assert sorted(run.partition("/")[0] for run in tensorboard_runs("tb")) == names


@TENSORBOARD
def test_labels_name_the_curve():
    labels = {"sources": {"name": "--label"}}
    records = [
        replace(one, checkpoint={**one.checkpoint, **labels, "name": f"grid/skip-{epoch}"})
        for epoch in (100, 200)
        for one in of_epochs(epoch)
    ]
    log_results(["tensorboard:tb"], records)
    [(run, tags)] = tensorboard_runs("tb").items()
    assert run.startswith("grid/skip/probe-voc-") and len(tags["probe-voc/miou"]) == 2


@TENSORBOARD
def test_without_an_epoch_each_checkpoint_is_a_run():
    records = [make_result(name=name, epoch=None) for name in ("a.pth", "b.pth")]
    log_results(["tensorboard:tb"], records)
    found = tensorboard_runs("tb")
    assert sorted(run.partition("/")[0] for run in found) == ["a", "b"]
    assert all(tags["probe-voc/miou"] == [(0, 50.0)] for tags in found.values())


@TENSORBOARD
def test_scores_by_block_have_the_block_as_step():
    made, _ = tokencut_result(np.random.default_rng(0).random((40, 3)))
    log_results(["tensorboard:tb"], [at_epoch(made, 200)])
    found = tensorboard_runs("tb")
    [blocks] = [tags for run, tags in found.items() if run.endswith("/epoch-0200")]
    steps, values = zip(*blocks["tokencut-voc/blocks/corloc"], strict=True)
    assert steps == (0, 1, 2)
    assert values == pytest.approx([row["corloc"] for row in made.metrics["blocks"]])
    [whole] = [tags for run, tags in found.items() if not run.endswith("/epoch-0200")]
    [(epoch, holdout)] = whole["tokencut-voc/chosen_on_holdout/corloc"]
    assert epoch == 200
    assert holdout == pytest.approx(made.metrics["chosen"]["holdout"]["corloc"])


@TENSORBOARD
def test_the_record_is_found_by_its_id():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [record] = of_epochs(100)
    log_results(["tensorboard:tb"], [record])
    [file] = Path("tb").rglob(f"*.{record.id}")
    read = EventAccumulator(str(file.parent)).Reload()
    [text] = read.Tensors("record/text_summary")
    assert f"record: {record.id}" in text.tensor_proto.string_val[0].decode()
    assert "checkpoint.path: /work/runA/checkpoint0100.pth" in str(text.tensor_proto)


@TENSORBOARD
def test_nothing_is_logged_twice(caplog):
    caplog.set_level("INFO", "skipbench")
    log_results(["tensorboard:tb"], of_epochs(100))
    log_results(["tensorboard:tb"], of_epochs(100, 200))
    [tags] = tensorboard_runs("tb").values()
    assert tags["probe-voc/miou"] == [(100, 50.0), (200, 60.0)]
    assert "logged to tensorboard:tb: 1 of 2 records; 1 were there already" in caplog.text


# -- MLflow


def mlflow_runs():
    client = pytest.importorskip("mlflow").MlflowClient(Path("ml").absolute().as_uri())
    found = client.search_runs([client.get_experiment_by_name("skipbench").experiment_id])
    return client, found


def test_in_mlflow_too_epochs_of_one_folder_are_one_curve():
    pytest.importorskip("mlflow")
    records = of_epochs(100, 300, 200)
    log_results(["mlflow:ml"], records)
    log_results(["mlflow:ml"], [*records, *of_epochs(100, folder="runB")])
    client, found = mlflow_runs()
    [run] = [run for run in found if run.info.run_name.startswith("runA-checkpoint/")]
    assert len(found) == 2 and run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "probe-voc/miou")
    assert sorted((m.step, m.value) for m in history) == [(100, 50.0), (200, 60.0), (300, 70.0)]
    assert run.data.params["protocol.epochs"] == "30"
    assert {f"skipbench.record.{one.id}" for one in records} <= set(run.data.tags)


def test_in_mlflow_too_scores_by_block_have_the_block_as_step():
    pytest.importorskip("mlflow")
    made, _ = tokencut_result(np.random.default_rng(0).random((40, 3)))
    log_results(["mlflow:ml"], [at_epoch(made, 200)])
    client, [run] = mlflow_runs()
    name = "tokencut-voc/blocks/corloc/epoch-0200"
    history = client.get_metric_history(run.info.run_id, name)
    scores = [(row["block"], row["corloc"]) for row in made.metrics["blocks"]]
    assert sorted((m.step, m.value) for m in history) == scores


# -- wandb


def wandb_runs():
    """By id: (run, [row of the history]), from the files that `wandb sync` uploads."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = {}
    for path in sorted(Path("wandb").glob("offline-run-*/*.wandb")):
        records = [Record.FromString(data) for data in chunks(path.read_bytes())]
        [run] = [one.run for one in records if one.HasField("run")][:1]
        rows = [
            {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in one.history.item
            }
            for one in records
            if one.HasField("history")
        ]
        found[run.run_id] = (run, rows)
    return found


def chunks(data):
    """Of a file in LevelDB's log format, after wandb's own header."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if (rest := 32768 - place % 32768) < 7:
            place += rest
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def test_wandb_has_a_run_for_each_record(monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    records = of_epochs(100, 200)
    training = wandb.init(project="training", id="mine")  # of the caller, stays open
    log_results(["wandb:depth"], records)
    log_results(["wandb:depth"], records)
    training.log({"loss": 1.5})
    wandb.teardown()  # writes what is not on disk yet
    found = wandb_runs()
    [loss] = found.pop("mine")[1]
    assert loss["loss"] == 1.5 and "epoch" not in loss
    assert set(found) == {one.id for one in records}
    assert len(list(Path("wandb").glob("offline-run-*"))) == 1 + 2
    [one, two] = [found[record.id] for record in records]
    assert one[0].run_group == two[0].run_group and one[0].project == "depth"
    rows = [{k: v for k, v in row.items() if k[0] != "_"} for _, [row] in (one, two)]
    assert [(row["epoch"], row["probe-voc/miou"]) for row in rows] == [(100, 50.0), (200, 60.0)]
    config = {item.key: json.loads(item.value_json) for item in one[0].config.update}
    assert config["record"] == records[0].id and config["protocol.epochs"] == 30


# -- through the doors


@pytest.fixture
def ckpt(tmp_path):
    torch.save(make_weights("skip", small_facts(64, 3, 8, 1)), tmp_path / "skip.pth")
    return tmp_path / "skip.pth"


@TENSORBOARD
def test_an_evaluation_is_logged_and_so_is_a_record_that_exists(ckpt):
    [record] = sb.cluster(ckpt, "shapes", **QUICK)
    [again] = sb.cluster(ckpt, "shapes", log="tensorboard:tb", **QUICK)
    assert again == record and "log" not in record.environment["call"]
    [tags] = tensorboard_runs("tb").values()
    [(step, value)] = tags["cluster-shapes/miou"]
    assert record.checkpoint["epoch"] is None and step == 0
    assert value == pytest.approx(record.metrics["miou"], rel=1e-6)


@TENSORBOARD
def test_a_suite_is_logged_and_so_is_a_cell_that_was_done(ckpt, cli):
    Path("there").mkdir()
    ckpt.rename("there/skip.pth")
    suite = Path("there/suite.toml")
    suite.write_text(SUITE)
    suites.run(suite)
    suite.write_text(f'log = ["tensorboard:tb"]\n{SUITE}')
    [done] = suites.run(suite)
    assert done.state == "done before"
    [run] = tensorboard_runs("there/tb")  # relative to the suite
    suites.run(suite, log="tensorboard:elsewhere")
    assert [*tensorboard_runs("elsewhere")] == [run]
    assert cli("run", suite, "--log", "tensorboard:third").exit_code == 0
    assert [*tensorboard_runs("third")] == [run]


@TENSORBOARD
def test_a_place_that_cannot_be_written_loses_no_record(ckpt, cli):
    Path("full").write_text("a file, not a folder")
    done = cli(
        "cluster", "--ckpt", ckpt, "--dataset", "shapes", "--size", "64x80", "--limit", 4,
        "--clusters", 3, "--seed", 0, "--json",
        "--log", "tensorboard:full", "--log", "tensorboard:tb",
    )  # fmt: skip
    assert done.exit_code == 0
    [record] = json.loads(done.stdout)
    assert Path("results", f"{record['id']}.json").exists()
    assert "warning: not logged to tensorboard:full: " in done.stderr
    assert len(tensorboard_runs("tb")) == 1


@pytest.mark.parametrize(
    "value, words",
    [
        ("tensorbord:tb", "Did you mean 'tensorboard'?"),
        ("wandb:", "expected tensorboard:DIR, wandb:PROJECT or mlflow:URI"),
        ("runs", "expected tensorboard:DIR, wandb:PROJECT or mlflow:URI"),
    ],
)
def test_a_wrong_place_is_named_before_anything_is_read(cli, value, words):
    message = without(python_refusal("cluster", {"log": value}), f"--log {value}: ")
    assert message.endswith(words)
    done = cli("cluster", "--ckpt", "weights.pth", "--dataset", "shapes", "--log", value)
    assert done.exit_code == 2 and done.stderr.strip().endswith(message)
    Path("suite.toml").write_text(f'log = "{value}"\n[[checkpoint]]\n[[evaluation]]\n')
    assert f"suite.toml: log: {value}: {message}" in cli("run", "suite.toml").stderr
    Path("suite.toml").write_text("")
    with pytest.raises(UsageError, match="expected tensorboard:DIR"):
        suites.make_plan("suite.toml", log=value)


@pytest.mark.parametrize("engine", WRITERS)
def test_a_missing_package_is_named_before_anything_is_read(cli, ckpt, monkeypatch, engine):
    monkeypatch.setitem(sys.modules, engine, None)  # as if it were not installed
    assert importlib.util.find_spec(engine) is None
    install = f"--log {engine} needs the package {engine}: pip install 'skipbench[{engine}]'"
    with pytest.raises(UsageError, match="needs the package"):
        sb.cluster("missing.pth", "shapes", log=f"{engine}:x")
    done = cli("cluster", "--ckpt", "missing.pth", "--dataset", "shapes", "--log", f"{engine}:x")
    assert done.exit_code == 2 and done.stderr.strip() == f"skipbench: {install}"
    Path("suite.toml").write_text(f'log = "{engine}:x"\n{SUITE}')
    done = cli("run", "suite.toml")
    assert done.exit_code == 2 and done.stderr.strip() == f"skipbench: {install}"
