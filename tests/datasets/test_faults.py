"""What half-downloaded, damaged or mislabelled data gives: the file's name, never a number."""

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import trees
from PIL import Image

from skipbench.datasets import open_dataset
from skipbench.datasets.common.coco_annotations import BoxIndex
from skipbench.datasets.common.verify import verify
from skipbench.errors import DataError
from skipbench.images import read_image


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SKIPBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def voc(tmp_path):
    return trees.voc(tmp_path)


def val(tmp_path, **options):
    return open_dataset("voc", "val", root=tmp_path, **{"limit": 10} | options)


def truncate(path, keep=0.6):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def bomb(path):
    """A PNG that says it has 40,000 × 40,000 pixels, and has none."""
    import struct
    import zlib

    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    body = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


# 19: truncated or bomb-size images


@pytest.mark.parametrize("harm", [truncate, bomb])
def test_bad_image_is_named(voc, tmp_path, harm):
    path = voc / "JPEGImages" / "2007_000121.jpg"
    harm(path)
    with pytest.raises(DataError, match=r"2007_000121\.jpg"):
        val(tmp_path)[1].read()


@pytest.mark.parametrize("harm", [truncate, bomb])
def test_skip_bad_leaves_out_up_to_so_many(voc, tmp_path, harm, caplog):
    whole = val(tmp_path)
    harm(voc / "JPEGImages" / "2007_000121.jpg")
    data = val(tmp_path, skip_bad=1)
    assert list(data.names) == ["2007_000068"]
    assert data.facts().bad == ("2007_000121",) and data.fingerprint() != whole.fingerprint()
    assert data.partial
    assert "left out: " in caplog.text and "2007_000121.jpg" in caplog.text
    harm(voc / "JPEGImages" / "2007_000068.jpg")
    with pytest.raises(DataError, match=r"2 images cannot be decoded, --skip-bad allows 1"):
        val(tmp_path, skip_bad=1)


@pytest.mark.parametrize("harm", [truncate, lambda path: path.write_bytes(b"")])
def test_skip_bad_leaves_something(voc, tmp_path, harm):
    for path in (voc / "JPEGImages").glob("*.jpg"):
        harm(path)
    with pytest.raises(DataError, match="no readable images remain"):
        val(tmp_path, skip_bad=5)


def test_skip_bad_also_for_masks_that_do_not_decode_but_no_other_fault(voc, tmp_path):
    truncate(voc / "SegmentationClass" / "2007_000121.png", 0.9)
    assert val(tmp_path, skip_bad=1).bad == ("2007_000121",)
    trees.palette_png(voc / "SegmentationClass" / "2007_000121.png", np.zeros((9, 9), np.uint8))
    assert val(tmp_path, skip_bad=1).bad == ()
    with pytest.raises(DataError, match="9×9"):
        val(tmp_path, skip_bad=1)[1].mask()


# 20: any image becomes RGB (tests/test_images.py); its mask and boxes turn with it


@pytest.mark.parametrize("orientation", range(1, 9))
def test_mask_and_boxes_turn_with_their_image(voc, tmp_path, orientation):
    """A white rectangle on black is found where the mask and the box say it is."""
    height, width = 30, 44
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[4:13, 6:25] = 255
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = orientation
    path = voc / "JPEGImages" / "2007_000068.jpg"
    image.save(path, exif=exif, quality=95)
    trees.palette_png(
        voc / "SegmentationClass" / "2007_000068.png", (pixels[..., 0] > 0).astype(np.uint8)
    )
    corners = (7, 5, 25, 13)  # from 1, both ends included
    trees.voc_xml(
        voc / "Annotations" / "2007_000068.xml", (height, width), [trees.voc_object("dog", corners)]
    )
    item = val(tmp_path)[0]
    shown = item.read()
    assert shown.shape[:2] == ((30, 44) if orientation < 5 else (44, 30)) == item.size_hw()
    white = shown[..., 0] > 127
    np.testing.assert_array_equal(item.mask(), white)
    rows, columns = np.nonzero(white)
    seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert item.boxes().xyxy.tolist() == [seen]


def test_mask_drawn_on_the_picture_as_shown_stays(voc, tmp_path):
    trees.photo(voc / "JPEGImages" / "2007_000068.jpg", (30, 44), orientation=6)
    mask = trees.blocks((44, 30), [0, 3])
    trees.palette_png(voc / "SegmentationClass" / "2007_000068.png", mask)
    trees.voc_xml(
        voc / "Annotations" / "2007_000068.xml", (44, 30), [trees.voc_object("dog", (2, 3, 9, 40))]
    )
    item = val(tmp_path)[0]
    np.testing.assert_array_equal(item.mask(), mask)
    assert item.boxes().xyxy.tolist() == [[1, 2, 9, 40]]


# 21: masks


def test_mask_missing(voc, tmp_path):
    (voc / "SegmentationClass" / "2007_000121.png").unlink()
    with pytest.raises(DataError, match=r"2007_000121\.jpg.*2007_000121\.png"):
        val(tmp_path)
    assert len(val(tmp_path, limit=1)) == 1  # what is not used need not be there


def test_mask_goes_missing_later(voc, tmp_path):
    data = val(tmp_path)
    (voc / "SegmentationClass" / "2007_000121.png").unlink()
    with pytest.raises(DataError, match=r"(?s)2007_000121\.png.*2007_000121\.jpg"):
        data[1].mask()
    with pytest.raises(DataError, match=r"disappeared: .*2007_000121\.png"):
        data.fingerprint()


def test_mask_corrupt(voc, tmp_path):
    truncate(voc / "SegmentationClass" / "2007_000121.png", 0.9)
    with pytest.raises(DataError, match=r"2007_000121\.png: (truncated|not a readable)"):
        val(tmp_path)[1].mask()


def test_mask_of_another_size(voc, tmp_path):
    trees.palette_png(voc / "SegmentationClass" / "2007_000121.png", np.zeros((9, 11), np.uint8))
    with pytest.raises(DataError, match=r"2007_000121\.png.*9×11.*24×40.*2007_000121\.jpg"):
        val(tmp_path)[1].mask()


def test_mask_in_colours(voc, tmp_path):
    trees.photo(voc / "SegmentationClass" / "2007_000121.png", (24, 40))
    with pytest.raises(DataError, match=r"2007_000121\.png: a colour image \(RGB\)"):
        val(tmp_path)[1].mask()


# 22: labels that mean nothing


@pytest.mark.parametrize("value", [21, 254])
def test_strange_label(voc, tmp_path, value):
    mask = np.zeros((24, 40), np.uint8)
    mask[3, 5:9] = value
    trees.palette_png(voc / "SegmentationClass" / "2007_000121.png", mask)
    with pytest.raises(DataError, match=rf"2007_000121\.png: 4 pixels have the value {value}"):
        val(tmp_path)[1].mask()


def test_masks_of_jpeg(tmp_path):
    """Hundreds of values that could each be ignored: that would lead nowhere."""
    folder = trees.own_folder(tmp_path)
    for path in (folder / "masks").rglob("*.png"):
        Image.fromarray(np.array(Image.open(path)) * 20).save(path.with_suffix(".jpg"), quality=40)
        path.unlink()
    trees.write_lines(folder / "classes.txt", ["0\tnothing", "20\tcat", "40\tdog"])
    [report, _] = verify(f"folder:{folder}").splits
    assert len(report.causes) == 1 and "Save masks as PNG. (the same in 1 more)" in report.causes[0]


def test_strange_label_in_sixteen_bits(tmp_path):
    folder = trees.own_folder(tmp_path)
    mask = np.ones((30, 44), np.uint16)
    trees.grey_png(folder / "masks/val/p0.png", mask)
    data = open_dataset(f"folder:{folder}", "val")
    assert (data[0].mask() == 1).all() and data[0].mask().dtype == np.uint8
    mask[2, 3] = 257  # 1, had it been cut to eight bits
    trees.grey_png(folder / "masks/val/p0.png", mask)
    with pytest.raises(DataError, match="value 257"):
        data[0].mask()


def test_gaps_of_cocostuff_are_strange(tmp_path):
    trees.cocostuff(tmp_path, values=(0, 11))
    with pytest.raises(DataError, match="value 11, which is neither one of the 171"):
        open_dataset("cocostuff", root=tmp_path, limit=1)[0].mask()


def test_ade20k_does_not_know_255(tmp_path):
    folder = trees.ade20k(tmp_path)
    mask = folder / "annotations" / "validation" / "ADE_val_00000001.png"
    trees.grey_png(mask, np.full((30, 44), 255, np.uint8))
    with pytest.raises(DataError, match="value 255"):
        open_dataset("ade20k", root=tmp_path, limit=1)[0].mask()


# 23 is in test_opening.py: palette masks give raw indices

# 24: masks that are ignored altogether, classes that do not occur


def test_all_ignored(voc, tmp_path):
    trees.palette_png(
        voc / "SegmentationClass" / "2007_000068.png", np.full((30, 44), 255, np.uint8)
    )
    assert (val(tmp_path)[0].mask() == 255).all()


# 25: fewer images than the official split


def test_fewer_than_official(voc, tmp_path):
    with pytest.raises(DataError, match=r"2 of 1,449 images.*\n.*--limit 1449"):
        val(tmp_path, limit=None)
    data = val(tmp_path, limit=2)
    assert len(data) == 2 and data.facts().partial and data.facts().official_images == 1_449


def test_the_command_that_downloads_the_rest_has_the_same_root(voc, tmp_path):
    command = f"skipbench data download voc --split val --data-root {tmp_path}"
    with pytest.raises(DataError, match=re.escape(command)):
        val(tmp_path, limit=None)
    (voc / "SegmentationClass" / "2007_000068.png").unlink()
    with pytest.raises(DataError, match="1 image has no mask.*\n.*" + re.escape(command)):
        val(tmp_path)
    with pytest.raises(DataError, match=f"skipbench data download ade20k --data-root {tmp_path}"):
        open_dataset("ade20k", root=tmp_path)


def test_listed_but_not_in_the_folder(tmp_path):
    """Nothing can be downloaded: the list is the user's."""
    folder = trees.own_folder(tmp_path, splits=("",))
    trees.write_lines(folder / "train.txt", ["p0", "gone"])
    with pytest.raises(DataError, match=r"Take the missing names out of .*mine/train\.txt"):
        open_dataset(f"folder:{folder}", "train")


def test_listed_but_not_there(voc, tmp_path):
    (voc / "JPEGImages" / "2007_000068.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 1,449 images.*Missing: 2007_000068"):
        val(tmp_path, limit=None)
    assert list(val(tmp_path).names) == ["2007_000121"]


def test_list_missing(voc, tmp_path):
    (voc / "ImageSets" / "Segmentation" / "val.txt").unlink()
    with pytest.raises(DataError, match=r"list is missing: .*val\.txt"):
        val(tmp_path)


def test_a_whole_official_split_is_not_partial(tmp_path):
    """213 images, as VOC2007 val has."""
    folder, names = trees.whole_voc07_val(tmp_path)
    data = open_dataset("voc07", "val", root=tmp_path)
    assert len(data) == 213 and not data.partial
    assert not open_dataset("voc07", "val", root=tmp_path, limit=213).partial
    assert open_dataset("voc07", "val", root=tmp_path, limit=212).partial
    trees.write_lines(folder / "ImageSets/Segmentation/val.txt", [*names, "2007_000068"])
    assert open_dataset("voc07", "val", root=tmp_path).partial  # one too many is another split


# 26: malformed XML and JSON


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:200], "line 6"),
        (lambda text: text.replace("<xmin>3</xmin>", ""), "'dog' has no usable box"),
        (lambda text: text.replace("<xmin>3<", "<xmin>three<"), "'dog' has no usable box"),
        (lambda text: text.replace("<xmin>3<", "<xmin>300<"), "from 300,2 to 20,11"),
        (lambda text: text.replace("bndbox", "box"), "no <bndbox>"),
        (lambda text: text.replace("<xmin>3<", "<xmin>nan<"), "no usable box"),
        (lambda text: text.replace("<xmin>3<", "<xmin>1_0<"), "'1_0' is not a number"),
        (lambda text: text.replace("<difficult>0<", "<difficult>4<"), "'4', not 0 or 1"),
        (lambda text: '<?xml version="1.0" encoding="gbk"?>' + text, "unreadable XML"),
        (lambda text: '<?xml version="1.0" encoding="foo"?>' + text, "unreadable XML"),
    ],
)
def test_malformed_xml(voc, tmp_path, change, says):
    path = voc / "Annotations" / "2007_000068.xml"
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=rf"2007_000068\.xml: .*{says}"):
        val(tmp_path)[0].boxes()


def test_a_size_of_5000_digits_in_an_xml_is_not_known(voc, tmp_path):
    path = voc / "Annotations" / "2007_000068.xml"
    path.write_text(path.read_text().replace("<height>", f"<height>{'9' * 5000}"))
    assert val(tmp_path)[0].boxes().drawn_on_hw is None


def test_xml_missing(voc, tmp_path):
    (voc / "Annotations" / "2007_000068.xml").unlink()
    with pytest.raises(DataError, match=r"no annotation; the first: .*2007_000068\.jpg"):
        open_dataset("voc", "trainval", root=tmp_path, limit=9)
    with pytest.raises(DataError, match=r"missing: .*2007_000068\.xml"):
        val(tmp_path)[0].boxes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: len(text) // 2], "not JSON at line 1: .*cut off"),
        (lambda text: text[:-1], r"not JSON at line 1: it ends too early \(cut off"),
        (
            lambda text: text.replace('"bbox": [3.2,', '"bbox": [3.2 4,'),
            "not JSON at line 1: .*3.2",
        ),
        (lambda text: text.replace('}, {"id": 101', '} {"id": 101'), "I expect ','"),
        (
            lambda text: text.replace("3.2, 4.7, 12.6, 9.1]", "3.2, 4.7, 12.6]"),
            "in annotations.*101",
        ),
        (lambda text: text.replace("12.6, 9.1]", "-12.6, 9.1]"), "in annotations.*-12.6"),
        (lambda text: text.replace("12.6, 9.1]", "NaN, 9.1]"), "not JSON at line 1: .*NaN"),
        (
            lambda text: text.replace("12.6, 9.1]", "1.6e308, 9.1]").replace("3.2", "1.7e308"),
            "in annotations",
        ),
        (lambda text: text.replace("[3.2, 4.7, 12.6, 9.1]", '"3491"'), "in annotations.*a box of"),
        (lambda text: text.replace("12.6, 9.1]", "true, 9.1]"), "in annotations.*a box of"),
        (lambda text: text.replace('"annotations"', '"annotation"'), "no list of annotations"),
        (lambda text: text.replace('"name": "dog"', '"name": null'), "in categories.*a name"),
        (lambda text: text.replace('"file_name": "', '"file_name": 3, "x": "'), "a file name"),
        (lambda text: text.replace('"image_id": 560992', '"image_id": 1'), "image 1, which is not"),
        (lambda text: text.replace('"file_name"', '"name"'), "in images.*KeyError"),
        (lambda text: json.dumps({"images": [1]}), "in images .*: 1"),
        (lambda text: "[]", "no images in it"),
        (lambda text: "", "not JSON at line 1: it ends too early"),
        (lambda text: "{}", "no images in it"),
        (lambda text: text.replace('"iscrowd": 0', '"iscrowd": "0"'), "in annotations"),
        (lambda text: text.replace('"id": 396626', '"id": 560992'), "listed twice"),
        (lambda text: text.replace('"id": 18,', '"id": "b",'), "in categories"),
        (lambda text: '{"images": ' + "[" * 200_000, "not JSON"),
        (lambda text: '{"images": [' + "9" * 5_000 + "]}", "not JSON|in images"),
    ],
)
def test_malformed_json(tmp_path, change, says):
    folder = trees.coco20k(tmp_path)
    path = folder / "annotations" / "instances_train2014.json"
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    data = open_dataset("coco20k", root=tmp_path, limit=9)
    with pytest.raises(DataError, match=rf"(?s)instances_train2014\.json: .*{says}"):
        data[0].boxes()
    assert not list((tmp_path / "cache").rglob("*.npz"))


@pytest.mark.parametrize("entries", [3, 20_000])
def test_the_line_of_a_mistake(tmp_path, entries):
    """Also far into a file of which only a part is in memory."""
    folder = trees.coco20k(tmp_path)
    path = folder / "annotations" / "instances_train2014.json"
    content = json.loads(path.read_text())
    content["annotations"] *= entries
    lines = json.dumps(content, indent=0).split("\n")
    wrong = max(i for i, line in enumerate(lines) if "iscrowd" in line)
    lines[wrong] = '"iscrowd": ?,'
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=rf"at line {wrong + 1}: .*iscrowd"):
        open_dataset("coco20k", root=tmp_path, limit=9)[0].boxes()


def test_json_with_a_mark_at_its_beginning(tmp_path):
    folder = trees.coco20k(tmp_path)
    path = folder / "annotations" / "instances_train2014.json"
    path.write_text("\ufeff" + path.read_text())
    assert len(open_dataset("coco20k", root=tmp_path, limit=9)[0].boxes().xyxy) == 1


def test_a_malformed_json_is_read_once_not_for_every_image(tmp_path, monkeypatch):
    folder = trees.coco20k(tmp_path)
    (folder / "annotations" / "instances_train2014.json").write_text("{")
    calls, build = [], BoxIndex.build
    monkeypatch.setattr(BoxIndex, "build", lambda index: calls.append(index) or build(index))
    data = open_dataset("coco20k", root=tmp_path, limit=9)
    for item in data:
        with pytest.raises(DataError, match="not JSON"):
            item.boxes()
    assert len(calls) == 1


def test_several_threads_ask_for_one_index(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    trees.coco20k(tmp_path)
    calls, build = [], BoxIndex.build

    def slow(index):
        calls.append(index)
        time.sleep(0.05)
        return build(index)

    monkeypatch.setattr(BoxIndex, "build", slow)
    data = open_dataset("coco20k", root=tmp_path, limit=9)
    with ThreadPoolExecutor(4) as pool:
        assert all(len(b.xyxy) == 1 for b in pool.map(lambda _: data[0].boxes(), range(8)))
    assert len(calls) == 1


def test_json_without_this_image(tmp_path):
    folder = trees.coco20k(tmp_path)
    path = folder / "annotations" / "instances_train2014.json"
    content = json.loads(path.read_text())
    content["images"] = content["images"][1:]
    content["annotations"] = content["annotations"][:1]
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"no entry for image COCO_train2014_000000560992\.jpg"):
        open_dataset("coco20k", root=tmp_path, limit=9)[0].boxes()


def test_json_missing(tmp_path):
    folder = trees.coco20k(tmp_path)
    (folder / "annotations" / "instances_train2014.json").unlink()
    with pytest.raises(DataError, match=r"boxes are missing: .*instances_train2014\.json"):
        open_dataset("coco20k", root=tmp_path)


# 27 is in test_opening.py: images without a box, or with crowds only; 28 and 29 in
# test_download.py


@pytest.mark.parametrize("name", ["classes.txt", "boxes.csv", "boxes.json"])
def test_folders_where_files_belong(tmp_path, name):
    folder = trees.own_folder(tmp_path)
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    with pytest.raises(DataError, match=rf"cannot read .*{name}: Is a directory"):
        open_dataset(f"folder:{folder}", "val")[0].boxes()


@pytest.mark.parametrize("line", ["11 ignore", "11: ignore", "11,Ignore"])
def test_a_line_that_would_become_a_class(tmp_path, line):
    folder = trees.own_folder(tmp_path)
    trees.write_lines(folder / "classes.txt", ["nothing", "cat", "dog", line])
    with pytest.raises(DataError, match=f"'{line}': expected a TAB"):
        open_dataset(f"folder:{folder}", "val")


def test_the_advice_to_ignore_a_label_works_as_printed(tmp_path):
    folder = trees.own_folder(tmp_path)
    trees.grey_png(folder / "masks/val/p0.png", trees.blocks((30, 44), [0, 11]))
    with pytest.raises(DataError) as error:
        open_dataset(f"folder:{folder}", "val")[0].mask()
    line, file = re.search(r"add the line (\S+) to (.*)\.", str(error.value)).groups()
    with Path(file).open("a") as classes:
        classes.write(f"{line}\n")
    data = open_dataset(f"folder:{folder}", "val")
    assert data.classes == ("nothing", "cat", "dog")
    assert set(np.unique(data[0].mask())) == {0, 255}


def test_too_many_classes_are_counted_in_their_file(tmp_path):
    folder = trees.own_folder(tmp_path)
    trees.write_lines(folder / "classes.txt", range(255))
    with pytest.raises(DataError, match=r"classes\.txt: 255 classes; at most 254"):
        open_dataset(f"folder:{folder}", "val")


def test_permission(voc, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = voc / "JPEGImages" / "2007_000068.jpg"
    path.chmod(0)
    with pytest.raises(DataError, match="2007_000068"):
        read_image(path)
