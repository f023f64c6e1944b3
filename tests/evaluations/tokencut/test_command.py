"""`skipbench tokencut` as a user meets it: figures by hand, interruption, pictures, faults."""

import csv
import json
import logging
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import trees
from conftest import clean_environment, lasting, records
from PIL import Image
from scipy.linalg import eigh
from scipy.stats import binomtest
from skimage import data as photographs
from threadpoolctl import threadpool_limits

import skipbench as package
from skipbench.datasets import Boxes, Item, open_dataset
from skipbench.demo import make_weights, small_facts
from skipbench.evaluations import resume as _chunks
from skipbench.evaluations.tokencut import eigenvector as _second_vector
from skipbench.evaluations.tokencut import scores as _sightings
from skipbench.evaluations.tokencut.objects import Found
from skipbench.features.stream import Extractor
from skipbench.files import write_whole
from skipbench.metrics.intervals import exact_interval
from skipbench.record_store import read_arrays

pytestmark = pytest.mark.usefixtures("nowhere_else")

PATCH = 8
QUICK = ("--size", "40x56", "--limit", "12")
SHORT = "DefaultCPUAllocator: can't allocate memory"


@pytest.fixture(scope="session")
def weights():
    return make_weights("skip", small_facts(width=64, depth=3, patch=PATCH, heads=1))


@pytest.fixture
def ckpt(tmp_path, weights):
    path = tmp_path / "skip.pth"
    torch.save(weights, path)
    return path


@pytest.fixture
def run(cli, ckpt):
    """Quick discovery on `shapes`, in this process."""

    def run(*more, dataset="shapes", quick=QUICK):
        task = ("--dataset", dataset) if dataset else ()
        return cli("tokencut", "--ckpt", ckpt, "--residual", "skip", *task, *quick, *more)

    return run


@pytest.fixture
def small_shards(monkeypatch):
    """Four images each, so that twelve can be interrupted."""
    monkeypatch.setattr("skipbench.features.plan.SHARD_IMAGES", 4)


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_blas():
    """Its threads and torch's wait for each other, a hundred times longer than the work takes."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(autouse=True)
def quiet_log():
    yield
    logging.getLogger("skipbench").handlers = []
    logging.getLogger("skipbench").propagate = True


@pytest.fixture(scope="session", autouse=True)
def weights_file(tmp_path_factory, weights):
    """The same weights where no test removes them."""
    path = tmp_path_factory.mktemp("weights") / "skip.pth"
    torch.save(weights, path)
    return path


@pytest.fixture(scope="session")
def backbone(weights_file):
    return package.load_backbone(weights_file, residual="skip", device="cpu")


def only(folder="results"):
    """The one record there, and its arrays."""
    [record] = records(folder)
    return record, read_arrays(Path(folder) / f"{record.id}.npz")


def table(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def by_image(record, folder="results"):
    return table(Path(folder, record.id, "images.csv"))


def stable(record, arrays):
    """What an interruption must not change."""
    return lasting(record), {name: array.tolist() for name, array in arrays.items()}


# -- the same by plain code, written from the protocol alone


def plain_tokens(backbone, pixels, block, tensor="keys"):
    """(height, width, channels) float64 of an image at its own size, padded with zeros."""
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    height, width = pixels.shape[:2]
    canvas = np.zeros((-(-height // PATCH) * PATCH, -(-width // PATCH) * PATCH, 3))
    canvas[:height, :width] = (pixels / 255 - mean) / deviation
    images = torch.from_numpy(canvas.transpose(2, 0, 1)[None].astype(np.float32))
    found = backbone(images, [block], [tensor]).patches[block, tensor]
    return found[0].double().numpy()


def plain_cut(tokens, tau=0.2, eps=1e-5):
    """The object on the grid of tokens, and the eigenvector: (height, width) each."""
    grid_hw = tokens.shape[:2]
    unit = tokens.reshape(-1, tokens.shape[-1])
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    affinity = np.where(unit @ unit.T > tau, 1.0, eps)
    degrees = np.diag(affinity.sum(1))
    vector = eigh(degrees - affinity, degrees, subset_by_index=[1, 1])[1][:, 0]
    vector /= np.abs(vector).max()
    seed = int(np.flatnonzero(np.abs(vector) > 1 - 1e-7)[0])
    vector *= np.sign(vector[seed])
    side = (vector - vector.mean() > 1e-7).reshape(grid_hw)
    return plain_part(side, divmod(seed, grid_hw[1])), vector.reshape(grid_hw)


def plain_lost(tokens):
    grid_hw = tokens.shape[:2]
    flat = tokens.reshape(-1, tokens.shape[-1])
    products = flat @ flat.T
    degrees = (products > 0).sum(1)
    order = np.argsort(degrees, kind="stable")[:100]
    similar = [token for token in order if products[token, order[0]] > 0]
    side = (products[similar].sum(0) > 0).reshape(grid_hw)
    return plain_part(side, divmod(int(order[0]), grid_hw[1])), None


def plain_part(side, seed):
    part, front = np.zeros_like(side), [seed]
    while front:
        y, x = front.pop()
        inside = 0 <= y < side.shape[0] and 0 <= x < side.shape[1]
        if inside and side[y, x] and not part[y, x]:
            part[y, x] = True
            front += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
    return part


def plain_box(part, size_hw):
    ys, xs = np.nonzero(part)
    right, bottom = (xs.max() + 1) * PATCH, (ys.max() + 1) * PATCH
    return [xs.min() * PATCH, ys.min() * PATCH, min(right, size_hw[1]), min(bottom, size_hw[0])]


def plain_iou(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one, other)]
    return shared / (sum(areas) - shared)


def plain_enlarged(grid, size_hw):
    return np.kron(grid, np.ones((PATCH, PATCH)))[: size_hw[0], : size_hw[1]]


def plain_nearest(values, size_hw):
    """Each pixel has the value under its centre."""
    sides = zip(values.shape, size_hw, strict=True)
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(int) for old, new in sides)
    return values[rows[:, None], columns]


def plain_f(predicted, true):
    right = (predicted & true).sum()
    precision = right / predicted.sum() if predicted.any() else 1.0
    recall = right / true.sum() if true.any() else 1.0
    below = 0.3 * precision + recall
    return 1.3 * precision * recall / below if below else 0.0


def plain_honest(hits):
    """Mean over a hundred halvings, each half scored with the block that is best on the other."""
    rng, total = np.random.default_rng(0), 0.0
    for _ in range(100):
        order = rng.permutation(len(hits)).tolist()
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        for mine, other in (halves, halves[::-1]):
            sums = [sum(hits[image][block] for image in other) for block in range(len(hits[0]))]
            best = sums.index(max(sums))
            total += sum(hits[image][best] for image in mine)
    return 100 * total / (100 * len(hits))


# -- pictures with something in them


def scene(size_hw, box, seed=0):
    """HWC uint8: stripes in a box, on a ground that changes slowly."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size_hw[0], : size_hw[1]]
    ground = 60 + 60 * np.stack([x / size_hw[1], y / size_hw[0], (x + y) / sum(size_hw)], -1)
    stripes = 255 * ((x[..., None] // 3 + y[..., None] // 2) % 2) * rng.uniform(0.5, 1, 3)
    inside = (x >= box[0]) & (x < box[2]) & (y >= box[1]) & (y < box[3])
    pixels = np.where(inside[..., None], stripes, ground) + rng.normal(0, 4, (*size_hw, 3))
    return pixels.round().clip(0, 255).astype(np.uint8)


def put(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


SIZES_HW = [(41, 67), (72, 50), (48, 80), (57, 90)]
BOXES = [(8, 9, 40, 33), (5, 20, 41, 60), (30, 8, 71, 40), (17, 16, 66, 49)]


def boxed_folder(folder=Path("mine"), count=4):
    """A folder with boxes.csv; the images by name."""
    lines, images = ["image,xmin,ymin,xmax,ymax"], {}
    for i in range(count):
        images[f"p{i}"] = put(folder / "images" / f"p{i}.png", scene(SIZES_HW[i], BOXES[i], i))
        lines.append(f"p{i}," + ",".join(map(str, BOXES[i])))
    (folder / "boxes.csv").write_text("\n".join(lines))
    return images


# -- the record


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
    counted = {"block", "corloc", "interval", "degenerate", "dense", "tied"}
    assert all(set(row) == counted for row in metrics["blocks"])
    assert set(metrics["chosen"]) == {"val", "holdout"}
    assert record.timing["images_computed"] == record.timing["images"] == 12
    assert record.timing["features_seconds"] > 0 and record.timing["cutting_seconds"] > 0
    assert record.timing["peak_memory_bytes"] > 10**7
    assert record.environment["threads"] == torch.get_num_threads()
    assert arrays["boxes"].shape == (12, 3, 4) and arrays["score"].shape == (12, 3)
    assert arrays["tokens"].shape == arrays["solver"].shape == arrays["tied"].shape == (12, 3)
    assert {"counts", "counts_val", "counts_holdout", "ious", "ious_of"} <= set(arrays)


def test_hits_and_corloc_by_hand(run):
    """Boxes as they are stored, against the true ones."""
    assert run("--layers", "all", quick=("--limit", "14")).exit_code == 0
    record, arrays = only()
    data = open_dataset("shapes", limit=14)
    truths = [item.boxes().xyxy.tolist() for item in data]
    assert arrays["ious_of"].tolist() == list(map(len, truths))
    ious = [
        [[plain_iou(true, box) for box in boxes.tolist()] for true in boxes_of]
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
    rows = by_image(record)
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


def test_the_honest_figure_by_hand(run):
    assert run("--layers", "all", quick=("--limit", "14")).exit_code == 0
    record, arrays = only()
    honest = record.metrics["chosen"]["holdout"]
    assert honest["corloc"] == pytest.approx(plain_honest(arrays["score"].tolist()))
    assert honest["corloc"] <= record.metrics["chosen"]["val"]["corloc"]
    assert honest["block"] is None and sum(honest["blocks"].values()) == 200
    counts = arrays["counts_holdout"]
    assert (counts[:, 1] == 100).all()
    assert 100 * counts[:, 0].sum() / counts[:, 1].sum() == pytest.approx(honest["corloc"])


def test_the_honest_figure_may_be_the_headline(run):
    assert run("--layers", "all").exit_code == 0
    usual, _ = only()
    shown = run("--layers", "all", "--select", "holdout", "--out", "honest")
    assert shown.exit_code == 0
    record, arrays = only("honest")
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


def test_all_layers_at_once_are_each_layer_alone(run, seen):
    how = ("--limit", "6", "--size", "40x56")
    assert run("--layers", "all", "--out", "all", quick=how).exit_code == 0
    assert seen == [(6, (0, 1, 2))]  # one pass, all in one batch
    whole, arrays = only("all")
    for block in range(3):
        assert run("--layers", block, "--out", f"b{block}", quick=how).exit_code == 0
        record, mine = only(f"b{block}")
        assert record.metrics["blocks"] == [whole.metrics["blocks"][block]]
        assert record.metrics["chosen"] == {} and record.metrics["selected_on"] is None
        assert record.metrics["corloc"] == whole.metrics["blocks"][block]["corloc"]
        assert record.metrics["block"] == block and "counts_val" not in mine
        for name in ("boxes", "score", "ious", "tokens", "solver"):
            assert np.array_equal(mine[name][:, 0], arrays[name][:, block]), name
    assert run("--layers", "1,-1", "--out", "two", quick=how).exit_code == 0
    record, _ = only("two")
    assert record.features["blocks"] == [1, 2]
    assert record.metrics["blocks"] == whole.metrics["blocks"][1:]


def test_blocks_by_other_names_are_one_record(run):
    assert run("--layers", "last").exit_code == 0
    assert "done before" in run("--layers", "-1").stderr
    assert "done before" in run("--layers", "2").stderr and len(records()) == 1


def test_json_on_stdout_is_the_record(run):
    shown = run("--json")
    found = json.loads(shown.stdout)  # nothing else stands there
    assert found == json.loads(Path("results", f"{found['id']}.json").read_text())
    assert run("--json", "--quiet", "--force").stderr == ""


def test_the_same_twice_is_done_once(run, monkeypatch):
    first = run("--layers", "all")
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed again
    again = run("--layers", "all")
    assert again.exit_code == 0 and "done before" in again.stderr
    assert again.stdout == first.stdout
    assert run("--layers", "all", "--force").exit_code == 1  # it would have been


def test_force_does_it_again(run):
    assert run().exit_code == 0
    record, arrays = only()
    path = Path("results", f"{record.id}.json")
    path.write_text(path.read_text().replace('"tau": 0.2', '"tau": 0.9'))
    shown = run("--force")
    assert shown.exit_code == 0 and "done before" not in shown.stderr
    again, others = only()
    assert stable(again, others) == stable(record, arrays)
    assert again.timing["images_computed"] == 12


@pytest.mark.parametrize("what", ["record", "end of the arrays", "middle of the arrays"])
def test_a_damaged_record_is_made_anew(run, what):
    assert run().exit_code == 0
    record, arrays = only()
    path = Path("results", f"{record.id}.{'json' if what == 'record' else 'npz'}")
    content = bytearray(path.read_bytes())
    if what == "middle of the arrays":
        flip(content)
    else:
        del content[-30:]
    path.write_bytes(content)
    shown = run()
    assert shown.exit_code == 0, shown.stderr
    assert "damaged" in shown.stderr and "warning" in shown.stderr
    assert stable(*only()) == stable(record, arrays)


def flip(content):
    """The first array of an .npz: its compressed bytes are now of no kind that there is."""
    lengths = int.from_bytes(content[26:28], "little"), int.from_bytes(content[28:30], "little")
    content[30 + sum(lengths)] |= 6


def test_what_matters_is_another_record(run):
    base = ("--limit", "4", "--size", "40x56", "--layers", "all")
    assert run(quick=base).exit_code == 0
    for more in (
        ("--tau", "0.3"), ("--eps", "1e-4"), ("--feature", "queries"), ("--layers", "0,1"),
        ("--method", "lost"), ("--size", "56x40"), ("--size", "short:40"), ("--no-hard",),
        ("--split", "train"), ("--score", "masks"), ("--precision", "bf16"), ("--limit", "3"),
        ("--select", "holdout"),
    ):  # fmt: skip
        before = len(records())
        shown = run(*more, quick=base)
        assert shown.exit_code == 0, shown.stderr
        assert len(records()) == before + 1, more


def test_what_does_not_matter_is_the_same_record(run, monkeypatch):
    base = ("--limit", "4", "--size", "40x56")
    assert run(quick=base).exit_code == 0
    record, arrays = only()
    for more in (
        ("--batch-size", "1"), ("--workers", "1"), ("--pictures", "1"), ("--cache", "elsewhere"),
        ("--no-cache",), ("--layers", "2"), ("--precision", "fp32"), ("--resize", "40x56"),
        ("--select", "holdout"), ("--label", "epoch=7"), ("--hard",), ("--score", "boxes"),
    ):  # fmt: skip
        shown = run(*more, quick=base)
        assert shown.exit_code == 0 and "done before" in shown.stderr, more
    assert run("--batch-size", "1", "--out", "x", quick=base).exit_code == 0
    other, theirs = only("x")
    assert other.id == record.id and np.array_equal(theirs["boxes"], arrays["boxes"])
    assert only()[0].checkpoint["epoch"] == 7


# -- the whole way once more, by plain code


@pytest.mark.parametrize(
    ("tensor", "tau", "eps"),
    [("keys", 0.2, 1e-5), ("queries", 0.1, 1e-5), ("tokens", 0.3, 1e-2), ("values", 0.2, 1e-5)],
)
def test_boxes_by_plain_code(run, backbone, tensor, tau, eps):
    """Of keys also where there are so many tokens that the solver is iterative."""
    boxed_folder()
    name, count = ("shapes", 3) if tensor == "keys" else ("folder:mine", 4)
    how = ("--limit", count, "--layers", "1,2", "--feature", tensor, "--tau", tau, "--eps", eps)
    assert run(dataset=name, quick=how).exit_code == 0
    record, arrays = only()
    assert record.protocol["tau"] == tau and record.features["tensor"] == tensor
    solvers = {row["solver"] for row in by_image(record)}
    assert solvers == {"iterative" if tensor == "keys" else "small"}
    assert record.metrics["dense"] == 0
    for i, item in enumerate(open_dataset(name, limit=count)):
        pixels = item.read()
        for place, block in enumerate((1, 2)):
            part, _ = plain_cut(plain_tokens(backbone, pixels, block, tensor), tau, eps)
            assert arrays["tokens"][i, place] == part.sum()
            assert arrays["boxes"][i, place].tolist() == plain_box(part, pixels.shape[:2])


def test_boxes_of_photographs_by_plain_code(run, backbone):
    """None of their sides is a whole number of patches."""
    sizes_hw = {"chelsea": (93, 133), "coffee": (133, 190), "rocket": (107, 157)}
    images = {}
    for name, (height, width) in sizes_hw.items():
        photo = Image.fromarray(getattr(photographs, name)()).resize((width, height))
        images[f"{name}.png"] = put(Path("photos", f"{name}.png"), np.asarray(photo))
    shown = run("--images", "photos", "--layers", "all", "--out", "out", dataset=None, quick=())
    assert shown.exit_code == 0, shown.stderr
    rows = table("out/objects.csv")
    assert [(row["image"], int(row["block"])) for row in rows] == [
        (name, block) for name in sorted(images) for block in range(3)
    ]
    for row in rows:
        pixels = images[row["image"]]
        part, _ = plain_cut(plain_tokens(backbone, pixels, int(row["block"])))
        corners = [float(row[key]) for key in ("xmin", "ymin", "xmax", "ymax")]
        assert corners == plain_box(part, pixels.shape[:2]) and int(row["tokens"]) == part.sum()


def test_lost_by_plain_code(run, backbone):
    assert run("--method", "lost", quick=("--limit", "5", "--layers", "all")).exit_code == 0
    record, arrays = only()
    assert record.protocol["method"] == "lost"
    assert not {"tau", "eps"} & set(record.protocol)
    assert all(row["dense"] == 0 for row in record.metrics["blocks"])
    for i, item in enumerate(open_dataset("shapes", limit=5)):
        for block in range(3):
            pixels = item.read()
            part, _ = plain_lost(plain_tokens(backbone, pixels, block))
            assert arrays["boxes"][i, block].tolist() == plain_box(part, pixels.shape[:2])


def test_tau_is_nothing_to_lost(run):
    shown = run("--method", "lost", "--tau", "0.5")
    assert shown.exit_code == 2 and "--method tokencut" in shown.stderr


def test_an_iou_of_a_half_is_a_hit():
    found = [Found(np.ones((2, 2), bool), np.zeros((2, 2)), 0)]
    seen = _sightings.Seen(found, 8, (16, 16), (16, 16))
    for height, hit in ((8, 1), (7, 0)):
        boxes = Boxes(np.array([[0.0, 0, 16, height]]), ("thing",), np.zeros(1, bool))
        item = Item("a", Path("a.png"), read_boxes=None)
        object.__setattr__(item, "read_boxes", lambda boxes=boxes: boxes)
        Image.new("RGB", (16, 16)).save("a.png")
        scored = _sightings.score_boxes(item, seen)
        assert scored["score"].tolist() == [hit] and scored["whole_image"] == hit


@pytest.mark.parametrize(("hits", "ends"), [(0, (0.0, 45.93)), (6, (54.07, 100.0))])
def test_no_interval_of_a_few_images_is_a_point(hits, ends):
    """Clopper and Pearson's, by scipy."""
    low, high = exact_interval(hits, 6)
    theirs = binomtest(hits, 6).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((theirs.low, theirs.high))
    assert (100 * low, 100 * high) == pytest.approx(ends, abs=0.01)


def test_every_pixel_an_object_is_refused(run):
    trees.ade20k(Path("data"))
    shown = run(dataset="ade20k", quick=("--limit", "2"))
    assert shown.exit_code == 2 and "not background" in shown.stderr and not records()


def test_an_overflow_is_not_forgotten_by_an_interruption(run, small_shards, monkeypatch):
    """The rest is computed in the precision that an undisturbed run would have gone on in."""
    again = interrupt_after(monkeypatch, 1)
    looked = Extractor.forward

    def overflows(self, *given):
        self.backbone.precision = "bf16" if self.backbone.precision == "fp16" else "fp32"
        return looked(self, *given)

    monkeypatch.setattr(Extractor, "forward", overflows)
    assert run("--precision", "bf16").exit_code == 130
    again()
    monkeypatch.setattr(Extractor, "forward", looked)
    assert run("--precision", "bf16").exit_code == 0
    assert only()[0].features["precision"] == "fp32"


@pytest.mark.parametrize("size", ["64x96", "short:48", "90"])
def test_boxes_of_resized_images_are_in_pixels_of_the_original(run, backbone, size):
    """The last size is no whole number of patches either."""
    boxed_folder()
    shown = run(dataset="folder:mine", quick=("--size", size))
    assert shown.exit_code == 0, shown.stderr
    _, arrays = only()
    for i, item in enumerate(open_dataset("folder:mine")):
        height, width = SIZES_HW[i]
        smaller = 48 / min(height, width)
        new_hw = {"64x96": (64, 96), "90": (90, 90)}.get(
            size, (round(height * smaller), round(width * smaller))
        )
        pixels = Image.open(item.path).resize(new_hw[::-1], Image.Resampling.BILINEAR)
        part, _ = plain_cut(plain_tokens(backbone, np.asarray(pixels), 2))
        x0, y0, x1, y1 = plain_box(part, new_hw)
        right, down = width / new_hw[1], height / new_hw[0]
        expected = [x0 * right, y0 * down, x1 * right, y1 * down]
        assert arrays["boxes"][i, 0].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", ["native", "64x96", "30"])
def test_a_box_ends_where_the_image_does(run, size):
    """τ so low that all is one object: padding is no part of it."""
    boxed_folder()
    shown = run("--tau", "-0.999", dataset="folder:mine", quick=("--size", size))
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert record.metrics["degenerate"] == 4
    whole = [[0, 0, width, height] for height, width in SIZES_HW]
    assert arrays["boxes"][:, 0].tolist() == pytest.approx(np.array(whole, float))


def test_a_picture_that_exif_turns_is_seen_as_it_is_shown(run):
    trees.photo(Path("mine", "images", "a.jpg"), (30, 44), orientation=6)
    Path("mine", "boxes.csv").write_text("image,xmin,ymin,xmax,ymax\na,0,0,22,30\n")
    assert run("--tau", "-0.999", dataset="folder:mine", quick=()).exit_code == 0
    _, arrays = only()
    assert arrays["boxes"][0, 0].tolist() == [0, 0, 30, 44] and arrays["ious"][0, 0] == 0.5
    assert arrays["score"][0, 0] == 1  # half is enough


# -- VOC, COCO: which boxes count


def hard_voc(root):
    """Five images: one plain, one truncated beside a plain one, one difficult, one truncated, one
    without a box."""
    folder = trees.voc(root)
    plain, other = trees.voc_object(), trees.voc_object("cat", (9, 9, 24, 22))
    cut = trees.voc_object("cat", (9, 9, 24, 22), truncated=1)
    objects = [[plain, other], [plain, cut], [trees.voc_object(difficult=1)], [cut], []]
    names = (folder / "ImageSets" / "Main" / "trainval.txt").read_text().split()
    for name, these in zip(names, objects, strict=True):
        with Image.open(folder / "JPEGImages" / f"{name}.jpg") as image:
            trees.voc_xml(folder / "Annotations" / f"{name}.xml", image.size[::-1], these)
    return names


def test_voc_has_trainval_with_hard_boxes(run):
    names = hard_voc(Path("data"))
    shown = run("--tau", "-0.999", dataset="voc", quick=("--limit", "5"))  # the box is the image
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert record.dataset["split"] == "trainval" and record.dataset["official_images"] == 11_540
    assert record.dataset["partial"] and record.dataset["classes"] == 0
    assert record.dataset["names"] == names[:4] and record.dataset["empty"] == names[4:]
    assert "1 images without a box" in shown.stderr and "1 without a box" in shown.stdout
    assert arrays["ious_of"].tolist() == [2, 2, 1, 1] and record.protocol["hard"] is True
    # In the XML pixels count from 1 and both ends are inside: 3, 2, 20, 11 are 18 × 10 pixels.
    assert arrays["ious"][:2, 0].tolist() == pytest.approx([180 / 1320, 16 * 14 / 1320])


def test_no_hard_drops_boxes_and_the_images_left_empty(run):
    names = hard_voc(Path("data"))
    assert run("--no-hard", dataset="voc", quick=("--limit", "5")).exit_code == 0
    record, arrays = only()
    assert record.dataset["names"] == names[:2] and record.dataset["empty"] == names[2:]
    assert arrays["ious_of"].tolist() == [2, 1] and record.protocol["hard"] is False
    assert record.protocol["changes"] == {"hard": [True, False]}


def test_a_split_that_is_not_whole(run):
    """Fault 25."""
    trees.voc(Path("data"))
    shown = run(dataset="voc", quick=())
    assert shown.exit_code == 4 and "--limit 5" in shown.stderr and not records()


def crowded_folder(boxes):
    """Three images and a COCO file. boxes: (image, xywh, crowd)."""
    images = []
    for i in range(3):
        put(Path("mine", "images", f"c{i}.png"), scene(SIZES_HW[i], BOXES[i], i))
        images.append((i, f"c{i}.png", SIZES_HW[i]))
    rows = [(image, xywh, 1, crowd) for image, xywh, crowd in boxes]
    trees.coco_json(Path("mine", "annotations", "instances.json"), images, rows)


def test_images_without_a_box_or_with_crowds_alone_are_left_out_and_counted(run):
    """Fault 27."""
    mine = (3, 4, 20.5, 12)
    crowded_folder([(0, mine, False), (0, (0, 0, 60, 40), True), (1, (0, 0, 30, 30), True)])
    shown = run(dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert record.dataset["names"] == ["c0"] and record.dataset["empty"] == ["c1", "c2"]
    assert "2 images without a box" in shown.stderr and "2 without a box" in shown.stdout
    assert arrays["ious_of"].tolist() == [1]
    box = arrays["boxes"][0, 0].tolist()
    assert arrays["ious"][0, 0] == pytest.approx(plain_iou((3, 4, 23.5, 16), box))


def test_nothing_but_crowds(run):
    crowded_folder([(i, (0, 0, 30, 30), True) for i in range(3)])
    shown = run(dataset="folder:mine", quick=())
    assert shown.exit_code == 4 and "no image has a box" in shown.stderr and not records()


def test_corners_of_coco20k_are_rounded(run):
    trees.coco20k(Path("data"))
    shown = run("--tau", "-0.999", dataset="coco20k", quick=("--limit", "2"))
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert arrays["ious_of"].tolist() == [1, 1] and record.dataset["partial"]
    # 1.5, 2.5, 11.5, 10.75 of 24 × 40 pixels; 3.2, 4.7, 15.8, 13.8 of 30 × 44
    areas = {"396626": 10 * 9 / 960, "560992": 13 * 9 / 1320}
    expected = [areas[name.removesuffix(".jpg")[-6:]] for name in record.dataset["names"]]
    assert arrays["ious"][:, 0].tolist() == pytest.approx(expected)


# -- masks


def saliency_by_hand(backbone, images, masks, block, seen_hw=None):
    """(images, 3): IoU, accuracy, F-beta; and max F-beta in percent.

    masks: 255 is ignored; seen_hw: of the images as the model sees them.
    """
    found, curves = [], []
    for pixels, mask in zip(images, masks, strict=True):
        hw = seen_hw or mask.shape
        small = Image.fromarray(pixels).resize(hw[::-1], Image.Resampling.BILINEAR)
        part, vector = plain_cut(plain_tokens(backbone, np.asarray(small), block))
        counted, true = mask != 255, mask > 0
        predicted = plain_nearest(plain_enlarged(part, hw), mask.shape)[counted] > 0
        soft, true = plain_nearest(plain_enlarged(vector, hw), mask.shape)[counted], true[counted]
        soft = ((soft - soft.min()) / (soft.max() - soft.min())).round(9)  # noise decides nothing
        iou = (predicted & true).sum() / (predicted | true).sum()
        found.append((iou, (predicted == true).mean(), plain_f(predicted, true)))
        curves.append([plain_f(soft > cut / 255, true) for cut in range(255)])
    return np.array(found), 100 * np.mean(curves, axis=0).max()


def check_saliency(record, arrays, backbone, images, masks, seen_hw=None):
    for place, row in enumerate(record.metrics["blocks"]):
        found, highest = saliency_by_hand(backbone, images, masks, row["block"], seen_hw)
        for name, expected in zip(("score", "accuracy", "f_beta"), found.T, strict=True):
            np.testing.assert_allclose(arrays[name][:, place], expected, atol=1e-6)
        assert [row["iou"], row["accuracy"], row["f_beta"]] == pytest.approx(100 * found.mean(0))
        assert row["max_f_beta"] == pytest.approx(highest)
        assert row["interval"][0] <= row["iou"] <= row["interval"][1]
    best = max(record.metrics["blocks"], key=lambda row: row["iou"])
    names = ("iou", "accuracy", "f_beta", "max_f_beta")
    assert [record.metrics[name] for name in names] == [best[name] for name in names]


def salient_scenes():
    """ECSSD's layout with three scenes, as PNG; images and masks."""
    folder = trees.ecssd(Path("data"))
    images, masks = [], []
    for i, name in enumerate(["0001", "0002", "0003"]):
        size_hw = trees.SIZES_HW[i]
        pixels = scene(size_hw, (9, 7, 22, 21), i)
        images.append(put(folder / "images" / f"{name}.png", pixels))
        (folder / "images" / f"{name}.jpg").unlink()
        masks.append((trees.blocks(size_hw, [0, 255, 0, 0]) > 0) * 1)
    return images, masks


def test_noise_in_the_last_bits_does_not_move_max_f_beta(run, backbone):
    """The two lowest entries of one of these eigenvectors are equal but for rounding; F-beta of
    all that is above the lowest is the highest here."""
    images, masks = salient_scenes()
    assert run(dataset="ecssd", quick=("--limit", "3", "--layers", "1")).exit_code == 0
    expected = saliency_by_hand(backbone, images, masks, 1)[1]
    assert only()[0].metrics["max_f_beta"] == pytest.approx(expected)


def test_saliency_by_hand(run, backbone):
    images, masks = salient_scenes()
    shown = run(dataset="ecssd", quick=("--limit", "3", "--layers", "0,2"))
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert record.metrics["headline"] == "iou" and record.protocol["score"] == "masks"
    assert record.protocol["hard"] is None and record.dataset["split"] == "test"
    check_saliency(record, arrays, backbone, images, masks)
    for word in ("IoU", "max F-beta", "F-beta", "accuracy"):
        assert word in shown.stdout
    rows = by_image(record)
    assert {"iou", "f_beta", "accuracy"} < set(rows[0]) and "hit" not in rows[0]
    best = record.features["blocks"].index(record.metrics["block"])
    listed = [[float(row[key]) for key in ("iou", "accuracy", "f_beta")] for row in rows]
    kept = [arrays[key][:, best] for key in ("score", "accuracy", "f_beta")]
    np.testing.assert_allclose(listed, np.stack(kept, 1), atol=1e-4)


def test_saliency_of_resized_images_by_hand(run, backbone):
    """The mask that is found is brought to the size of the true one."""
    images, masks = salient_scenes()
    shown = run(dataset="ecssd", quick=("--limit", "3", "--size", "60x90"))
    assert shown.exit_code == 0, shown.stderr
    check_saliency(*only(), backbone, images, masks, (60, 90))


def test_pixels_marked_as_void_are_ignored(run, backbone):
    """VOC's 255; and its masks belong to val."""
    folder = trees.voc(Path("data"))
    names = (folder / "ImageSets" / "Segmentation" / "val.txt").read_text().split()
    images, masks = [], []
    for i, name in enumerate(names):
        with Image.open(folder / "JPEGImages" / f"{name}.jpg") as image:
            size_hw = image.size[::-1]
        Image.fromarray(scene(size_hw, (4, 7, 17, 21), i + 6)).save(
            folder / "JPEGImages" / f"{name}.jpg", quality=95
        )
        with Image.open(folder / "JPEGImages" / f"{name}.jpg") as image:
            images.append(np.asarray(image.convert("RGB")))
        masks.append(trees.blocks(size_hw, [0, i + 4, 255]))
    shown = run("--score", "masks", dataset="voc", quick=("--limit", "2"))
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert record.dataset["split"] == "val" and record.dataset["names"] == names
    check_saliency(record, arrays, backbone, images, masks)


def masked_folder(blank, count=4):
    """A folder with masks; those in `blank` are void throughout."""
    for i in range(count):
        size_hw = SIZES_HW[i]
        put(Path("mine", "images", f"{i}.png"), scene(size_hw, BOXES[i], i))
        mask = np.full(size_hw, 255, np.uint8) if i in blank else trees.blocks(size_hw, [0, 1, 1])
        trees.grey_png(Path("mine", "masks", f"{i}.png"), mask)
    Path("mine", "classes.txt").write_text("nothing\nthing\n")


def test_an_image_of_which_no_pixel_counts_counts_for_nothing(run):
    """Fault 24: neither in the best block's figure nor in the honest one, nor on the way."""
    masked_folder({2})
    shown = run("--layers", "all", "--pictures", "4", dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    scores = arrays["score"].astype(float)
    assert np.isnan(scores[2]).all() and not np.isnan(scores[[0, 1, 3]]).any()
    means = 100 * scores[[0, 1, 3]].mean(0)
    assert [row["iou"] for row in record.metrics["blocks"]] == pytest.approx(means.tolist())
    assert f"IoU {means.max():.1f}" in shown.stderr  # so far, at the end
    assert arrays["counts"][:, 1].tolist() == [1, 1, 0, 1]
    honest = record.metrics["chosen"]["holdout"]["iou"]
    assert honest >= min(means) - 1e-6
    assert arrays["counts_holdout"][2].tolist() == [0, 0]
    assert "nan" not in Path("results", record.id, "tiles", "index.json").read_text()


def test_masks_without_a_label(run):
    masked_folder({0, 1, 2, 3})
    shown = run(dataset="folder:mine", quick=())
    assert shown.exit_code == 4 and "no labelled pixel" in shown.stderr and not records()


def test_what_a_data_set_does_not_have(run):
    trees.ecssd(Path("data"))
    shown = run("--score", "boxes", dataset="ecssd", quick=("--limit", "3"))
    assert shown.exit_code == 2 and "has no boxes" in shown.stderr
    trees.coco20k(Path("data"))
    shown = run("--score", "masks", dataset="coco20k", quick=("--limit", "2"))
    assert shown.exit_code == 2 and "has no masks" in shown.stderr
    put(Path("bare", "images", "a.png"), scene((24, 40), (0, 0, 9, 9)))
    shown = run(dataset="folder:bare", quick=())
    assert shown.exit_code == 2 and "has no boxes" in shown.stderr and not records()
    assert "its masks" not in shown.stderr  # it has none of these either


# -- faults 17, 18, 19: images and eigenvectors


def flat_folder(size_hw=(48, 64)):
    """A picture of one colour between two of noise, each with a box around all."""
    lines = ["image,xmin,ymin,xmax,ymax"]
    for i in range(3):
        rng = np.random.default_rng(i)
        noise = rng.integers(0, 256, (*size_hw, 3), dtype=np.uint8)
        put(Path("mine", "images", f"{i}.png"), np.full_like(noise, 90) if i == 1 else noise)
        lines.append(f"{i},0,0,{size_hw[1]},{size_hw[0]}")
    Path("mine", "boxes.csv").write_text("\n".join(lines))


@pytest.mark.parametrize("method", ["tokencut", "lost"])
def test_a_picture_of_one_colour_is_degenerate(run, weights, ckpt, method):
    """Its tokens differ by their positions alone; here, by nothing."""
    flat_folder()
    torch.save(weights | {"pos_embed": torch.zeros_like(weights["pos_embed"])}, ckpt)
    shown = run("--method", method, dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert arrays["degenerate"][:, 0].tolist() == [False, True, False]
    assert arrays["boxes"][1, 0].tolist() == [0, 0, 64, 48] and arrays["score"][1, 0] == 1
    assert record.metrics["degenerate"] == record.metrics["blocks"][0]["degenerate"] == 1
    assert "1 of 3 degenerate" in shown.stdout
    assert [row["degenerate"] for row in by_image(record)] == ["0", "1", "0"]
    # The others are as they would be alone.
    backbone = package.load_backbone(ckpt, residual="skip", device="cpu")
    for i in (0, 2):
        tokens = plain_tokens(backbone, open_dataset("folder:mine")[i].read(), 2)
        part, _ = (plain_cut if method == "tokencut" else plain_lost)(tokens)
        assert arrays["boxes"][i, 0].tolist() == plain_box(part, (48, 64))


def test_features_that_are_all_nothing_are_degenerate(run, weights, ckpt):
    """Keys of zero have no cosine."""
    flat_folder()
    blank = {
        name: torch.cat([part if i != 1 else 0 * part for i, part in enumerate(value.chunk(3))])
        for name, value in weights.items()
        if name.startswith("blocks.2.attn.qkv")
    }
    torch.save(weights | blank, ckpt)
    shown = run("--layers", "1,2", dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    _, arrays = only()
    assert arrays["degenerate"][[0, 2]].tolist() == [[False, True]] * 2
    assert arrays["boxes"][:, 1].tolist() == [[0, 0, 64, 48]] * 3


def test_where_the_solver_does_not_converge_it_is_dense(run, monkeypatch):
    how = ("--limit", "6", "--layers", "all")
    assert run("--out", "usual", quick=how).exit_code == 0
    usual, theirs = only("usual")
    assert usual.metrics["dense"] == 0
    monkeypatch.setattr(_second_vector, "CHECKS", (2,))
    shown = run(quick=how)
    assert shown.exit_code == 0 and "18 of 18 solved densely" in shown.output
    record, arrays = only()
    assert [row["dense"] for row in record.metrics["blocks"]] == [6, 6, 6]
    assert [row["solver"] for row in by_image(record)] == ["dense"] * 6
    for name in arrays.keys() - {"solver"}:
        assert np.array_equal(arrays[name], theirs[name]), name
    for mine, other in zip(record.metrics["blocks"], usual.metrics["blocks"], strict=True):
        assert mine | {"dense": 0} == other
    assert record.metrics["chosen"] == usual.metrics["chosen"]


def test_a_truncated_image(run):
    """Fault 19."""
    boxed_folder()
    path = Path("mine", "images", "p2.png")
    path.write_bytes(path.read_bytes()[:-900])
    shown = run(dataset="folder:mine", quick=())
    assert shown.exit_code == 4 and "p2.png" in shown.stderr and not records()
    assert run("--skip-bad", "1", dataset="folder:mine", quick=()).exit_code == 0
    record, _ = only()
    assert record.dataset["bad"] == ["p2"] and record.dataset["partial"]
    assert record.dataset["names"] == ["p0", "p1", "p3"]


# -- faults 31, 34, 39: interruption


# Children of one process that has imported all that is slow, and computed nothing yet. Each gets a
# signal as it is about to put down its nth file: three shards, arrays, record, table.
CHILDREN = """
import json, os, signal, sys
from pathlib import Path
import skipbench.features.plan, skipbench.evaluations.tokencut.calls
from skipbench.cli import main

skipbench.features.plan.SHARD_IMAGES = 4
fsync = os.fsync

def child(name, number, nth):
    Path(name).mkdir(exist_ok=True)
    log = os.open(f"{name}/log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    files = 0

    def count(file):
        nonlocal files
        fsync(file)
        files += 1
        if files == nth:
            os.kill(os.getpid(), number)

    os.fsync = count
    sys.argv += ["--cache", f"{name}/cache", "--out", f"{name}/results"]
    main()

def start(*job):
    pid = os.fork()
    if not pid:
        try:
            child(*job)
        except SystemExit as end:
            sys.stdout.flush(), os._exit(end.code or 0)
        os._exit(0)
    return pid

codes = {}
jobs, together = json.loads(os.environ["JOBS"]), json.loads(os.environ["TOGETHER"])
wait = lambda pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
for job in jobs:
    codes[job[0]] = wait(start(*job))
pids = [start(*job) for job in together]
codes["together"] = [wait(pid) for pid in pids]
print(json.dumps(codes))
"""

ARGUMENTS = ("--dataset", "shapes", "--residual", "skip", "--layers", "all", *QUICK)
MOMENTS = {
    "kill, first shard": (signal.SIGKILL, 1, 12),
    "kill, second shard": (signal.SIGKILL, 2, 8),
    "kill, fifth file": (signal.SIGKILL, 5, 0),
    "kill, last file": (signal.SIGKILL, 6, 0),
    "ctrl-c": (signal.SIGINT, 2, 8),
    "sigterm": (signal.SIGTERM, 3, 4),
}  # how it ends, at which file, images that are then left


@pytest.fixture(scope="module")
def ended(tmp_path_factory, weights_file):
    """Runs that were ended at each of these moments, one that was not, and two at once."""
    folder = tmp_path_factory.mktemp("ended")
    names = {key: re.sub(r"\W+", "-", key) for key in MOMENTS}
    jobs = [[names[key], int(number), nth] for key, (number, nth, _) in MOMENTS.items()]
    environment = clean_environment(folder) | {
        "JOBS": json.dumps([["undisturbed", 0, 0], *jobs]),
        "TOGETHER": json.dumps([["together", 0, 0]] * 2),
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, "tokencut", "--ckpt", weights_file, *ARGUMENTS],
        capture_output=True, text=True, timeout=120, cwd=folder, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, names, json.loads(done.stdout)


@pytest.mark.parametrize("moment", MOMENTS)
def test_ended_at_any_moment_it_goes_on(cli, weights_file, ended, small_shards, seen, moment):
    """The record is that of an undisturbed run, and only what was missing is computed."""
    folder, names, codes = ended
    assert codes["undisturbed"] == 0
    number, _, left = MOMENTS[moment]
    mine = folder / names[moment]
    said = (mine / "log.txt").read_text()
    if number == signal.SIGKILL:
        assert codes[names[moment]] == -signal.SIGKILL
    else:
        assert codes[names[moment]] == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert "what was done is kept" in said and "Traceback" not in said
    places = ("--cache", mine / "cache", "--out", mine / "results")
    shown = cli("tokencut", "--ckpt", weights_file, *ARGUMENTS, *places)
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only(mine / "results")
    assert stable(record, arrays) == stable(*only(folder / "undisturbed" / "results"))
    assert sum(count for count, _ in seen) == left
    if 0 < left < 12:
        assert record.timing["images_computed"] == left
        assert f"{12 - left} of 12 images were done before" in shown.stderr
    whole = folder / "undisturbed" / "results" / record.id / "images.csv"
    assert (mine / "results" / record.id / "images.csv").read_bytes() == whole.read_bytes()
    assert not list((mine / "cache" / "tokencut").iterdir())  # what was kept is of no use now


def test_two_processes_at_once_are_both_right(ended):
    """One cache, one folder of results."""
    folder, _, codes = ended
    assert codes["together"] == [0, 0], (folder / "together" / "log.txt").read_text()
    mine, theirs = only(folder / "together" / "results"), only(folder / "undisturbed" / "results")
    assert stable(*mine) == stable(*theirs)
    assert "Traceback" not in (folder / "together" / "log.txt").read_text()


def test_another_process_that_ends_first_takes_the_kept_ones_away(run, small_shards, monkeypatch):
    """At the worst moment: as this one is about to keep some."""
    assert run("--out", "usual", "--cache", "other").exit_code == 0

    ended = []

    def write(path, content):
        if not ended:
            ended.append(shutil.rmtree(path.parent))
        write_whole(path, content)

    monkeypatch.setattr(_chunks, "write_whole", write)
    shown = run()
    assert shown.exit_code == 0 and ended, shown.stderr
    assert stable(*only()) == stable(*only("usual"))


def interrupt_after(monkeypatch, shards):
    """Ctrl-C as soon as so many shards are kept; returns how to let it run again."""
    save, count = _chunks.Chunks.save, 0

    def interrupted(self, shard, arrays):
        nonlocal count
        save(self, shard, arrays)
        count += 1
        if count == shards:
            raise KeyboardInterrupt

    monkeypatch.setattr(_chunks.Chunks, "save", interrupted)
    return lambda: monkeypatch.setattr(_chunks.Chunks, "save", save)


def without_last(content):
    return content[:-40]


def with_a_bit_flipped(content):
    content = bytearray(content)
    content[len(content) // 2] ^= 1
    return bytes(content)


def with_its_list_cut_short(content):
    """One bit, in the list of the arrays: all but the first seem never to have been there."""
    content = bytearray(content)
    content[content.index(b"PK\1\2") + 33] ^= 64  # length of a comment
    return bytes(content)


@pytest.mark.parametrize("damage", [without_last, with_a_bit_flipped, with_its_list_cut_short])
def test_a_damaged_shard_is_done_again(run, small_shards, monkeypatch, damage):
    assert run("--out", "usual", "--cache", "other").exit_code == 0
    again = interrupt_after(monkeypatch, 2)
    assert run().exit_code == 130 and not records()
    again()
    paths = sorted(Path("cache", "tokencut").glob("*/*.npz"))
    assert len(paths) == 2
    paths[0].write_bytes(damage(paths[0].read_bytes()))
    shown = run()
    assert shown.exit_code == 0, shown.stderr
    assert "done again" in shown.stderr and "warning" in shown.stderr
    assert stable(*only()) == stable(*only("usual"))
    assert only()[0].timing["images_computed"] == 8


def test_without_a_cache_nothing_is_kept(run, small_shards, monkeypatch):
    again = interrupt_after(monkeypatch, 2)
    assert run("--no-cache").exit_code == 130
    again()
    assert not Path("cache").exists()
    assert run("--no-cache").exit_code == 0
    assert only()[0].timing["images_computed"] == 12 and not Path("cache").exists()
    assert run("--out", "kept").exit_code == 0
    assert stable(*only()) == stable(*only("kept"))


def test_what_was_kept_by_other_settings_is_not_used(run, small_shards, monkeypatch):
    again = interrupt_after(monkeypatch, 1)
    assert run().exit_code == 130
    again()
    assert run("--tau", "0.4").exit_code == 0
    assert only()[0].timing["images_computed"] == 12


def test_forced_it_uses_nothing_that_was_kept(run, small_shards, monkeypatch):
    again = interrupt_after(monkeypatch, 2)
    assert run().exit_code == 130
    again()
    assert run("--force").exit_code == 0
    assert only()[0].timing["images_computed"] == 12
    assert not list(Path("cache", "tokencut").iterdir())


def test_a_bad_image_at_the_end_does_not_cost_what_was_done(run, monkeypatch):
    monkeypatch.setattr("skipbench.features.plan.SHARD_IMAGES", 2)
    boxed_folder()
    path = Path("mine", "images", "p3.png")
    whole = path.read_bytes()
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 16
    path.write_bytes(broken)
    shown = run(dataset="folder:mine", quick=("--size", "40x56"))
    assert shown.exit_code == 4 and "p3.png" in shown.stderr
    path.write_bytes(whole)
    assert run(dataset="folder:mine", quick=("--size", "40x56")).exit_code == 0
    assert only()[0].timing["images_computed"] == 2


# -- fault 36: memory


@pytest.mark.parametrize("error", [RuntimeError(SHORT), MemoryError("Unable to allocate 8 GiB")])
def test_out_of_memory_once_it_goes_on_one_by_one(run, monkeypatch, error):
    from skipbench.evaluations.tokencut import run as module

    assert run("--out", "usual", "--layers", "all").exit_code == 0
    cut, calls = module.tokencut, []

    def short(tokens, *arguments):
        calls.append(len(tokens))
        if len(tokens) > 1:
            raise error
        return cut(tokens, *arguments)

    monkeypatch.setattr(module, "tokencut", short)
    shown = run("--layers", "all")
    assert shown.exit_code == 0, shown.stderr
    assert max(calls) > 1 and calls.count(1) == 36
    assert stable(*only()) == stable(*only("usual"))


@pytest.mark.parametrize("method", ["tokencut", "lost"])
def test_out_of_memory_always(run, monkeypatch, small_shards, method):
    from skipbench.evaluations.tokencut import run as module

    find, done = getattr(module, method), 0

    def short(tokens, *arguments):
        nonlocal done
        done += len(tokens)
        if done > 4:
            raise RuntimeError(SHORT)
        return find(tokens, *arguments)

    monkeypatch.setattr(module, method, short)
    shown = run("--method", method)
    assert shown.exit_code == 7 and "out of memory" in shown.stderr and "--size" in shown.stderr
    assert "Traceback" not in shown.stderr and "bug" not in shown.stderr and not records()
    monkeypatch.setattr(module, method, find)
    assert run("--method", method).exit_code == 0  # what was done is kept
    assert only()[0].timing["images_computed"] == 8


def test_out_of_memory_in_pictures_alone(run, monkeypatch):
    def short(*arguments):
        raise MemoryError

    monkeypatch.setattr("skipbench.evaluations.tokencut.run.tokencut", short)
    put(Path("photos", "a.png"), scene((24, 40), (0, 0, 9, 9)))
    shown = run("--images", "photos", "--out", "out", dataset=None, quick=())
    assert shown.exit_code == 7 and "out of memory" in shown.stderr


def test_out_of_memory_in_the_model(run, monkeypatch):
    """Fault 36: the batch is halved."""
    assert run("--out", "usual").exit_code == 0
    forward = Extractor.forward

    def short(self, batch, sizes_hw):
        if len(batch) > 3:
            raise RuntimeError(SHORT)
        return forward(self, batch, sizes_hw)

    monkeypatch.setattr(Extractor, "forward", short)
    shown = run()
    assert shown.exit_code == 0 and "going on with" in shown.stderr
    assert np.array_equal(only()[1]["boxes"], only("usual")[1]["boxes"])


def test_another_error_is_not_taken_for_a_lack_of_memory(run, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr("skipbench.evaluations.tokencut.run.tokencut", broken)
    shown = run()
    assert shown.exit_code == 1 and "shapes cannot be multiplied" in shown.stderr


# -- tables and comparisons


def test_tokencut_and_lost_in_a_table_and_compared(run, cli):
    assert run("--layers", "all").exit_code == 0
    assert run("--layers", "all", "--method", "lost").exit_code == 0
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
    honest = cli("compare", "results", one.id, other.id, "--select", "holdout", "--json")
    values = [record.metrics["chosen"]["holdout"]["corloc"] for record in (one, other)]
    assert json.loads(honest.stdout)[0]["difference"] == pytest.approx(values[1] - values[0])


def test_a_page_of_records_with_pictures(run, cli):
    assert run("--layers", "all", "--pictures", "2").exit_code == 0
    shown = cli("report", "results", "--output", "page.html")
    assert shown.exit_code == 0, shown.stderr
    assert "CorLoc" in Path("page.html").read_text()


# -- pictures of a record


@pytest.mark.parametrize("method", ["tokencut", "lost"])
def test_pictures_of_what_was_done_before(run, method):
    how = ("--limit", "6", "--layers", "all", "--method", method)
    assert run(quick=how).exit_code == 0
    shown = run("--pictures", "3", quick=how)
    assert shown.exit_code == 0 and "done before" in shown.stderr
    record, _ = only()
    folder = Path("results", record.id)
    best = [max(map(float, row["ious"].split())) for row in by_image(record)]
    order = [record.dataset["names"][i] for i in np.argsort(best, kind="stable")]
    expected = [f"01_worst_{order[0]}.png", f"02_best_{order[-1]}.png", f"03_worst_{order[1]}.png"]
    assert sorted(path.name for path in folder.glob("0*.png")) == expected
    with Image.open(folder / "sheet.png") as sheet, Image.open(folder / expected[0]) as first:
        assert sheet.height > 2.5 * (first.height - 60) and sheet.width > 300
    index = json.loads((folder / "tiles" / "index.json").read_text())
    assert [tile["image"] for tile in index["tiles"]] == record.dataset["names"][:3]
    kind = {"tokencut": "eigenvector", "lost": "correlation"}[method]
    for i, tile in enumerate(index["tiles"]):
        assert set(tile["shared"]) == {"image", "truth"} and set(tile["own"]) == {"box", kind}
        assert f"{best[i]:.2f}" in tile["note"]
        for file in (tile["shared"] | tile["own"]).values():
            with Image.open(folder / "tiles" / file) as image:
                assert image.height == 224 and image.width != image.height


def test_more_pictures_than_images_and_masks(run):
    masked_folder(set())
    shown = run("--pictures", "9", dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    folder = Path("results", record.id)
    names = sorted(path.name for path in folder.glob("0*.png"))
    order = np.argsort(arrays["score"][:, 0], kind="stable").tolist()
    chosen = [order[0], order[3], order[1], order[2]]
    assert [int(name[-5]) for name in names] == chosen
    tiles = json.loads((folder / "tiles" / "index.json").read_text())["tiles"]
    assert len(tiles) == 4 and "IoU" in tiles[0]["note"]


# -- plain pictures


def plain_pictures(names, folder="photos"):
    for seed, name in enumerate(names):
        put(Path(folder, name), scene((41, 67), (9, 9, 40, 33), seed))


def test_pictures_alone(run):
    plain_pictures(["one.png", "sub/two.png", "sub/deep/three.png", "same.png", "same.bmp"])
    shown = run("--images", "photos", "--out", "out", dataset=None, quick=())
    assert shown.exit_code == 0 and shown.stdout == "pictures: out\n", shown.stderr
    made = {path.name for path in Path("out").iterdir()}
    assert made == {
        "one.png", "sub_two.png", "sub_deep_three.png", "same.png.png", "same.bmp.png",
        "sheet.png", "objects.csv",
    }  # fmt: skip
    rows = table("out/objects.csv")
    assert list(rows[0]) == [
        "image", "block", "xmin", "ymin", "xmax", "ymax", "tokens", "solver", "degenerate", "tied",
    ]  # fmt: skip
    names = ["one.png", "same.bmp", "same.png", "sub/deep/three.png", "sub/two.png"]
    assert [row["image"] for row in rows] == names and {row["block"] for row in rows} == {"2"}
    for name in made - {"objects.csv"}:
        with Image.open(Path("out", name)) as image:
            assert image.width > 100 and len(image.convert("RGB").getcolors(1 << 20)) > 50
    with Image.open("out/one.png") as one, Image.open("out/sheet.png") as sheet:
        assert sheet.height > 4 * one.height
    assert not records("out") and not Path("results").exists()


def test_every_block_has_a_row(run):
    plain_pictures(["one.png"])
    how = ("--images", "photos/one.png")
    assert run(*how, "--out", "last", dataset=None, quick=()).exit_code == 0
    shown = run(*how, "--out", "all", "--layers", "all", "--json", dataset=None, quick=())
    assert json.loads(shown.stdout) == {"pictures": "all"}
    rows = table("all/objects.csv")
    assert [(row["image"], row["block"]) for row in rows] == [("one.png", b) for b in "012"]
    assert rows[2:] == table("last/objects.csv")
    with Image.open("last/one.png") as one, Image.open("all/one.png") as three:
        assert three.height > 2.5 * one.height and three.width == one.width


@pytest.mark.parametrize(
    "names", [("a/x.png", "b/x.png"), ("a/x.png", "a_x.png"), ("a/x.png", "a/sheet.png")]
)
def test_no_picture_takes_the_place_of_another(run, names):
    """One folder or several, whatever the names."""
    plain_pictures(names)
    folders = {"photos"} if "a_x.png" in names else {str(Path("photos", n).parent) for n in names}
    given = [word for folder in sorted(folders) for word in ("--images", folder)]
    assert run(*given, "--out", "out", dataset=None, quick=()).exit_code == 0
    made = [path.name for path in Path("out").glob("*.png")]
    assert len(made) == 3 and "sheet.png" in made, made
    assert len(table("out/objects.csv")) == 2


def test_pictures_are_not_drawn_over_the_originals(run):
    plain_pictures(["one.png", "sheet.png"])
    before = {path: path.read_bytes() for path in Path("photos").iterdir()}
    run("--images", "photos", "--out", "photos", dataset=None, quick=())
    assert {path: path.read_bytes() for path in before} == before


def test_a_picture_that_cannot_be_read(run):
    plain_pictures(["one.png"])
    Path("photos", "bad.png").write_bytes(b"no picture")
    shown = run("--images", "photos", "--out", "out", dataset=None, quick=())
    assert shown.exit_code == 4 and "bad.png" in shown.stderr and "Traceback" not in shown.stderr
    shown = run("--images", "photos", "--out", "x", "--skip-bad", "1", dataset=None, quick=())
    assert shown.exit_code == 0 and "bad.png" in shown.stderr  # as the message above advises
    assert [row["image"] for row in table("x/objects.csv")] == ["one.png"]


def test_a_trial_of_pictures_draws_none(run):
    plain_pictures(["one.png"])
    run("--images", "photos", "--out", "out", "--dry-run", dataset=None, quick=())
    assert not Path("out", "one.png").exists()


# -- the dry run


def test_dry_run(run, small_shards, monkeypatch):
    shown = run("--dry-run", "--layers", "all")
    assert shown.exit_code == 0, shown.stderr
    assert "features of 12 images" in shown.stdout and "finding objects" in shown.stdout
    assert "in all about" in shown.stdout and not list(Path("results").iterdir())
    again = interrupt_after(monkeypatch, 2)
    assert run("--layers", "all").exit_code == 130
    again()
    found = json.loads(run("--dry-run", "--layers", "all", "--json").stdout)
    assert found["images"] == 4 and found["stored"] == 8
    assert found["seconds"] > 0 and found["memory_bytes"] > 10**7 and found["disk_bytes"] == 0
    assert run("--layers", "all").exit_code == 0  # and the trial has taken nothing away
    assert only()[0].timing["images_computed"] == 4


def test_dry_run_of_what_was_done_before(run):
    assert run().exit_code == 0
    found = json.loads(run("--dry-run", "--json").stdout)
    assert found["images"] == 0 and found["stored"] == 12 and found["seconds"] == 0
    found = json.loads(run("--dry-run", "--json", "--force").stdout)
    assert found["images"] == 12 and found["stored"] == 0


# -- what is said


def test_lines_in_a_log_have_the_figure_so_far(run, monkeypatch):
    """Fault 42: no terminal, no escape codes, no animation."""
    monkeypatch.setattr("skipbench.engine.progress.SECONDS_BETWEEN_LINES", 0.0)
    shown = run("--layers", "all")
    lines = re.findall(
        r"(\d+) of 12 images, .*CorLoc (\S+) \(block (\d)\)$", shown.stderr, re.MULTILINE
    )
    assert [int(done) for done, *_ in lines] == list(range(1, 13))
    record, _ = only()
    assert lines[-1][1] == f"{record.metrics['corloc']:.1f}"
    assert int(lines[-1][2]) == record.metrics["block"]
    assert lines[0][1] in ("0.0", "100.0") and len({line[1] for line in lines}) > 2
    assert "\x1b" not in shown.stdout + shown.stderr and "\r" not in shown.stderr


def test_the_figure_so_far_counts_what_was_done_before(run, small_shards, monkeypatch):
    again = interrupt_after(monkeypatch, 2)
    assert run().exit_code == 130
    again()
    shown = run()
    corloc = re.escape(f"{only()[0].metrics['corloc']:.1f}")
    assert re.search(rf"12 of 12 images, .*CorLoc {corloc}$", shown.stderr, re.MULTILINE)


def test_quiet_is_quiet(run):
    shown = run("--quiet")
    assert shown.exit_code == 0 and shown.stderr == "" and "CorLoc" in shown.stdout


def test_the_page_has_every_block_and_both_figures(run):
    shown = run("--layers", "all")
    record, _ = only()
    assert "\x1b" not in shown.stdout and "best of 3 on these images" in shown.stdout
    assert "τ 0.2" in shown.stdout and "blocks 0 to 2" in shown.stdout
    for row in record.metrics["blocks"]:
        ends = "{:.1f} to {:.1f}".format(*row["interval"])
        assert re.search(rf"^ +{row['block']} +{row['corloc']:.1f} +{ends} ", shown.stdout, re.M)
    honest = record.metrics["chosen"]["holdout"]["corloc"]
    assert re.search(rf"CorLoc {honest:.1f} .*scored on the other", shown.stdout)


# -- faults


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (("--dataset", "vocc"), 2, "Did you mean 'voc'"),
        (("--dataset", "voc"), 4, "--data-root"),
        (("--method", "tokncut"), 2, "Did you mean 'tokencut'"),
        (("--feature", "key"), 2, "Did you mean 'keys'"),
        (("--layers", "al"), 2, "Did you mean 'all'"),
        (("--layers", "7"), 2, "no block 7"),
        (("--score", "box"), 2, "Did you mean 'boxes'"),
        (("--select", "test"), 2, "--select"),
        (("--split", "vla"), 2, "Did you mean 'val'"),
        (("--size", "64xx"), 2, "64xx"),
        (("--tau", "1"), 2, "--tau"),
        (("--tau", "nan"), 2, "--tau"),
        (("--tau", "low"), 2, "--tau"),
        (("--eps", "0"), 2, "--eps"),
        (("--eps", "nan"), 2, "--eps"),
        (("--batch-size", "0"), 2, "--batch-size"),
        (("--precision", "int8"), 2, "--precision"),
        (("--images", "photos"), 2, "--images"),
        (("--ckpt", "skpi.pth"), 3, "Did you mean 'skip.pth'"),
        (("--out", "skip.pth"), 7, "cannot write"),
        (("--cache", "skip.pth"), 7, "cannot write"),
    ],
)
def test_faults(run, monkeypatch, more, code, word):
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed
    shown = run(*more)
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert not list(Path().glob("results/*.json")) and "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        ((), 2, "--dataset"),
        (("--images", "photo"), 4, "Did you mean 'photos'"),
        (("--images", "empty"), 4, "no images in"),
        (("--images", "photos", "--out", "skip.pth"), 7, "cannot write"),
        (("--images", "photos", "--tau", "2"), 2, "--tau"),
    ],
)
def test_faults_of_pictures_alone(run, monkeypatch, more, code, word):
    monkeypatch.setattr(Extractor, "run", None)
    plain_pictures(["one.png"])
    Path("empty").mkdir()
    shown = run(*more, dataset=None, quick=())
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert "Traceback" not in shown.stderr


def test_an_unwritable_cache_is_no_fault_where_none_is_used(run):
    assert run("--cache", "skip.pth", "--no-cache").exit_code == 0


# -- Python


def test_python_twin(run, ckpt):
    assert run("--layers", "all", "--feature", "values", "--no-hard").exit_code == 0
    options = {"layers": "all", "feature": "values", "hard": False, "size": "40x56", "limit": 12}
    result = package.tokencut(ckpt, "shapes", out="python", residual="skip", **options)
    assert stable(*only("python")) == stable(*only())
    assert result == only("python")[0]
    other = package.tokencut(ckpt, "shapes", out="x", residual="skip", size=40, limit=2)
    assert other.protocol["size"] == "40x40" and other.protocol["feature"] == "keys"


def test_a_record_can_be_made_again_from_what_it_says(run):
    how = ("--layers", "1,-1", "--method", "lost", "--no-hard", "--split", "train", "--limit", "3")
    assert run(*how, "--expect", "depth=3", "--skip-bad", "1").exit_code == 0
    record, arrays = only()
    call = dict(record.environment["call"])
    assert "out" not in call and "cache" not in call
    call.pop("expected", None)
    package.tokencut(call.pop("ckpt"), call.pop("dataset"), **call, out="again")
    assert stable(*only("again")) == stable(record, arrays)


def test_python_finds_objects_in_pictures(ckpt):
    plain_pictures(["one.png", "two.png"])
    made = package.find_objects(ckpt, "photos", out="out", residual="skip", layers="all")
    assert made == Path("out") and len(table("out/objects.csv")) == 6
    paths = [Path("photos", "two.png")]
    assert package.find_objects(ckpt, paths, out="x", residual="skip") == Path("x")
    assert [row["image"] for row in table("x/objects.csv")] == ["two.png"]


def test_python_refuses_what_it_does_not_know(ckpt):
    with pytest.raises(TypeError, match="'taus'"):
        package.tokencut(ckpt, "shapes", taus=0.2)
    with pytest.raises(TypeError, match="'taus'"):
        package.find_objects(ckpt, "photos", taus=0.2)
    with pytest.raises(package.SkipbenchError, match="--method"):
        package.tokencut(ckpt, "shapes", method="dino")
    with pytest.raises(package.SkipbenchError, match="--select"):
        package.tokencut(ckpt, "shapes", select="test", residual="skip", limit=2, layers="all")
    assert not records()
