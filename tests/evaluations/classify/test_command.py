"""`skipbench classify` as a user meets it: records, interruption, pools, faults."""

from pathlib import Path

import numpy as np
import pytest
from conftest import records
from PIL import Image
from tiny import arrays_of, interrupted, open_one, same, tiny_checkpoint

import skipbench
from skipbench import pipeline
from skipbench.backbones.vit import ViTBackbone
from skipbench.engine import vectors
from skipbench.errors import UsageError
from skipbench.evaluations import resume
from skipbench.evaluations.classify.crops import Crops
from skipbench.evaluations.classify.method import ranks_of
from skipbench.metrics.means import share_percent

pytestmark = pytest.mark.usefixtures("nowhere_else")

CLASSES = ("bee", "cat", "dog", "eel", "fox", "gnu")
COLOURS = np.random.default_rng(5).integers(30, 220, (6, 3))
SIZES_HW = [(41, 57), (33, 64), (56, 40)]
TRAIN, VAL = 4, 3  # images of a class


def class_images(folder, classes=CLASSES):
    """Coloured by class under much noise."""
    for split, count in (("train", TRAIN), ("val", VAL)):
        for number, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                rng = np.random.default_rng([split == "val", number, i])
                noise = rng.integers(0, 256, (*SIZES_HW[(number + i) % 3], 3))
                pixels = (15 * noise + COLOURS[number]) // 16
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return class_images(tmp_path_factory.mktemp("classes") / "animals")


@pytest.fixture(scope="session")
def ckpt(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("weights") / "skip.pth")


@pytest.fixture
def given(folder, ckpt):
    def given(**more):
        usual = {
            "ckpt": str(ckpt), "dataset": f"folder:{folder}", "size": "40x48", "epochs": 5,
            "residual": "skip", "device": "cpu", "cache": "cache",
        }  # fmt: skip
        return usual | more

    return given


@pytest.fixture
def run(cli, given):
    def run(*more):
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given().items()]
        return cli("classify", *flags, *more)

    return run


@pytest.fixture
def cli_table(cli):
    return lambda *more: cli("table", "results", "--format", "md", *more).stdout


@pytest.fixture
def evaluate(given):
    return lambda **more: skipbench.classify(**given(**more))


# -- records


def test_a_record_for_each_method(run):
    shown = run("--k", "5,10", "--seeds", "0,1")
    assert shown.exit_code == 0, shown.stderr
    found = records()
    methods = sorted(result.protocol["method"] for result in found)
    assert methods == ["knn", "knn", "linear", "linear"]
    for result in found:
        assert f"results/{result.id}.json" in shown.stdout
        protocol, metrics = result.protocol, result.metrics
        assert protocol["name"] == "dino" and protocol["pool"] == "cls"
        assert protocol["changes"]["size"] == ["224x224", "40x48"]
        assert (protocol["crop"], protocol["interpolation"]) == (0.875, "bilinear")
        assert metrics["headline"] == "top1" and metrics["chance"] == pytest.approx(100 / 6)
        assert set(metrics["per_class"]) == set(CLASSES) and metrics["unseen"] == 0
        assert result.dataset["images"] == 18 and result.training["images"] == 24
        assert result.training["names"] == [] and result.dataset["classes"] == 6
        low, high = metrics["interval"]
        assert low <= metrics["top1"] <= high <= 100 and metrics["top1"] <= metrics["top5"]
        is_linear = protocol["method"] == "linear"
        assert (protocol["seed"] is None) != is_linear and ("k" in protocol) != is_linear
    assert {r.protocol["seed"] for r in found if r.protocol["method"] == "linear"} == {0, 1}
    for words in ("chance 16.7 %", "class token", "24 of train", "k-NN, last", "2 seeds"):
        assert words in shown.stdout, words


def test_arrays_have_the_figures(evaluate):
    for result in evaluate():
        arrays, metrics = arrays_of(result), result.metrics
        hits = arrays["ranks"] == 0
        assert metrics["top1"] == pytest.approx(100 * hits.mean())
        assert metrics["top5"] == pytest.approx(100 * (arrays["ranks"] < 5).mean())
        assert share_percent(arrays["counts"].sum(0)) == pytest.approx(metrics["top1"])
        names = [CLASSES.index(name.partition("/")[0]) for name in result.dataset["names"]]
        assert np.array_equal(arrays["predicted"] == np.array(names), hits)
        by_class = [100 * hits[np.array(names) == n].mean() for n in range(6)]
        assert list(metrics["per_class"].values()) == pytest.approx(by_class)
        assert metrics["mean_accuracy"] == pytest.approx(np.mean(by_class))


def test_the_head_of_a_record_gives_its_predictions(evaluate, given):
    (result,) = evaluate(method="linear", store_dtype="fp32")
    arrays = arrays_of(result)
    run = open_one("classify", given(store_dtype="fp32"))
    tokens = features_of(run, run.val)
    logits = tokens @ arrays["weight"] + arrays["bias"]
    assert np.array_equal(logits.argmax(1), arrays["predicted"])
    assert np.array_equal(ranks_of(logits, run.truth), arrays["ranks"])


def features_of(run, data, pool="cls"):
    """By the backbone itself."""
    found = []
    for crop in Crops(data.items, (40, 48), 0.875):
        image = pipeline_input(crop.read())
        outputs = run.backbone(image)
        column = (2, "tokens_norm")
        one = outputs.class_token[column] if pool == "cls" else outputs.patches[column].mean((1, 2))
        found.append(one[0].numpy())
    return np.stack(found)


def pipeline_input(pixels):
    from skipbench.images import normalise, stack

    return normalise(stack([pixels], 8), [pixels.shape[:2]])


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_neighbours_by_plain_code(evaluate, given, pool):
    (result,) = evaluate(method="knn", pool=pool, k=5, store_dtype="fp32")
    run = open_one("classify", given())
    train, val = (features_of(run, data, pool).astype(float) for data in (run.train, run.val))
    train, val = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (train, val))
    cosine = val @ train.T
    right = 0
    for row, true in zip(cosine, run.truth, strict=True):
        nearest = np.argsort(-row)[:5]
        votes = np.zeros(6)
        np.add.at(votes, run.labels[nearest], np.exp(row[nearest] / 0.07))
        right += votes.argmax() == true
    assert result.metrics["top1"] == pytest.approx(100 * right / 18)


def test_several_k_are_those_of_separate_runs(evaluate):
    several = {r.id: r for r in evaluate(method="knn", k=[1, 5, 24], temperature=[0.02, 0.07])}
    assert len(several) == 6
    for k in (1, 24):
        for one in evaluate(method="knn", k=k, out="alone"):
            assert same(one, several[one.id], ("alone", "results"))


def test_what_matters_is_another_record(given):
    def names(**more):
        return {cell.id for cell in open_one("classify", given(**more)).cells}

    usual = names()
    assert len(usual) == 2
    for more in (
        {"pool": "mean"}, {"pool": "both"}, {"crop": 1}, {"crop": "whole"}, {"size": "48x40"},
        {"layers": "0"}, {"norm": False}, {"limit": 6}, {"train_images": 12},
    ):  # fmt: skip
        assert not names(**more) & usual, more
    for more in ({"seeds": [1]}, {"epochs": 6}, {"lr": "0.1"}, {"batch": 8}, {"standardize": True},
                 {"select": "holdout"}):  # fmt: skip
        assert len(names(**more) & usual) == 1, more  # that of k-NN
    for more in ({"pool": "cls"}, {"layers": "-1"}, {"batch_size": 2}, {"method": "linear,knn"}):
        assert names(**more) == usual, more


def test_the_rate_is_chosen_on_either(evaluate, cli_table):
    (on_val,) = evaluate(method="linear", epochs=20)
    (held_out,) = evaluate(method="linear", epochs=20, select="holdout")
    chosen = on_val.metrics["chosen"]
    assert on_val.metrics["selected_on"] == "val" and held_out.metrics["selected_on"] == "holdout"
    assert held_out.metrics["rate"] == chosen["holdout"]["rate"]
    assert on_val.metrics["top1"] == max(row["top1"] for row in on_val.metrics["rates"])
    assert on_val.protocol["held_out"] == 2
    found = skipbench.read_results(["results"])
    assert len(found) == 2
    text = cli_table("--select", "holdout")
    assert f"{held_out.metrics['top1']:.1f}" in text


def test_footnotes(evaluate, cli_table):
    evaluate()
    text = cli_table()
    assert "trained without augmentation, on stored features" in text
    assert "learning rate chosen on the evaluated images" in text


def test_a_table_shows_what_differs_within_a_method(evaluate, cli_table):
    evaluate()
    header = cli_table().splitlines()[2]
    assert "method" in header and "epochs" not in header and "temperature" not in header
    evaluate(epochs=7, method="linear")
    assert "epochs" in cli_table().splitlines()[2]


def test_only_the_linear_probe_has_noise(evaluate, cli, given):
    evaluate(seeds=[0, 1])
    done = cli("calibrate", "results", "--seeds", "2", "--device", "cpu", "--cache", "cache")
    assert done.exit_code == 0, done.output
    assert "k-NN classification has no seed" in done.stderr
    assert {r.protocol["seed"] for r in records("results/calibration")} == {2}


def test_compare_names_evaluation_and_method(evaluate, cli, tmp_path):
    other = tiny_checkpoint(tmp_path / "other.pth", seed=1)
    evaluate()
    evaluate(ckpt=str(other))
    shown = cli("compare", "results", "skip.pth", "other.pth").stdout
    assert "classify knn on folder:animals val" in shown
    assert "classify linear on folder:animals val" in shown


def test_a_suite_computes_shared_vectors_once(cli, folder, ckpt, seen):
    Path("suite.toml").write_text(
        f'cache = "cache"\ndevice = "cpu"\n[[checkpoint]]\npath = "{ckpt}"\nresidual = "skip"\n'
        + "".join(
            f'[[evaluation]]\nkind = "classify"\nname = "{name}"\nsize = "40x48"\nepochs = 2\n'
            f'datasets = ["folder:{folder}"]\n{lines}\n'
            for name, lines in {
                "neighbours": 'method = "knn"', "linear": 'layers = "last4"\npool = "both"',
            }.items()
        )
    )  # fmt: skip
    done = cli("run", "suite.toml")
    assert done.exit_code == 0, done.output
    assert sum(count for count, _ in seen) == 42 and len(records()) == 3


# -- one pass, stored


def test_vectors_are_shared(evaluate, seen):
    evaluate()
    assert sum(count for count, _ in seen) == 42
    seen.clear()
    evaluate(k=7, lr="0.5", seeds=[3])
    assert not seen
    evaluate(layers=["last4", "0"])
    assert sum(count for count, _ in seen) == 42  # other blocks, all in one pass


def test_kept_in_memory_the_same(evaluate):
    stored = {r.id: r for r in evaluate()}
    for one in evaluate(in_memory=True, out="memory", cache=None):
        assert same(one, stored[one.id], ("memory", "results"))


def test_both_pools_are_concatenated(evaluate):
    found = evaluate(pool="both", layers="0,2")
    (weight,) = {arrays_of(r)["weight"].shape for r in found if r.protocol["method"] == "linear"}
    assert weight == (4 * 64, 6)
    assert all(r.protocol["changes"]["pool"] == ["cls", "both"] for r in found)


# -- models


def without_class_token(monkeypatch):
    plain = ViTBackbone.forward

    def forward(self, images, blocks, tensors):
        outputs = plain(self, images, blocks, tensors)
        outputs.class_token.clear()
        outputs.registers.clear()
        return outputs

    monkeypatch.setattr(ViTBackbone, "forward", forward)


def test_a_model_without_a_class_token(run, evaluate, monkeypatch):
    before = [r.metrics["top1"] for r in evaluate(pool="mean", cache="other", out="before")]
    without_class_token(monkeypatch)
    shown = run()
    assert "skip.pth has no class token: using the mean patch token" in shown.stderr
    assert [r.protocol["pool"] for r in records()] == ["mean", "mean"]
    assert not any("pool" in r.protocol["changes"] for r in records())
    assert sorted(r.metrics["top1"] for r in records()) == sorted(before)
    for pool in ("cls", "both"):
        with pytest.raises(UsageError, match=f"--pool {pool}: skip.pth has no class token"):
            evaluate(pool=pool)


def test_constant_features_are_reported(evaluate, ckpt, tmp_path, caplog, cli_table):
    import torch

    weights = torch.load(ckpt, weights_only=True)
    weights["model"]["patch_embed.proj.weight"].zero_()
    torch.save(weights, tmp_path / "grey.pth")
    found = evaluate(ckpt=str(tmp_path / "grey.pth"))
    assert "all images have the same features" in caplog.text
    assert "top-1 16.7 is near chance (16.7 %)" in caplog.text
    assert caplog.text.count("near chance") == 1
    assert all(r.features["degenerate"] == {"tokens_norm-cls.2": 18} for r in found)
    assert all(r.metrics["near_chance"] for r in found)
    text = cli_table()
    assert "constant features in 18 of 18 images" in text and "near chance (16.7 %)" in text


# -- data


def test_a_quick_look_is_at_all_classes(run):
    shown = run("--limit", "6")
    assert shown.exit_code == 0 and "the first 6 images" in shown.stdout
    assert all(r.metrics["unseen"] == 0 and len(r.dataset["names"]) == 6 for r in records())


def test_a_sample_may_lack_classes(run):
    shown = run("--sample", "3", "--subset-seed", "1")
    assert shown.exit_code == 0, shown.stderr
    unseen = records()[0].metrics["unseen"]
    words = f"{unseen} of 3 images of val are of classes without a training image"
    assert unseen and words in shown.stderr
    assert "k 20 exceeds the training images: all of them vote" in shown.stderr


def test_few_classes_have_no_top_5(tmp_path, evaluate):
    own = class_images(tmp_path / "two", CLASSES[:2])
    for result in evaluate(dataset=f"folder:{own}"):
        assert result.metrics["top5"] is None and result.dataset["classes"] == 2


def test_the_most_frequent_class(tmp_path, run, evaluate):
    own = class_images(tmp_path / "two", CLASSES[:2])
    for i in range(1, VAL):
        (own / "val" / "cat" / f"{i}.png").unlink()
    for i in range(1, TRAIN):
        (own / "train" / "cat" / f"{i}.png").unlink()
    for result in evaluate(dataset=f"folder:{own}"):
        assert result.metrics["majority"] == 75 and result.metrics["chance"] == 50


@pytest.mark.parametrize("size", ["native", "short:40", "long:48"])
def test_whole_images(evaluate, size):
    """Images of several sizes are not cropped."""
    for result in evaluate(size=size, crop=0.5):
        assert result.protocol["crop"] == "whole" and result.features["size"] == size


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--method", "svm", "expected knn or linear"),
        ("--pool", "max", "expected auto, cls, mean or both"),
        ("--crop", "1.5", "expected whole or a number from 0.1 to 1"),
        ("--crop", "nan", "expected whole or a number from 0.1 to 1"),
        ("--k", "0", "expected integers from 1 to 1,000"),
        ("--lr", "0", "expected numbers from 1e-09 to 1e+06"),
    ],
)
def test_wrong_settings(run, flag, value, words):
    shown = run(flag, value)
    assert shown.exit_code == 2 and f"{flag} {value}: {words}" in shown.stderr


def test_linear_needs_no_faiss(evaluate, monkeypatch):
    def missing():
        raise UsageError("faiss is not installed")

    monkeypatch.setattr(vectors, "load", missing)
    assert len(evaluate(method="linear")) == 1
    with pytest.raises(UsageError, match="faiss is not installed"):
        evaluate(method="knn")


def test_dry_run_knows_what_is_stored(run):
    assert "features of 42 images: " in run("--dry-run").stdout
    run("--method", "knn")
    shown = run("--dry-run")
    assert "features of 0 images (42 are stored)" in shown.stdout
    assert "neighbours and training" in shown.stdout and len(records()) == 1


# -- interruption


@pytest.mark.parametrize(
    ("owner", "name", "at", "before"),
    [
        (vectors.Flat, "search", 2, True),
        (resume.Chunks, "save", 3, False),
        (resume.TrainingState, "save", 2, False),
        (pipeline, "write_result", 1, False),
    ],
)
def test_interrupted_it_goes_on(given, owner, name, at, before, seen):
    def go(**more):
        run = open_one("classify", given(**more))
        run.shard_images = 7  # 7 + 7 + 4
        return pipeline.carry_out(run)

    whole = {result.id: result for result in go(k=[5, 20], out="whole", cache="other")}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted(patch, owner, name, at, before)
        go(k=[5, 20])
    seen.clear()
    found = go(k=[5, 20])
    assert not seen and len(found) == 3
    assert all(same(result, whole[result.id], ("results", "whole")) for result in found)
    assert not list(Path("cache/classify").iterdir())


def test_out_of_memory_is_reported(run, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(vectors.Flat, "search", full)
    shown = run()
    assert shown.exit_code == 7 and "out of memory in classification" in shown.stderr
    assert "--train-images" in shown.stderr
