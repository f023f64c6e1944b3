"""Figures of `skipbench knn`, by plain code: scores, votes, banks."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch
import trees
from tiny import (
    CLASSES,
    PATCH,
    SIZE,
    TOKENS,
    VAL,
    arrays_of,
    check_figures,
    plain_counts,
    resized,
    same,
    seen_hw,
    tiny_folder,
    truth,
)

from skipbench.engine import vectors
from skipbench.evaluations import pictures
from skipbench.pipeline import carry_out

pytestmark = pytest.mark.usefixtures("nowhere_else")


@pytest.fixture
def knn(home):
    return lambda **more: home.evaluate("knn", **more)


# -- scores


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


def test_figures_of_lists_are_those_of_plain_code(home, knn):
    """A bank so small that all of its lists are searched: only its half precision is left."""
    [result] = knn(index="ivf", k=7, limit=2)
    bank, labels = plain_bank(home.tokens("train")[:2], SIZE)
    bank = bank.astype(np.float16).astype(np.float64)
    val = home.tokens("val")

    def predict(image, size_hw):
        maps = plain_votes(val[image], bank, labels, 7, 0.02)
        return resized(maps, seen_hw(SIZE, size_hw), size_hw).argmax(2)

    counts = arrays_of(result)["counts"].astype(int)
    assert np.abs(counts - plain_counts(predict, images=2)).sum() <= 4  # pixels
    check_figures(result, counts)
    facts = result.metrics["bank"]
    assert facts["searched"] == facts["lists"] > 4 and facts["tokens"] == len(bank)
    assert 0.97 < facts["recall"] <= 1 and facts["bytes"] == bank.size * 2
    assert result.protocol["index"] == "ivf" and result.protocol["bank"] == "float16"


# -- votes


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


def test_equal_neighbours_are_the_same_however_many_are_sought(tmp_path, knn):
    """Every training image twice, with other labels: the k-th neighbour has an equal."""
    folder = tmp_path / "twice"
    tiny_folder(folder, train=0, val=3)
    for i in range(8):
        trees.photo(folder / "images" / "train" / f"{i}.png", (40, 56), i // 4)
        mask = np.full((40, 56), i % 4, np.uint8)
        trees.grey_png(folder / "masks" / "train" / f"{i}.png", mask)
    how = {"dataset": f"folder:{folder}", "cache": "c"}
    for result in knn(k=[1, 3, 6, 30, 150], **how):
        k = result.protocol["k"]
        [alone] = knn(k=k, out="alone", **how)
        assert alone.id == result.id and same(alone, result, ("alone", "results")), k


def test_more_neighbours_than_there_are_tokens(knn):
    few, many = knn(k=[50, 1000], memory=50)
    assert few.metrics["bank"]["tokens"] == 50
    assert np.array_equal(arrays_of(few)["counts"], arrays_of(many)["counts"])


# -- the bank


def banks_of(home, **more):
    """The bank of each cell."""
    run = home.open("knn", **more)
    with ExitStack() as stack:
        run.open_features(stack, run.cells, [])
        return [run.build_memory(cell).bank for cell in run.cells]


def patches_of(bank):
    return [rows.tolist() for rows in bank.rows]


def test_memory_is_shared_evenly_and_drawn_by_the_seed(home, knn):
    found = knn(memory=13, seeds=[0, 1], layers=["last", "0"])
    assert {r.metrics["bank"]["tokens"] for r in found} == {13}
    last_0, last_1, first_0, first_1 = banks_of(home, memory=13, seeds=[0, 1], layers=["last", "0"])
    assert last_0 is first_0 and last_1 is first_1  # one for all layers of a seed
    zero, one = patches_of(last_0), patches_of(last_1)
    assert zero != one
    for bank in (zero, one):
        assert sorted(map(len, bank)) == [2, 2, 2, 2, 2, 3]
        assert all(len(set(rows)) == len(rows) for rows in bank)
    assert patches_of(banks_of(home, memory=13)[0]) == zero


def test_a_memory_smaller_than_the_number_of_images(home, knn):
    found = knn(memory=4, seeds=[0, 1])
    for bank in banks_of(home, memory=4, seeds=[0, 1]):
        assert sorted(map(len, bank.rows)) == [0, 0, 1, 1, 1, 1]
    assert [r.metrics["bank"]["tokens"] for r in found] == [4, 4]
    assert sum(found[0].metrics["bank"]["class_percent"].values()) == pytest.approx(100)
    [one] = knn(memory=1)
    assert one.metrics["bank"]["tokens"] == 1 and one.metrics["miou"] > 0


def test_seeds_do_not_matter_where_all_is_remembered(knn, caplog):
    one, other = knn(seeds=[0, 1])
    assert one.id != other.id and caplog.text.count("one is enough") == 1
    assert np.array_equal(arrays_of(one)["counts"], arrays_of(other)["counts"])


# -- pictures


def test_a_picture_is_what_was_counted(home, monkeypatch):
    """Drawn from a bank and a search of its own."""
    drawn = []

    class Kept:
        def __init__(self, data, items, predict, counts):
            self.counts = counts
            self.found = {i: predict(i, truth("val", i).shape)[0] for i in range(VAL)}

    monkeypatch.setattr(pictures, "Drawing", Kept)
    monkeypatch.setattr(pictures, "draw_record", lambda folder, drawing, *_: drawn.append(drawing))
    carry_out(home.open("knn", pictures=2, k=3))
    [kept] = drawn
    assert np.array_equal(plain_counts(lambda image, _: kept.found[image]), kept.counts)
