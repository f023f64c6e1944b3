"""What probe, knn and cluster share: data with masks, checkpoints, stored features."""

import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import trees
from conftest import records
from tiny import (
    SIZE,
    TRAIN,
    VAL,
    all_alike,
    arrays_of,
    nan_in_a_block,
    same,
    tiny_checkpoint,
    tiny_folder,
    without_labels,
)

import skipbench
from skipbench.engine import vectors
from skipbench.features.source import FeatureSource
from skipbench.settings.groups import StoredFeatureSettings

pytestmark = pytest.mark.usefixtures("nowhere_else")

QUICK = {
    "probe": ("--epochs", "1", "--loss-pixels", "64"),
    "knn": (),
    "cluster": ("--seeds", "1"),
}


@pytest.fixture(params=QUICK)
def name(request):
    return request.param


@pytest.fixture
def run(cli, home, name):
    """The command in this process, with a cache of the test's own."""
    return lambda *more: cli(*home.arguments(name, *QUICK[name], *more))


# -- features


def test_features_are_those_of_extract(run, cli, home, name, seen):
    for split in ("train", "val"):
        how = ("--dataset", home.dataset, "--split", split, "--size", SIZE, "--residual", "skip")
        shown = cli("extract", "--ckpt", home.ckpt, *how, "--device", "cpu")
        assert shown.exit_code == 0, shown.stderr
    seen.clear()
    assert run().exit_code == 0 and not seen
    [result] = records()
    assert result.timing["images_computed"] == 0


def test_without_a_cache_it_is_the_same_record(run, name, seen):
    layers = ("--layers", "last", "--layers", "0")
    assert run(*layers).exit_code == 0
    shown = run(*layers, "--no-cache", "--out", "x", "--cache", "none")
    assert shown.exit_code == 0, shown.stderr
    images = VAL if name == "cluster" else TRAIN + VAL
    assert len(records()) == 2 and sum(count for count, _ in seen) == 2 * images  # one pass each
    assert all(same(a, b, ("results", "x")) for a, b in zip(records(), records("x"), strict=True))
    assert not Path("none").exists()


def test_two_names_of_one_set_of_layers_are_one(run):
    assert run("--layers", "last", "--layers", "2", "--layers", "-1").exit_code == 0
    assert len(records()) == 1 and "record exists" in run("--layers", "-1").stderr


def test_features_may_take_50_gb_of_disk_however_they_are_asked_for():
    usual = StoredFeatureSettings.defaults()
    assert FeatureSource().limit_bytes == usual["cache_limit"] == 50 * 10**9
    assert FeatureSource().in_memory is usual["in_memory"] is False


# -- the record


def test_json_is_quiet_and_in_the_order_asked_for(run, name):
    seeds = ("--seeds", "3,1", *(("--memory", "60") if name == "knn" else ()))
    shown = run(*seeds, "--json", "--quiet")
    assert shown.exit_code == 0 and not shown.stderr
    assert shown.stdout.index('"seed": 3') < shown.stdout.index('"seed": 1')


def test_one_image_has_no_interval(run):
    shown = run("--limit", "1")
    assert shown.exit_code == 0, shown.stderr
    [result] = records()
    assert result.metrics["interval"] is None and result.dataset["images"] == 1
    assert "cat" in shown.stdout and "–" in shown.stdout  # classes, and those that are not there


def test_a_data_set_without_whole_splits(run, name):
    trees.voc(Path("data"))
    how = ("--dataset", "voc", "--size", "24x32")
    shown = run(*how)
    assert shown.exit_code == 4 and "--limit" in shown.stderr and not records()
    shown = run(*how, "--limit", "3")
    assert shown.exit_code == 0 and "partial" in shown.stdout, shown.stderr
    [result] = records()
    assert result.dataset["partial"] and (name == "cluster" or result.training["partial"])
    # Classes without a pixel in any validation mask are left out of the mean, and named.
    assert "tvmonitor" in result.metrics["absent_classes"]
    assert not result.metrics["per_class"]["tvmonitor"]


# -- faults


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (("--dataset", "vocc"), 2, "Did you mean 'voc'"),
        (("--dataset", "voc"), 4, "--data-root"),
        (("--dataset", "coco20k"), 4, "coco20k"),
        (("--dataset", "folder:nowhere"), 4, "nowhere"),
        (("--layers", "7"), 2, "has blocks 0 to 2"),
        (("--label", "epochs=3"), 2, "Did you mean 'epoch'"),
        (("--out", "file"), 7, "cannot write"),
        (("--ckpt", "fiel"), 3, "no checkpoint at fiel"),
        (("--ckpt", "skpi.pth"), 3, "Did you mean 'skip.pth'"),
        (("--ckpt", "file"), 3, "file"),
        (("--device", "cuda:9"), 2, "cuda"),
    ],
)
def test_faults(run, more, code, word, seen):
    Path("file").write_text("this is no checkpoint")
    Path("skip.pth").write_text("nor is this")
    shown = run(*more)
    said = " ".join(shown.stderr.split())
    assert shown.exit_code == code and word in said, shown.stderr
    assert "Traceback" not in said and not seen and not list(Path().glob("results/*.json"))


def test_a_data_set_without_masks(run):
    trees.coco20k(Path("data"))
    shown = run("--dataset", "coco20k", "--limit", "2")
    assert shown.exit_code == 2 and "has no masks, which are needed" in shown.stderr
    assert "probe" not in shown.stderr and not records()


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_without_a_label(run, name, split, seen):
    """Found before any feature is computed."""
    tiny_folder(Path("blank"))
    without_labels(Path("blank", "masks", split))
    shown = run("--dataset", "folder:blank")
    if name == "cluster" and split == "train":  # which it does not look at
        assert shown.exit_code == 0
        return
    assert shown.exit_code == 4 and f"{split}: no labelled pixel" in shown.stderr
    assert not seen and not records()


def test_a_mask_with_a_strange_label(run, seen):
    tiny_folder(Path("strange"))
    mask = trees.blocks((33, 64), [0, 99, 255])
    trees.grey_png(Path("strange", "masks", "val", "1.png"), mask)
    shown = run("--dataset", "folder:strange")
    assert shown.exit_code == 4 and "99" in shown.stderr and "1.png" in shown.stderr
    assert not seen and not records()


def test_nan_in_the_weights(run, tmp_path):
    bad = tiny_checkpoint(tmp_path / "nan.pth", spoil=nan_in_a_block)
    shown = run("--ckpt", bad)
    assert shown.exit_code == 6 and "NaN" in shown.stderr and not records()
    assert "Traceback" not in shown.stderr


def test_tokens_that_are_all_alike(run, tmp_path):
    """One class for all pixels."""
    flat = tiny_checkpoint(tmp_path / "flat.pth", spoil=all_alike)
    shown = run("--ckpt", flat, "--pictures", "1")
    assert shown.exit_code == 0 and "constant features" in shown.stderr, shown.stderr
    [result] = records()
    assert result.features["degenerate"] == {"tokens_norm.2": VAL}
    assert 0 <= result.metrics["miou"] <= 100
    counts = arrays_of(result)["counts"]
    assert (counts[:, 1] > 0).sum(1).max() == 1 and np.isfinite(counts).all()


# -- faiss, which knn and cluster need


def no_faiss(monkeypatch, state):
    """As though it were not installed, or twice."""
    known = metadata.version

    def version(name):
        if name.startswith("faiss"):
            if state == "both" and name in ("faiss-cpu", "faiss-gpu"):
                return "1.9.0"
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(vectors.metadata, "version", version)
    if state == "missing":
        monkeypatch.setitem(sys.modules, "faiss", None)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("missing", "pip install faiss-"),
        ("both", "pip uninstall -y faiss-cpu faiss-gpu && pip install faiss-"),
    ],
)
@pytest.mark.parametrize("command", ["knn", "cluster"])
def test_faiss_missing_or_twice(cli, home, monkeypatch, seen, command, state, words):
    for more in ((), ("--dry-run",)):
        no_faiss(monkeypatch, state)
        shown = cli(*home.arguments(command, *more))
        assert shown.exit_code == 2 and words in " ".join(shown.stderr.split())
        assert not seen and not records() and "Traceback" not in shown.stderr


@pytest.mark.parametrize("command", ["knn", "cluster"])
def test_faiss_missing_is_said_from_python_before_anything_is_seen(
    home, monkeypatch, seen, command
):
    no_faiss(monkeypatch, "missing")
    with pytest.raises(skipbench.SkipbenchError, match="faiss is not installed"):
        getattr(skipbench, command)(home.ckpt, home.dataset, **home.options(cache="new"))
    assert not seen
