"""What is done from records alone: other seeds for the noise, pictures of a comparison; labels."""

import json
import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from made import of_schema_1
from PIL import Image

import skipbench as sb
from skipbench import demo
from skipbench.demo import make_weights, small_facts
from skipbench.drawing.sheet import blend, paint
from skipbench.errors import CheckpointError, DataError, UsageError
from skipbench.evaluations import evaluations
from skipbench.metrics.segmentation import class_counts
from skipbench.record_store import read_result, write_result
from skipbench.results.baseline import read_baseline
from skipbench.results.calibrate import reopen
from skipbench.results.compare import draw_comparison, predictions
from skipbench.results.paired import paired
from skipbench.results.read import read_results

pytestmark = pytest.mark.usefixtures("nowhere_else")

QUICK = {"size": "64x80", "limit": 10, "epochs": 2, "loss_pixels": 64, "device": "cpu"}


def save(path, residual, seed=0):
    path.parent.mkdir(exist_ok=True)
    torch.save(make_weights(residual, small_facts(64, 3, 8, 1), seed), path)
    return path


@pytest.fixture
def ckpt(tmp_path):
    return save(tmp_path / "weights" / "skip.pth", "skip")


def probe(ckpt, residual="skip", **more):
    return sb.probe(ckpt, "shapes", residual=residual, **(QUICK | more))


def test_a_record_tells_how_it_was_asked_for(ckpt, cli):
    record = probe("weights/skip.pth", lr=[1e-3, 1e-2])
    call = record.environment["call"]
    assert call == {
        "ckpt": str(ckpt), "dataset": "shapes", "residual": "skip", "layers": "last", "seed": 0,
        "size": "64x80", "limit": 10, "epochs": 2, "loss_pixels": 64, "lr": [1e-3, 1e-2],
    }  # fmt: skip
    assert record.protocol["changes"].keys() == {"size", "epochs", "rates", "loss_pixels"}
    done = cli(
        "probe", "--ckpt", ckpt, "--dataset", "shapes", "--residual", "skip", "--size", "64x80",
        "--limit", 10, "--epochs", 2, "--loss-pixels", 64, "--lr", "1e-3,1e-2", "--json",
    )  # fmt: skip
    assert json.loads(done.stdout)[0]["id"] == record.id  # the command and its twin are one
    again = reopen(record, seeds=[0])
    assert [cell.id for cell in again.cells] == [record.id]


def test_other_weights_or_data_are_not_taken_for_those_of_a_record(ckpt, tmp_path):
    record = probe(ckpt)
    other = save(tmp_path / "weights" / "other.pth", "skip", seed=1)
    with pytest.raises(CheckpointError, match=f"not the weights of {record.id}"):
        reopen(record, seeds=[0], ckpt=other)
    with pytest.raises(DataError, match=f"not the images or labels of {record.id}"):
        reopen(record, seeds=[0], limit=9)
    environment = {k: v for k, v in record.environment.items() if k != "call"}
    old = type(record)(**{**record.to_json(), "environment": environment})
    with pytest.raises(UsageError, match="it cannot be rerun"):
        reopen(old, seeds=[0])


# -- labels


def test_labels_reach_the_record_and_its_tables(ckpt, cli):
    options = ["--size", "64x80", "--limit", 10, "--epochs", 2, "--residual", "skip"]
    arguments = ["probe", "--ckpt", ckpt, "--dataset", "shapes", *options]
    assert cli(*arguments).exit_code == 0
    [path] = Path("results").glob("*.json")
    assert read_result(path).checkpoint["optimizer"] is None
    labels = ["--label", "epoch=200", "--label", "optimizer=SOAP", "--label", "name=mine"]
    done = cli(*arguments, *labels)  # nothing is computed
    assert done.exit_code == 0 and "record exists" in done.stderr
    assert "renamed from skip.pth to mine" in done.stderr
    [path] = Path("results").glob("*.json")
    part = read_result(path).checkpoint
    assert (part["name"], part["epoch"], part["optimizer"]) == ("mine", 200, "SOAP")
    assert part["sources"]["epoch"] == "--label"
    made = sb.table("results", layout="table2", compact=True)
    assert made.rows[0].labels == ("single", "SOAP") and made.columns == (("shapes", "200 skip"),)
    assert cli(*arguments).exit_code == 0  # said once, it stays
    assert read_result(path).checkpoint["epoch"] == 200


@pytest.mark.parametrize(
    ("label", "words"),
    [("epochs=3", "Did you mean 'epoch'"), ("epoch=x", "is an integer"), ("epoch", "as in")],
)
def test_wrong_labels(cli, ckpt, label, words):
    done = cli("probe", "--ckpt", ckpt, "--dataset", "shapes", "--label", label)
    assert done.exit_code == 2 and words in done.stderr


# -- the noise


def test_calibrate_measures_the_noise_of_seeds(ckpt, cli):
    first = probe(ckpt)
    cli("check", "--baseline", "b.json", "--update")
    done = cli("calibrate", "--baseline", "b.json", "--seeds", "1,2", "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    (line,) = read_baseline(Path("b.json")).figures.values()
    values = [first.metrics["miou"]]
    values += [probe(ckpt, seed=seed, out="apart").metrics["miou"] for seed in (1, 2)]
    mean = sum(values) / 3
    deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
    assert line.noise == pytest.approx(deviation, abs=1e-4) and line.noise > 0
    assert (line.noise_seeds, line.seeds) == (3, 1)
    assert len(read_results("results")) == 1  # the new ones lie apart: tables stay as they are
    assert cli("check", "--baseline", "b.json", "--sigma", "2.8").exit_code == 0
    done = cli("calibrate", "--baseline", "b.json", "--seeds", "1,2", "--json")
    assert "record exists" in done.stderr
    assert json.loads(done.stdout)[0]["noise"] == pytest.approx(deviation)


def test_evaluations_without_a_seed_are_skipped(ckpt, cli):
    probe(ckpt)
    sb.tokencut(ckpt, "shapes", limit=4, size="64x80", device="cpu")
    done = cli("calibrate", "--seeds", "1", "--json")
    assert done.exit_code == 0, done.stderr
    assert "tokencut has no seed" in done.stderr and len(json.loads(done.stdout)) == 1
    cli("check", "--baseline", "b.json", "--update")
    done = cli("check", "--baseline", "b.json", "--sigma", "2")
    assert done.exit_code == 2
    assert "`skipbench calibrate --baseline b.json`" in done.stderr
    cli("calibrate", "--baseline", "b.json", "--seeds", "1")
    done = cli("check", "--baseline", "b.json", "--sigma", "2")
    assert done.exit_code == 2 and "calibrate" not in done.stderr.rsplit("\n--sigma")[-1]
    seeded = re.search("leave them out with (.*)[.]", done.stderr)[1].split()
    assert cli("check", "--baseline", "b.json", "--sigma", "2", *seeded).exit_code == 0
    done = cli("calibrate", "--where", "evaluation=tokencut")
    assert done.exit_code == 2 and "no records to calibrate" in done.stderr


def test_calibrated_seeds_keep_what_was_told(ckpt):
    probe(ckpt, labels={"name": "mine", "epoch": 7})
    sb.calibrate("results", seeds=[1], device="cpu")
    (new,) = read_results("results/calibration")
    assert (new.result.checkpoint["name"], new.result.checkpoint["epoch"]) == ("mine", 7)
    assert len(sb.table(["results", "results/calibration"]).rows) == 1


def test_calibrate_without_a_baseline_or_a_fitting_record(ckpt, cli):
    probe(ckpt)
    done = cli("calibrate", "--seeds", "0")
    assert done.exit_code == 2 and "at least one seed" in done.stderr
    done = cli("calibrate", "--where", "features=multiscale")
    assert done.exit_code == 2 and "no record" in done.stderr
    cli("check", "--baseline", "b.json", "--update")
    other = Path("b.json").read_text().replace('"epochs": 2', '"epochs": 3')
    Path("b.json").write_text(other)
    done = cli("calibrate", "--baseline", "b.json", "--seeds", "1")
    assert done.exit_code == 2 and "another protocol" in done.stderr
    done = cli("calibrate", "--baseline", "none.json")
    assert done.exit_code == 2 and "no baseline" in done.stderr


# -- pictures


@pytest.fixture
def two(ckpt, tmp_path):
    other = save(tmp_path / "weights" / "skipless.pth", "skipless")
    probe(ckpt), probe(other, "skipless")
    return ckpt, other


def test_the_images_that_moved_most_are_drawn(two, cli):
    done = cli("compare", "skip.pth", "skipless.pth", "--pictures", "3", "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    [path] = Path("results", "compare").glob("*/moved.png")
    assert str(path) in done.stdout
    with Image.open(path) as image:
        assert image.width > 4 * 150 and image.height > 3 * 240
    assert len(read_results("results")) == 2  # pictures are no records


def test_weights_that_have_moved(two, tmp_path, cli):
    (found,) = sb.compare("skip.pth", "skipless.pth")
    two[0].rename(tmp_path / "moved.pth")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        draw_comparison(found, 2, tmp_path / "p")
    ckpts = (tmp_path / "moved.pth", None)
    assert draw_comparison(found, 2, tmp_path / "p", ckpts=ckpts).exists()


def test_predictions_in_a_comparison_are_those_of_the_record(two, tmp_path):
    """The head of the record on features computed anew: the same pixels right as were counted."""
    (found,) = sb.compare("skip.pth", "skipless.pth")
    stored, moves = found.a[0], found.moved[:3]
    names = stored.result.dataset["names"]
    with ExitStack() as stack:
        drawing = predictions(stored, moves, stack, device="cpu")
        colours = drawing.data.labels.colours
        for i, move in enumerate(moves):
            drawn = drawing.draw(i)
            mask = drawn.item.mask()
            options = [blend(drawn.image, paint(mask * 0 + c, colours)) for c in range(7)]
            same = [(drawn.prediction == option).all(-1) for option in options]
            predicted = sum(c * where for c, where in enumerate(same))
            expected = stored.counts()[names.index(move.name)]
            # Background is black: where the picture is black too, painting does not tell.
            apart = np.abs(class_counts(predicted, mask, 7) - expected).sum()
            assert apart < 0.02 * mask.size


def test_nothing_to_draw(ckpt, tmp_path, cli):
    record = probe(ckpt)
    (stored,) = read_results("results")
    with pytest.raises(UsageError, match="no image differs"):
        draw_comparison(paired(stored, stored), 2, tmp_path / "p")
    other = of_schema_1(record, evaluation="knn", id="knn-shapes-1")
    arrays = read_results("results")[0].arrays()
    write_result(Path("results"), other, arrays)
    done = cli("compare", "knn-shapes-1", record.id, "--pictures", "2")
    assert done.exit_code == 2 and "no pictures of knn" in done.stderr


def test_tiles_are_the_same_images_for_every_checkpoint(two):
    for ckpt, residual in zip(two, ("skip", "skipless"), strict=True):
        probe(ckpt, residual, pictures=3)
    indexes = [json.loads(p.read_text()) for p in Path("results").glob("*/tiles/index.json")]
    assert len(indexes) == 2
    assert all(tile["note"].startswith("mIoU ") for index in indexes for tile in index["tiles"])
    names = [[tile["image"] for tile in index["tiles"]] for index in indexes]
    assert names[0] == names[1] == ["val_00000", "val_00001", "val_00002"]
    for path in Path("results").glob("*/tiles/*.png"):
        with Image.open(path) as image:
            assert image.height == 224 and image.width != 224
    assert all(colour.startswith("#") for index in indexes for _, colour in index["legend"])


def test_the_demo_from_python(tmp_path, monkeypatch):
    """On a few small images; the command is tested on all of them."""
    for one in evaluations().values():
        quick = {"size": "64x80", "limit": 6, "seeds": [0], "epochs": 1}
        known = one.settings.options()
        fitting = {name: value for name, value in quick.items() if name in known}
        monkeypatch.setattr(one, "demo", [fitting], raising=False)
    page = demo.run(tmp_path / "demo")
    assert page == tmp_path / "demo" / "report.html"
    words = page.read_text()
    assert demo.TITLE in words and "skip.pth" in words and "skipless.safetensors" in words
