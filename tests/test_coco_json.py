"""COCO's annotation files: read in a window, kept as an index."""

import json
import os

import numpy as np
import pytest
import trees

from skipbench.datasets import _coco_json
from skipbench.datasets._coco_json import LazyIndex, elements, make_index, open_index
from skipbench.errors import DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SKIPBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path):
    return trees.coco20k(tmp_path) / "annotations" / "instances_train2014.json"


NESTED = {
    "info": {"a": [1, {"b": "]}"}], "c": None},
    "empty": [],
    "numbers": [1, -2.5e3, 0],
    "words": ['ü \\ " ]', "", "{"],
    "images": [{"id": i, "deep": [[i, [i]], {"x": [i]}]} for i in range(40)],
    "last": "word",
}


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 10**6])
@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_elements_are_those_of_the_json_module(tmp_path, monkeypatch, chunk, style):
    monkeypatch.setattr(_coco_json, "CHUNK", chunk)
    (tmp_path / "x.json").write_text(json.dumps(NESTED, ensure_ascii=False, **style))
    expected = [(k, v) for k, values in NESTED.items() if isinstance(values, list) for v in values]
    assert list(elements(tmp_path / "x.json")) == expected


def test_not_text(tmp_path):
    (tmp_path / "x.json").write_bytes(b'{"images": ["\xff\xfe"]}')
    with pytest.raises(DataError, match=r"x\.json: not UTF-8"):
        list(elements(tmp_path / "x.json"))


def test_boxes_of_each_image_whatever_the_order(tmp_path):
    random = np.random.default_rng(0)
    images = [(int(i), f"{i}.jpg", (30, 44)) for i in random.permutation(50)]
    boxes = [
        (int(random.integers(50)), tuple(random.uniform(0, 20, 4).round(2).tolist()), 18, crowd)
        for crowd in random.random(400) < 0.1
    ]
    trees.coco_json(tmp_path / "x.json", images, boxes)
    index = LazyIndex(tmp_path / "x.json")
    for number, file, size_hw in images:
        mine = [box for box in boxes if box[0] == number]
        expected = [(x, y, x + w, y + h) for _, (x, y, w, h), _, crowd in mine if not crowd]
        found = index.boxes(file)
        np.testing.assert_allclose(found.xyxy, np.array(expected).reshape(-1, 4))
        assert found.crowds == sum(crowd for *_, crowd in mine)
        assert found.drawn_on_hw == size_hw


def test_second_start_reads_the_index_not_the_file(path, monkeypatch):
    first = open_index(path)

    def never(path):
        raise AssertionError("read again")

    monkeypatch.setattr(_coco_json, "make_index", never)
    second = open_index(path)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_another_file_is_another_index(path):
    before = LazyIndex(path).boxes("COCO_train2014_000000560992.jpg").xyxy
    content = json.loads(path.read_text())
    content["annotations"][1]["bbox"][0] = 4.2
    path.write_text(json.dumps(content))
    os.utime(path, ns=(0, 12345))
    after = LazyIndex(path).boxes("COCO_train2014_000000560992.jpg").xyxy
    assert before[0, 0] == 3.2 and after[0, 0] == 4.2


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-30], lambda data: b"", lambda data: b"x" * 99]
)
def test_a_damaged_index_is_made_anew(path, harm, caplog):
    whole = open_index(path)
    (kept,) = (path.parents[2] / "cache").rglob("*.npz")
    kept.write_bytes(harm(kept.read_bytes()))
    again = open_index(path)
    assert "damaged" in caplog.text
    np.testing.assert_array_equal(again["xywh"], whole["xywh"])
    caplog.clear()
    open_index(path)
    assert not caplog.text


def test_an_index_that_cannot_be_kept_is_still_used(path, tmp_path, monkeypatch, caplog):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("SKIPBENCH_CACHE", str(tmp_path / "a file" / "below"))
    assert len(open_index(path)["files"]) == 3
    assert "index is not kept" in caplog.text


def test_unknown_categories_and_missing_sizes(tmp_path):
    content = trees.coco_json(
        tmp_path / "x.json", [(0, "a.jpg", (3, 4))], [(0, (1, 2, 3, 4), 77, False)]
    )
    del content["images"][0]["height"]
    (tmp_path / "x.json").write_text(json.dumps(content))
    boxes = LazyIndex(tmp_path / "x.json").boxes("a.jpg")
    assert boxes.classes == ("?",) and boxes.drawn_on_hw is None
    content["annotations"][0] = {"id": 1, "image_id": 0, "segments_info": []}  # panoptic: no box
    (tmp_path / "x.json").write_text(json.dumps(content))
    assert len(make_index(tmp_path / "x.json")["xywh"]) == 0
