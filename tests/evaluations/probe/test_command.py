"""`skipbench probe` as a user meets it: records, interruption, pictures, faults."""

import json
import logging
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import trees
from conftest import clean_environment, command, lasting, records
from PIL import Image

import skipbench as package
from skipbench.demo import make_weights, small_facts
from skipbench.evaluations import training_state as _state
from skipbench.evaluations.pictures import worst_and_best
from skipbench.evaluations.segmentation.images import Keeping
from skipbench.features.stream import Extractor
from skipbench.metrics.segmentation import scores
from skipbench.record_store import find_result, read_arrays, read_result, write_result

pytestmark = pytest.mark.usefixtures("nowhere_else")

QUICK = ("--size", "64x80", "--limit", "12", "--epochs", "3", "--loss-pixels", "64")


@pytest.fixture(scope="session")
def weights():
    return make_weights("skip", small_facts(width=64, depth=3, patch=8, heads=1))


@pytest.fixture
def ckpt(tmp_path, weights):
    path = tmp_path / "skip.pth"
    torch.save(weights, path)
    return path


@pytest.fixture
def run(cli, ckpt):
    """The quick probe on `shapes`, in this process."""

    def run(*more, dataset="shapes", quick=QUICK):
        return cli(
            "probe", "--ckpt", ckpt, "--dataset", dataset, "--residual", "skip", *quick, *more
        )

    return run


# -- the record


def test_a_record_says_how_it_was_made(run):
    shown = run()
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
    arrays = read_arrays(Path("results") / f"{record.id}.npz")
    assert arrays["counts"].shape == (12, 3, 7) and arrays["weight"].shape == (64, 7)
    assert scores(arrays["counts"].sum(0)).miou == pytest.approx(metrics["miou"])
    honest = scores(arrays["counts_holdout"].sum(0)).miou
    assert honest == pytest.approx(metrics["chosen"]["holdout"]["miou"])


def test_json_on_stdout_is_the_record(run):
    shown = run("--json", "--quiet")
    [found] = json.loads(shown.stdout)
    assert found == json.loads(Path("results", f"{found['id']}.json").read_text())


def test_the_same_twice_is_done_once(run, monkeypatch):
    first = run()
    assert first.exit_code == 0
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed again
    again = run()
    assert again.exit_code == 0 and "done before" in again.stderr
    assert again.stdout == first.stdout


def test_the_same_seed_gives_the_same_record_another_one_another(run):
    assert run().exit_code == 0
    [one] = records()
    assert run("--force").exit_code == 0
    [two] = records()
    assert lasting(one) == lasting(two)
    shown = run("--seeds", "0,1,2")
    assert shown.exit_code == 0 and len(records()) == 3
    values = [record.metrics["miou"] for record in records()]
    spread = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert spread in shown.stdout and "3 seeds" in shown.stdout and len(set(values)) > 1


def test_what_matters_is_another_record(run):
    assert run().exit_code == 0
    for more in (
        ("--lr", "1e-3,1e-2"), ("--epochs", "2"), ("--select", "holdout"), ("--no-norm",),
        ("--size", "80x64"), ("--no-standardize",), ("--layers", "0"), ("--score-size", "50"),
        ("--loss-pixels", "all"), ("--limit", "11"), ("--train-images", "9"),
    ):  # fmt: skip
        before = len(records())
        assert run(*more).exit_code == 0
        assert len(records()) == before + 1, more


def test_several_sets_of_layers_share_one_pass(run, seen):
    shown = run("--layers", "last", "--layers", "multiscale", "--layers", "0,-1")
    assert shown.exit_code == 0, shown.stderr
    assert sum(count for count, _ in seen) == 24 and {blocks for _, blocks in seen} == {(0, 1, 2)}
    found = {r.features["layers"]: r for r in records()}
    assert set(found) == {"last", "multiscale", "0,-1"}
    # Alone, from scratch, it is the same record.
    alone = run("--layers", "last", "--out", "alone", "--cache", "other")
    assert alone.exit_code == 0
    assert lasting(records("alone")[0]) == lasting(found["last"])


def test_without_a_cache_it_is_the_same_record(run, tmp_path):
    assert run("--layers", "last", "--layers", "0").exit_code == 0
    stored = records()
    shown = run("--layers", "last", "--layers", "0", "--no-cache", "--out", "x", "--cache", "none")
    assert shown.exit_code == 0, shown.stderr
    assert list(map(lasting, records("x"))) == list(map(lasting, stored))
    assert not Path("none").exists()


def test_features_that_do_not_fit_in_memory(run, monkeypatch):
    monkeypatch.setattr("skipbench.features.held.available_bytes", lambda: 1000)
    shown = run("--no-cache")
    assert shown.exit_code == 7 and "memory" in shown.stderr and "--no-cache" in shown.stderr


def test_edge_of_the_sweep_and_selection(run):
    shown = run("--lr", "1e-6,1e-2")
    assert "widen the sweep" in shown.stdout + shown.stderr
    [record] = records()
    assert record.metrics["edge"] in ("lowest", "highest")  # of two rates, either is an edge
    honest = run("--lr", "1e-6,1e-2", "--select", "holdout", "--out", "honest")
    [other] = records("honest")
    assert other.metrics["selected_on"] == "holdout" and "held-out training" in honest.stdout


def test_python_twin(run, ckpt):
    assert run("--layers", "last", "--seeds", "0,1").exit_code == 0
    options = {"epochs": 3, "size": "64x80", "loss_pixels": 64, "limit": 12, "residual": "skip"}
    results = package.probe_all(ckpt, "shapes", seeds=[0, 1], out="python", **options)
    assert sorted(r.id for r in results) == [r.id for r in records()]
    assert {r.id: lasting(r) for r in records("python")} == {r.id: lasting(r) for r in records()}
    assert results[0] == read_result(Path("python", f"{results[0].id}.json"))
    assert package.probe(ckpt, "shapes", seed=1, out="python", **options) == results[1]


def test_python_refuses_what_it_does_not_know(ckpt):
    with pytest.raises(TypeError, match="'rate'"):
        package.probe(ckpt, "shapes", rate=1e-3)
    options = {"epochs": 1, "limit": 2, "residual": "skip", "size": 64, "score_size": 20}
    result = package.probe(ckpt, "shapes", lr=[1e-2, 1e-3], **options)
    assert [row["rate"] for row in result.metrics["rates"]] == [1e-3, 1e-2]
    assert result.protocol["size"] == "64x64" and result.protocol["score_size"] == 20


# -- interruption


@pytest.mark.parametrize("protocol", ["paper", "leopart"])
@pytest.mark.parametrize("after", [1, 2])
def test_interrupted_in_training_it_goes_on(run, monkeypatch, after, protocol, caplog):
    """The record is that of an undisturbed run, to the last bit."""
    how = (
        ("--protocol", protocol)
        if protocol == "paper"
        else ("--protocol", protocol, "--size", "64")
    )
    assert run(*how, "--out", "undisturbed", "--cache", "a").exit_code == 0
    saved = _state.TrainingState.save
    count = 0

    def interrupted(self, state):
        nonlocal count
        saved(self, state)
        count += 1
        if count == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(_state.TrainingState, "save", interrupted)
    shown = run(*how, "--cache", "b")
    assert shown.exit_code == 130 and not records()
    monkeypatch.setattr(_state.TrainingState, "save", saved)
    shown = run(*how, "--cache", "b")
    assert shown.exit_code == 0 and f"{after} of 3 epochs were done before" in shown.stderr
    [one], [two] = records(), records("undisturbed")
    assert lasting(one) == lasting(two)
    mine, theirs = (
        read_arrays(Path("results") / f"{one.id}.npz"),
        read_arrays(Path("undisturbed") / f"{two.id}.npz"),
    )
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    assert not list(Path("b/training").iterdir())  # the state is not needed any more


def test_a_damaged_state_is_no_state(run, monkeypatch):
    def stop(self, state):
        saved(self, state)
        raise KeyboardInterrupt

    saved = _state.TrainingState.save
    monkeypatch.setattr(_state.TrainingState, "save", stop)
    assert run("--cache", "b").exit_code == 130
    monkeypatch.setattr(_state.TrainingState, "save", saved)
    [state] = Path("b/training").iterdir()
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    shown = run("--cache", "b")
    assert shown.exit_code == 0 and "damaged" in shown.stderr
    assert run("--out", "whole", "--cache", "c").exit_code == 0
    assert lasting(records()[0]) == lasting(records("whole")[0])


@pytest.mark.parametrize("moment", ["features", "training"])
def test_killed_at_any_moment(run, ckpt, tmp_path, moment):
    """kill -9 while features are stored, or while heads are trained; then once more."""
    arguments = (
        "probe", "--ckpt", ckpt, "--dataset", "shapes", "--residual", "skip", "--size", "64x80",
        "--limit", "64", "--epochs", "20", "--loss-pixels", "64", "--cache", "killed",
    )  # fmt: skip
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=clean_environment(tmp_path), cwd=tmp_path,
    )  # fmt: skip
    pattern = "features/*/*/*.safetensors" if moment == "features" else "training/*.state"
    deadline = time.monotonic() + 90
    while not list(Path("killed").glob(pattern)) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(Path("killed").glob(pattern)) and not records()
    quick = arguments[7:-2]
    assert run("--cache", "killed", quick=quick).exit_code == 0
    assert run("--cache", "fresh", "--out", "fresh_results", quick=quick).exit_code == 0
    assert lasting(records()[0]) == lasting(records("fresh_results")[0])


# -- protocols


@pytest.mark.parametrize("protocol", ["dinov2", "leopart"])
def test_published_protocols(run, protocol):
    shown = run("--protocol", protocol, "--size", "48")
    assert shown.exit_code == 0, shown.stderr
    [record] = records()
    assert record.protocol["name"] == protocol and record.protocol["held_out"] == []
    assert record.metrics["selected_on"] is None and len(record.metrics["rates"]) == 1
    # Crops that will not come again are not kept; validation features are.
    kept = [f for f in Path("cache/features").iterdir() if f.is_dir()]
    assert len(kept) == 1
    assert run("--protocol", protocol, "--size", "48", "--views", "2").exit_code == 0
    kept = [f for f in Path("cache/features").iterdir() if f.is_dir()]
    assert len(kept) == 3 and len(records()) == 2


def test_windows_that_see_the_whole_picture_are_no_windows(run, monkeypatch):
    """One window as large as a square picture gives what the whole picture gives."""
    folder = Path("square")
    for split in ("train", "val"):
        for i in range(4):
            trees.photo(folder / "images" / split / f"{i}.png", (48, 48), i)
            mask = trees.blocks((48, 48), [0, 1, 2])
            trees.grey_png(folder / "masks" / split / f"{i}.png", mask)
    (folder / "classes.txt").write_text("a\nb\nc\n")
    options = ("--epochs", "3", "--size", "48", "--lr", "1e-2")
    found = []
    from skipbench.evaluations.probe import protocols as _protocols

    for window in ((48, 32), None):
        changed = {"paper": _protocols.replace(_protocols.PROTOCOLS["paper"], window=window)}
        monkeypatch.setattr(_protocols, "PROTOCOLS", changed)
        shown = run("--json", "-q", dataset=f"folder:{folder}", quick=options)
        assert shown.exit_code == 0, shown.stderr
        found.append(json.loads(shown.stdout)[0]["metrics"]["rates"][0]["miou"])
    assert found[0] == pytest.approx(found[1], abs=0.1)


def test_padded_pictures(run):
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
        shown = run(dataset=f"folder:{folder}", quick=("--epochs", "2", "--size", size))
        assert shown.exit_code == 0, shown.stderr
    assert len(records()) == 3


@pytest.mark.parametrize("protocol", ["dinov2", "leopart"])
def test_a_sweep_over_crops_has_held_out_images_too(run, protocol):
    shown = run("--protocol", protocol, "--size", "48", "--lr", "1e-3,1e-2,1e-1")
    assert shown.exit_code == 0, shown.stderr
    [record] = records()
    assert len(record.protocol["held_out"]) == 1
    assert record.metrics["chosen"]["holdout"]["rate"] in (1e-3, 1e-2, 1e-1)


def test_two_names_of_one_set_of_layers_are_one(run):
    assert run("--layers", "last", "--layers", "2", "--layers", "-1").exit_code == 0
    assert len(records()) == 1 and "done before" in run("--layers", "-1").stderr


def test_too_few_images_to_hold_some_out(run):
    shown = run("--limit", "1", "--select", "holdout")
    assert shown.exit_code == 0 and "too few" in shown.stderr
    [record] = records()
    assert record.metrics["selected_on"] == "val" and not record.metrics["chosen"]["holdout"]


# -- pictures


def test_pictures(run, monkeypatch):
    assert run().exit_code == 0
    shown = run("--pictures", "5")  # of a probe that is done: nothing is trained for them
    assert shown.exit_code == 0 and "done before" in shown.stderr
    [record] = records()
    folder = Path("results", record.id)
    assert str(folder) in shown.stderr
    names = sorted(path.name for path in folder.glob("0*.png"))
    assert [name.split("_")[1] for name in names] == ["worst", "best", "worst", "best", "worst"]
    assert len(list(folder.glob("sheet*.png"))) == 1
    with Image.open(folder / names[0]) as image:
        assert image.width > 3 * 150 and image.height > 240


def test_pictures_of_what_was_done_before_and_of_what_is_new(run):
    """Together they need more blocks than what is new alone."""
    assert run("--layers", "0").exit_code == 0
    shown = run("--layers", "0", "--layers", "last", "--pictures", "2")
    assert shown.exit_code == 0, shown.stderr
    assert len(list(Path("results").glob("*/sheet*.png"))) == 2


def test_worst_and_best():
    counts = np.zeros((5, 3, 2), int)
    for image, right in enumerate([5, 1, 9, 0, 7]):
        counts[image] = [[right, 0], [10, 0], [10, 0]]
    counts[3] = 0  # nothing is labelled there
    chosen = [(image, which) for image, which, _ in worst_and_best(counts, 10)]
    assert chosen == [(1, "worst"), (2, "best"), (0, "worst"), (4, "best")]
    assert len(worst_and_best(counts, 2)) == 2 and worst_and_best(counts, 0) == []


# -- the dry run


def test_dry_run(run):
    shown = run("--dry-run", "--layers", "last", "--layers", "0")
    assert shown.exit_code == 0, shown.stderr
    assert "features of 24 images" in shown.stdout and "in all about" in shown.stdout
    assert "of disk" in shown.stdout and "of memory" in shown.stdout
    assert not list(Path("results").iterdir())
    assert run("--layers", "last", "--layers", "0").exit_code == 0
    found = json.loads(run("--dry-run", "--layers", "last", "--layers", "0", "--json").stdout)
    assert found["images"] == 0 and found["stored"] == 24 and found["disk_bytes"] == 0
    expected = 24 * 80 * 64 * 2  # images × tokens × channels × bytes
    found = json.loads(run("--dry-run", "--json", "--cache", "empty").stdout)
    assert found["images"] == 24 and found["disk_bytes"] == expected
    assert found["seconds"] > 0 and found["memory_bytes"] > 10**7


@pytest.mark.parametrize("protocol", ["dinov2", "leopart"])
def test_dry_run_of_crops(run, protocol):
    shown = run("--dry-run", "--protocol", protocol, "--size", "48", "--json")
    assert shown.exit_code == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["images"] >= 12 * 3 + 12  # another crop in every epoch


# -- faults


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (("--dataset", "coco20k"), 4, "coco20k"),
        (("--dataset", "vocc"), 2, "Did you mean 'voc'"),
        (("--dataset", "voc"), 4, "--data-root"),
        (("--lr", "quick"), 2, "--lr"),
        (("--select", "test"), 2, "--select"),
        (("--protocol", "dino"), 2, "--protocol"),
        (("--layers", "lst"), 2, "Did you mean 'last'"),
        (("--layers", "7"), 2, "no block 7"),
        (("--seeds", "-1"), 2, "--seeds"),
        (("--size", "0"), 2, "size"),
        (("--views", "2"), 2, "--views"),
        (("--ckpt", "skpi.pth"), 3, "Did you mean 'skip.pth'"),
        (("--batch-size", "0"), 2, "--batch-size"),
        (("--precision", "int8"), 2, "--precision"),
        (("--out", "skip.pth"), 7, "cannot write"),
    ],
)
def test_faults(run, more, code, word):
    shown = run(*more)
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert not list(Path().glob("results/*.json")) and "Traceback" not in shown.stderr


def test_a_data_set_without_masks(run):
    trees.coco20k(Path("data"))
    shown = run(dataset="coco20k")
    assert shown.exit_code == 2 and "has no masks" in shown.stderr and not records()


def test_a_split_that_is_not_whole(run):
    trees.voc(Path("data"))
    shown = run(dataset="voc", quick=("--size", "48", "--epochs", "1"))
    assert shown.exit_code == 4 and "--limit" in shown.stderr
    shown = run(dataset="voc", quick=("--size", "48", "--epochs", "1", "--limit", "3"))
    assert shown.exit_code == 0 and "partial" in shown.stdout
    [record] = records()
    assert record.dataset["partial"] and record.training["partial"]
    # Classes without a pixel in any validation mask are left out of the mean, and named.
    assert "tvmonitor" in record.metrics["absent_classes"]
    assert (
        record.metrics["per_class"]["tvmonitor"] is None
        or not record.metrics["per_class"]["tvmonitor"]
    )


def test_a_mask_with_a_strange_label(run):
    folder = trees.voc(Path("data"))
    mask = trees.blocks((30, 44), [0, 99, 255])
    trees.palette_png(folder / "SegmentationClass" / "2007_000032.png", mask)
    shown = run(dataset="voc", quick=("--size", "48", "--epochs", "1", "--limit", "3"))
    assert shown.exit_code == 4 and "99" in shown.stderr and "2007_000032" in shown.stderr


def some_blank(folder, blank, count=6):
    """A folder with images whose masks are ignored throughout: (split, number) of each."""
    for split in ("train", "val"):
        for i in range(count):
            trees.photo(folder / "images" / split / f"{i}.jpg", (41, 57), i)
            mask = trees.blocks((41, 57), [0, 1, 255])
            mask = np.full_like(mask, 255) if (split, i) in blank else mask
            trees.grey_png(folder / "masks" / split / f"{i}.png", mask)
    (folder / "classes.txt").write_text("a\nb\n")


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_without_a_label(run, split):
    """Found before any feature is computed."""
    some_blank(Path("blank"), {(split, i) for i in range(6)})
    shown = run(dataset="folder:blank", quick=("--epochs", "1", "--size", "40"))
    assert shown.exit_code == 4 and f"{split}: no labelled pixel" in shown.stderr
    assert "features" not in shown.stderr and not records()


@pytest.mark.parametrize("protocol", ["paper", "dinov2"])
def test_single_masks_without_a_label_count_for_nothing(run, protocol):
    """Also where one of them is the only one held out, or alone in the last batch."""
    quick = ("--epochs", "2", "--size", "40", "--protocol", protocol, "--lr", "1e-3,1e-2")
    some_blank(Path("some"), set(), count=17)
    assert run(dataset="folder:some", quick=quick).exit_code == 0
    held_out = records()[0].protocol["held_out"]
    names = {("train", int(Path(name).name.partition(".")[0])) for name in held_out}
    some_blank(Path("blank"), names | {("val", 2)}, count=17)
    shown = run("--out", "x", dataset="folder:blank", quick=quick)
    assert shown.exit_code == 0, shown.stderr
    [record] = records("x")
    assert record.metrics["chosen"]["holdout"] is None and record.metrics["miou"] > 0


def test_two_processes_with_crops_on_one_cache(ckpt, tmp_path):
    """Each removes the crops of an epoch once it is over; neither minds the other."""
    arguments = (
        "probe", "--ckpt", ckpt, "--dataset", "shapes", "--residual", "skip", "--limit", "4",
        "--protocol", "leopart", "--size", "48", "--epochs", "12", "--loss-pixels", "32", "-q",
    )  # fmt: skip
    processes = [
        subprocess.Popen(
            command(*arguments, "--out", f"out{i}"), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=clean_environment(tmp_path), cwd=tmp_path,
        )
        for i in range(2)
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert lasting(records("out0")[0]) == lasting(records("out1")[0])
    left = [path.name for path in Path("cache/features").iterdir() if "lock" not in path.name]
    assert len(left) == 1  # the validation images


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


def test_records_are_read_back_or_named(run):
    assert run().exit_code == 0
    [record] = records()
    folder, path = Path("results"), Path("results", f"{record.id}.json")
    assert find_result(folder, record.id) == record
    write_result(folder, record, read_arrays(folder / f"{record.id}.npz"))
    assert read_result(path) == record
    whole = path.read_text()
    for content, word in (
        (whole[:-40], "damaged"),
        (whole.replace('"schema": 1', '"schema": 9'), "newer"),
        ("[]", "not a record"),
        ("{}", "not a record"),
    ):
        path.write_text(content)
        with pytest.raises(package.SkipbenchError, match=word):
            read_result(path)
        assert find_result(folder, record.id) is None
    path.write_text(whole)
    arrays = path.with_suffix(".npz")
    arrays.write_bytes(arrays.read_bytes()[:-30])
    assert find_result(folder, record.id) is None
    assert run().exit_code == 0  # a record whose arrays are damaged is made anew
    assert find_result(folder, record.id) is not None


def test_keeping_defaults_agree_with_the_command():
    assert Keeping().limit_bytes == 50 * 10**9 and not Keeping().in_memory


@pytest.fixture(autouse=True)
def quiet_log():
    yield
    logging.getLogger("skipbench").handlers = []
    logging.getLogger("skipbench").propagate = True
