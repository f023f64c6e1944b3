"""Paired comparisons: against scipy, against permutations, and how often the interval is right."""

import json

import numpy as np
import pytest
from made import (
    counts_of,
    data_part,
    make_result,
    put_tokencut,
    scores_by_block,
    with_counts,
)
from scipy import stats

import skipbench
from skipbench.errors import DataError, NumbersError, UsageError
from skipbench.metrics.intervals import bca_interval, leave_one_out, resample_weights
from skipbench.metrics.intervals import bootstrap as resampled
from skipbench.metrics.segmentation import miou_percent
from skipbench.record_store import write_result
from skipbench.results.compare import compare
from skipbench.results.paired import paired
from skipbench.results.read import Stored, read_results


def two_models(folder, images=60, gain=0.08, seed=0, **facts):
    """The same images, the second model somewhat better on each."""
    rng = np.random.default_rng(seed)
    a = counts_of(rng, images, quality=0.6)
    b = a.copy()
    more = rng.binomial(a[:, 2] - a[:, 0], gain)
    b[:, 0] += more
    b[:, 1] += more
    b[:, 1] -= np.minimum(np.roll(more, 1, axis=1), b[:, 1] - b[:, 0])
    first = with_counts(folder, a, name="a.pth", **facts)
    second = with_counts(folder, b, name="b.pth", residual="skipless", **facts)
    return Stored(first, folder), Stored(second, folder), a, b


def test_difference_and_values(tmp_path):
    first, second, a, b = two_models(tmp_path)
    found = paired(first, second)
    assert found.a_value == pytest.approx(float(miou_percent(a.sum(0))))
    assert found.b_value == pytest.approx(float(miou_percent(b.sum(0))))
    assert found.difference == pytest.approx(found.b_value - found.a_value)
    assert found.interval[0] < found.difference < found.interval[1]
    assert found.p_value < 0.01 and found.images == 60
    back = paired(second, first)
    assert back.interval == pytest.approx((-found.interval[1], -found.interval[0]))
    assert back.p_value == found.p_value


def test_against_scipys_paired_bootstrap(tmp_path):
    first, second, a, b = two_models(tmp_path, images=30, gain=0.03)
    found = paired(first, second, resamples=20_000)

    def difference(images, axis=-1):
        chosen = np.asarray(images, int)
        return miou_percent(b[chosen].sum(-3)) - miou_percent(a[chosen].sum(-3))

    theirs = stats.bootstrap(
        (np.arange(30),), difference, n_resamples=20_000, method="percentile", vectorized=True,
        rng=np.random.default_rng(3),
    )  # fmt: skip
    width = found.interval[1] - found.interval[0]
    assert found.interval == pytest.approx(theirs.confidence_interval, abs=0.04 * width)


def test_bca_against_scipys():
    counts = counts_of(np.random.default_rng(5), 40)

    def score(images, axis=-1):
        return miou_percent(counts[np.asarray(images, int)].sum(-3))

    theirs = stats.bootstrap(
        (np.arange(40),), score, n_resamples=20_000, method="BCa", vectorized=True,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    drawn = resampled(counts, miou_percent, resample_weights(40, 20_000, 2))
    left_out = leave_one_out(counts, miou_percent)
    ours = bca_interval(drawn, float(miou_percent(counts.sum(0))), left_out)
    width = ours[1] - ours[0]
    assert ours == pytest.approx(theirs.confidence_interval, abs=0.04 * width)


def test_bca_where_all_resamples_are_alike():
    assert bca_interval(np.full(50, 3.0), 3.0, np.full(9, 3.0)) == (3.0, 3.0)
    assert bca_interval(np.array([1.0, 2.0, np.nan]), 5.0, np.ones(4)) == pytest.approx(
        (1.025, 1.975)
    )


def test_p_value_agrees_with_a_permutation_test(tmp_path):
    """Another way to ask: with the two models swapped at random on each image, how often is the
    difference as large?"""
    rng = np.random.default_rng(4)
    a = counts_of(rng, 40, quality=0.6)
    right = rng.binomial(a[:, 2], rng.uniform(0.3, 0.95, (40, 1)))
    b = np.stack([right, right + np.roll(a[:, 2] - right, 1, axis=1), a[:, 2]], axis=1)
    first = Stored(with_counts(tmp_path, a, name="a"), tmp_path)
    second = Stored(with_counts(tmp_path, b, name="b"), tmp_path)
    swapped = rng.random((5000, 40)) < 0.5
    both = np.stack([a, b]).astype(np.int64)
    mine = np.einsum("ri,ikc->rkc", swapped, both[1] - both[0]) + both[0].sum(0)
    yours = both.sum((0, 1)) - mine
    null = miou_percent(mine) - miou_percent(yours)
    found = paired(first, second, resamples=5000)
    share = (np.abs(null) >= abs(found.difference)).mean()
    assert 0.001 < share < 0.9  # neither clear nor nothing: a test worth making
    assert found.p_value == pytest.approx(share, abs=0.06)


def test_the_interval_covers_the_truth_as_often_as_it_says(tmp_path):
    """200 draws of images from a large world whose true difference is known. With 95 % right and
    200 draws, 89.5 to 99 % are all but certain."""
    rng = np.random.default_rng(1)
    a = counts_of(rng, 20_000, quality=0.6)
    hard = rng.normal(0, 1, (20_000, 1))  # an image is hard for both
    chance = 1 / (1 + np.exp(-(hard + rng.normal(-2, 0.7, (20_000, 3)))))
    more = rng.binomial(a[:, 2] - a[:, 0], chance)
    b = a.copy()
    b[:, 0] += more
    b[:, 1] += more
    truth = float(miou_percent(b.sum(0, dtype=np.int64)) - miou_percent(a.sum(0, dtype=np.int64)))
    names = [f"{i}" for i in range(80)]
    inside = 0
    for draw in range(200):
        chosen = rng.integers(20_000, size=80)
        sides = []
        for name, counts in (("a", a[chosen]), ("b", b[chosen])):
            record = make_result(name=name, data=data_part(images=80, names=names))
            write_result(tmp_path, record, {"counts": counts})
            sides.append(Stored(record, tmp_path))
        low, high = paired(*sides, resamples=500, seed=draw).interval
        inside += low <= truth <= high
    assert 0.895 <= inside / 200 <= 0.99, inside


def test_classes_and_images_that_moved_most_come_first(tmp_path):
    first, second, a, b = two_models(tmp_path)
    b[7] = a[7]
    b[7, 1] += 400  # one image gets much worse
    b[7, 0] = 0
    second = Stored(with_counts(tmp_path, b, name="b.pth", residual="skipless"), tmp_path)
    found = paired(first, second)
    assert found.moved[0].name == "val_007" and found.moved[0].difference < 0
    moves = [abs(move.effect) for move in found.moved]
    assert moves == sorted(moves, reverse=True)
    rest = np.arange(60) != 7
    without = float(miou_percent(b[rest].sum(0)) - miou_percent(a[rest].sum(0)))
    assert found.moved[0].effect == pytest.approx(found.difference - without)
    iou = {m.name: m for m in found.classes}
    total = a.sum(0)
    cat = 100 * total[0, 1] / (total[1, 1] + total[2, 1] - total[0, 1])
    assert iou["cat"].a == pytest.approx(cat)
    assert iou["cat"].interval[0] < iou["cat"].difference < iou["cat"].interval[1]


def test_only_common_images_count_whatever_their_order(tmp_path):
    first, _, a, b = two_models(tmp_path)
    names = [f"val_{i:03d}" for i in range(59, 9, -1)] + ["another"]
    counts = np.concatenate([b[59:9:-1], b[:1]])
    data = data_part(images=51, names=names)
    second = Stored(with_counts(tmp_path, counts, name="c.pth", data=data), tmp_path)
    found = paired(first, second)
    assert (found.images, found.only_a, found.only_b) == (50, 10, 1)
    assert found.a_value == pytest.approx(float(miou_percent(a[10:].sum(0))))
    assert found.b_value == pytest.approx(float(miou_percent(b[10:].sum(0))))


def test_the_same_model_does_not_differ(tmp_path):
    first, *_ = two_models(tmp_path)
    found = paired(first, first)
    assert (found.difference, found.interval, found.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_several_seeds_are_compared_by_their_mean(tmp_path):
    two_models(tmp_path, seed=1)
    rng = np.random.default_rng(9)
    extra = with_counts(tmp_path, counts_of(rng, 60, quality=0.9), name="a.pth", seed=1)
    (found,) = compare("a.pth", "b.pth", results=tmp_path)
    assert len(found.a) == 2 and len(found.b) == 1
    values = [s.result.metrics["miou"] for s in read_results(tmp_path)]
    assert extra.metrics["miou"] in values
    assert found.a_value == pytest.approx(np.mean([s.result.metrics["miou"] for s in found.a]))


def test_names_of_checkpoints_stand_for_all_they_have_in_common(tmp_path):
    two_models(tmp_path, layers="last")
    two_models(tmp_path, layers="multiscale")
    two_models(tmp_path / "other", layers="last4")
    found = compare("a", "b.pth", results=tmp_path)
    assert {pair.a[0].result.features["layers"] for pair in found} == {"last", "multiscale"}
    assert all(p.a[0].result.features == p.b[0].result.features for p in found)
    with pytest.raises(UsageError, match="no evaluation in common"):
        compare(tmp_path, tmp_path / "other")


def test_records_of_the_same_images_are_compared_first(tmp_path, caplog):
    counts = counts_of(np.random.default_rng(0), 60)
    for number in (60, 40, 1):
        with_counts(tmp_path, counts[:number], name="a.pth")
    for number in (60, 40):
        with_counts(tmp_path, counts[:number] // 2, name="b.pth", residual="skipless")
    found = compare("a.pth", "b.pth", results=tmp_path)
    assert sorted((one.images, one.only_a, one.only_b) for one in found) == [(40, 0, 0), (60, 0, 0)]
    with_counts(tmp_path, counts[:20], name="c.pth")
    found = compare("c.pth", "b.pth", results=tmp_path)
    assert [one.images for one in found] == [20, 20]  # on what both have, and said so
    found = compare("a.pth", "c.pth", results=tmp_path)
    assert [one.images for one in found] == [20, 20] and "have 1 image in common" in caplog.text


def test_two_folders_are_compared_checkpoint_by_checkpoint(tmp_path):
    two_models(tmp_path / "before")
    two_models(tmp_path / "after", seed=1)
    found = compare(tmp_path / "before", tmp_path / "after")
    names = [[s[0].result.checkpoint["name"] for s in (p.a, p.b)] for p in found]
    assert sorted(names) == [["a.pth", "a.pth"], ["b.pth", "b.pth"]]


def test_what_cannot_be_compared(tmp_path):
    first, *_ = two_models(tmp_path)
    with pytest.raises(UsageError, match=r"no record 'c.pth'(?s:.)*a.pth"):
        compare("a.pth", "c.pth", results=tmp_path)
    rng = np.random.default_rng(0)
    other = Stored(with_counts(tmp_path, counts_of(rng, 9), dataset="ade20k"), tmp_path)
    with pytest.raises(UsageError, match="differ in data set"):
        paired(first, other)
    elsewhere = data_part(images=9, names=[f"x{i}" for i in range(9)])
    strange = Stored(with_counts(tmp_path, counts_of(rng, 9), data=elsewhere), tmp_path)
    with pytest.raises(UsageError, match="0 images in common"):
        paired(first, strange)
    unlabelled = np.zeros((60, 3, 3), int)
    empty = Stored(with_counts(tmp_path, counts_of(rng, 60), name="e.pth"), tmp_path)
    write_result(tmp_path, empty.result, {"counts": unlabelled})
    with pytest.raises(NumbersError, match="no pixel"):
        paired(first, empty)
    odd = make_result(metric="recall", data=data_part(images=60))
    write_result(tmp_path, odd, {"counts": np.ones((60, 5))})
    with pytest.raises(UsageError, match="a recall cannot be compared"):
        paired(Stored(odd, tmp_path), Stored(odd, tmp_path))
    first.path.with_suffix(".npz").write_bytes(b"damaged")
    with pytest.raises(DataError, match="damaged"):
        paired(first, first)


def test_one_without_counts_does_not_hide_the_others(tmp_path, caplog):
    two_models(tmp_path, layers="last")
    gone, *_ = two_models(tmp_path, layers="multiscale")
    gone.path.with_suffix(".npz").unlink()
    with caplog.at_level("WARNING", "skipbench"):
        (found,) = compare("a.pth", "b.pth", results=tmp_path)
    assert found.a[0].result.features["layers"] == "last" and gone.result.id in caplog.text


def test_the_honest_choice_of_the_rate(tmp_path, cli):
    """A record of a sweep has the counts of both choices."""
    rng = np.random.default_rng(2)
    for name in "ab":
        counts = {
            "val": counts_of(rng, 30, quality=0.8),
            "holdout": counts_of(rng, 30, quality=0.5),
        }
        figures = {}
        for where, found in counts.items():
            miou = float(miou_percent(found.sum(0)))
            figures[where] = {"rate": 0.1, "miou": miou, "interval": None, "edge": None}
        record = make_result(
            name=name, value=figures["val"]["miou"], selected_on="val",
            data=data_part(images=30), metrics={"chosen": figures},
        )  # fmt: skip
        arrays = {f"counts_{where}": c for where, c in counts.items()}
        write_result(tmp_path, record, {"counts": counts["val"], **arrays})
    (val,) = compare("a", "b", results=tmp_path)
    (honest,) = compare("a", "b", results=tmp_path, select="holdout")
    assert honest.a_value < val.a_value - 5
    stored = read_results(tmp_path)
    expected = {s.result.checkpoint["name"]: s.result.metrics["chosen"]["holdout"] for s in stored}
    assert honest.a_value == pytest.approx(expected["a"]["miou"])
    made = skipbench.table(tmp_path, select="holdout")
    assert {c.entry.value for row in made.rows for c in row.cells} == {
        row["miou"] for row in expected.values()
    }
    assert not made.footnotes  # chosen with no knowledge of the answer
    assert skipbench.table(tmp_path, select="val").footnotes
    assert cli("table", tmp_path, "--select", "holdout").exit_code == 0
    assert cli("table", tmp_path, "--select", "test").exit_code == 2


# -- means over images: CorLoc, and IoU by image


def two_of_tokencut(folder, images=80, score="boxes", **facts):
    """(images, blocks) of either model, on disk as records of all blocks."""
    rng = np.random.default_rng(3)
    a = scores_by_block(rng, images, quality=0.4)
    b = scores_by_block(rng, images, quality=0.8)
    if score == "masks":
        a, b = (found * rng.random(found.shape) for found in (a, b))
    put_tokencut(folder, a, name="a", score=score, **facts)
    put_tokencut(folder, b, name="b", residual="skipless", score=score, **facts)
    return a, b


@pytest.mark.parametrize(("score", "metric"), [("boxes", "corloc"), ("masks", "iou")])
def test_scores_by_image(tmp_path, score, metric):
    a, b = two_of_tokencut(tmp_path, score=score)
    (found,) = compare("a", "b", results=tmp_path)
    best_a, best_b = (scores[:, scores.mean(0).argmax()] for scores in (a, b))
    assert found.metric == metric and found.images == 80 and found.classes == ()
    assert found.a_value == pytest.approx(100 * best_a.mean())
    assert found.b_value == pytest.approx(100 * best_b.mean())
    assert found.differs == {} and found.p_value < 0.01
    theirs = stats.bootstrap(
        (best_b - best_a,), np.mean, n_resamples=5000, method="percentile", rng=1
    ).confidence_interval
    assert found.interval == pytest.approx([100 * end for end in theirs], abs=2.5)
    for move in found.moved:  # each image by its own score, and by what hangs on it
        i = int(move.name.removeprefix("trainval_"))
        assert (move.a, move.b) == pytest.approx((100 * best_a[i], 100 * best_b[i]))
        rest = np.arange(80) != i
        without = 100 * (best_b[rest].mean() - best_a[rest].mean())
        assert move.effect == pytest.approx(found.difference - without, abs=1e-9)


def test_the_honest_choice_of_the_block(tmp_path, cli):
    """Its counts are how often an image was scored, and found: no ones and zeros."""
    two_of_tokencut(tmp_path)
    (oracle,) = compare("a", "b", results=tmp_path)
    (honest,) = compare("a", "b", results=tmp_path, select="holdout")
    for value, side in ((honest.a_value, honest.a), (honest.b_value, honest.b)):
        metrics = side[0].result.metrics
        assert value == pytest.approx(metrics["chosen"]["holdout"]["corloc"])
        assert metrics["block"] is None and len(metrics["blocks"]) == 12
    assert honest.a_value <= oracle.a_value and honest.interval != oracle.interval
    assert honest.differs == {}
    done = cli("compare", tmp_path, "a", "b", "--select", "holdout")
    assert done.exit_code == 0
    assert "B is better: image sampling alone does not explain the difference" in done.stdout
    assert f"CorLoc {honest.a_value:.2f}" in done.stdout
    assert "One training each" not in done.stdout  # nothing is trained


def test_a_record_made_with_the_honest_choice(tmp_path):
    a, _ = two_of_tokencut(tmp_path, select="holdout")
    (found,) = compare("a", "b", results=tmp_path)
    (same,) = compare("a", "b", results=tmp_path, select="holdout")
    (oracle,) = compare("a", "b", results=tmp_path, select="val")
    assert found.difference == same.difference
    assert oracle.a_value == pytest.approx(100 * a.mean(0).max())


def test_two_methods_of_one_model(tmp_path, cli):
    rng = np.random.default_rng(0)
    for method in ("tokencut", "lost"):
        put_tokencut(tmp_path, scores_by_block(rng), method=method)
    one, other = read_results(tmp_path)
    (found,) = compare(one.result.id, other.result.id, results=tmp_path)
    assert set(found.differs) == {"method", "tau", "eps"}  # LOST has neither of the two
    done = cli("compare", tmp_path, one.result.id, other.result.id)
    assert "different method: " in done.stdout


def test_of_two_models_by_two_methods_each_method_is_compared(tmp_path):
    two_of_tokencut(tmp_path)
    two_of_tokencut(tmp_path, method="lost")
    two_of_tokencut(tmp_path, tensor="tokens")
    found = compare("a", "b", results=tmp_path)
    assert len(found) == 3 and not any(pair.differs for pair in found)


def test_a_corloc_and_an_iou_are_not_compared(tmp_path):
    scores = scores_by_block(np.random.default_rng(0))
    put_tokencut(tmp_path, scores)
    put_tokencut(tmp_path, scores, score="masks", name="b")
    one, other = read_results(tmp_path)
    with pytest.raises(UsageError, match="differ in measure"):
        paired(one, other)


def test_images_that_only_one_was_scored_on_are_said(tmp_path):
    two_of_tokencut(tmp_path)
    (one, other) = sorted(read_results(tmp_path), key=lambda s: s.result.checkpoint["name"])
    counts = other.counts()
    counts[:5] = 0
    write_result(tmp_path, other.result, {"counts": counts})
    assert paired(one, other).differs == {"images scored": [(80,), (75,)]}


def test_nothing_is_compared_with_itself(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, *_ = two_models(tmp_path / "results")
    with pytest.raises(UsageError, match="the same records"):
        compare(first.result.id, first.result.id)
    done = cli("compare", "results", "b.pth")  # the folder against one in it
    assert done.exit_code == 0 and done.stdout.count("images in common") == 1


def test_another_seed_is_spoken_of_where_there_is_one_training_each(tmp_path, cli):
    two_models(tmp_path)
    assert "One training each" in cli("compare", tmp_path, "a.pth", "b.pth").stdout


def test_other_labels_training_images_and_seeds_are_said(tmp_path, cli):
    first, _, _, b = two_models(tmp_path)
    b[:, 2] += 1
    some = data_part(split="train", images=20, official=99, partial=True)
    second = with_counts(tmp_path, b, name="c.pth", seed=3, training=some)
    found = paired(first, Stored(second, tmp_path))
    assert {"labelled pixels", "seed", "images trained on"} <= found.differs.keys()
    done = cli("compare", tmp_path, "a.pth", "c.pth")
    assert "but the settings differ" in done.stdout
    assert "labelled pixels" in done.stdout


def test_settings_that_differ_are_said(tmp_path, cli):
    first, second, *_ = two_models(tmp_path)
    other = with_counts(tmp_path, second.arrays()["counts"], name="c.pth", protocol={"epochs": 5})
    done = cli("compare", tmp_path, first.result.id, other.id)
    assert done.exit_code == 0 and "different epochs: 30 and 5" in done.stdout


def test_command(tmp_path, cli):
    first, second, *_ = two_models(tmp_path)
    done = cli("compare", tmp_path, "a.pth", "b.pth")
    assert done.exit_code == 0, done.output
    assert "B is better" in done.stdout and "60 images in common" in done.stdout
    done = cli("compare", first.path, second.path, "--json")
    (found,) = json.loads(done.stdout)
    assert found["difference"] > 0 and found["a"] == [first.result.id]
    done = cli("compare", tmp_path, first.result.id[:-4], second.result.id.rpartition("-")[2][:8])
    assert done.exit_code == 0, done.output
    assert cli("compare", tmp_path).exit_code == 2


def test_what_speaks_against_one_model_is_shown(tmp_path, cli):
    counts = counts_of(np.random.default_rng(0), 30)
    with_counts(tmp_path, counts, name="a.pth", selected_on="val")
    with_counts(
        tmp_path, counts // 2, name="b.pth", selected_on="val",
        features={"degenerate": {"tokens/11": 9}}, checkpoint={"warning": "looks SKIPLESS"},
    )  # fmt: skip
    shown = " ".join(cli("compare", tmp_path, "a", "b").stdout.split())
    against = "run as skip, although its file or its weights suggest otherwise"
    assert f"B: constant features in 9 of 30 images; {against}" in shown
    assert "A: " not in shown and "learning rate chosen" not in shown  # both have it


def test_python(tmp_path):
    first, second, *_ = two_models(tmp_path)
    (found,) = skipbench.compare("a.pth", "b.pth", results=tmp_path)
    assert found.p_value < 0.05
    assert skipbench.compare(first.result, second.result, results=tmp_path) == [found]


def test_hits_are_compared_by_an_exact_test():
    """Four images that only one gets right: 1 in 8 by tossing, whatever a bootstrap says."""
    from scipy.stats import binomtest

    from skipbench.metrics.intervals import sign_test

    rng = np.random.default_rng(0)
    for images, differ in ((12, 4), (40, 0), (300, 31)):
        a = (rng.random(images) < 0.5) * 1.0
        b = a.copy()
        b[:differ] = 1 - b[:differ]
        if images == 12:
            a[:differ], b[:differ] = 0, 1
        better = int((b > a).sum())
        expected = binomtest(better, differ).pvalue if differ else 1.0
        assert sign_test(a, b) == pytest.approx(expected)
