"""`skipbench knn` as a user meets it: records, interruption, pictures, faults."""

import json
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest
from conftest import lasting, records
from PIL import Image
from tiny import (
    SIZE,
    TOKENS,
    TRAIN,
    VAL,
    all_alike,
    arrays_of,
    interrupted,
    same,
    suite,
    tiny_checkpoint,
    tiny_folder,
    without_labels,
)

import skipbench
from skipbench import pipeline
from skipbench.engine import vectors
from skipbench.errors import DataError, ResourceError
from skipbench.evaluations import resume
from skipbench.evaluations.knn.run import KnnRun
from skipbench.features.stream import Extractor
from skipbench.record_store import read_arrays
from skipbench.results.baseline import read_baseline

pytestmark = pytest.mark.usefixtures("nowhere_else")


@pytest.fixture
def knn(home):
    return lambda **more: home.evaluate("knn", **more)


@pytest.fixture
def run(cli, home):
    """The command in this process, with a cache of the test's own."""
    return lambda *more: cli(*home.arguments("knn", *more))


# -- the record


def test_a_record_says_how_it_was_made(run, home):
    shown = run("--k", "3,30", "--seeds", "0,1", "--memory", "60", "--label", "epoch=7")
    assert shown.exit_code == 0, shown.stderr
    found = records()
    assert len(found) == 4 and {r.protocol["seed"] for r in found} == {0, 1}
    for result in found:
        assert f"results/{result.id}.json" in shown.stdout
        assert result.evaluation == "knn" and result.id.startswith("knn-folder-tiny-")
        assert result.dataset["split"] == "val" and result.dataset["images"] == VAL
        assert result.training["split"] == "train" and result.training["images"] == TRAIN
        assert result.checkpoint["epoch"] == 7 and result.checkpoint["name"] == "skip.pth"
        assert result.features["blocks"] == [2] and result.features["size"] == SIZE
        protocol = result.protocol
        assert protocol["name"] == "hummingbird" and protocol["memory"] == 60
        assert protocol["changes"]["size"] == ["512x512", SIZE]
        assert ("k" in protocol["changes"]) == (protocol["k"] == 3)
        assert "temperature" not in protocol["changes"]
        assert result.metrics["headline"] == "miou" and result.metrics["bank"]["tokens"] == 60
        timing = result.timing
        assert timing["images"] == timing["images_computed"] == TRAIN + VAL
        assert timing["bank_seconds"] >= 0 and timing["searching_seconds"] >= 0
        call = result.environment["call"]
        assert call["ckpt"] == str(home.ckpt) and call["dataset"] == home.dataset
        assert (call["k"], call["seed"]) == (protocol["k"], protocol["seed"])
    values = [r.metrics["miou"] for r in found if r.protocol["k"] == 3]
    assert f"{np.mean(values):.2f} ± {stdev(values):.2f}" in shown.stdout
    assert "2 seeds" in shown.stdout and "60 tokens in the bank" in shown.stdout
    assert "6 of train" in shown.stdout and "Traceback" not in shown.stderr


def test_what_matters_is_another_record(home):
    def name(**more):
        return home.open("knn", **more).cells[0].id

    seen = {name()}
    for more in (
        {"k": 3}, {"temperature": 0.5}, {"memory": 90}, {"index": "ivf"}, {"seeds": [1]},
        {"layers": "0"}, {"norm": False}, {"size": "48x56"}, {"limit": 4}, {"train_images": 3},
        {"store_dtype": "fp32"}, {"bank_limit": 30_000},
    ):  # fmt: skip
        found = name(**more)
        assert found not in seen, more
        seen.add(found)
    for more in ({"layers": "-1"}, {"batch_size": 2}, {"index": "flat"}, {"bank_limit": 10**6}):
        assert name(**more) in seen, more


# -- interruption


@pytest.fixture(scope="module")
def undisturbed(home):
    """Two records, made shard by shard."""
    out = home.folder / "undisturbed"
    made = pipeline.carry_out(home.open_in_shards("knn", k=[3, 30], out=out))
    return out, {result.id: result for result in made}


@pytest.fixture
def go(home):
    """From the start, or on from where it was stopped, in shards of two images."""

    def go(**more):
        return pipeline.carry_out(home.open_in_shards("knn", cache="cache", **more))

    return go


def stopped(go, owner, name, at, before=False, **more):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted(patch, owner, name, at, before)
        go(**more)


def searches(monkeypatch):
    found, plain = [], vectors.Flat.search

    def counting(self, queries, k):
        found.append(k)
        return plain(self, queries, k)

    monkeypatch.setattr(vectors.Flat, "search", counting)
    return found


@pytest.mark.parametrize(
    ("owner", "name", "at", "before", "left"),
    [
        (KnnRun, "build_memory", 1, False, [30, 30, 30]),
        (vectors.Flat, "search", 2, True, [30, 30]),
        (resume.Chunks, "save", 1, False, [30, 30, 30]),  # one of the two was kept
        (resume.Chunks, "save", 4, False, [30]),
        (pipeline, "write_result", 1, True, []),
        (pipeline, "write_result", 1, False, []),
    ],
)
def test_interrupted_it_goes_on(go, undisturbed, monkeypatch, owner, name, at, before, left, seen):
    """The record is that of an undisturbed run, to the last bit; nothing is sought twice."""
    stopped(go, owner, name, at, before, k=[3, 30])
    assert len(records()) == (name == "write_result" and not before)
    seen.clear()
    again = searches(monkeypatch)
    go(k=[3, 30])
    assert again == left and not seen
    out, whole = undisturbed
    assert {r.id for r in records()} == set(whole)
    assert all(same(r, whole[r.id], ("results", out)) for r in records())


def test_a_command_interrupted_ends_quietly(run, monkeypatch):
    with monkeypatch.context() as patch:
        interrupted(patch, vectors.Flat, "search", 1)
        shown = run()
    assert shown.exit_code == 130 and "Traceback" not in shown.stderr and not records()


def test_nothing_is_left_in_the_cache(go):
    """Interrupted, what was done is kept; done, it is not."""
    stopped(go, resume.Chunks, "save", 2)
    kept = sorted(path.name for path in Path("cache/knn").glob("*/*"))
    assert kept == ["00000.npz", "00001.npz"]
    go()
    assert not list(Path("cache/knn").iterdir())


def test_nothing_is_left_of_a_record_that_was_just_written(go, caplog):
    stopped(go, pipeline, "write_result", 1)
    assert len(records()) == 1
    caplog.set_level("INFO", "skipbench")
    go()
    assert "record exists" in caplog.text and not list(Path("cache/knn").iterdir())


@pytest.mark.parametrize("damage", ["a bit", "half"])
def test_a_damaged_chunk_is_noticed(go, undisturbed, monkeypatch, caplog, damage):
    stopped(go, resume.Chunks, "save", 2)
    path = sorted(Path("cache/knn").glob("*/*"))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    changed = {"a bit": content, "half": content[: len(content) // 2]}
    path.write_bytes(changed[damage])
    again = searches(monkeypatch)
    [result] = go()
    assert "damaged" in caplog.text and len(again) == 2
    out, whole = undisturbed
    assert same(result, whole[result.id], ("results", out))


def test_forced_it_is_not_taken_from_chunks(go, monkeypatch):
    stopped(go, resume.Chunks, "save", 2)
    found = searches(monkeypatch)
    go(force=True)
    assert len(found) == 3 and not list(Path("cache/knn").iterdir())


def test_a_full_disk_while_chunks_are_kept(go, monkeypatch, undisturbed):
    def full(path, content):
        raise ResourceError(f"{path}: no space left")

    with monkeypatch.context() as patch, pytest.raises(ResourceError, match="no space left"):
        patch.setattr(resume, "write_whole", full)
        go()
    assert not records()
    [result] = go()
    assert same(result, undisturbed[1][result.id], ("results", undisturbed[0]))


# -- existing records


def test_existing_records_forced_damaged_and_labelled(run, monkeypatch):
    first = run()
    [result] = records()
    path = Path("results", f"{result.id}.json")
    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "run", None)  # nothing is computed again
        patch.setattr(vectors.Flat, "search", None)
        again = run()
        assert again.exit_code == 0 and "record exists" in again.stderr
        assert again.stdout == first.stdout
        told = run("--label", "name=mine", "--label", "optimizer=SOAP", "--quiet")
        assert told.exit_code == 0 and "mine" in told.stdout
        [labelled] = records()
        assert (labelled.checkpoint["name"], labelled.checkpoint["optimizer"]) == ("mine", "SOAP")
        assert labelled.metrics == result.metrics
    path.unlink(), path.with_suffix(".npz").unlink()
    assert run().exit_code == 0
    with monkeypatch.context() as patch:
        found = searches(patch)
        assert run("--force").exit_code == 0 and len(found) == 1
        assert same(records()[0], result)
        path.with_suffix(".npz").write_bytes(b"no arrays")
        shown = run()
        assert shown.exit_code == 0 and "damaged" in shown.stderr and len(found) == 2
        path.write_text(path.read_text()[:-40])
        shown = run()
        assert shown.exit_code == 0 and "damaged" in shown.stderr and len(found) == 3
    assert same(records()[0], result)


def test_dry_run(run):
    shown = run("--dry-run", "--json")
    assert shown.exit_code == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["images"] == TRAIN + VAL and found["stored"] == 0
    assert found["disk_bytes"] == (TRAIN + VAL) * TOKENS * 64 * 2
    assert found["seconds"] > 0 and found["memory_bytes"] > 10**7
    assert not list(Path("results").iterdir()) and not list(Path("cache").rglob("*.safetensors"))
    assert run().exit_code == 0
    for more in (("--index", "ivf"), ("--layers", "multiscale", "--size", "native")):
        shown = run("--dry-run", *more)
        assert shown.exit_code == 0 and "bank and neighbours" in shown.stdout, shown.stderr
    found = json.loads(run("--dry-run", "--json").stdout)
    assert (found["images"], found["stored"], found["disk_bytes"]) == (0, TRAIN + VAL, 0)
    assert len(records()) == 1


# -- pictures


def test_pictures_also_of_what_was_done_before(run):
    how = ("--k", "3,30", "--seeds", "0,1", "--memory", "60")
    assert run(*how).exit_code == 0
    before = {r.id: lasting(r) for r in records()}
    shown = run(*how, "--pictures", "2")
    assert shown.exit_code == 0 and "record exists" in shown.stderr, shown.stderr
    assert {r.id: lasting(r) for r in records()} == before
    first = {r.id for r in records() if r.protocol["seed"] == 0}
    assert {path.parent.name for path in Path("results").glob("*/sheet.png")} == first
    for name in first:
        folder = Path("results", name)
        made = sorted(path.name.split("_")[1] for path in folder.glob("0*.png"))
        assert made == ["best", "worst"] and str(folder) in shown.stderr
        index = json.loads((folder / "tiles" / "index.json").read_text())
        assert [tile["image"] for tile in index["tiles"]] == ["val/0", "val/1"]
        counts = read_arrays(Path("results") / f"{name}.npz")["counts"]
        for tile, (right, predicted, true) in zip(index["tiles"], counts, strict=False):
            either = predicted + true - right
            own = 100 * np.mean(right[either > 0] / either[either > 0])
            assert tile["note"] == f"mIoU {own:.1f}"
            for file in (*tile["shared"].values(), *tile["own"].values()):
                with Image.open(folder / "tiles" / file) as image:
                    assert image.height == 224
    page = skipbench.report("results").read_text()
    assert "nearest neighbours" in page and page.count("data:image/") >= 6


# -- faults


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (("--bank-limit", "100"), 7, "--bank-limit"),
        (("--bank-limit", "1kB", "--index", "flat"), 7, "--index ivf"),
        (("--bank-limit", "10kB", "--index", "ivf"), 2, "--bank-limit"),  # too few to be quantised
    ],
)
def test_banks_that_do_not_fit(run, more, code, word):
    shown = run(*more)
    said = " ".join(shown.stderr.split())
    assert shown.exit_code == code and word in said, shown.stderr
    assert "Traceback" not in said and not records()


def test_single_masks_without_a_label_count_for_nothing(run):
    tiny_folder(Path("some"))
    for name in ("train/0", "train/3", "val/2"):
        without_labels(Path("some", "masks", f"{name}.png"))
    shown = run("--dataset", "folder:some", "--memory", "60", "--pictures", "5")
    assert shown.exit_code == 0, shown.stderr
    [result] = records()
    assert result.metrics["bank"]["tokens"] == 40  # ten from each of the four
    counts = arrays_of(result)["counts"]
    assert not counts[2].any() and counts[[0, 1, 3, 4]].any((1, 2)).all()


def test_a_share_that_has_no_label(knn):
    """One token is asked for, and drawn from an image of which nothing is known."""
    tiny_folder(Path("some"), train=2)
    without_labels(Path("some", "masks", "train", "0.png"))
    done = 0
    for seed in range(4):
        try:
            knn(dataset="folder:some", cache="c", memory=1, seeds=[seed])
            done += 1
        except DataError as error:
            assert "no sampled patch" in str(error)
    assert 0 < done < 4 and len(records()) == done


def test_tokens_that_are_all_alike_in_lists(run, tmp_path):
    flat = tiny_checkpoint(tmp_path / "flat.pth", spoil=all_alike)
    shown = run("--ckpt", flat, "--index", "ivf", "--no-cache")
    assert shown.exit_code == 0 and "constant features" in shown.stderr, shown.stderr
    [result] = records()
    assert 0 <= result.metrics["miou"] <= 100
    assert (arrays_of(result)["counts"][:, 1] > 0).sum(1).max() == 1  # one class for all pixels


def test_out_of_memory_in_the_search(run, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr(vectors.Flat, "search", fail)
    shown = run()
    assert shown.exit_code == 7 and "--memory" in shown.stderr and not records()


# -- records


@pytest.fixture(scope="module")
def two(home):
    """Two checkpoints, two seeds each, in one folder."""
    out = home.folder / "two"
    other = tiny_checkpoint(home.folder / "other.pth", seed=1)
    for ckpt in (home.ckpt, other):
        skipbench.knn(ckpt, home.dataset, seeds=[0, 1], **home.options(memory=60, out=out))
    return out


def test_in_tables_comparisons_and_a_report(two, cli):
    table = cli("table", two)
    assert table.exit_code == 0 and "knn" in table.stdout and "other.pth" in table.stdout
    [found] = skipbench.compare("skip.pth", "other.pth", results=two)
    assert found.metric == "miou" and len(found.a) == len(found.b) == 2
    values = [[s.result.metrics["miou"] for s in side] for side in (found.a, found.b)]
    assert found.images == VAL and found.a_value == pytest.approx(np.mean(values[0]))
    assert found.difference == pytest.approx(np.mean(values[1]) - np.mean(values[0]))
    shown = cli("compare", two, "skip.pth", "other.pth")
    assert shown.exit_code == 0 and shown.stdout.count("2 seeds") == 2, shown.output
    shown = cli("compare", two, "skip.pth", "other.pth", "--pictures", "1")
    assert shown.exit_code == 2 and "no pictures of knn" in shown.stderr
    page = skipbench.report(two, "page.html").read_text()
    assert "nearest neighbours" in page and "other.pth" in page


def test_votes_are_told_apart(knn):
    """Of one checkpoint with several k: none is compared with another, or averaged with it."""
    made = knn(k=[3, 30], seeds=[0, 1], memory=60)
    skipbench.update_baseline("results", "b.json")
    lines = read_baseline(Path("b.json")).figures
    assert len(lines) == 2 and all(line.seeds == 2 for line in lines.values())
    means = {np.mean([r.metrics["miou"] for r in made if r.protocol["k"] == k]) for k in (3, 30)}
    assert sorted(line.value for line in lines.values()) == pytest.approx(sorted(means), abs=1e-4)
    verdicts = skipbench.check("results", "b.json", tolerance=0.1)
    assert len(verdicts) == 2 and not any(verdict.fails for verdict in verdicts)


def test_check_and_calibrate(knn, cli, home):
    first = knn(k=3, memory=60, index="flat")[0]
    assert cli("check", "--baseline", "b.json", "--update").exit_code == 0
    assert cli("check", "--baseline", "b.json").exit_code == 0
    where = ("--baseline", "b.json", "--seeds", "1,2", "--device", "cpu", "--cache", home.cache)
    done = cli("calibrate", *where)
    assert done.exit_code == 0, done.stderr
    others = knn(k=3, memory=60, index="flat", seeds=[1, 2], out="apart")
    assert sorted(r.id for r in others) == sorted(r.id for r in records("results/calibration"))
    [line] = read_baseline(Path("b.json")).figures.values()
    values = [r.metrics["miou"] for r in (first, *others)]
    assert line.noise == pytest.approx(stdev(values), abs=1e-4) and line.noise_seeds == 3
    assert line.noise > 0 and "record exists" in cli("calibrate", *where).stderr


# -- suites


KNN = ("knn", "k = [3, 30]", 'temperature = "0.02,0.5"', "memory = 60", "seeds = [0, 1]")


def test_in_a_suite(cli, home, seen, knn):
    lists = ("knn", "k = 3", 'bank_limit = "1GB"', 'index = "ivf"')
    suite(home, ("probe", "epochs = 1"), KNN, lists)
    plan = cli("run", "suite.toml", "--dry-run", "--json")
    assert plan.exit_code == 0, plan.output
    assert [cell["state"] for cell in json.loads(plan.stdout)] == ["to do"] * 3
    assert not Path("results").exists() and not Path("cache").exists()
    seen.clear()
    done = cli("run", "suite.toml", "--json", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert sum(images for images, _ in seen) == TRAIN + VAL  # one pass for all
    made = [r for r in records() if r.evaluation == "knn"]
    assert len(made) == 9
    found = knn(k=[3, 30], temperature=[0.02, 0.5], memory=60, seeds=[0, 1], out="alone")
    whole = {r.id: r for r in made}
    assert all(same(r, whole[r.id], ("alone", "results")) for r in found)
    cells = [cell for cell in json.loads(done.stdout) if cell["kind"] == "knn"]
    assert sorted(len(cell["miou"]) for cell in cells) == [1, 8]
    seen.clear()
    again = cli("run", "suite.toml", "--json", "--device", "cpu")
    assert {cell["state"] for cell in json.loads(again.stdout)} == {"done before"} and not seen
    plan = cli("run", "suite.toml", "--dry-run", "--json")
    assert {cell["state"] for cell in json.loads(plan.stdout)} == {"done before"}


def test_the_rows_of_a_suite_tell_votes_apart(cli, home):
    suite(home, ("knn", "k = [3, 30]"))
    shown = cli("run", "suite.toml", "--cache", home.cache)
    assert shown.exit_code == 0
    rows = [line.split("mIoU")[0] for line in shown.stdout.splitlines() if "mIoU" in line]
    assert len(rows) == 2 and rows[0] != rows[1]


def test_the_figures_of_a_suite_tell_votes_apart(cli, home):
    suite(home, ("knn", "k = [3, 30]"))
    [cell] = json.loads(cli("run", "suite.toml", "--cache", home.cache, "--json").stdout)
    told = [{**figure, "record": "", "miou": 0, "interval": 0} for figure in cell["figures"]]
    assert len(told) == 2 and told[0] != told[1]
