"""`skipbench cluster` as a user meets it: figures by plain code, interruption, pictures, faults."""

import json
from itertools import permutations
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import trees
from conftest import lasting, records
from PIL import Image
from tiny import (
    CLASSES,
    SIZE,
    TOKENS,
    VAL,
    all_alike,
    arrays_of,
    check_figures,
    interrupted,
    plain_counts,
    resized,
    same,
    seen_hw,
    suite,
    tiny_checkpoint,
    tiny_folder,
    truth,
    without_labels,
)

import skipbench
from skipbench import pipeline
from skipbench.engine import vectors
from skipbench.evaluations import resume
from skipbench.evaluations.cluster import method
from skipbench.features.stream import Extractor
from skipbench.record_store import read_arrays
from skipbench.results.baseline import read_baseline

pytestmark = pytest.mark.usefixtures("nowhere_else")

ALL = VAL * TOKENS  # tokens of the split


@pytest.fixture
def cluster(home):
    return lambda **more: home.evaluate("cluster", **more)


@pytest.fixture
def run(cli, home):
    """The command in this process, with a cache of the test's own; one seed unless told."""

    def run(*more):
        seeds = () if "--seeds" in more else ("--seeds", "1")
        return cli(*home.arguments("cluster", *seeds, *more))

    return run


@pytest.fixture
def made(monkeypatch):
    """The rows of every clustering that is made."""
    found, plain = [], vectors.k_means

    def keeping(rows, *more):
        found.append(rows.copy())
        return plain(rows, *more)

    monkeypatch.setattr(vectors, "k_means", keeping)
    return found


# -- plain code


def best_matching(pixels):
    """(clusters,): all of them tried. pixels: (clusters, classes)."""
    clusters, classes = pixels.shape

    def iou(cluster, c):
        either = pixels[cluster].sum() + pixels[:, c].sum() - pixels[cluster, c]
        return pixels[cluster, c] / max(either, 1)

    return max(
        permutations(range(classes), clusters),
        key=lambda chosen: sum(iou(cluster, c) for cluster, c in enumerate(chosen)),
    )


@pytest.mark.parametrize(
    ("size", "layers"),
    [("45x61", "last"), (SIZE, "multiscale"), ("native", "0,2")],
)
def test_figures_are_those_of_plain_code(home, cluster, size, layers):
    found = cluster(size=size, layers=layers, clusters=["classes", 3, 9], seeds=2)
    assert [r.metrics["clusters"] for r in found] == [4, 4, 3, 3, 9, 9]
    grids = home.tokens("val", size, layers)
    tokens = np.concatenate([grid.reshape(-1, grid.shape[2]) for grid in grids])
    for result in found:
        arrays, count = arrays_of(result), result.metrics["clusters"]
        centroids, matching = arrays["centroids"].astype(np.float64), arrays["matching"]
        assert centroids.shape == (count, tokens.shape[1])
        distance = np.square(tokens[:, None] - centroids[None]).sum(2)
        assert result.metrics["inertia"] == pytest.approx(distance.min(1).mean(), rel=1e-4)
        assert result.metrics["tokens"] == len(tokens)
        pixels, clusters = np.zeros((count, len(CLASSES)), int), {}
        for image, grid in enumerate(grids):
            mask = truth("val", image)
            full = resized(grid, seen_hw(size, mask.shape), mask.shape)
            apart = np.square(full[:, :, None] - centroids).sum(3)
            clusters[image] = apart.argmin(2)
            for c in range(len(CLASSES)):
                here = clusters[image][mask == c]
                pixels[:, c] += np.bincount(here, minlength=count)
        if count > len(CLASSES):
            assert matching.tolist() == pixels.argmax(1).tolist()
            assert result.protocol["matching"] == "majority of pixels"
        else:
            assert tuple(matching.tolist()) == best_matching(pixels)
            assert "hungarian" in result.protocol["matching"]
        counts = plain_counts(lambda image, _, m=matching, c=clusters: m[c[image]])
        assert np.abs(arrays["counts"] - counts).sum() <= 2  # pixels
        check_figures(result, arrays["counts"].astype(int))
        assert result.metrics["clusters_used"] == (pixels.sum(1) > 0).sum()
        assert result.metrics["classes_found"] == len(set(matching[pixels.sum(1) > 0].tolist()))


# -- the record


def test_a_record_says_how_it_was_made(run, home, made):
    shown = run("--clusters", "classes,9", "--seeds", "0,7", "--label", "epoch=7", "--redo", "2")
    assert shown.exit_code == 0, shown.stderr
    found = records()
    assert len(found) == len(made) == 4
    assert {(r.metrics["clusters"], r.protocol["seed"]) for r in found} == {
        (4, 0), (4, 7), (9, 0), (9, 7)
    }  # fmt: skip
    for result in found:
        assert f"results/{result.id}.json" in shown.stdout
        assert result.evaluation == "cluster" and result.id.startswith("cluster-folder-tiny-")
        assert result.dataset["split"] == "val" and result.training is None
        assert result.checkpoint["epoch"] == 7 and result.features["blocks"] == [2]
        protocol, said = result.protocol, {4: "classes", 9: 9}[result.metrics["clusters"]]
        assert protocol["name"] == "k-means" and protocol["clusters"] == said
        assert protocol["changes"] == {"size": ["448x448", SIZE], "redo": [1, 2]}
        assert "matching kept" in protocol["interval"]
        timing = result.timing
        assert timing["images"] == timing["images_computed"] == VAL
        assert timing["clustering_seconds"] >= 0 and timing["scoring_seconds"] >= 0
        call = result.environment["call"]
        assert (call["clusters"], call["seed"], call["redo"]) == (said, protocol["seed"], 2)
    for count in (4, 9):
        values = [r.metrics["miou"] for r in found if r.metrics["clusters"] == count]
        assert f"{mean(values):.2f} ± {stdev(values):.2f}" in shown.stdout
    assert "2 seeds" in shown.stdout and f"k-means on {ALL} tokens" in shown.stdout


def test_a_number_that_is_that_of_the_classes_is_classes(cluster):
    one, nine = cluster(clusters="4,classes,9", seeds=1)
    assert one.protocol["clusters"] == "classes" and nine.protocol["clusters"] == 9
    [again] = cluster(clusters=4, seeds=[0])
    assert again == one


def test_a_cluster_for_every_class_of_voc(cli, home):
    trees.voc(Path("data"))
    how = ("--residual", "skip", "--size", "24x32", "--seeds", "1", "--limit", "2")
    shown = cli("cluster", "--ckpt", home.ckpt, "--dataset", "voc", *how)
    assert shown.exit_code == 0, shown.stderr
    [result] = records()
    assert result.metrics["clusters"] == 21 and result.metrics["tokens"] == 24


def test_together_they_are_what_they_are_alone(cluster, made):
    """Clusterings of as many clusters are scored in one pass."""
    together = cluster(clusters=[2, 9], seeds=2, layers=["last", "0"])
    assert len(together) == len(made) == 8
    for result in together[::3]:
        [alone] = cluster(
            clusters=result.protocol["clusters"], seeds=[result.protocol["seed"]],
            layers=result.features["layers"], out="alone",
        )  # fmt: skip
        assert alone.id == result.id and same(alone, result, ("alone", "results"))
    assert len({r.metrics["miou"] for r in together}) > 4


def test_what_matters_is_another_record(home):
    def name(**more):
        return home.open("cluster", **more).cells[0].id

    seen = {name()}
    for more in (
        {"clusters": 9}, {"sample_tokens": 90}, {"redo": 2}, {"seeds": [1]}, {"split": "train"},
        {"layers": "0"}, {"norm": False}, {"size": "48x56"}, {"limit": 4}, {"store_dtype": "fp32"},
    ):  # fmt: skip
        found = name(**more)
        assert found not in seen, more
        seen.add(found)
    for more in ({"layers": "-1"}, {"batch_size": 2}, {"clusters": 4}, {"split": "val"}):
        assert name(**more) in seen, more


def test_another_split(run):
    assert run("--split", "train").exit_code == 0
    [result] = records()
    assert result.dataset["split"] == "train" and result.metrics["absent_classes"] == []
    shown = run("--split", "vall")
    assert shown.exit_code in (2, 4) and "val" in shown.stderr and len(records()) == 1


# -- the sample


def test_the_sample_is_even_and_drawn_by_the_seed(home, cluster, made):
    found = cluster(sample_tokens=23, seeds=2, clusters=[3, 5])
    assert [r.metrics["tokens"] for r in found] == [23] * 4
    assert np.array_equal(made[0], made[1]) and not np.array_equal(made[0], made[2])
    grids = [grid.reshape(TOKENS, -1) for grid in home.tokens("val")]
    every = np.concatenate(grids)
    for rows in (made[0], made[2]):
        near = np.abs(rows[:, None] - every).max(2)
        assert near.min(1).max() < 1e-6  # every one is a token of length one
        images = np.bincount(near.argmin(1) // TOKENS, minlength=VAL)
        assert sorted(images) == [4, 4, 5, 5, 5] and len(set(near.argmin(1))) == 23
    cluster(sample_tokens=23, seeds=1, clusters=3, out="again")
    assert np.array_equal(made[-1], made[0])


def test_a_sample_smaller_than_the_number_of_images(cluster):
    one, other = cluster(sample_tokens=3, seeds=2, clusters=2)
    assert one.metrics["tokens"] == other.metrics["tokens"] == 3
    [result] = cluster(sample_tokens=ALL, seeds=1, clusters=2)
    assert result.metrics["tokens"] == ALL


def test_at_most_so_many_bytes(home, caplog):
    caplog.set_level("INFO", "skipbench")
    run = home.open("cluster", seeds=1)
    run.sample_bytes = 50 * 64 * 4
    [result] = pipeline.carry_out(run)
    assert result.metrics["tokens"] == 50 and "50 of 175 tokens" in caplog.text


# -- interruption


HOW = {"clusters": "classes,9", "seeds": 2}


@pytest.fixture(scope="module")
def undisturbed(home):
    out = home.folder / "undisturbed-clusters"
    return out, {r.id: r for r in home.evaluate("cluster", out=out, **HOW)}


def as_undisturbed(undisturbed):
    out, whole = undisturbed
    assert {r.id for r in records()} == set(whole)
    assert not list(Path("cache/cluster").iterdir())
    return all(same(r, whole[r.id], ("results", out)) for r in records())


@pytest.fixture
def go(home):
    """From the start, or on from where it was stopped, in shards of two images."""

    def go(**more):
        options = {**HOW, "cache": "cache", **more}
        return pipeline.carry_out(home.open_in_shards("cluster", **options))

    return go


def stopped(go, owner, name, at, before=False, **more):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted(patch, owner, name, at, before)
        go(**more)


@pytest.mark.parametrize(
    ("owner", "name", "at", "before", "clusterings", "shards"),
    [
        (vectors, "k_means", 3, True, 2, 6),
        (resume.TrainingState, "save", 3, False, 1, 6),
        (method, "score", 2, True, 0, 5),
        (resume.Chunks, "save", 6, False, 0, 3),
        (pipeline, "write_result", 1, False, 0, 3),
        (pipeline, "write_result", 4, True, 0, 0),
    ],
)
def test_interrupted_it_goes_on(
    go, undisturbed, monkeypatch, made, seen, owner, name, at, before, clusterings, shards
):
    """The records are those of an undisturbed run, to the last bit; nothing is done twice. (The
    clusterings of one number of clusters are scored together: three shards for each number.)"""
    stopped(go, owner, name, at, before)
    assert len(records()) == (at - before if name == "write_result" else 0)
    made.clear(), seen.clear()
    scored, plain = [], method.score

    def counting(*given):
        scored.append(given[1])
        return plain(*given)

    monkeypatch.setattr(method, "score", counting)
    go()
    assert len(made) == clusterings and len(scored) == shards and not seen
    assert as_undisturbed(undisturbed)


def test_a_command_interrupted_ends_quietly(run, monkeypatch):
    with monkeypatch.context() as patch:
        interrupted(patch, vectors, "k_means", 1)
        shown = run()
    assert shown.exit_code == 130 and "Traceback" not in shown.stderr and not records()


def test_nothing_is_left_in_the_cache(go, undisturbed):
    stopped(go, resume.Chunks, "save", 3)
    kept = [path.suffix for path in Path("cache/cluster").rglob("*.*")]
    assert kept.count(".state") == 4 and kept.count(".npz") == 3
    go()
    assert as_undisturbed(undisturbed)


def test_nothing_is_left_of_a_record_that_was_just_written(go, caplog):
    stopped(go, pipeline, "write_result", 1, clusters=9, seeds=1)
    assert len(records()) == 1
    caplog.set_level("INFO", "skipbench")
    go(clusters=9, seeds=1)
    assert "record exists" in caplog.text and not list(Path("cache/cluster").iterdir())


@pytest.mark.parametrize(("suffix", "damage"), [(".state", "a bit"), (".npz", "empty")])
def test_what_is_damaged_is_done_again(go, undisturbed, made, caplog, suffix, damage):
    stopped(go, resume.Chunks, "save", 4)
    path = sorted(Path("cache/cluster").rglob(f"*{suffix}"))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content if damage == "a bit" else b"")
    made.clear()
    go()
    assert "damaged" in caplog.text
    assert len(made) == (suffix == ".state") and as_undisturbed(undisturbed)


def test_pixels_are_never_counted_by_two_sets_of_centroids(go, monkeypatch):
    """The centroids are lost, and others are found: elsewhere k-means may end otherwise."""
    how = {"clusters": 9, "seeds": [0]}
    stopped(go, resume.Chunks, "save", 2, **how)
    [state] = Path("cache/cluster").glob("*.state")
    state.unlink()
    plain = vectors.k_means
    monkeypatch.setattr(
        vectors, "k_means", lambda rows, clusters, seed, *more: plain(rows, clusters, 7, *more)
    )
    go(**how)
    [mixed] = [read_arrays(path) for path in Path("results").glob("*.npz")]
    go(**how, force=True)
    [whole] = [read_arrays(path) for path in Path("results").glob("*.npz")]
    np.testing.assert_array_equal(mixed["counts"], whole["counts"])
    np.testing.assert_array_equal(mixed["centroids"], whole["centroids"])


def test_forced_it_is_done_again(go, undisturbed, made):
    stopped(go, resume.Chunks, "save", 3)
    made.clear()
    go(force=True)
    assert len(made) == 4
    go(force=True)
    assert len(made) == 8 and as_undisturbed(undisturbed)


# -- existing records


def test_existing_records_damaged_and_labelled(run, monkeypatch, made):
    first = run("--clusters", "classes,9")
    one = records()[0]
    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "run", None)
        again = run("--clusters", "classes,9")
        assert again.exit_code == 0 and again.stderr.count("record exists") == 2
        assert again.stdout == first.stdout and len(made) == 2
        assert run("--clusters", "9", "--label", "name=mine").exit_code == 0
    names = {r.protocol["clusters"]: r.checkpoint["name"] for r in records()}
    assert names == {"classes": "skip.pth", 9: "mine"}
    Path("results", f"{one.id}.npz").write_bytes(b"no arrays")
    shown = run("--clusters", "classes,9")
    assert shown.exit_code == 0 and "damaged" in shown.stderr and len(made) == 3
    assert one.id in {r.id for r in records()} and arrays_of(one)["counts"].shape == (5, 3, 4)
    # What is new is made beside what is done.
    shown = run("--clusters", "classes,9", "--layers", "last", "--layers", "0")
    assert shown.exit_code == 0 and len(records()) == 4 and len(made) == 5


def test_dry_run(run):
    shown = run("--dry-run", "--json", "--clusters", "classes,9,150")
    assert shown.exit_code == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert (found["images"], found["stored"]) == (VAL, 0) and found["seconds"] > 0
    assert found["disk_bytes"] == ALL * 64 * 2 and found["memory_bytes"] > 10**7
    assert not list(Path("results").iterdir()) and not list(Path("cache").rglob("*.safetensors"))
    assert run().exit_code == 0
    shown = run("--dry-run", "--layers", "multiscale", "--seeds", "2", "--size", "native")
    assert shown.exit_code == 0 and "k-means and scoring" in shown.stdout
    found = json.loads(run("--dry-run", "--json").stdout)
    assert (found["images"], found["stored"], found["disk_bytes"]) == (0, VAL, 0)
    assert len(records()) == 1 and not list(Path("cache/cluster").iterdir())


# -- pictures


def test_pictures_also_of_what_was_done_before(run, made):
    how = ("--clusters", "classes,9", "--seeds", "3,1")
    assert run(*how).exit_code == 0
    before = {r.id: lasting(r) for r in records()}
    shown = run(*how, "--pictures", "2")
    assert shown.exit_code == 0 and len(made) == 4, shown.stderr
    assert {r.id: lasting(r) for r in records()} == before
    first = {r.id for r in records() if r.protocol["seed"] == 3}
    assert {path.parent.name for path in Path("results").glob("*/sheet.png")} == first
    for name in first:
        folder = Path("results", name)
        assert len(list(folder.glob("0*.png"))) == 2
        index = json.loads((folder / "tiles" / "index.json").read_text())
        assert [tile["image"] for tile in index["tiles"]] == ["val/0", "val/1"]
        for tile in index["tiles"]:
            assert set(tile["own"]) == {"prediction", "clusters"}
            for file in (*tile["shared"].values(), *tile["own"].values()):
                with Image.open(folder / "tiles" / file) as image:
                    assert image.height == 224
    page = skipbench.report("results").read_text()
    assert "k-means clusters" in page and page.count("data:image/") >= 6


# -- faults


def test_masks_of_one_image_without_a_label(run, seen):
    tiny_folder(Path("blank"), train=1)
    for path in sorted(Path("blank", "masks", "val").iterdir())[1:]:
        without_labels(path)
    shown = run("--dataset", "folder:blank", "--pictures", "3")
    assert shown.exit_code == 0, shown.stderr
    counts = arrays_of(records()[0])["counts"]
    assert counts[0].any() and not counts[1:].any()


def test_more_clusters_than_tokens(run, cluster, seen):
    shown = run("--clusters", ALL + 1)
    assert shown.exit_code == 2 and "--clusters" in shown.stderr and not records()
    assert not seen  # said before any feature is computed
    assert f"{ALL:,} tokens" in shown.stderr
    [result] = cluster(clusters=ALL, seeds=1)
    assert result.metrics["inertia"] == pytest.approx(0, abs=1e-6)


def test_a_sample_smaller_than_the_classes_is_said_at_once(run, seen):
    shown = run("--sample-tokens", "3")
    assert shown.exit_code == 2 and "--sample-tokens" in shown.stderr and not seen


@pytest.mark.parametrize("clusters", ["classes", "9"])
def test_tokens_that_are_all_alike(run, tmp_path, clusters):
    flat = tiny_checkpoint(tmp_path / "flat.pth", spoil=all_alike)
    shown = run("--ckpt", flat, "--clusters", clusters)
    assert shown.exit_code == 0 and "constant features" in shown.stderr, shown.stderr
    [result] = records()
    assert result.metrics["clusters_used"] == result.metrics["classes_found"] == 1
    assert np.isfinite(arrays_of(result)["centroids"]).all() and result.metrics["miou"] > 0


@pytest.mark.parametrize("stage", ["k_means", "score"])
def test_out_of_memory(run, monkeypatch, stage):
    def fail(*arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr({"k_means": vectors, "score": method}[stage], stage, fail)
    shown = run()
    assert shown.exit_code == 7 and "--sample-tokens" in shown.stderr and not records()


# -- records


@pytest.fixture(scope="module")
def two(home):
    out = home.folder / "two-clusters"
    other = tiny_checkpoint(home.folder / "other-clusters.pth", seed=1)
    for ckpt in (home.ckpt, other):
        skipbench.cluster(
            ckpt, home.dataset, **home.options(clusters="classes,9", seeds=2, out=out)
        )
    return out


def test_in_tables_comparisons_baselines_and_a_report(two, cli):
    table = cli("table", two)
    assert table.exit_code == 0 and "cluster" in table.stdout
    found = skipbench.compare("skip.pth", "other-clusters.pth", results=two)
    assert len(found) == 2
    for one in found:
        sides = [[s.result for s in side] for side in (one.a, one.b)]
        assert len({r.metrics["clusters"] for side in sides for r in side}) == 1
        values = [mean(r.metrics["miou"] for r in side) for side in sides]
        assert one.difference == pytest.approx(values[1] - values[0])
    shown = cli("compare", two, "skip.pth", "other-clusters.pth")
    assert shown.exit_code == 0 and shown.stdout.count("2 seeds") == 4, shown.output
    skipbench.update_baseline(two, "b.json")
    lines = read_baseline(Path("b.json")).figures
    assert len(lines) == 4 and all(line.seeds == 2 for line in lines.values())
    assert not any(verdict.fails for verdict in skipbench.check(two, "b.json", tolerance=0.1))
    page = skipbench.report(two, "page.html").read_text()
    assert "k-means clusters" in page and "other-clusters.pth" in page


def test_calibrate(cluster, cli, home):
    [first] = cluster(clusters=9, seeds=1, sample_tokens=100)
    skipbench.update_baseline("results", "b.json")
    where = ("--baseline", "b.json", "--seeds", "1,2", "--device", "cpu", "--cache", home.cache)
    done = cli("calibrate", *where)
    assert done.exit_code == 0, done.stderr
    others = cluster(clusters=9, seeds=[1, 2], sample_tokens=100, out="apart")
    assert sorted(r.id for r in others) == sorted(r.id for r in records("results/calibration"))
    [line] = read_baseline(Path("b.json")).figures.values()
    values = [r.metrics["miou"] for r in (first, *others)]
    assert line.noise == pytest.approx(stdev(values), abs=1e-4) and line.noise > 0
    assert line.noise_seeds == 3


# -- suites


def test_in_a_suite(cli, home, seen, cluster):
    suite(
        home,
        ("probe", "epochs = 1"),
        ("cluster", 'clusters = ["classes", 9]', "seeds = 2", "sample_tokens = 100"),
        ("knn", "k = 3"),
        ("cluster", "clusters = 5", "seeds = [3]", "pictures = 1"),
    )
    plan = cli("run", "suite.toml", "--dry-run", "--json")
    assert plan.exit_code == 0, plan.output
    assert [cell["state"] for cell in json.loads(plan.stdout)] == ["to do"] * 4
    assert not Path("results").exists() and not Path("cache").exists()
    seen.clear()
    done = cli("run", "suite.toml", "--json", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert sum(images for images, _ in seen) == 11  # one pass for all
    whole = {r.id: r for r in records() if r.evaluation == "cluster"}
    assert len(whole) == 5
    alone = cluster(clusters="classes,9", seeds=2, sample_tokens=100, out="alone")
    assert all(same(r, whole[r.id], ("alone", "results")) for r in alone)
    assert len(list(Path("results").glob("cluster-*/sheet.png"))) == 1
    seen.clear()
    again = cli("run", "suite.toml", "--json", "--device", "cpu")
    assert {cell["state"] for cell in json.loads(again.stdout)} == {"done before"} and not seen


def test_a_suite_tells_numbers_of_clusters_apart(cli, home):
    suite(home, ("cluster", "clusters = [5, 9]", "seeds = 1"))
    [cell] = json.loads(cli("run", "suite.toml", "--cache", home.cache, "--json").stdout)
    told = [{**figure, "record": "", "miou": 0, "interval": 0} for figure in cell["figures"]]
    assert len(told) == 2 and told[0] != told[1]
