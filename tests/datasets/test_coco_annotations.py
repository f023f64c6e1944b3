"""COCO's annotation files: streamed, and cached as an index of boxes and one of outlines."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import trees
from PIL import Image, ImageDraw, ImageOps

from skipbench.datasets import open_dataset
from skipbench.datasets.coco import SegmentIndex, unpacked
from skipbench.datasets.common.coco_annotations import BoxIndex, elements
from skipbench.errors import DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SKIPBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path):
    return trees.coco20k(tmp_path) / "annotations" / "instances_train2014.json"


FIRST = "COCO_train2014_000000560992.jpg"


def open_index(path):
    return BoxIndex(path).find(FIRST)[0]


NESTED = {
    "info": {"a": [1, {"b": "]}"}], "c": None},
    "empty": [],
    "numbers": [1, -2.5e3, 0],
    "words": ['ü \\ " ]', "", "{"],
    "images": [{"id": i, "deep": [[i, [i]], {"x": [i]}]} for i in range(40)],
    "last": "word",
}


@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_elements_are_those_of_the_json_module(tmp_path, style):
    (tmp_path / "x.json").write_text(json.dumps(NESTED, ensure_ascii=False, **style))
    for key, value in NESTED.items():
        expected = value if isinstance(value, list) else []
        assert list(elements(tmp_path / "x.json", key)) == expected


def test_a_file_of_many_megabytes_is_streamed(tmp_path):
    """More than what is read at a time, images after the other lists."""
    annotations = [{"id": i, "xywh": [i, i + 0.5, -1e-3, 2**40]} for i in range(60_000)]
    images = [{"id": i} for i in range(3)]
    content = {"annotations": annotations, "images": images, "z": "ü" * 100}
    (tmp_path / "x.json").write_text(json.dumps(content))
    reached = []
    assert list(elements(tmp_path / "x.json", "annotations", reached.append)) == annotations
    assert (
        reached == sorted(reached)
        and reached[0] < reached[-1] <= (tmp_path / "x.json").stat().st_size
    )
    assert list(elements(tmp_path / "x.json", "images")) == images


def test_not_text(tmp_path):
    (tmp_path / "x.json").write_bytes(b'{"images": ["\xff\xfe"]}')
    with pytest.raises(DataError, match=r"x\.json: not JSON at line 1: .*UTF8"):
        list(elements(tmp_path / "x.json", "images"))


def test_boxes_of_each_image_whatever_the_order(tmp_path):
    random = np.random.default_rng(0)
    images = [(int(i), f"{i}.jpg", (30, 44)) for i in random.permutation(50)]
    boxes = [
        (int(random.integers(50)), tuple(random.uniform(0, 20, 4).round(2).tolist()), 18, crowd)
        for crowd in random.random(400) < 0.1
    ]
    trees.coco_json(tmp_path / "x.json", images, boxes)
    index = BoxIndex(tmp_path / "x.json")
    for number, file, size_hw in images:
        mine = [box for box in boxes if box[0] == number]
        expected = [(x, y, x + w, y + h) for _, (x, y, w, h), _, crowd in mine if not crowd]
        found = index.boxes(file)
        np.testing.assert_allclose(found.xyxy, np.array(expected).reshape(-1, 4))
        assert found.crowds == sum(crowd for *_, crowd in mine)
        assert found.drawn_on_hw == size_hw


def test_second_start_reads_the_index_not_the_file(path, monkeypatch):
    first = open_index(path)
    outlines = SegmentIndex(path).find(FIRST)[0]

    def never(index):
        raise AssertionError("read again")

    monkeypatch.setattr(BoxIndex, "build", never)
    monkeypatch.setattr(SegmentIndex, "build", never)
    second = open_index(path)
    again = SegmentIndex(path).find(FIRST)[0]
    assert outlines.keys() == again.keys() != first.keys()
    assert all(np.array_equal(outlines[name], again[name]) for name in again)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_another_file_is_another_index(path):
    before = BoxIndex(path).boxes("COCO_train2014_000000560992.jpg").xyxy
    content = json.loads(path.read_text())
    content["annotations"][1]["bbox"][0] = 4.2
    path.write_text(json.dumps(content))
    os.utime(path, ns=(0, 12345))
    after = BoxIndex(path).boxes("COCO_train2014_000000560992.jpg").xyxy
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
    assert "is not cached" in caplog.text


def test_unknown_categories_and_missing_sizes(tmp_path):
    content = trees.coco_json(
        tmp_path / "x.json", [(0, "a.jpg", (3, 4))], [(0, (1, 2, 3, 4), 77, False)]
    )
    del content["images"][0]["height"]
    (tmp_path / "x.json").write_text(json.dumps(content))
    boxes = BoxIndex(tmp_path / "x.json").boxes("a.jpg")
    assert boxes.classes == ("?",) and boxes.drawn_on_hw is None
    content["annotations"][0] = {"id": 1, "image_id": 0, "segments_info": []}  # panoptic: no box
    (tmp_path / "x.json").write_text(json.dumps(content))
    assert len(BoxIndex(tmp_path / "x.json").build()["xywh"]) == 0


# -- outlines


def segments(root, *outlines, **options):
    trees.coco_outlined(root, outlines, **options)
    return open_dataset("coco", root=root, limit=1)[0].segments()


def rectangle(x0, y0, x1, y1):
    return [x0, y0, x1, y0, x1, y1, x0, y1]


def painted(*corners, size_hw=(30, 44)):
    """Rectangles by Pillow, which counts the last pixel in; the n-th has the number n."""
    image = Image.new("I", size_hw[::-1])
    for number, (x0, y0, x1, y1) in enumerate(corners, 1):
        ImageDraw.Draw(image).rectangle((x0, y0, x1 - 1, y1 - 1), fill=number)
    return np.asarray(image)


def runs(mask):
    """Uncompressed, as COCO writes them: down the columns, outside first."""
    counts, value = [0], 0
    for pixel in mask.T.ravel().astype(int).tolist():
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    return {"size": list(mask.shape), "counts": counts}


def ring():
    mask = painted((5, 3, 40, 28)).astype(bool)
    mask[10:20, 12:30] = False
    return mask


def test_polygons(tmp_path):
    found = segments(tmp_path, [rectangle(5, 3, 25, 12)])
    np.testing.assert_array_equal(found, painted((5, 3, 25, 12)))
    assert (found == 1).sum() == 20 * 9


def test_a_slanted_polygon_has_about_the_area_it_should(tmp_path):
    found = segments(tmp_path, [[2.0, 1.0, 42.0, 11.0, 30.0, 28.0]])
    corners = [(2, 1), (42, 11), (30, 28)]
    image = Image.new("1", (44, 30))
    ImageDraw.Draw(image).polygon(corners, fill=1)
    area = 0.5 * abs(40 * 27 - 28 * 10)
    assert abs((found == 1).sum() - area) < 12
    assert ((found == 1) != np.asarray(image)).sum() < 60  # Pillow counts the border in


def test_parts_of_a_polygon_are_one_object(tmp_path):
    parts = [rectangle(1, 1, 9, 8), rectangle(5, 4, 14, 20), rectangle(30, 22, 44, 30)]
    expected = painted((1, 1, 9, 8), (5, 4, 14, 20), (30, 22, 44, 30)) > 0
    np.testing.assert_array_equal(segments(tmp_path, parts), expected)


@pytest.mark.parametrize("kind", ["list", "string"])
def test_run_lengths_with_a_hole(tmp_path, kind):
    from pycocotools import mask as rle

    outline = runs(ring())
    if kind == "string":
        packed = rle.encode(np.asfortranarray(ring().astype(np.uint8)))["counts"].decode()
        assert unpacked(packed) == outline["counts"]
        outline["counts"] = packed
    np.testing.assert_array_equal(segments(tmp_path, outline), ring())


@pytest.mark.parametrize("seed", range(5))
def test_strings_are_unpacked_as_pycocotools_packs_them(seed):
    from pycocotools import mask as rle

    random = np.random.default_rng(seed)
    mask = random.random((61, 300)) < random.choice([0.001, 0.02, 0.5])
    outline = runs(mask)
    packed = rle.frPyObjects(outline, *mask.shape)["counts"].decode()
    assert unpacked(packed) == outline["counts"]


def test_small_objects_lie_on_large_ones(tmp_path):
    def annotation(area, *corners):
        return {"area": area, "segmentation": [rectangle(*corners)]}

    small, large, middle = (10, 8, 20, 16), (2, 2, 40, 28), (15, 10, 30, 25)
    found = segments(
        tmp_path, annotation(80, *small), annotation(988, *large), annotation(225, *middle)
    )
    np.testing.assert_array_equal(found, painted(large, middle, small))
    # The area is what the annotation says, and where it says nothing, that of the outline.
    for said in (None, 500):
        found = segments(tmp_path / str(said), annotation(said, *small), annotation(225, *middle))
        expected = painted(small, middle) if said else painted(middle, small)
        np.testing.assert_array_equal(found, expected)


def test_crowds_count_for_nothing_but_objects_lie_on_them(tmp_path):
    crowd = {"segmentation": runs(ring()), "iscrowd": 1, "area": 1}
    found = segments(tmp_path, [rectangle(0, 0, 10, 30)], crowd)
    expected = np.where(ring(), -1, 0)
    expected[:, :10] = 1
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_outlines_are_turned_with_their_image(tmp_path, orientation):
    """Drawn on the picture as stored; else, where the JSON has the other size, as shown."""
    stored = painted((2, 3, 20, 9), (30, 1, 41, 28))
    image = Image.fromarray(stored.astype(np.uint8))
    image.getexif()[0x0112] = orientation
    shown = np.asarray(ImageOps.exif_transpose(image))
    outlines = [{"segmentation": runs(stored == n), "area": 9 - n} for n in (1, 2)]
    np.testing.assert_array_equal(segments(tmp_path, *outlines, orientation=orientation), shown)
    if orientation >= 5:
        outlines = [{"segmentation": runs(shown == n), "area": 9 - n} for n in (1, 2)]
        options = {"orientation": orientation, "written_hw": (44, 30)}
        np.testing.assert_array_equal(segments(tmp_path / "as shown", *outlines, **options), shown)


def test_another_size_than_the_image(tmp_path):
    with pytest.raises(DataError, match=r"(?s)val2017\.json: its size is 30×45, .*30×44.*139\.jpg"):
        segments(tmp_path, [rectangle(5, 3, 25, 12)], written_hw=(30, 45))
    with pytest.raises(DataError, match="its size is 44×30"):  # no orientation explains it
        segments(tmp_path / "b", [rectangle(5, 3, 25, 12)], written_hw=(44, 30))


def test_annotations_may_stand_before_their_images(tmp_path):
    path = trees.coco_outlined(tmp_path, [[rectangle(5, 3, 25, 12)]])
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    found = SegmentIndex(path).segments(tmp_path / "coco" / "val2017" / "000000000139.jpg")
    np.testing.assert_array_equal(found, painted((5, 3, 25, 12)))


FULL = 30 * 44


@pytest.mark.parametrize(
    ("outline", "says"),
    [
        ([], "neither polygons"),
        (None, "neither polygons"),
        ("polygon", "neither polygons"),
        (7, "neither polygons"),
        ([[]], "at least three pairs"),
        ([[1, 1, 5, 5]], "at least three pairs"),
        ([[1, 1, 5, 5, 1, 5, 3]], "at least three pairs"),
        ([[1, 1, 9, 1, 9, 9], [2, 2]], "at least three pairs"),
        ([1, 1, 9, 1, 9, 9], "at least three pairs"),
        ([["1", "1", "9", "1", "9", "9"]], "not made of numbers"),
        ([[1, 1, 9, 1, 9, None]], "not made of numbers"),
        ([[[1, 1], [9, 1], [9, 9], [1, 9], [1, 5], [1, 4]]], "not made of numbers"),
        ([[1, 1, 9, 1, 9, [9]]], ""),
        ([[1, 1, 9, 1, 9, 1e300]], "far from any image"),
        ([[1, 1, 9, 1, -2e9, 9]], "far from any image"),
        ([[1, 1, 400_000, 1, 9, 400_000] * 2], "pixels long"),
        ({"counts": [FULL]}, "no 'size'"),
        ({"size": [30, 44]}, "no 'counts'"),
        ({"size": [44, 30], "counts": [FULL]}, r"\[44, 30\], in an image of \[30, 44\]"),
        ({"size": 30, "counts": [FULL]}, "in an image of"),
        ({"size": [30, 44], "counts": []}, "list of integers"),
        ({"size": [30, 44], "counts": None}, "list of integers"),
        ({"size": [30, 44], "counts": FULL}, "list of integers"),
        ({"size": [30, 44], "counts": [1.5, FULL - 1.5]}, "list of integers"),
        ({"size": [30, 44], "counts": ["a"]}, "list of integers"),
        ({"size": [30, 44], "counts": [[1], [2, 3]]}, ""),
        ({"size": [30, 44], "counts": [FULL - 1]}, "do not add up"),
        ({"size": [30, 44], "counts": [FULL, 1]}, "do not add up"),
        ({"size": [30, 44], "counts": [FULL + 5, -5]}, "do not add up"),
        ({"size": [30, 44], "counts": [2**63 - 1, 2**63 - 1]}, "do not add up"),
        ({"size": [30, 44], "counts": ""}, "list of integers"),
        ({"size": [30, 44], "counts": "ü"}, "invalid string"),
        ({"size": [30, 44], "counts": "\u0000"}, "invalid string"),
        ({"size": [30, 44], "counts": "Z"}, "truncated string"),
        ({"size": [30, 44], "counts": "o" * 50}, "invalid string"),
        ({"size": [30, 44], "counts": "11"}, "do not add up"),
        ({"segmentation": [rectangle(1, 1, 5, 5)], "iscrowd": 2}, "iscrowd is 2"),
        ({"segmentation": [rectangle(1, 1, 5, 5)], "area": -1}, "an area of -1"),
        ({"segmentation": [rectangle(1, 1, 5, 5)], "area": "12"}, "real number"),
    ],
)
def test_malformed_outlines(tmp_path, outline, says):
    """Of one annotation after a good one; its C code never sees it."""
    where = r"instances_val2017\.json: annotation 101 of 000000000139\.jpg \(image 139\): "
    with pytest.raises(DataError, match=f"{where}.*{says}") as caught:
        segments(tmp_path, [rectangle(1, 1, 5, 5)], outline)
    assert caught.value.exit_code == 4
    assert not list((tmp_path / "cache").rglob("*.npz"))


@pytest.mark.parametrize(
    "outline",
    [
        [[1, 1, 9, 1, 9, float("nan")]],
        [[1, 1, 9, 1, 9, float("inf")]],
        [[1, 1, 9, 1, 9, 10**30]],
        {"size": [30, 44], "counts": [10**30]},
        {"segmentation": [rectangle(1, 1, 5, 5)], "area": float("nan")},
    ],
)
def test_numbers_that_json_does_not_have(tmp_path, outline):
    """NaN and infinity, which Python's json writes, and integers beyond 64 bits."""
    says = r"instances_val2017\.json: not JSON at line 1: .*(NaN|Infinity|1, 9, 10000|\[100000)"
    with pytest.raises(DataError, match=says) as caught:
        segments(tmp_path, [rectangle(1, 1, 5, 5)], outline)
    assert caught.value.exit_code == 4
    assert not list((tmp_path / "cache").rglob("*.npz"))


@pytest.mark.parametrize("size_hw", [(0, 44), (-30, 44), (30, None), (1 << 12, 1 << 12)])
def test_malformed_sizes(tmp_path, size_hw):
    with pytest.raises(DataError, match=r"val2017\.json: .*in images.*height .*width"):
        segments(tmp_path, [rectangle(1, 1, 5, 5)], written_hw=size_hw)


def test_annotations_without_outline_or_image(tmp_path):
    path = trees.coco_outlined(tmp_path, [[rectangle(1, 1, 5, 5)]])
    content = json.loads(path.read_text())
    outline = content["annotations"][0].pop("segmentation")
    image = tmp_path / "coco" / "val2017" / "000000000139.jpg"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"annotation 100 of .*139\.jpg .*no 'segmentation'"):
        SegmentIndex(path).segments(image)
    content["annotations"][0] |= {"segmentation": outline, "image_id": 7}
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="annotation 100 belongs to image 7, which is not"):
        SegmentIndex(path).segments(image)


def test_outlines_beyond_the_border_are_cut(tmp_path):
    found = segments(tmp_path, [rectangle(-50, -9, 7, 300)], [rectangle(100, 100, 200, 200)])
    np.testing.assert_array_equal(found, painted((0, 0, 7, 30)))


def test_changed_json_or_damaged_index_of_outlines(tmp_path, caplog):
    before = segments(tmp_path, [rectangle(5, 3, 25, 12)])
    (kept,) = (tmp_path / "cache").rglob("*.npz")
    kept.write_bytes(kept.read_bytes()[:-30])
    item = open_dataset("coco", root=tmp_path, limit=1)[0]
    np.testing.assert_array_equal(item.segments(), before)
    assert "damaged" in caplog.text
    after = segments(tmp_path, [rectangle(5, 3, 25, 13)])
    assert (after == 1).sum() == 20 * 10


def test_boxes_do_not_wait_for_outlines(tmp_path):
    trees.coco_outlined(tmp_path, [None])  # which would be an error
    assert len(open_dataset("coco", root=tmp_path, limit=1)[0].boxes().xyxy) == 1


def test_several_threads_ask_for_one_index_of_outlines(tmp_path, monkeypatch):
    trees.coco_outlined(tmp_path, [[rectangle(5, 3, 25, 12)]])
    calls, build = [], SegmentIndex.build

    def slow(index):
        calls.append(index)
        time.sleep(0.05)
        return build(index)

    monkeypatch.setattr(SegmentIndex, "build", slow)
    item = open_dataset("coco", root=tmp_path, limit=1)[0]
    assert item.has_segments and not calls
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: item.segments(), range(8)))
    assert len(calls) == 1 and all((f == 1).sum() == 180 for f in found)


def test_pycocotools_is_imported_when_it_is_needed():
    code = "import sys, skipbench.datasets.coco; assert 'pycocotools' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
