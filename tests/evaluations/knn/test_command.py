"""`skipbench knn` as a user meets it: figures by plain code, interruption, pictures, faults."""

import json
import logging
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest
import torch
import trees
from conftest import clean_environment, lasting, records
from PIL import Image
from skipbench.evaluations.knn.calls import KnnOptions, open_knn
from skipbench.suites._neighbour_kinds import KNN_KEYS
from skipbench.suites.kinds import Places
from torch.nn.functional import grid_sample, interpolate

import skipbench as package
from skipbench.demo import make_weights, small_facts
from skipbench.engine import vectors
from skipbench.evaluations import resume as _chunks
from skipbench.evaluations.knn import memory as _memory
from skipbench.evaluations.knn import run as runs
from skipbench.features.stream import Extractor
from skipbench.pipeline import Reading
from skipbench.record_store import read_arrays
from skipbench.results.baseline import read_baseline

pytestmark = pytest.mark.usefixtures("nowhere_else")

CLASSES = ["nothing", "cat", "dog", "bird"]
SIZES_HW = [(41, 57), (33, 64), (56, 40), (48, 72)]
PATCH = 8
TRAIN, VAL = 6, 5
SIZE = "40x56"
TOKENS = 35  # of an image at that size


def tiny_mask(size_hw, split, image):
    """Bands with a strip across them, and pixels that do not count; no bird in val."""
    mask = trees.blocks(size_hw, [image % 4, 1, 3, 255] if split == "train" else [0, 1, 2, 255])
    mask[:5] = 2
    mask[-6:, :10] = 255
    return mask


def tiny_folder(folder, train=TRAIN, val=VAL):
    """Coloured by class under much noise: some of it can be found."""
    colours = np.array([[40, 60, 80], [200, 60, 60], [60, 200, 90], [90, 90, 220]])
    for split, count in (("train", train), ("val", val)):
        for i in range(count):
            size_hw = SIZES_HW[i % len(SIZES_HW)]
            mask = tiny_mask(size_hw, split, i)
            rng = np.random.default_rng([split == "val", i])
            pixels = rng.integers(0, 256, (*size_hw, 3)) // 2 + colours[mask % 4] // 2
            path = folder / "images" / split / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
            trees.grey_png(folder / "masks" / split / f"{i}.png", mask)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))


def tiny_checkpoint(path, seed=0, residual="skip", spoil=None):
    weights = make_weights(residual, small_facts(width=64, depth=3, patch=PATCH, heads=1), seed)
    if spoil:
        spoil(weights)
    torch.save(weights, path)
    return path


class Home:
    """A data set, a checkpoint and a cache that tests share."""

    def __init__(self, folder):
        self.folder, self.ckpt = folder, tiny_checkpoint(folder / "skip.pth")
        tiny_folder(folder / "tiny")
        self.dataset, self.cache = f"folder:{folder / 'tiny'}", str(folder / "cache")

    def options(self, **more):
        usual = {"size": SIZE, "residual": "skip", "device": "cpu", "cache": self.cache}
        return usual | more

    def arguments(self, command, *more):
        return (
            command, "--ckpt", self.ckpt, "--dataset", self.dataset, "--residual", "skip",
            "--size", SIZE, "--device", "cpu", *more,
        )  # fmt: skip

    def tokens(self, split, size=SIZE, layers="last"):
        """By image, (height, width, channels) of length 1."""
        backbone = package.load_backbone(self.ckpt, residual="skip", device="cpu")
        data = package.open_dataset(self.dataset, split)
        with package.extract(backbone, data, layers=layers, size=size, cache=self.cache) as store:
            read = [np.concatenate([t.numpy() for t in one.values()], axis=2) for one in store]
        read = [tokens.astype(np.float64) for tokens in read]
        return [tokens / np.linalg.norm(tokens, axis=2, keepdims=True) for tokens in read]


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def knn(home):
    def knn(**more):
        return package.knn(home.ckpt, home.dataset, **home.options(**more))

    return knn


@pytest.fixture
def run(cli, home):
    """The command in this process, with a cache of the test's own."""
    return lambda *more: cli(*home.arguments("knn", *more))


@pytest.fixture(autouse=True)
def quiet_log():
    yield
    logging.getLogger("skipbench").handlers = []
    logging.getLogger("skipbench").propagate = True


def arrays_of(result, folder="results"):
    return read_arrays(Path(folder) / f"{result.id}.npz")


def same(one, other, folders=("results", "results")):
    """Whether two records agree in all but seconds and memory, arrays and all."""
    mine, theirs = (arrays_of(r, f) for r, f in zip((one, other), folders, strict=True))
    assert lasting(one) == lasting(other) and set(mine) == set(theirs)
    return all(np.array_equal(mine[name], theirs[name]) for name in mine)


# -- plain code


def truth(split, image):
    return tiny_mask(SIZES_HW[image % len(SIZES_HW)], split, image)


def seen_hw(size, image_hw):
    if size == "native":
        return image_hw
    if size.startswith("short:"):
        factor = int(size[6:]) / min(image_hw)
        return tuple(round(side * factor) for side in image_hw)
    return tuple(map(int, size.split("x")))


def plain_bank(tokens, size):
    """All tokens of patches with a label; the shares of the classes in each."""
    kept, labels = [], []
    for image, grid in enumerate(tokens):
        mask = truth("train", image)
        hw = seen_hw(size, mask.shape)
        rows, columns = (
            [int((i + 0.5) * old / new) for i in range(new)]
            for old, new in zip(mask.shape, hw, strict=True)
        )
        mask = mask[rows][:, columns]
        for y in range(grid.shape[0]):
            for x in range(grid.shape[1]):
                here = mask[y * PATCH : (y + 1) * PATCH, x * PATCH : (x + 1) * PATCH]
                pixels = [np.sum(here == c) for c in range(len(CLASSES))]
                if sum(pixels):
                    kept.append(grid[y, x])
                    labels.append(np.array(pixels) / sum(pixels))
    return np.array(kept), np.array(labels)


def plain_votes(grid, bank, labels, k, temperature):
    """(height, width, classes)"""
    similar = grid.reshape(-1, grid.shape[2]) @ bank.T
    order = np.argsort(-similar, axis=1)[:, :k]
    near = np.take_along_axis(similar, order, 1)
    weight = torch.softmax(torch.from_numpy(near) / temperature, 1).numpy()
    return np.einsum("qk,qkc->qc", weight, labels[order]).reshape(*grid.shape[:2], -1)


def resized(maps, hw, size_hw):
    """(height, width, channels) to (*size_hw, channels). hw: pixels that the model saw; beyond them
    the last patches are padding."""
    whole = torch.from_numpy(maps).permute(2, 0, 1)[None]
    if all(side % PATCH == 0 for side in hw):
        found = interpolate(whole, size=size_hw, mode="bilinear", align_corners=False)
    else:
        y, x = (
            (torch.arange(n, dtype=torch.float64) + 0.5) / n * seen / (PATCH * tokens) * 2 - 1
            for n, seen, tokens in zip(size_hw, hw, maps.shape[:2], strict=True)
        )
        places = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=2)[None]
        found = grid_sample(whole, places, padding_mode="border", align_corners=False)
    return found[0].permute(1, 2, 0).numpy()


def plain_counts(predict):
    """(images, 3, classes). predict: the (height, width) classes of a validation image."""
    counts = np.zeros((VAL, 3, len(CLASSES)), int)
    for image in range(VAL):
        mask = truth("val", image)
        found = np.where(mask == 255, -1, predict(image, mask.shape))
        for c in range(len(CLASSES)):
            right = (found == c) & (mask == c)
            counts[image, :, c] = right.sum(), (found == c).sum(), (mask == c).sum()
    return counts


def check_figures(result, counts):
    """The record has the figures of these counts."""
    right, predicted, true = counts.sum(0)
    either = predicted + true - right
    ious = {n: 100 * r / e if e else None for n, r, e in zip(CLASSES, right, either, strict=True)}
    metrics = result.metrics
    assert metrics["per_class"] == pytest.approx(ious)
    assert metrics["miou"] == pytest.approx(np.mean([v for v in ious.values() if v is not None]))
    assert metrics["pixel_accuracy"] == pytest.approx(100 * right.sum() / true.sum())
    assert metrics["mean_accuracy"] == pytest.approx(100 * np.mean(right[:3] / true[:3]))
    assert metrics["absent_classes"] == ["bird"] and true[3] == 0
    low, high = metrics["interval"]
    assert low <= metrics["miou"] <= high and low < high


@pytest.mark.parametrize(
    ("size", "layers"),
    [("45x61", "last"), (SIZE, "multiscale"), ("short:44", "0,2")],
)
def test_figures_are_those_of_plain_code(home, knn, size, layers):
    made = knn(size=size, layers=layers, k="3,30", temperature="0.02,0.4", index="flat")
    assert len(made) == 4
    bank, labels = plain_bank(home.tokens("train", size, layers), size)
    val = home.tokens("val", size, layers)
    for result in made:
        k, temperature = result.protocol["k"], result.protocol["temperature"]

        def predict(image, size_hw, k=k, temperature=temperature):
            maps = plain_votes(val[image], bank, labels, k, temperature)
            return resized(maps, seen_hw(size, size_hw), size_hw).argmax(2)

        counts = plain_counts(predict)
        assert np.array_equal(arrays_of(result)["counts"], counts)
        check_figures(result, counts)
        facts = result.metrics["bank"]
        assert facts["tokens"] == len(bank) and facts["bytes"] == bank.size * 4
        shares = dict(zip(CLASSES, 100 * labels.mean(0), strict=True))
        assert facts["class_percent"] == pytest.approx(shares, abs=1e-4)
        assert result.protocol["index"] == "flat" and result.protocol["bank"] == "float32"
        assert result.features["layers"] == layers
    assert len({result.metrics["miou"] for result in made}) > 1


def test_figures_of_lists_are_those_of_plain_code(home, knn, monkeypatch):
    """All lists are searched: then only the half precision of the bank is left."""
    monkeypatch.setattr(vectors, "RECALL", 2)
    monkeypatch.setattr(vectors, "LEAST_GAIN", -1)
    [result] = knn(index="ivf", k=7)
    bank, labels = plain_bank(home.tokens("train"), SIZE)
    bank = bank.astype(np.float16).astype(np.float64)
    val = home.tokens("val")

    def predict(image, size_hw):
        maps = plain_votes(val[image], bank, labels, 7, 0.02)
        return resized(maps, seen_hw(SIZE, size_hw), size_hw).argmax(2)

    apart = np.abs(arrays_of(result)["counts"] - plain_counts(predict))
    assert apart.sum() <= 4  # pixels
    check_figures(result, arrays_of(result)["counts"].astype(int))
    facts = result.metrics["bank"]
    assert facts["searched"] == facts["lists"] > 8 and facts["tokens"] == len(bank)
    assert 0.97 < facts["recall"] <= 1 and facts["bytes"] == bank.size * 2
    assert result.protocol["index"] == "ivf" and result.protocol["bank"] == "float16"


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


def test_one_image_has_no_interval(run):
    shown = run("--limit", "1")
    assert shown.exit_code == 0, shown.stderr
    [result] = records()
    assert result.metrics["interval"] is None and result.dataset["images"] == 1
    assert "cat" in shown.stdout and "–" in shown.stdout  # classes, and those that are not there


@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_several_votes_are_one_search(knn, monkeypatch, index):
    kind = {"flat": vectors.Flat, "ivf": vectors.Lists}[index]
    searched, plain = [], kind.search

    def counting(self, queries, k):
        searched.append((len(queries), k))
        return plain(self, queries, k)

    monkeypatch.setattr(kind, "search", counting)
    together = knn(k=[3, 30, 150], temperature=[0.02, 0.5], index=index)
    assert len(together) == 6
    whole = [k for queries, k in searched if queries == VAL * TOKENS]
    assert whole == [together[0].metrics["bank"]["tokens"]]  # the next of 30, 100, 300: fewer
    assert index == "ivf" or len(searched) == 1
    for result in together[::2]:
        vote = {name: result.protocol[name] for name in ("k", "temperature")}
        [alone] = knn(**vote, index=index, out="alone")
        assert alone.id == result.id and same(alone, result, ("alone", "results"))
    assert len({r.metrics["miou"] for r in together}) > 3


def test_equal_neighbours_are_the_same_however_many_are_sought(tmp_path, home):
    """Every training image twice, with other labels: the k-th neighbour has an equal."""
    folder = tmp_path / "twice"
    tiny_folder(folder, train=0, val=3)
    for i in range(8):
        trees.photo(folder / "images" / "train" / f"{i}.png", (40, 56), i // 4)
        mask = np.full((40, 56), i % 4, np.uint8)
        trees.grey_png(folder / "masks" / "train" / f"{i}.png", mask)
    options = home.options(cache="c")
    dataset = f"folder:{folder}"
    together = package.knn(home.ckpt, dataset, k=[1, 3, 6, 30, 150], **options)
    for result in together:
        k = result.protocol["k"]
        [alone] = package.knn(home.ckpt, dataset, k=k, out="alone", **options)
        assert alone.id == result.id and same(alone, result, ("alone", "results")), k


def test_more_neighbours_than_there_are_tokens(knn):
    few, many = knn(k=[50, 1000], memory=50)
    assert few.metrics["bank"]["tokens"] == 50
    assert np.array_equal(arrays_of(few)["counts"], arrays_of(many)["counts"])


def test_what_matters_is_another_record(home):
    def name(**more):
        return open_knn(home.ckpt, home.dataset, **home.options(**more)).cells[0].id

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


# -- the bank


@pytest.fixture
def banks(monkeypatch):
    """Which patches of each image were taken, for every bank that is made."""
    made, plain = [], _memory.joined

    def keeping(parts):
        bank = plain(parts)
        made.append([rows.tolist() for rows in bank.rows])
        return bank

    monkeypatch.setattr(_memory, "joined", keeping)
    return made


def test_memory_is_shared_evenly_and_drawn_by_the_seed(knn, banks):
    found = knn(memory=13, seeds=[0, 1], layers=["last", "0"])
    assert {r.metrics["bank"]["tokens"] for r in found} == {13}
    assert len(banks) == 2 and banks[0] != banks[1]  # one for all layers of a seed
    for bank in banks:
        assert sorted(map(len, bank)) == [2, 2, 2, 2, 2, 3]
        assert all(len(set(rows)) == len(rows) for rows in bank)
    knn(memory=13, out="again")
    assert banks[2] == banks[0]


def test_a_memory_smaller_than_the_number_of_images(knn, banks):
    found = knn(memory=4, seeds=[0, 1])
    assert [sorted(map(len, bank)) for bank in banks] == [[0, 0, 1, 1, 1, 1]] * 2
    assert [r.metrics["bank"]["tokens"] for r in found] == [4, 4]
    assert sum(found[0].metrics["bank"]["class_percent"].values()) == pytest.approx(100)
    [one] = knn(memory=1)
    assert one.metrics["bank"]["tokens"] == 1 and one.metrics["miou"] > 0


def test_seeds_do_not_matter_where_all_is_remembered(knn):
    one, other = knn(seeds=[0, 1])
    assert one.id != other.id
    assert np.array_equal(arrays_of(one)["counts"], arrays_of(other)["counts"])


# -- features


def test_features_are_those_of_extract_and_of_the_probe(run, cli, home, seen):
    for split in ("train", "val"):
        how = ("--dataset", home.dataset, "--split", split, "--size", SIZE, "--residual", "skip")
        shown = cli("extract", "--ckpt", home.ckpt, *how, "--device", "cpu")
        assert shown.exit_code == 0, shown.stderr
    seen.clear()
    assert run().exit_code == 0
    probe = home.arguments("probe", "--epochs", "1", "--out", "probed")
    assert cli(*probe).exit_code == 0 and not seen
    [one], [other] = records(), records("probed")
    assert one.timing["images_computed"] == other.timing["images_computed"] == 0


def test_without_a_cache_it_is_the_same_record(run, seen):
    assert run("--layers", "last", "--layers", "0").exit_code == 0
    shown = run("--layers", "last", "--layers", "0", "--no-cache", "--out", "x", "--cache", "none")
    assert shown.exit_code == 0, shown.stderr
    assert len(records()) == 2 and sum(images for images, _ in seen) == 2 * (TRAIN + VAL)
    assert all(same(a, b, ("results", "x")) for a, b in zip(records(), records("x"), strict=True))
    assert not Path("none").exists()


# -- interruption


def interrupted(monkeypatch, owner, name, at, before=False):
    """A Ctrl-C when this is called for the n-th time: after its work, or before."""
    plain, count = getattr(owner, name), 0

    def stopping(*arguments, **options):
        nonlocal count
        count += 1
        if count == at and before:
            raise KeyboardInterrupt
        found = plain(*arguments, **options)
        if count == at:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(owner, name, stopping)
    return plain


@pytest.fixture(scope="module")
def undisturbed(home):
    """Two records, made shard by shard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chunks, "SHARD", 2)
        out = home.folder / "undisturbed"
        made = package.knn(home.ckpt, home.dataset, **home.options(k=[3, 30], out=out))
    return out, {result.id: result for result in made}


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
        (_memory.Memory, "_index", 1, False, [30, 30, 30]),
        (vectors.Flat, "search", 2, True, [30, 30]),
        (_chunks.Chunks, "save", 1, False, [30, 30, 30]),  # one of the two was kept
        (_chunks.Chunks, "save", 4, False, [30]),
        (runs, "write_result", 1, True, []),
        (runs, "write_result", 1, False, []),
    ],
)
def test_interrupted_it_goes_on(run, undisturbed, monkeypatch, owner, name, at, before, left, seen):
    """The record is that of an undisturbed run, to the last bit; nothing is sought twice."""
    monkeypatch.setattr(_chunks, "SHARD", 2)
    with monkeypatch.context() as patch:
        interrupted(patch, owner, name, at, before)
        shown = run("--k", "3,30")
    assert shown.exit_code == 130 and "Traceback" not in shown.stderr
    done = len(records())
    assert done == (name == "write_result" and not before)
    seen.clear()
    again = searches(monkeypatch)
    shown = run("--k", "3,30")
    assert shown.exit_code == 0, shown.stderr
    assert again == left and not seen
    out, whole = undisturbed
    assert {r.id for r in records()} == set(whole)
    assert all(same(r, whole[r.id], ("results", out)) for r in records())


def test_nothing_is_left_in_the_cache(run, monkeypatch):
    """Interrupted, what was done is kept; done, it is not."""
    monkeypatch.setattr(_chunks, "SHARD", 2)
    with monkeypatch.context() as patch:
        interrupted(patch, _chunks.Chunks, "save", 2)
        assert run().exit_code == 130
    kept = sorted(path.name for path in Path("cache/knn").glob("*/*"))
    assert kept == ["00000.npz", "00001.npz"]
    assert run().exit_code == 0
    assert not list(Path("cache/knn").iterdir())


def test_nothing_is_left_of_a_record_that_was_just_written(run, monkeypatch):
    with monkeypatch.context() as patch:
        interrupted(patch, runs, "write_result", 1)
        assert run().exit_code == 130
    assert len(records()) == 1
    shown = run()
    assert shown.exit_code == 0 and "done before" in shown.stderr
    assert not list(Path("cache/knn").iterdir())


@pytest.mark.parametrize("damage", ["a bit", "half"])
def test_a_damaged_chunk_is_noticed(run, undisturbed, monkeypatch, damage):
    monkeypatch.setattr(_chunks, "SHARD", 2)
    with monkeypatch.context() as patch:
        interrupted(patch, _chunks.Chunks, "save", 2)
        assert run("--k", "30").exit_code == 130
    path = sorted(Path("cache/knn").glob("*/*"))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    changed = {"a bit": content, "half": content[: len(content) // 2]}
    path.write_bytes(changed[damage])
    again = searches(monkeypatch)
    shown = run("--k", "30")
    assert shown.exit_code == 0 and "damaged" in shown.stderr and len(again) == 2
    [result] = records()
    out, whole = undisturbed
    assert same(result, whole[result.id], ("results", out))


KILLED = """\
import os, signal, sys
from skipbench.evaluations import resume as _chunks
from skipbench.evaluations.cluster import run as cluster
from skipbench.engine import vectors
_chunks.SHARD = 2
owner, name, at = {owner}, {name!r}, {at}
plain = getattr(owner, name)
def killing(*arguments, **options):
    global at
    at -= 1
    if not at:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments, **options)
setattr(owner, name, killing)
from skipbench.cli import main
sys.argv = ["skipbench", *{arguments!r}]
main()
"""


def killed(tmp_path, owner, name, at, arguments):
    """kill -9 when this is called for the n-th time, in a process of its own."""
    words = [str(argument) for argument in arguments]
    code = KILLED.format(owner=owner, name=name, at=at, arguments=words)
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(tmp_path), cwd=tmp_path,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_killed_in_the_search(run, home, undisturbed, monkeypatch, tmp_path):
    arguments = home.arguments("knn", "--k", "3,30")
    killed(tmp_path, "vectors.Flat", "search", 3, arguments)
    assert not records() and len(list(Path("cache/knn").glob("*/*.npz"))) == 4
    monkeypatch.setattr(_chunks, "SHARD", 2)
    again = searches(monkeypatch)
    shown = run("--k", "3,30")
    assert shown.exit_code == 0 and again == [30], shown.stderr
    out, whole = undisturbed
    assert len(records()) == 2
    assert all(same(r, whole[r.id], ("results", out)) for r in records())
    assert not list(Path("cache/knn").iterdir())


# -- done before


def test_done_before_forced_damaged_and_labelled(run, monkeypatch):
    first = run()
    [result] = records()
    path = Path("results", f"{result.id}.json")
    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "run", None)  # nothing is computed again
        patch.setattr(vectors.Flat, "search", None)
        again = run()
        assert again.exit_code == 0 and "done before" in again.stderr
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


def test_forced_it_is_not_taken_from_chunks(run, monkeypatch):
    monkeypatch.setattr(_chunks, "SHARD", 2)
    with monkeypatch.context() as patch:
        interrupted(patch, _chunks.Chunks, "save", 2)
        assert run().exit_code == 130
    found = searches(monkeypatch)
    assert run("--force").exit_code == 0 and len(found) == 3
    assert not list(Path("cache/knn").iterdir())


def test_json_and_quiet(run):
    shown = run("--k", "3,30", "--json", "--quiet")
    found = json.loads(shown.stdout)
    assert [one["protocol"]["k"] for one in found] == [3, 30] and not shown.stderr
    for one in found:
        assert one == json.loads(Path("results", f"{one['id']}.json").read_text())
    assert json.loads(run("--k", "3,30", "--json").stdout) == found


def test_dry_run(run):
    shown = run("--dry-run", "--json")
    assert shown.exit_code == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["images"] == TRAIN + VAL and found["stored"] == 0
    assert found["disk_bytes"] == (TRAIN + VAL) * TOKENS * 64 * 2
    assert found["seconds"] > 0 and found["memory_bytes"] > 10**7
    assert not list(Path("results").iterdir()) and not list(Path("cache").rglob("*.safetensors"))
    assert run().exit_code == 0
    for more in ((), ("--index", "ivf"), ("--layers", "multiscale"), ("--size", "native")):
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
    shown = run(*how, "--pictures", "3")
    assert shown.exit_code == 0 and "done before" in shown.stderr, shown.stderr
    assert {r.id: lasting(r) for r in records()} == before
    first = {r.id for r in records() if r.protocol["seed"] == 0}
    assert {path.parent.name for path in Path("results").glob("*/sheet.png")} == first
    for name in first:
        folder = Path("results", name)
        made = sorted(path.name.split("_")[1] for path in folder.glob("0*.png"))
        assert made == ["best", "worst", "worst"] and str(folder) in shown.stderr
        index = json.loads((folder / "tiles" / "index.json").read_text())
        assert [tile["image"] for tile in index["tiles"]] == ["val/0", "val/1", "val/2"]
        counts = read_arrays(Path("results") / f"{name}.npz")["counts"]
        for tile, (right, predicted, true) in zip(index["tiles"], counts, strict=False):
            either = predicted + true - right
            own = 100 * np.mean(right[either > 0] / either[either > 0])
            assert tile["note"] == f"mIoU {own:.1f}"
            for file in (*tile["shared"].values(), *tile["own"].values()):
                with Image.open(folder / "tiles" / file) as image:
                    assert image.height == 224
    page = package.report("results").read_text()
    assert "nearest neighbours" in page and page.count("data:image/") >= 9


def test_a_picture_is_what_was_counted(home):
    """Drawn from a bank and a search of its own."""
    asked = open_knn(home.ckpt, home.dataset, pictures=2, k=3, **home.options())
    drawings = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "skipbench.evaluations.pictures.draw_record", lambda *given: drawings.append(given[1])
        )
        predicted = {}

        class Keeping:
            def __init__(self, data, items, predict, counts):
                predicted.update({i: predict(i, truth("val", i).shape)[0] for i in range(VAL)})
                predicted["counts"] = counts

        patch.setattr("skipbench.evaluations.pictures.Drawing", Keeping)
        asked.run()
    assert len(drawings) == 1
    assert np.array_equal(plain_counts(lambda image, _: predicted[image]), predicted["counts"])


# -- faults


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (("--dataset", "vocc"), 2, "Did you mean 'voc'"),
        (("--dataset", "voc"), 4, "--data-root"),
        (("--dataset", "folder:nowhere"), 4, "nowhere"),
        (("--k", "0"), 2, "--k '0'"),
        (("--k", "3,x"), 2, "--k '3,x'"),
        (("--k", ""), 2, "--k ''"),
        (("--k", "99999"), 2, "1024"),
        (("--temperature", "0"), 2, "--temperature '0'"),
        (("--temperature", "nan"), 2, "--temperature"),
        (("--memory", "0"), 2, "--memory"),
        (("--index", "flatt"), 2, "Did you mean 'flat'"),
        (("--bank-limit", "much"), 2, "much"),
        (("--bank-limit", "100"), 7, "--bank-limit"),
        (("--bank-limit", "1kB", "--index", "flat"), 7, "--index ivf"),
        (("--layers", "lst"), 2, "Did you mean 'last'"),
        (("--layers", "7"), 2, "no block 7"),
        (("--seeds", "-1"), 2, "--seeds"),
        (("--size", "0"), 2, "size"),
        (("--precision", "int8"), 2, "--precision"),
        (("--label", "epochs=3"), 2, "Did you mean 'epoch'"),
        (("--pictures", "-1"), 2, "--pictures"),
        (("--out", "file"), 7, "cannot write"),
        (("--ckpt", "fiel"), 3, "no checkpoint at fiel"),
        (("--ckpt", "file"), 3, "file"),
        (("--device", "cuda:9"), 2, "cuda"),
    ],
)
def test_faults(run, more, code, word, seen):
    Path("file").write_text("this is no checkpoint")
    shown = run(*more)
    said = " ".join(shown.stderr.split())
    assert shown.exit_code == code and word in said, shown.stderr
    assert "Traceback" not in said and not seen and not list(Path().glob("results/*.json"))


def test_data_sets_without_masks_or_whole_splits(cli, home):
    trees.coco20k(Path("data")), trees.voc(Path("data"))
    how = ("--ckpt", home.ckpt, "--residual", "skip", "--size", "24x32", "--device", "cpu")
    shown = cli("knn", *how, "--dataset", "coco20k", "--limit", "2")
    assert shown.exit_code == 2 and "has no masks" in shown.stderr
    shown = cli("knn", *how, "--dataset", "voc")
    assert shown.exit_code == 4 and "--limit" in shown.stderr and not records()
    shown = cli("knn", *how, "--dataset", "voc", "--limit", "3")
    assert shown.exit_code == 0 and "partial" in shown.stdout, shown.stderr
    [result] = records()
    assert result.dataset["partial"] and result.training["partial"]
    assert "tvmonitor" in result.metrics["absent_classes"]


def test_no_masks_are_said_of_neighbours_not_of_a_probe(cli, home):
    trees.coco20k(Path("data"))
    how = ("--residual", "skip", "--dataset", "coco20k", "--limit", "2")
    shown = cli("knn", "--ckpt", home.ckpt, *how)
    assert "has no masks" in shown.stderr and "probe" not in shown.stderr


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_without_a_label(run, split, seen):
    tiny_folder(Path("blank"))
    for path in Path("blank", "masks", split).iterdir():
        trees.grey_png(path, np.full_like(np.array(Image.open(path)), 255))
    shown = run("--dataset", "folder:blank")
    assert shown.exit_code == 4 and f"{split}: no labelled pixel" in shown.stderr
    assert not seen and not records()


def test_single_masks_without_a_label_count_for_nothing(run):
    tiny_folder(Path("some"))
    for name in ("train/0", "train/3", "val/2"):
        path = Path("some", "masks", f"{name}.png")
        trees.grey_png(path, np.full_like(np.array(Image.open(path)), 255))
    shown = run("--dataset", "folder:some", "--memory", "60", "--pictures", "5")
    assert shown.exit_code == 0, shown.stderr
    [result] = records()
    assert result.metrics["bank"]["tokens"] == 40  # ten from each of the four
    counts = arrays_of(result)["counts"]
    assert not counts[2].any() and counts[[0, 1, 3, 4]].any((1, 2)).all()


def test_a_share_that_has_no_label(run):
    """One token is asked for, and drawn from an image of which nothing is known."""
    tiny_folder(Path("some"), train=2)
    path = Path("some", "masks", "train", "0.png")
    trees.grey_png(path, np.full((41, 57), 255, np.uint8))
    codes = []
    for seed in range(4):
        shown = run("--dataset", "folder:some", "--memory", "1", "--seeds", seed)
        codes.append(shown.exit_code)
        assert "Traceback" not in shown.stderr
        assert shown.exit_code == 0 or "no patch" in shown.stderr
    assert set(codes) == {0, 4}


def nan_in_a_block(weights):
    weights["blocks.1.mlp.fc1.weight"][3, 3] = float("nan")


def all_alike(weights):
    weights["patch_embed.proj.weight"].zero_()
    weights["pos_embed"].zero_()


def test_nan_in_the_weights(run, tmp_path):
    bad = tiny_checkpoint(tmp_path / "nan.pth", spoil=nan_in_a_block)
    shown = run("--ckpt", bad)
    assert shown.exit_code == 6 and "NaN" in shown.stderr and not records()
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_tokens_that_are_all_alike(run, tmp_path, index):
    flat = tiny_checkpoint(tmp_path / "flat.pth", spoil=all_alike)
    shown = run("--ckpt", flat, "--index", index, "--pictures", "1")
    assert shown.exit_code == 0 and "constant features" in shown.stderr, shown.stderr
    [result] = records()
    assert result.features["degenerate"] == {"tokens_norm.2": VAL}
    assert 0 <= result.metrics["miou"] <= 100
    assert (arrays_of(result)["counts"][:, 1] > 0).sum(1).max() == 1  # one class for all pixels


def test_tokens_that_are_all_alike_are_said_without_a_cache(run, tmp_path):
    flat = tiny_checkpoint(tmp_path / "flat.pth", spoil=all_alike)
    shown = run("--ckpt", flat, "--no-cache")
    assert shown.exit_code == 0 and "constant features" in shown.stderr


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


@pytest.mark.parametrize("name", ["knn", "cluster"])
def test_faiss_missing_is_said_from_python_before_anything_is_seen(home, monkeypatch, seen, name):
    no_faiss(monkeypatch, "missing")
    with pytest.raises(package.SkipbenchError, match="faiss is not installed"):
        getattr(package, name)(home.ckpt, home.dataset, **home.options(cache="new"))
    assert not seen


def test_out_of_memory_in_the_search(run, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr(vectors.Flat, "search", fail)
    shown = run()
    assert shown.exit_code == 7 and "--memory" in shown.stderr and not records()


def test_a_full_disk_while_chunks_are_kept(run, monkeypatch, undisturbed):
    from skipbench.errors import ResourceError

    monkeypatch.setattr(_chunks, "SHARD", 2)

    def full(path, content):
        raise ResourceError(f"{path}: no space left")

    with monkeypatch.context() as patch:
        patch.setattr(_chunks, "write_whole", full)
        shown = run()
        assert shown.exit_code == 7 and "no space left" in shown.stderr and not records()
    assert run().exit_code == 0
    [result] = records()
    assert same(result, undisturbed[1][result.id], ("results", undisturbed[0]))


def test_a_bank_too_small_to_be_quantised(run):
    shown = run("--bank-limit", "10kB", "--index", "ivf")
    assert shown.exit_code == 2 and "--bank-limit" in shown.stderr and not records()


# -- records


@pytest.fixture(scope="module")
def two(home):
    """Two checkpoints, two seeds each, in one folder."""
    out = home.folder / "two"
    other = tiny_checkpoint(home.folder / "other.pth", seed=1)
    for ckpt in (home.ckpt, other):
        package.knn(ckpt, home.dataset, seeds=[0, 1], **home.options(memory=60, out=out))
    return out


def test_in_tables_comparisons_and_a_report(two, cli):
    table = cli("table", two)
    assert table.exit_code == 0 and "knn" in table.stdout and "other.pth" in table.stdout
    [found] = package.compare("skip.pth", "other.pth", results=two)
    assert found.metric == "miou" and len(found.a) == len(found.b) == 2
    values = [[s.result.metrics["miou"] for s in side] for side in (found.a, found.b)]
    assert found.images == VAL and found.a_value == pytest.approx(np.mean(values[0]))
    assert found.difference == pytest.approx(np.mean(values[1]) - np.mean(values[0]))
    shown = cli("compare", two, "skip.pth", "other.pth")
    assert shown.exit_code == 0 and shown.stdout.count("2 seeds") == 2, shown.output
    shown = cli("compare", two, "skip.pth", "other.pth", "--pictures", "1")
    assert shown.exit_code == 2 and "no pictures of knn" in shown.stderr
    page = package.report(two, "page.html").read_text()
    assert "nearest neighbours" in page and "other.pth" in page


def test_votes_are_told_apart(knn):
    """Of one checkpoint with several k: none is compared with another, or averaged with it."""
    made = knn(k=[3, 30], seeds=[0, 1], memory=60)
    package.update_baseline("results", "b.json")
    lines = read_baseline(Path("b.json")).figures
    assert len(lines) == 2 and all(line.seeds == 2 for line in lines.values())
    means = {np.mean([r.metrics["miou"] for r in made if r.protocol["k"] == k]) for k in (3, 30)}
    assert sorted(line.value for line in lines.values()) == pytest.approx(sorted(means), abs=1e-4)
    verdicts = package.check("results", "b.json", tolerance=0.1)
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
    assert line.noise > 0 and "done before" in cli("calibrate", *where).stderr


# -- suites and Python


def suite(home, *evaluations):
    text = f'[[checkpoint]]\npath = "{home.ckpt}"\nresidual = "skip"\n'
    for kind, more in evaluations:
        keys = "".join(f"{line}\n" for line in more)
        text += f'[[evaluation]]\nkind = "{kind}"\ndatasets = ["{home.dataset}"]\n{keys}'
    Path("suite.toml").write_text(text)


ALIKE = f'size = "{SIZE}"'
PROBE = ("probe", (ALIKE, "epochs = 1"))
KNN = ("knn", (ALIKE, "k = [3, 30]", 'temperature = "0.02,0.5"', "memory = 60", "seeds = [0, 1]"))


def test_in_a_suite(cli, home, seen, knn):
    suite(home, PROBE, KNN, ("knn", (ALIKE, "k = 3", 'bank_limit = "1GB"', 'index = "ivf"')))
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
    suite(home, ("knn", (ALIKE, "k = [3, 30]")))
    shown = cli("run", "suite.toml", "--cache", home.cache)
    assert shown.exit_code == 0
    rows = [line.split("mIoU")[0] for line in shown.stdout.splitlines() if "mIoU" in line]
    assert len(rows) == 2 and rows[0] != rows[1]


def test_the_figures_of_a_suite_tell_votes_apart(cli, home):
    suite(home, ("knn", (ALIKE, "k = [3, 30]")))
    [cell] = json.loads(cli("run", "suite.toml", "--cache", home.cache, "--json").stdout)
    told = [{**figure, "record": "", "miou": 0, "interval": 0} for figure in cell["figures"]]
    assert len(told) == 2 and told[0] != told[1]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("k = 0", "evaluation.k"),
        ("k = true", "evaluation.k"),
        ("k = []", "evaluation.k"),
        ("temperature = 0", "evaluation.temperature"),
        ("memory = 0", "evaluation.memory: 0"),
        ('index = "flatt"', "Did you mean 'flat'"),
        ('bank_limit = "much"', "evaluation.bank_limit"),
        ('size = "big"', "evaluation.size: 'big'"),
        ('layers = "lst"', "evaluation.layers: 'lst'"),
        ("seeds = []", "evaluation.seeds"),
        ("memry = 3", "Did you mean 'memory'"),
        ("clusters = 3", "evaluation.clusters: no such key"),
    ],
)
def test_a_mistake_in_a_suite_is_named(cli, home, key, words):
    suite(home, ("knn", [key]))
    shown = cli("run", "suite.toml")
    assert shown.exit_code == 2 and words in " ".join(shown.stderr.split()), shown.stderr


def test_every_option_is_a_key():
    told = set(vars(Places(Path())))
    keys = set(KNN_KEYS) - {"layers", "seeds"}
    assert keys | told | set(Reading.__annotations__) == set(KnnOptions.__annotations__)


def test_python_has_the_defaults_of_the_command(run, home, ckpt_call):
    command, twin = ckpt_call("knn", open_knn)
    assert command == twin
    with pytest.raises(TypeError, match="'neighbours'"):
        package.knn(home.ckpt, home.dataset, neighbours=3)
    with pytest.raises(package.SkipbenchError, match="--index"):
        package.knn(home.ckpt, home.dataset, index="tree")


@pytest.fixture
def ckpt_call(cli, home, monkeypatch):
    """What is asked of a run by the command and by its twin, without any option."""

    def both(command, opens):
        from skipbench.evaluations.knn import calls as neighbours

        asked = []
        plain = getattr(neighbours, opens.__name__)

        def noting(*arguments, **options):
            asked.append(plain(*arguments, **options))
            raise KeyboardInterrupt

        monkeypatch.setattr(neighbours, opens.__name__, noting)
        here = ("--ckpt", home.ckpt, "--dataset", home.dataset, "--residual", "skip")
        assert cli(command, *here).exit_code == 130
        [run] = asked
        twin = plain(home.ckpt, home.dataset, residual="skip")
        assert [cell.id for cell in run.cells] == [cell.id for cell in twin.cells]
        return tuple(
            {k: v for k, v in vars(one.asked).items() if k not in ("keeping", "call")}
            for one in (run, twin)
        )

    return both


@pytest.mark.parametrize("wrong", [{"memory": -5}, {"seeds": []}, {"seeds": [-1]}])
def test_python_refuses_wrong_values_in_words(knn, wrong):
    with pytest.raises(package.SkipbenchError):
        knn(**wrong)
