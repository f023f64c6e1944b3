"""`skipbench probe` as a user meets it: records, interruption, protocols, pictures, faults."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import trees
from conftest import lasting, records
from PIL import Image
from processes import Forked
from tiny import TOKENS, TRAIN, VAL, arrays_of, interrupted, same

import skipbench
from skipbench import pipeline
from skipbench.errors import UsageError
from skipbench.evaluations import resume
from skipbench.evaluations.pictures import from_both_ends
from skipbench.features.stream import Extractor
from skipbench.metrics.segmentation import miou_percent, scores
from skipbench.record_store import find_result, read_arrays, read_result, write_result

pytestmark = pytest.mark.usefixtures("nowhere_else")

QUICK = {"epochs": 3, "loss_pixels": 64}
CROPS = {"size": "48"}  # of protocols that train on square crops


@pytest.fixture
def probe(home):
    return lambda **more: home.evaluate("probe", **{**QUICK, **more})


@pytest.fixture
def run(cli, home):
    """The command in this process, with a cache of the test's own."""
    quick = ("--epochs", "3", "--loss-pixels", "64")
    return lambda *more: cli(*home.arguments("probe", *quick, *more))


# -- the record


def test_a_record_says_how_it_was_made(run):
    shown = run("--dataset", "shapes", "--limit", "12", "--size", "64x80")
    assert shown.exit_code == 0, shown.stderr
    [record] = records()
    assert record.id in shown.stdout and "mIoU" in shown.stdout and "held-out" in shown.stdout
    assert record.evaluation == "probe" and record.dataset["name"] == "shapes"
    assert record.dataset["partial"] and len(record.dataset["names"]) == 12
    assert record.training["split"] == "train" and record.checkpoint["residual"] == "skip"
    assert record.checkpoint["residual_source"] == "--residual"
    assert record.features["blocks"] == [2] and record.features["size"] == "64x80"
    protocol = record.protocol
    assert protocol["name"] == "paper" and protocol["epochs"] == 3 and protocol["seed"] == 0
    assert protocol["loss_pixels"] == 64 and len(protocol["held_out"]) == 1
    assert protocol["held_out"][0] in record.training["names"]
    metrics = record.metrics
    assert [row["rate"] for row in metrics["rates"]] == [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    assert metrics["interval"][0] <= metrics["miou"] <= metrics["interval"][1]
    assert set(metrics["chosen"]) == {"val", "holdout"}
    assert record.timing["training_seconds"] > 0 and record.timing["peak_memory_bytes"] > 10**7
    assert record.environment["threads"] == torch.get_num_threads()
    arrays = arrays_of(record)
    assert arrays["counts"].shape == (12, 3, 7) and arrays["weight"].shape == (64, 7)
    assert scores(arrays["counts"].sum(0)).miou == pytest.approx(metrics["miou"])
    honest = scores(arrays["counts_holdout"].sum(0)).miou
    assert honest == pytest.approx(metrics["chosen"]["holdout"]["miou"])


def test_an_existing_record_is_shown_again(run, monkeypatch):
    first = run()
    assert first.exit_code == 0
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed again
    again = run()
    assert again.exit_code == 0 and "record exists" in again.stderr
    assert again.stdout == first.stdout


def test_the_same_seed_gives_the_same_record_another_one_another(run, probe):
    [one], [two] = probe(), probe(force=True)
    assert lasting(one) == lasting(two)
    shown = run("--seeds", "0,1,2")
    assert shown.exit_code == 0 and len(records()) == 3
    values = [record.metrics["miou"] for record in records()]
    spread = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert spread in shown.stdout and "3 seeds" in shown.stdout and len(set(values)) > 1


def test_what_matters_is_another_record(probe):
    probe(epochs=1)
    for more in (
        {"lr": "1e-3,1e-2"}, {"epochs": 2}, {"select": "holdout"}, {"norm": False},
        {"size": "56x40"}, {"standardize": False}, {"layers": "0"}, {"score_size": 50},
        {"loss_pixels": "all"}, {"limit": 4}, {"train_images": 5}, {"store_dtype": "fp32"},
    ):  # fmt: skip
        before = len(records())
        probe(**{"epochs": 1, **more})
        assert len(records()) == before + 1, more
    for more in ({"layers": "-1"}, {"batch_size": 2}):
        probe(**{"epochs": 1, **more})
        assert len(records()) == before + 1, more


def test_several_sets_of_layers_share_one_pass(probe, seen):
    together = probe(layers=["last", "multiscale", "0,-1"], cache="cache")
    assert sum(count for count, _ in seen) == TRAIN + VAL
    assert {blocks for _, blocks in seen} == {(0, 1, 2)}
    found = {r.features["layers"]: r for r in together}
    assert set(found) == {"last", "multiscale", "0,-1"}
    # Alone, from scratch, it is the same record.
    [alone] = probe(layers="last", out="alone", cache="other")
    assert lasting(alone) == lasting(found["last"])


def test_features_that_do_not_fit_in_memory(run, monkeypatch):
    monkeypatch.setattr("skipbench.features.source.available_bytes", lambda: 1000)
    shown = run("--no-cache")
    assert shown.exit_code == 7 and "memory" in shown.stderr and "--no-cache" in shown.stderr


def test_edge_of_the_sweep_and_selection(run):
    shown = run("--lr", "1e-6,1e-2")
    assert "of the sweep: widen it" in shown.stdout + shown.stderr
    [record] = records()
    assert record.metrics["edge"] in ("lowest", "highest")  # of two rates, either is an edge
    honest = run("--lr", "1e-6,1e-2", "--select", "holdout", "--out", "honest")
    [other] = records("honest")
    assert other.metrics["selected_on"] == "holdout" and "held-out training" in honest.stdout


def test_from_python_one_record_or_all(home, probe, seen):
    options = home.options(**QUICK)
    results = probe(seeds=[0, 1])
    assert skipbench.probe(home.ckpt, home.dataset, seed=1, **options) == results[1]
    assert skipbench.probe_all(home.ckpt, home.dataset, seeds=[0, 1], **options) == results
    assert results[0] == read_result(Path("results", f"{results[0].id}.json"))
    seen.clear()
    with pytest.raises(UsageError, match="2 records: use probe_all"):
        skipbench.probe(home.ckpt, home.dataset, seeds=[0, 1], **{**options, "cache": "new"})
    assert not seen  # said before any work


def test_numbers_from_python(home):
    options = home.options(epochs=1, limit=2, size=64, score_size=20, lr=[1e-2, 1e-3])
    result = skipbench.probe(home.ckpt, home.dataset, **options)
    assert [row["rate"] for row in result.metrics["rates"]] == [1e-3, 1e-2]
    assert result.protocol["size"] == "64x64" and result.protocol["score_size"] == 20


# -- interruption


def stopped(probe, at, **more):
    """After so many epochs."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted(patch, resume.TrainingState, "save", at)
        probe(**more)


@pytest.mark.parametrize("protocol", ["paper", "leopart"])
@pytest.mark.parametrize("after", [1, 2])
def test_interrupted_in_training_it_goes_on(probe, after, protocol, caplog):
    """The record is that of an undisturbed run, to the last bit."""
    how = {"protocol": protocol, **(CROPS if protocol == "leopart" else {})}
    [whole] = probe(**how, out="undisturbed", cache="a")
    stopped(probe, after, **how, cache="b")
    assert not records()
    caplog.set_level("INFO", "skipbench")
    [result] = probe(**how, cache="b")
    assert f"{after} of 3 epochs were done before" in caplog.text
    assert same(result, whole, ("results", "undisturbed"))
    assert not list(Path("b/probe").iterdir())  # the state is not needed any more


def test_a_damaged_state_is_no_state(probe, caplog):
    stopped(probe, 1, cache="b")
    [state] = Path("b/probe").iterdir()
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    [result] = probe(cache="b")
    assert "damaged" in caplog.text
    [whole] = probe(out="whole")
    assert same(result, whole, ("results", "whole"))


def test_a_command_interrupted_ends_quietly(run, monkeypatch):
    interrupted(monkeypatch, resume.TrainingState, "save", 1)
    shown = run()
    assert shown.exit_code == 130 and "Traceback" not in shown.stderr and not records()


def test_two_processes_with_crops_on_one_cache(home, tmp_path):
    """Each removes the crops of an epoch once it is over; neither minds the other."""
    how = ("--protocol", "leopart", "--size", "48", "--epochs", "6", "--loss-pixels", "32")
    both = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        words = home.arguments("probe", *how, "--cache", tmp_path / "cache")
        both.append(Forked(words, tmp_path / name))
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(Forked.wait, both)) == [0, 0], [one.output for one in both]
    [one], [other] = records("a/results"), records("b/results")
    assert lasting(one) == lasting(other)
    left = [path.name for path in Path("cache/features").iterdir() if "lock" not in path.name]
    assert len(left) == 1  # the validation images


# -- protocols


@pytest.mark.parametrize("protocol", ["dinov2", "leopart"])
def test_published_protocols(probe, protocol):
    how = {"protocol": protocol, "cache": "cache", **CROPS}
    [record] = probe(**how)
    assert record.protocol["name"] == protocol and record.protocol["held_out"] == []
    assert record.metrics["selected_on"] is None and len(record.metrics["rates"]) == 1
    # Crops that will not come again are not kept; validation features are.
    assert len(stored("cache")) == 1
    probe(**how, views=2)
    assert len(stored("cache")) == 3 and len(records()) == 2


def stored(cache):
    return [path for path in Path(cache, "features").iterdir() if path.is_dir()]


def test_windows_that_see_the_whole_picture_are_no_windows(home):
    """One window as large as a square picture gives what the whole picture gives."""
    folder = Path("square")
    for split in ("train", "val"):
        for i in range(4):
            trees.photo(folder / "images" / split / f"{i}.png", (48, 48), i)
            mask = trees.blocks((48, 48), [0, 1, 2])
            trees.grey_png(folder / "masks" / split / f"{i}.png", mask)
    (folder / "classes.txt").write_text("a\nb\nc\n")
    found = []
    for window in ((48, 32), None):
        how = {"dataset": f"folder:{folder}", "epochs": 3, "size": "48", "lr": 1e-2}
        run = home.open("probe", **how, out=f"results-{window}", cache="cache")
        run.protocol = replace(run.protocol, window=window)
        [result] = pipeline.carry_out(run)
        found.append(result.metrics["miou"])
    assert found[0] == pytest.approx(found[1], abs=0.1)


def test_padded_pictures(probe):
    """Sizes that are no whole patches, and another one for every picture."""
    folder = Path("mine")
    for i in range(5):
        size_hw = (41 + 3 * i, 57 - 2 * i)
        for split in ("train", "val"):
            trees.photo(folder / "images" / split / f"{i}.jpg", size_hw, i)
            mask = trees.blocks(size_hw, [0, 1, 255])
            trees.grey_png(folder / "masks" / split / f"{i}.png", mask)
    (folder / "classes.txt").write_text("left\nmiddle\n")
    for size in ("native", "short:40", "45x61"):
        probe(dataset=f"folder:{folder}", epochs=2, size=size, cache="cache")
    assert len(records()) == 3


@pytest.mark.parametrize("protocol", ["dinov2", "leopart"])
def test_a_sweep_over_crops_has_held_out_images_too(probe, protocol):
    [record] = probe(protocol=protocol, lr="1e-3,1e-2,1e-1", **CROPS)
    assert len(record.protocol["held_out"]) == 1
    assert record.metrics["chosen"]["holdout"]["rate"] in (1e-3, 1e-2, 1e-1)


def test_too_few_images_to_hold_some_out(probe, caplog):
    [record] = probe(limit=1, select="holdout")
    assert "too few" in caplog.text
    assert record.metrics["selected_on"] == "val" and not record.metrics["chosen"]["holdout"]


# -- pictures


def test_pictures(run):
    assert run().exit_code == 0
    shown = run("--pictures", "3")  # of a probe that is done: nothing is trained for them
    assert shown.exit_code == 0 and "record exists" in shown.stderr
    [record] = records()
    folder = Path("results", record.id)
    assert str(folder) in shown.stderr
    names = sorted(path.name for path in folder.glob("0*.png"))
    assert [name.split("_")[1] for name in names] == ["worst", "best", "worst"]
    assert len(list(folder.glob("sheet*.png"))) == 1
    with Image.open(folder / names[0]) as image:
        assert image.width > 3 * 150 and image.height > 240


def test_pictures_of_what_was_done_before_and_of_what_is_new(probe):
    """Together they need more blocks than what is new alone."""
    probe(layers="0")
    probe(layers=["0", "last"], pictures=1)
    assert len(list(Path("results").glob("*/sheet*.png"))) == 2


def test_worst_and_best():
    counts = np.zeros((5, 3, 2), int)
    for image, right in enumerate([5, 1, 9, 0, 7]):
        counts[image] = [[right, 0], [10, 0], [10, 0]]
    counts[3] = 0  # nothing is labelled there
    mious = miou_percent(counts)
    chosen = [(image, which) for image, which, _ in from_both_ends(mious, 10)]
    assert chosen == [(1, "worst"), (2, "best"), (0, "worst"), (4, "best")]
    assert len(from_both_ends(mious, 2)) == 2 and from_both_ends(mious, 0) == []


# -- the dry run


def test_dry_run(run):
    layers = ("--layers", "last", "--layers", "0")
    shown = run("--dry-run", *layers)
    assert shown.exit_code == 0, shown.stderr
    assert "features of 11 images" in shown.stdout and "in all about" in shown.stdout
    assert "of disk" in shown.stdout and "of memory" in shown.stdout
    assert not list(Path("results").iterdir())
    assert run(*layers).exit_code == 0
    found = json.loads(run("--dry-run", *layers, "--json").stdout)
    assert found["images"] == 0 and found["stored"] == TRAIN + VAL and found["disk_bytes"] == 0
    expected = (TRAIN + VAL) * TOKENS * 64 * 2  # images × tokens × channels × bytes
    found = json.loads(run("--dry-run", "--json", "--cache", "empty").stdout)
    assert found["images"] == TRAIN + VAL and found["disk_bytes"] == expected
    assert found["seconds"] > 0 and found["memory_bytes"] > 10**7


@pytest.mark.parametrize("protocol", ["dinov2", "leopart"])
def test_dry_run_of_crops(run, protocol):
    shown = run("--dry-run", "--protocol", protocol, "--size", "48", "--json")
    assert shown.exit_code == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["images"] >= TRAIN * 3 + VAL  # another crop in every epoch


# -- faults


@pytest.mark.parametrize("protocol", ["paper", "dinov2"])
def test_single_masks_without_a_label_count_for_nothing(probe, protocol):
    """Also where one of them is the only one held out, or alone in the last batch."""
    how = {"epochs": 2, "protocol": protocol, "lr": "1e-3,1e-2", "size": "40"}
    some_blank(Path("some"), set())
    [whole] = probe(**how, dataset="folder:some", cache="cache")
    held_out = whole.protocol["held_out"]
    names = {("train", int(Path(name).name.partition(".")[0])) for name in held_out}
    some_blank(Path("blank"), names | {("val", 2)})
    [record] = probe(**how, dataset="folder:blank", cache="cache", out="x")
    assert record.metrics["chosen"]["holdout"] is None and record.metrics["miou"] > 0


def some_blank(folder, blank, count=17):
    """A folder with images whose masks are ignored throughout: (split, number) of each."""
    for split in ("train", "val"):
        for i in range(count):
            trees.photo(folder / "images" / split / f"{i}.jpg", (41, 57), i)
            mask = trees.blocks((41, 57), [0, 1, 255])
            mask = np.full_like(mask, 255) if (split, i) in blank else mask
            trees.grey_png(folder / "masks" / split / f"{i}.png", mask)
    (folder / "classes.txt").write_text("a\nb\n")


def test_out_of_memory_in_training(run, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("skipbench.evaluations.probe.method.fit", fail)
    shown = run()
    assert shown.exit_code == 7 and "--lr" in shown.stderr


def test_every_rate_diverges(run):
    shown = run("--protocol", "leopart", "--size", "48", "--lr", "1e38")
    assert shown.exit_code == 6 and "--lr" in shown.stderr and not records()


# -- the store of records


def test_records_are_read_back_or_named(probe):
    [record] = probe()
    folder, path = Path("results"), Path("results", f"{record.id}.json")
    assert find_result(folder, record.id) == record
    write_result(folder, record, read_arrays(folder / f"{record.id}.npz"))
    assert read_result(path) == record
    whole = path.read_text()
    for content, word in (
        (whole[:-40], "damaged"),
        (whole.replace('"schema": 2', '"schema": 9'), "newer"),
        ("[]", "not a skipbench record"),
        ("{}", "not a skipbench record"),
    ):
        path.write_text(content)
        with pytest.raises(skipbench.SkipbenchError, match=word):
            read_result(path)
        assert find_result(folder, record.id) is None
    path.write_text(whole)
    arrays = path.with_suffix(".npz")
    arrays.write_bytes(arrays.read_bytes()[:-30])
    assert find_result(folder, record.id) is None
    probe()  # a record whose arrays are damaged is made anew
    assert find_result(folder, record.id) is not None
