"""Data sets in their real layouts, read back; and what every file of the catalogue keeps to."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trees
from conftest import SHARED
from PIL import Image

from skipbench import datasets
from skipbench.datasets import open_dataset, source, without_empty
from skipbench.datasets.common.layouts import palette
from skipbench.datasets.voc import CLASSES as VOC_CLASSES
from skipbench.datasets.voc import SOURCE as VOC2012
from skipbench.datasets.voc import write_masks
from skipbench.errors import DataError, UsageError

TREES = {name: getattr(trees, name, None) for name in datasets.names()}
SALIENCY = ("ecssd", "duts", "dutomron")


pytestmark = pytest.mark.usefixtures("nowhere_else")


def opened(name, tmp_path, **options):
    """A split of the tiny tree, taken as it is."""
    folder = TREES[name](tmp_path)
    full_name = f"folder:{folder}" if name == "folder" else name
    return open_dataset(full_name, root=tmp_path, **({"limit": 1000} | options))


# -- the contract, for every file in the folder


def test_every_file_has_a_tree_here():
    assert all(TREES.values()), "add a function with the data set's name to tests/trees.py"


def test_importing_the_package_imports_none_of_them():
    code = (
        "import sys, skipbench.datasets as d; "
        "assert not [n for n in d.names() if f'skipbench.datasets.{n}' in sys.modules]; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_are_told_apart():
    kinds = [source("folder:x" if name == "folder" else name) for name in TREES]
    others = [word for kind in kinds for word in kind.also.split()]
    assert len({*TREES, *others}) == len(TREES) + len(others)
    shown = [kind.short or kind.title for kind in kinds]
    assert len(set(shown)) == len(kinds)
    for name, short in (("voc", "VOC2012"), ("ecssd", "ECSSD"), ("folder:x", "folder:x")):
        assert datasets.short_name(name) == short
    for name in ("not here", "folder", ""):  # in records of other versions
        assert datasets.short_name(name) == name


@pytest.mark.parametrize("name", TREES)
class TestContract:
    def test_describes_itself(self, name):
        kind = source("folder:x" if name == "folder" else name)
        assert kind.title and kind.licence and kind.tree
        assert kind.on_disk == (name != "shapes")
        assert not kind.class_sets or len(kind.labels(Path()).classes) == kind.class_sets[0]
        for split in kind.splits.values():
            assert split.images > 0 and split.labels in ("masks", "boxes", "images", "classes")
        for archive in kind.archives:
            assert archive.url.startswith("http") and archive.file.endswith(
                (".tar", ".tgz", ".zip")
            )
            if archive.checksum:
                kind_, _, digest = archive.checksum.partition(":")
                assert len(digest) == {"md5": 32, "sha1": 40, "sha256": 64}[kind_]
            assert set(archive.splits) <= set(kind.splits)

    def test_items(self, name, tmp_path):
        data = opened(name, tmp_path)
        assert len(data) == len(list(data)) == len(data.items) >= 2
        assert list(data.names) == [item.name for item in data]
        assert len(set(data.names)) == len(data)
        for item in data:
            image = item.read()
            assert image.dtype == np.uint8 and image.shape == (*item.size_hw(), 3)
            assert image.shape[0] != image.shape[1]

    def test_labels(self, name, tmp_path):
        data = opened(name, tmp_path)
        if data.kind != "masks":
            assert data.labels is None and bool(data.classes) == (data.kind == "classes")
            assert data.kind != "classes" or {item.image_class() for item in data} <= {
                *data.classes
            }
            return
        assert len(data.labels.classes) == len(data.labels.colours) == len(set(data.classes))
        assert set(data.labels.table.values()) == set(range(len(data.classes)))
        for item in data:
            mask = item.mask()
            assert mask.dtype == np.uint8 and mask.shape == item.size_hw()
            assert set(np.unique(mask)) <= {*range(len(data.classes)), 255}

    def test_boxes(self, name, tmp_path):
        data = opened(name, tmp_path)
        if data.kind != "boxes":
            return
        for item in data:
            boxes = item.boxes()
            height, width = item.size_hw()
            assert boxes.xyxy.shape == (len(boxes.classes), 4) and boxes.xyxy.dtype == np.float64
            assert (boxes.xyxy[:, 2:] > boxes.xyxy[:, :2]).all()
            assert (boxes.xyxy >= 0).all() and (boxes.xyxy <= [width, height] * 2).all()

    def test_segments(self, name, tmp_path):
        data = opened(name, tmp_path)
        for item in data:
            assert item.has_segments == (name not in ("coco20k", "imagenet"))
            if not item.has_segments:
                with pytest.raises(DataError, match="has no segments"):
                    item.segments()
                continue
            segments = item.segments()
            assert segments.dtype == np.int32 and segments.shape == item.size_hw()
            assert segments.min() >= -1
            if data.kind == "masks":
                mask = item.mask().astype(int)
                np.testing.assert_array_equal(segments, np.where(mask == 255, -1, mask))

    def test_fingerprint_knows_list_and_labels_not_the_place(self, name, tmp_path):
        data = opened(name, tmp_path)
        first = data.fingerprint()
        assert opened(name, tmp_path / "elsewhere").fingerprint() == first
        assert opened(name, tmp_path, limit=1).fingerprint() != first

    def test_partial_unless_whole(self, name, tmp_path):
        data = opened(name, tmp_path)
        assert data.partial == (name not in ("shapes", "folder"))
        assert opened(name, tmp_path, limit=1).partial
        facts = data.facts()
        assert facts.images == len(data) and facts.names == tuple(data.names)
        assert facts.partial == data.partial
        json.dumps(facts.to_json())

    def test_sample(self, name, tmp_path):
        data = opened(name, tmp_path)
        one = opened(name, tmp_path, train_images=1, seed=3)
        assert len(one) == 1 and one.names[0] in data.names and one.sample == (1, 3)


def test_fingerprint_knows_every_label(tmp_path):
    """Another box, flag, name, mask or length of an image is another data set."""

    def marks():
        return [
            open_dataset("voc", split, root=tmp_path, limit=9).fingerprint()
            for split in ("val", "trainval")
        ]

    folder = trees.voc(tmp_path)
    val, trainval = marks()
    xml = folder / "Annotations" / "2007_000068.xml"
    original = xml.read_text()
    for old, new in (("<xmin>3<", "<xmin>4<"), ("difficult>0", "difficult>1"), ("dog", "cat")):
        xml.write_text(original.replace(old, new))
        assert marks()[0] == val and marks()[1] != trainval, new
    xml.write_text(original)
    assert marks() == [val, trainval]
    trees.palette_png(
        folder / "SegmentationClass" / "2007_000068.png", trees.blocks((30, 44), [0, 4])
    )
    assert marks()[0] != val and marks()[1] == trainval
    with (folder / "JPEGImages" / "2007_000068.jpg").open("ab") as file:
        file.write(b"more")
    assert marks()[1] != trainval


def test_fingerprint_of_a_folder_does_not_know_its_name(tmp_path):
    folder = trees.own_folder(tmp_path)
    before = open_dataset(f"folder:{folder}", "val").fingerprint()
    folder.rename(tmp_path / "other")
    assert open_dataset(f"folder:{tmp_path / 'other'}", "val").fingerprint() == before


def test_names_that_are_no_text(tmp_path):
    folder = trees.own_folder(tmp_path, splits=("train",))
    for part, suffix in (("images", "jpg"), ("masks", "png")):
        strange = os.fsdecode(b"\xff") + f".{suffix}"
        (folder / part / "train" / f"p0.{suffix}").rename(folder / part / "train" / strange)
    data = open_dataset(f"folder:{folder}", "train", train_images=1)
    assert data.fingerprint() and json.dumps(data.facts().to_json())


def test_slices_and_numbers_that_make_no_sense():
    data = open_dataset("shapes")
    assert [item.name for item in data[1:3]] == list(data.names[1:3])
    for options in ({"limit": 0}, {"limit": -1}, {"train_images": -5}):
        with pytest.raises(UsageError, match="at least 1"):
            open_dataset("shapes", **options)
    assert len(repr(data)) < 300


# -- one by one


def test_voc(tmp_path):
    trees.voc(tmp_path)
    data = open_dataset("voc", "train", root=tmp_path, limit=9)
    assert list(data.names) == ["2007_000032", "2007_000039", "2007_000063"]
    assert data.classes[:2] == ("background", "aeroplane") and data.classes[20] == "tvmonitor"
    stored = np.asarray(Image.open(data[2].mask_path))
    assert Image.open(data[2].mask_path).mode == "P"  # raw indices, not colours
    np.testing.assert_array_equal(data[2].mask(), stored)
    assert set(np.unique(data[2].mask())) == {0, 3, 255}


def test_voc_boxes_are_half_open_from_zero(tmp_path):
    folder = trees.voc(tmp_path)
    trees.voc_xml(
        folder / "Annotations" / "2007_000032.xml",
        (30, 44),
        [
            trees.voc_object("dog", (1, 1, 44, 30)),
            trees.voc_object("cat", (3, 2, 20, 11), difficult=1),
            trees.voc_object("cow", ("4.7", 2, 20, 11), truncated=1),
        ],
    )
    item = open_dataset("voc", "trainval", root=tmp_path, limit=1)[0]
    boxes = item.boxes()
    assert boxes.xyxy.tolist() == [[0, 0, 44, 30], [2, 1, 20, 11], [3, 1, 20, 11]]
    assert boxes.classes == ("dog", "cat", "cow")  # and not the parts of one
    assert boxes.hard.tolist() == [False, True, True]
    assert boxes.without_hard().classes == ("dog",)
    assert boxes.without_hard().xyxy.tolist() == [[0, 0, 44, 30]]


def test_voc_images_without_an_easy_box_are_left_out_and_counted(tmp_path):
    folder = trees.voc(tmp_path)
    trees.voc_xml(
        folder / "Annotations" / "2007_000039.xml", (24, 40), [trees.voc_object(difficult=1)]
    )
    trees.voc_xml(folder / "Annotations" / "2007_000063.xml", (41, 27), [])
    data = open_dataset("voc", "trainval", root=tmp_path, limit=9)
    assert without_empty(data).facts().empty == ("2007_000063",)
    easy = without_empty(data, hard=False)
    assert easy.empty == ("2007_000039", "2007_000063") and len(easy) == len(data) - 2


def test_a_year_is_not_taken_for_another(tmp_path):
    devkit = trees.voc(tmp_path)
    assert datasets.locate("voc", devkit).folder is not None
    assert datasets.locate("voc07", devkit).folder is None


def test_voc_lists_may_name_files(tmp_path):
    folder = trees.voc(tmp_path)
    names = ["./2007_000068.jpg", "2007_000121.jpg  1"]
    (folder / "ImageSets/Segmentation/val.txt").write_text("\ufeff" + "\r\n".join(names))
    data = open_dataset("voc", "val", root=tmp_path, limit=9)
    assert list(data.names) == ["2007_000068", "2007_000121"]


def test_voc_colours_are_the_devkits():
    known = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128)]
    assert list(palette(5)) == known
    assert palette(256)[255] == (224, 224, 192)
    assert len(set(palette(256))) == 256


def test_voc_train_aug(tmp_path):
    folder = trees.voc(tmp_path)
    mask = trees.blocks((30, 44), [0, 20, 255])
    trees.grey_png(folder / "SegmentationClassAug" / "2007_000032.png", mask)  # as DeepLab's
    data = open_dataset("voc", "train_aug", root=tmp_path, limit=1)
    assert data.official == 10_582 and list(data.names) == ["2007_000032"]
    np.testing.assert_array_equal(data[0].mask(), mask)
    names = VOC2012.train_aug()
    assert len(set(names)) == 10_582 and names == sorted(names)


def test_sbd_becomes_train_aug(tmp_path):
    """From MATLAB files; where VOC has a mask of its own, that one is taken."""
    from scipy.io import savemat

    folder = trees.voc(tmp_path)
    theirs = trees.blocks((30, 44), [0, 7])
    sbd = tmp_path / "benchmark_RELEASE" / "dataset" / "cls"
    sbd.mkdir(parents=True)
    new = "2008_000015"
    savemat(sbd / f"{new}.mat", {"GTcls": {"Segmentation": theirs, "Boundaries": 0}})
    write_masks(sbd, folder, [new, "2007_000032"])
    made = Image.open(folder / "SegmentationClassAug" / f"{new}.png")
    assert made.mode == "P"
    np.testing.assert_array_equal(np.asarray(made), theirs)
    own = np.asarray(Image.open(folder / "SegmentationClassAug" / "2007_000032.png"))
    assert set(np.unique(own)) == {0, 1, 255}
    (sbd / "2008_000019.mat").write_bytes(b"not MATLAB")
    with pytest.raises(DataError, match=r"2008_000019\.mat"):
        write_masks(sbd, folder, ["2008_000019"])
    with pytest.raises(DataError, match=r"(?s)missing.*2008_000021\.mat"):
        write_masks(sbd, folder, ["2008_000021"])


def test_ade20k_zero_is_ignored_and_one_is_the_first_class(tmp_path):
    data = opened("ade20k", tmp_path)
    assert set(np.unique(data[0].mask())) == {255, 0, 149}
    assert (data[0].mask()[:, 0] == 255).all()
    assert len(data.classes) == 150 and data.classes[0] == "wall" and data.classes[149] == "flag"


def test_cocostuff_closes_the_gaps(tmp_path):
    data = opened("cocostuff", tmp_path)
    assert len(data.classes) == 171
    assert [data.classes[i] for i in (0, 11, 170)] == ["person", "stop sign", "wood"]
    assert set(np.unique(data[0].mask())) == {0, 11, 170, 255}


def test_cocostuff_27(tmp_path):
    data = opened("cocostuff", tmp_path, classes=27)
    assert len(data.classes) == 27
    named = {data.classes[i] for i in np.unique(data[0].mask()) if i != 255}
    assert named == {"person-things", "outdoor-things", "solid-stuff"}
    assert data.fingerprint() != opened("cocostuff", tmp_path).fingerprint()
    with pytest.raises(UsageError, match="171 or 27"):
        opened("cocostuff", tmp_path, classes=26)
    with pytest.raises(UsageError, match="only one set of classes"):
        opened("voc", tmp_path, classes=27)


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("images/val2017", "stuffthingmaps/val2017"),
        ("images/val2017", "annotations/val2017"),
        ("val2017", "annotations/stuffthingmaps/val2017"),
    ],
)
def test_cocostuff_other_layouts(tmp_path, images, masks):
    folder = tmp_path / "coco_stuff164k"
    trees.photo(folder / images / "000000000139.jpg", (30, 44))
    trees.grey_png(folder / masks / "000000000139.png", trees.blocks((30, 44), [0, 181]))
    trees.grey_png(folder / masks / "000000000139_labelTrainIds.png", np.zeros((30, 44), np.uint8))
    data = open_dataset("cocostuff", root=tmp_path, limit=9)
    assert list(data.names) == ["000000000139"]
    assert set(np.unique(data[0].mask())) == {0, 170}


# From id to train id, as in the table of cityscapesScripts: ids 0 to 33 in order.
TRAIN_IDS = [int(i) for i in """
    255 255 255 255 255 255 255 0 1 255 255 2 3 4 255 255 255 5 255 6 7 8 9 10 11 12 13 14 15 255
    255 16 17 18""".split()]  # fmt: skip


def test_cityscapes_ids_become_train_ids(tmp_path):
    trees.cityscapes(tmp_path, values=range(34))
    item = open_dataset("cityscapes", root=tmp_path, limit=1)[0]
    ids = trees.blocks(item.size_hw(), range(34))
    np.testing.assert_array_equal(item.mask(), np.array(TRAIN_IDS)[ids])
    labels = item.labels
    assert len(labels.classes) == 19
    named = {"road": (128, 64, 128), "sky": (70, 130, 180), "car": (0, 0, 142)}
    assert {name: labels.colours[labels.classes.index(name)] for name in named} == named
    assert [labels.classes[i] for i in (0, 8, 12, 18)] == ["road", "vegetation", "rider", "bicycle"]


def test_cityscapes_train_ids_where_there_are_no_ids(tmp_path):
    folder = trees.cityscapes(tmp_path, values=range(34))
    fine = folder / "gtFine" / "val" / "frankfurt"
    with_ids = [item.mask() for item in open_dataset("cityscapes", root=tmp_path, limit=9)]
    for path, mask in zip(sorted(fine.glob("*labelIds.png")), with_ids, strict=True):
        trees.grey_png(path.with_name(path.name.replace("Ids", "TrainIds")), mask)
    first = fine / "frankfurt_000000_000019_gtFine_labelIds.png"
    first.unlink()  # the other image still has both
    data = open_dataset("cityscapes", root=tmp_path, limit=9)
    assert [item.mask_path.name.rpartition("_")[2] for item in data] == [
        "labelTrainIds.png", "labelIds.png",
    ]  # fmt: skip
    for item, expected in zip(data, with_ids, strict=True):
        np.testing.assert_array_equal(item.mask(), expected)
    shutil.copy(fine / "frankfurt_000000_000019_gtFine_labelTrainIds.png", first)  # misnamed
    with pytest.raises(DataError, match="value 255, which is neither one of the 19"):
        open_dataset("cityscapes", root=tmp_path, limit=9)[0].mask()


def test_cityscapes_test_has_images_alone(tmp_path):
    trees.cityscapes(tmp_path)
    data = open_dataset("cityscapes", "test", root=tmp_path, limit=9)
    assert data.kind == "images" and data.official == 1_525 and not data.classes
    assert list(data.names) == ["berlin/berlin_000000_000019"]
    assert not data[0].has_segments and not data[0].has_boxes
    shutil.rmtree(tmp_path / "cityscapes" / "gtFine")
    assert len(open_dataset("cityscapes", "test", root=tmp_path, limit=9)) == 1
    with pytest.raises(DataError) as error:
        open_dataset("cityscapes", "val", root=tmp_path, limit=9)
    assert "2 images have no mask" in str(error.value) and "gtFine_trainval" in str(error.value)


def test_cityscapes_in_folders_named_after_the_archives(tmp_path):
    folder = trees.cityscapes(tmp_path)
    for part in ("leftImg8bit", "gtFine"):
        (folder / f"{part}_trainvaltest").mkdir()
        (folder / part).rename(folder / f"{part}_trainvaltest" / part)
    assert len(open_dataset("cityscapes", root=tmp_path, limit=9)[0].mask()) == 30


def test_context(tmp_path):
    folder, size_hw = trees.context(tmp_path, val=1), (30, 120)
    trees.photo(folder / "JPEGImages" / "2008_000003.jpg", size_hw)
    values = trees.blocks(size_hw, range(60))
    trees.grey_png(folder / "SegmentationClassContext" / "2008_000003.png", values)
    with_background = open_dataset("context", root=tmp_path, limit=9, classes=60)
    data = open_dataset("context", root=tmp_path, limit=9)
    assert len(data.classes) == 59 and with_background.classes == ("background", *data.classes)
    assert data.labels.colours == with_background.labels.colours[1:]
    assert data.labels.colours[::58] == ((180, 120, 120), (31, 0, 255))
    np.testing.assert_array_equal(with_background[0].mask(), values)  # nothing is ignored
    np.testing.assert_array_equal(data[0].mask(), np.where(values == 0, 255, values - 1.0))
    assert not data[0].has_boxes  # although there are VOC's
    assert data.fingerprint() != with_background.fingerprint()
    with pytest.raises(UsageError, match="59 or 60 classes"):
        open_dataset("context", root=tmp_path, limit=9, classes=33)


def test_names_of_context_are_those_of_the_converter():
    """It sorts by the number among 459 labels, which are in alphabetical order."""
    classes = source("context").labels(Path()).classes
    assert list(classes) == sorted(classes)
    assert set(VOC_CLASSES) - set(classes) == {"background", "diningtable"}
    # Converted, 2008_000002.png has the values 0, 55 and 58: a monitor and a window.
    assert (classes[55 - 1], classes[58 - 1]) == ("tvmonitor", "window")


def test_context_masks_that_begin_at_zero_are_refused(tmp_path):
    """0 to 58 and 255, as for detectron2: every class would be another."""
    folder = trees.context(tmp_path, values=(0, 58, 255))
    for classes in (59, 60):
        with pytest.raises(DataError, match=f"value 255, .* one of the {classes} classes"):
            open_dataset("context", root=tmp_path, limit=1, classes=classes)[0].mask()
    shutil.rmtree(folder / "SegmentationClassContext")
    shutil.rmtree(folder / "ImageSets" / "SegmentationContext")
    with pytest.raises(DataError) as error:  # VOC2010 as downloaded
        open_dataset("context", root=tmp_path)
    assert "VOC2010 exists, but has another layout" in str(error.value)
    assert "tools/dataset_converters/pascal_context.py" in str(error.value)


def test_context_lists_are_nothing_to_edit(tmp_path):
    folder = trees.context(tmp_path)
    (folder / "JPEGImages" / "2008_000004.jpg").unlink()
    with pytest.raises(DataError) as error:
        open_dataset("context", root=tmp_path)
    assert "only 1 of 5,104 images were found" in str(error.value)
    assert "Missing: 2008_000004" in str(error.value) and "Take" not in str(error.value)
    (folder / "ImageSets" / "SegmentationContext" / "val.txt").unlink()
    with pytest.raises(DataError, match=r"list is missing: .*SegmentationContext/val\.txt"):
        open_dataset("context", root=tmp_path)


# Values of stuffthingmaps up to 90 that do not occur.
GAPS = (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)


def test_cocoobject_is_made_of_cocostuff(tmp_path):
    """As GroupViT converts it: objects from 1 without gaps; stuff and 255 are background."""
    values = [v for v in (*range(182), 255) if v not in GAPS]
    path = tmp_path / "coco" / "val2017" / "000000000139.jpg"
    trees.photo(path, (30, 2 * len(values)))
    masks = tmp_path / "coco" / "stuffthingmaps_trainval2017" / "val2017"
    stored = trees.blocks((30, 2 * len(values)), values)
    trees.grey_png(masks / "000000000139.png", stored)
    objects = [v for v in range(91) if v not in GAPS]
    expected = np.zeros(256, np.uint8)
    expected[objects] = np.arange(1, 81)
    [item] = open_dataset("cocoobject", root=tmp_path, limit=9)
    np.testing.assert_array_equal(item.mask(), expected[stored])
    assert len(item.labels.classes) == 81 and item.labels.ignored == frozenset()
    assert [item.labels.classes[i] for i in (0, 1, 80)] == ["background", "person", "toothbrush"]
    trees.grey_png(masks / "000000000139.png", trees.blocks((30, 2 * len(values)), [0, 11]))
    with pytest.raises(DataError, match="value 11, which is neither one of the 81"):
        item.mask()


def test_cocoobject_reads_converted_masks(tmp_path):
    """Beside COCO-Stuff's, or alone."""
    trees.cocoobject(tmp_path)
    masks = [item.mask() for item in open_dataset("cocoobject", root=tmp_path, limit=9)]
    folder = tmp_path / "coco" / "stuffthingmaps_trainval2017" / "val2017"
    for number, mask in enumerate(masks):
        trees.grey_png(folder / f"{139 + number:012d}_instanceTrainIds.png", mask)
    data = open_dataset("cocoobject", root=tmp_path, limit=9)
    assert {item.mask_path.name for item in data} == {f"{name}.png" for name in data.names}
    for name in data.names:
        (folder / f"{name}.png").unlink()
    data = open_dataset("cocoobject", root=tmp_path, limit=9)
    for item, mask in zip(data, masks, strict=True):
        assert item.mask_path.name == f"{item.name}_instanceTrainIds.png"
        np.testing.assert_array_equal(item.mask(), mask)
    with pytest.raises(DataError, match="2 images have no mask"):
        open_dataset("cocostuff", root=tmp_path, limit=9)
    # Another project writes all 171 classes of COCO-Stuff under this name.
    trees.grey_png(data[0].mask_path, trees.blocks((30, 44), [0, 81]))
    with pytest.raises(DataError, match="value 81"):
        data[0].mask()


def test_coco20k(tmp_path):
    from skipbench.datasets.coco20k import official_names

    assert len(official_names()) == len(set(official_names())) == 19_817
    data = opened("coco20k", tmp_path)
    # In the order of the published list; the third image is not on it.
    assert [name[-6:] for name in data.names] == ["560992", "396626"]
    boxes = data[0].boxes()
    assert boxes.xyxy.tolist() == [[3, 5, 16, 14]]  # rounded; the crowd is left out
    assert boxes.crowds == 1 and boxes.classes == ("person",)
    # 1.5, 2.5, 11.5, 10.75: halves to even, as Python's round, which the published code uses.
    assert data[1].boxes().xyxy.tolist() == [[2, 2, 12, 11]]


def test_coco20k_images_with_crowds_only_are_left_out_and_counted(tmp_path):
    trees.coco20k(tmp_path, numbers=(560992, 396626, 537231))
    json_path = tmp_path / "coco" / "annotations" / "instances_train2014.json"
    content = json.loads(json_path.read_text())
    content["annotations"].append(content["annotations"][2] | {"image_id": 537231, "id": 999})
    json_path.write_text(json.dumps(content))
    data = open_dataset("coco20k", root=tmp_path, limit=9)
    assert len(data) == 3 and data[2].boxes().crowds == 1
    kept = without_empty(data)
    assert len(kept) == 2 and kept.empty == ("COCO_train2014_000000537231",)


def test_coco_boxes_are_not_rounded(tmp_path):
    data = opened("coco", tmp_path)
    assert data.kind == "images"
    assert data[0].boxes().xyxy.tolist() == [[3.25, 4.5, 15.75, 13.5]]
    assert data[2].boxes().xyxy.shape == (0, 4)


def test_segments_of_masks(tmp_path):
    folder = trees.voc(tmp_path)
    trees.photo(folder / "JPEGImages" / "2007_000068.jpg", (30, 44), orientation=6)
    turned, item = open_dataset("voc", root=tmp_path, limit=9)
    assert item.segments()[0, [0, 13, 14, 26, 27, 39]].tolist() == [0, 0, 5, 5, -1, -1]
    # The bands of the mask lie across the picture as shown.
    assert turned.segments()[[0, 15, 43], 0].tolist() == [0, 4, -1]
    assert not open_dataset("voc", "trainval", root=tmp_path, limit=1)[0].has_segments


def test_coco_without_annotations(tmp_path):
    folder = trees.coco(tmp_path)
    data = open_dataset("coco", root=tmp_path, limit=9)
    assert data[0].segments().any() and not data[2].segments().any()  # none of this image
    (folder / "annotations" / "instances_val2017.json").unlink()
    assert not open_dataset("coco", root=tmp_path, limit=1)[0].has_segments


def test_shapes_are_the_same_in_any_order():
    data = open_dataset("shapes", "train")
    assert len(data) == 200 and not data.partial and len(data.classes) == 7
    backwards = [item.read() for item in reversed([data[i] for i in range(3)])][::-1]
    for item, image in zip(data, backwards, strict=False):
        np.testing.assert_array_equal(item.read(), image)
    assert not np.array_equal(
        data[0].read((64, 80)), open_dataset("shapes", "val")[0].read((64, 80))
    )


# -- what stands out


@pytest.mark.parametrize("name", SALIENCY)
def test_salient_is_from_128_up_and_nothing_is_ignored(name, tmp_path):
    TREES[name](tmp_path)
    data = open_dataset(name, root=tmp_path, limit=9)  # the test split, unasked
    assert data.split == "test" and data.classes == ("background", "salient")
    assert data[0].mask()[0, [0, 10, 11, 21, 22]].tolist() == [0, 0, 1, 1, 0]
    greys = np.arange(1320, dtype=np.int64).reshape(30, 44) % 256
    trees.grey_png(data[0].mask_path, greys.astype(np.uint8))
    np.testing.assert_array_equal(data[0].mask(), greys >= 128)


def test_duts_has_two_splits(tmp_path):
    folder = trees.duts(tmp_path)
    for place in (tmp_path, folder):
        assert len(open_dataset("duts", root=place, limit=9)) == 3
        assert len(open_dataset("duts", "train", root=place, limit=9)) == 2
    data = open_dataset("duts", "train", root=tmp_path, limit=9)
    assert data.official == 10_553 and "DUTS-TR-Image" in str(data[0].path)
    assert len(open_dataset("duts", root=folder / "DUTS-TE", limit=9)) == 3
    with pytest.raises(DataError, match="none of its images exists"):
        open_dataset("duts", "train", root=folder / "DUTS-TE", limit=9)


@pytest.mark.parametrize(
    ("name", "images", "masks"),
    [
        ("ecssd", "ECSSD/img", "ECSSD/gt"),
        ("ecssd", "ecssd/Imgs", "ecssd/GT"),
        ("ecssd", "images", "ground_truth_mask"),  # in the data root itself
        ("duts", "DUTS_Test/img", "DUTS_Test/gt"),  # as TokenCut's script leaves it
        ("duts", "DUTS/DUTS-TE/image", "DUTS/DUTS-TE/mask"),
        ("duts", "DUTS-TE/imgs", "DUTS-TE/masks"),
        ("duts", "DUTS-TE/DUTS-TE-Image", "DUTS-TE/DUTS-TE-Mask"),
        ("duts", "duts/Image", "duts/Mask"),
        ("dutomron", "DUT_OMRON/img", "DUT_OMRON/gt"),
        ("dutomron", "DUTS-OMRON/images", "DUTS-OMRON/ground_truth_mask"),
        (
            "dutomron",
            "DUT-OMRON/DUT-OMRON-image/DUT-OMRON-image",
            "DUT-OMRON/DUT-OMRON-gt-pixelwise.zip/pixelwiseGT-new-PNG",
        ),
    ],
)
def test_saliency_repacked(tmp_path, name, images, masks):
    trees.salient(tmp_path / images, tmp_path / masks, ["a", "b"])
    data = open_dataset(name, root=tmp_path, limit=9)
    assert list(data.names) == ["a", "b"] and set(np.unique(data[1].mask())) == {0, 1}
    for other in {*SALIENCY} - {name}:
        assert datasets.locate(other, tmp_path).folder is None


def test_repacked_data_sets_look_alike_and_are_not_mixed_up(tmp_path):
    """img/ and gt/ are those of the data set that their folder is named after."""
    for called in ("mine", "ECSSD", "DUTS-TR"):
        trees.salient(tmp_path / called / "img", tmp_path / called / "gt", ["a"])

    def found(called):
        return [n for n in SALIENCY if datasets.locate(n, tmp_path / called).folder]

    assert found("mine") == [] and found("ECSSD") == ["ecssd"] and found("DUTS-TR") == ["duts"]
    assert open_dataset("duts", "train", root=tmp_path / "DUTS-TR", limit=9).names
    with pytest.raises(DataError, match="none of its images exists"):
        open_dataset("duts", "test", root=tmp_path / "DUTS-TR", limit=9)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "DUT-OMRON").symlink_to(tmp_path / "mine")  # a link has a name, too
    assert found("there") == ["dutomron"]


def one_bit(path, mask):
    trees.grey_png(path, mask > 0)


def two_colours(path, mask):
    trees.palette_png(path, (mask > 0).astype(np.uint8))


def three_channels(path, mask):
    trees.grey_png(path, np.repeat(mask[..., None], 3, axis=2))


def four_channels(path, mask):
    trees.grey_png(path, np.dstack([mask, mask, mask, np.full_like(mask, 255)]))


def grey_jpeg(path, mask):
    trees.grey_png(path.with_suffix(".jpg"), mask)


def colour_jpeg(path, mask):
    three_channels(path.with_suffix(".JPG"), mask)


@pytest.mark.parametrize(
    "save", [one_bit, two_colours, three_channels, four_channels, grey_jpeg, colour_jpeg]
)
def test_masks_as_people_save_them(tmp_path, save):
    folder = tmp_path / "ECSSD"
    trees.salient(folder / "images", folder / "gt", ["a", "b", "c"], save)
    for item in open_dataset("ecssd", root=tmp_path, limit=9):
        expected = trees.blocks(item.size_hw(), [0, 1, 0, 0])
        np.testing.assert_array_equal(item.mask(), expected)


def test_saliency_faults(tmp_path):
    folder = trees.ecssd(tmp_path)
    with pytest.raises(DataError, match=r"3 of 1,000 images were found"):
        open_dataset("ecssd", root=tmp_path)
    mask = folder / "ground_truth_mask" / "0002.png"
    trees.photo(mask, (24, 40))
    with pytest.raises(DataError, match=r"0002\.png: a colour image \(RGB\)"):
        open_dataset("ecssd", root=tmp_path, limit=9)[1].mask()
    mask.unlink()
    with pytest.raises(DataError, match=r"1 image has no mask; .*0002\.jpg \(.*0002\.png\)$"):
        open_dataset("ecssd", root=tmp_path, limit=9)
    # The first release of DUTS-TR had three masks twice, and the PNG were wrong.
    grey_jpeg(folder / "ground_truth_mask" / "0001.png", np.zeros((30, 44), np.uint8))
    with pytest.raises(DataError, match=r"two files have the same name, 0001\.jpg and 0001\.png"):
        open_dataset("ecssd", root=tmp_path, limit=9)


def test_saliency_not_found_draws_the_tree(tmp_path):
    trees.photo(tmp_path / "ECSSD" / "images" / "0001.jpg", (24, 40))
    with pytest.raises(DataError) as error:
        open_dataset("ecssd", root=tmp_path)
    message = str(error.value)
    assert "ECSSD exists, but has another layout" in message
    assert "ground_truth_mask/       0001.png …" in message and "download" not in message


# -- a folder of one's own


def test_folder_by_lists(tmp_path):
    folder = tmp_path / "mine"
    for name in ("a", "b", "c"):
        trees.photo(folder / "images" / f"{name}.png", (24, 40))
        trees.palette_png(folder / "masks" / f"{name}.png", trees.blocks((24, 40), [0, 1]))
    trees.write_lines(folder / "classes.txt", ["no", "yes"])
    assert list(open_dataset(f"folder:{folder}").names) == ["a", "b", "c"]
    trees.write_lines(folder / "train.txt", ["c.png", "a"])
    trees.write_lines(folder / "val.txt", ["b"])
    data = open_dataset(f"folder:{folder}", "train")
    assert list(data.names) == ["c", "a"] and data.name == "folder:mine"
    assert set(np.unique(data[0].mask())) == {0, 1}
    trees.write_lines(folder / "val.txt", ["b", "gone"])
    with pytest.raises(DataError, match=r"1 of 2 images.*gone"):
        open_dataset(f"folder:{folder}", "val")
    assert open_dataset(f"folder:{folder}", "val", limit=1).partial
    trees.photo(folder / "images" / "with a space.png", (24, 40))
    trees.palette_png(folder / "masks" / "with a space.png", trees.blocks((24, 40), [0, 1]))
    trees.write_lines(folder / "val.txt", ["", "with a space.png", "b", "b"])
    assert list(open_dataset(f"folder:{folder}", "val").names) == ["with a space", "b"]


def test_folder_classes_with_values(tmp_path):
    folder = trees.own_folder(tmp_path)
    lines = ["0\tignore", "10\tcat", "2\tdog"]
    trees.write_lines(folder / "classes.txt", lines)
    trees.grey_png(folder / "masks/train/p0.png", trees.blocks((30, 44), [0, 10, 2, 255]))
    data = open_dataset(f"folder:{folder}", "train")
    assert data.classes == ("cat", "dog")
    assert data[0].mask()[0, [0, 15, 25, 43]].tolist() == [255, 0, 1, 255]
    for wrong in (
        ["a\tcat"],
        ["1\tcat", "1\tdog"],
        ["300\tcat"],
        ["0\tignore"],
        ["bg", "", "cat"],  # a line that is empty would shift the rest
        ["7\t"],
        ["255\tsky"],
        ["0 background", "1 cat"],
    ):
        trees.write_lines(folder / "classes.txt", wrong)
        with pytest.raises(DataError, match=r"classes\.txt"):
            open_dataset(f"folder:{folder}", "train")
    (folder / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"classes\.txt is missing"):
        open_dataset(f"folder:{folder}", "train")


def test_folder_colours(tmp_path):
    """Those given are kept; the others are far from them and from each other."""
    from skimage.color import rgb2lab

    folder = trees.own_folder(tmp_path)
    given = [
        "0\tsky\t#0072b2",
        "1\tcat",
        "2\tdog\t255, 128 0",
        *(f"{i}\tc{i}" for i in range(3, 12)),
    ]
    trees.write_lines(folder / "classes.txt", [*given, "12\tignore"])
    colours = open_dataset(f"folder:{folder}", "train").labels.colours
    assert colours[0] == (0, 0x72, 0xB2) and colours[2] == (255, 128, 0)
    lab = rgb2lab(np.array(colours) / 255)
    apart = np.linalg.norm(lab[:, None] - lab, axis=-1)[np.triu_indices(len(lab), 1)]
    assert len(lab) == 12 and apart.min() > 35
    for wrong in ("red", "#ff80", "1 2", "1 2 3 4", "256 0 0", "-1 0 0", "#gg0000"):
        trees.write_lines(folder / "classes.txt", ["0\tsky", f"1\tcat\t{wrong}"])
        with pytest.raises(
            DataError, match=f"line 2: '{wrong}': expected a colour such as #ff8000"
        ):
            open_dataset(f"folder:{folder}", "train")


def test_folder_boxes_from_a_table(tmp_path):
    folder = tmp_path / "mine"
    trees.photo(folder / "images" / "a.jpg", (24, 40))
    trees.photo(folder / "images" / "b.jpg", (24, 40))
    table = ["image,xmin,ymin,xmax,ymax,class", "a.jpg,1,2,10,12,dog", "a.jpg,0,0,40,24,"]
    trees.write_lines(folder / "boxes.csv", table)
    data = open_dataset(f"folder:{folder}")
    assert data.kind == "boxes"
    assert data[0].boxes().xyxy.tolist() == [[1, 2, 10, 12], [0, 0, 40, 24]]
    assert data[0].boxes().classes == ("dog", "object")
    assert len(data[1].boxes().xyxy) == 0 and without_empty(data).empty == ("b",)
    for line, wrong in (("a.jpg,5,5,5,9,x", "empty"), ("a.jpg,1,2,x,9,", "line 3"), ("a.jpg", "3")):
        trees.write_lines(folder / "boxes.csv", [table[0], table[1], line])
        with pytest.raises(DataError, match=rf"boxes\.csv.*{wrong}"):
            open_dataset(f"folder:{folder}")[0].boxes()
    trees.write_lines(folder / "boxes.csv", ["image,x,y", "a.jpg,1,2"])
    with pytest.raises(DataError, match="missing: xmax, xmin, ymax, ymin"):
        open_dataset(f"folder:{folder}")


def test_folder_boxes_by_any_name_that_is_clear(tmp_path):
    folder = tmp_path / "mine"
    for name in ("train/a.jpg", "train/b.jpg", "val/a.jpg"):
        trees.photo(folder / "images" / name, (24, 40))
    first = "image,xmin,ymin,xmax,ymax"
    trees.write_lines(
        folder / "boxes.csv",
        ["\ufeff" + first, "./train/a.jpg,1,1,5,5", "val/a,2,2,6,6", "b,3,3,7,7"],
    )
    train = open_dataset(f"folder:{folder}", "train")
    assert [item.boxes().xyxy.tolist() for item in train] == [[[1, 1, 5, 5]], [[3, 3, 7, 7]]]
    assert open_dataset(f"folder:{folder}", "val")[0].boxes().xyxy.tolist() == [[2, 2, 6, 6]]
    for row, says in (("zzz.jpg,1,1,2,2", "no such image"), ("a.jpg,1,1,2,2", "2 images have")):
        trees.write_lines(folder / "boxes.csv", [first, row])
        with pytest.raises(DataError, match=says):
            open_dataset(f"folder:{folder}", "train")


def test_folder_boxes_of_files_of_one_name(tmp_path):
    """In a COCO file for both splits, each image has its own."""
    folder = tmp_path / "mine"
    images, boxes = [], []
    for i, split in enumerate(("train", "val")):
        trees.photo(folder / "images" / split / "a.jpg", (24, 40))
        images.append((i, f"{split}/a.jpg", (24, 40)))
        boxes.append((i, (i, 1, 3, 4), 18, False))
    trees.coco_json(folder / "boxes.json", images, boxes)
    for i, split in enumerate(("train", "val")):
        item = open_dataset(f"folder:{folder}", split)[0]
        assert item.boxes().xyxy.tolist() == [[i, 1, i + 3, 5]]
    trees.coco_json(folder / "boxes.json", [(0, "a.jpg", (24, 40))], boxes[:1])
    with pytest.raises(DataError, match=r"no entry for image val/a\.jpg"):
        open_dataset(f"folder:{folder}", "val")[0].boxes()  # or about train/a.jpg: not clear


def test_folder_layouts_that_are_not_splits(tmp_path):
    folder = tmp_path / "mine"
    trees.photo(folder / "images" / "a.jpg", (24, 40))
    trees.photo(folder / "images" / "more" / "b.jpg", (24, 40))
    trees.photo(folder / "images" / ".hidden" / "c.jpg", (24, 40))
    trees.write_lines(folder / "README.txt", ["what this is", "and why"])
    assert list(open_dataset(f"folder:{folder}", "all").names) == ["a", "more/b"]
    with pytest.raises(DataError, match="has no images/ folder"):
        open_dataset(f"folder:{folder / 'images'}")
    with pytest.raises(DataError, match="is not a folder"):
        open_dataset(f"folder:{folder / 'none'}")


def test_folder_boxes_from_coco_json(tmp_path):
    folder = tmp_path / "mine"
    trees.photo(folder / "images" / "train" / "a.jpg", (24, 40))
    trees.coco_json(
        folder / "annotations" / "instances_train.json",
        [(1, "a.jpg", (24, 40))],
        [(1, (1, 2, 3, 4), 18, False)],
    )
    item = open_dataset(f"folder:{folder}", "train")[0]
    assert item.boxes().xyxy.tolist() == [[1, 2, 4, 6]] and item.boxes().classes == ("dog",)
    (folder / "other.json").write_text("{}")
    (folder / "another_train.json").write_text("{}")
    with pytest.raises(UsageError, match=r"which of.*no other, must end in train\.json"):
        open_dataset(f"folder:{folder}", "train")
    (folder / "another_train.json").rename(folder / "another.json")
    assert open_dataset(f"folder:{folder}", "train")[0].boxes().classes == ("dog",)


def test_folder_two_files_of_one_name(tmp_path):
    folder = trees.own_folder(tmp_path)
    trees.photo(folder / "images" / "train" / "p0.png", (24, 40))
    with pytest.raises(DataError, match="two files have the same name"):
        open_dataset(f"folder:{folder}", "train")


# -- where they are looked for


def test_roots(tmp_path, monkeypatch):
    from skipbench.datasets import locate

    devkit = trees.voc(tmp_path / "far")
    assert locate("voc").folder is None
    assert locate("voc", tmp_path / "far").folder == devkit
    assert locate("voc", devkit).folder.samefile(devkit)  # the folder itself
    assert locate("voc", devkit.parent).folder.samefile(devkit)
    monkeypatch.setenv("SKIPBENCH_DATA", f"{tmp_path / 'none'}{os.pathsep}{tmp_path / 'far'}")
    assert locate("voc").folder == devkit
    monkeypatch.delenv("SKIPBENCH_DATA")
    assert locate("voc").folder is None
    trees.voc(tmp_path / "data")
    assert locate("voc").folder == Path("data/VOCdevkit/VOC2012")
    trees.ade20k(tmp_path / "home" / "datasets")
    assert locate("ade20k").folder == tmp_path / "home/datasets/ADEChallengeData2016"


def test_not_found_says_where_it_looked_and_draws_the_tree(tmp_path):
    with pytest.raises(DataError) as error:
        open_dataset("voc", root=tmp_path)
    message = str(error.value)
    assert f"{tmp_path}/{{VOCdevkit/VOC2012, " in message and "itself" in message
    assert "JPEGImages/            2007_000032.jpg …" in message
    assert "skipbench data download voc" in message
    with pytest.raises(DataError, match=r"data \(no such folder\)"):
        open_dataset("ade20k")


def test_names_that_are_not_known(tmp_path):
    for name in ("voc12", "VOC2012", "VOC"):
        with pytest.raises(UsageError, match="Did you mean 'voc'"):
            open_dataset(name)
    for name in ("dut-omron", "DUT-OMRON", "DUT", "omron"):
        with pytest.raises(UsageError, match="Did you mean 'dutomron'"):
            open_dataset(name)
    for name in ("DUTS-TE", "DUTS"):
        with pytest.raises(UsageError, match="Did you mean 'duts'"):
            open_dataset(name)
    with pytest.raises(UsageError, match=f"Known: {', '.join(datasets.names())}"):
        open_dataset("camvid")
    with pytest.raises(UsageError, match="Did you mean 'imagenet'"):
        open_dataset("ILSVRC2012")
    with pytest.raises(UsageError, match="folder:PATH"):
        open_dataset("folder")
    with pytest.raises(UsageError, match=f"For your own images: folder:{tmp_path}"):
        open_dataset(str(tmp_path))
    trees.voc(tmp_path)
    with pytest.raises(UsageError, match=r"no split 'trainaug'.*Did you mean 'train_aug'"):
        open_dataset("voc", "trainaug", root=tmp_path)
    with pytest.raises(UsageError, match="Did you mean 'val'"):
        open_dataset("voc", "validation", root=tmp_path)
    for place in ("~nobody-of-this-name/x", "x" * 300):
        with pytest.raises((UsageError, DataError)):
            open_dataset("voc", root=place)
        with pytest.raises((UsageError, DataError)):
            open_dataset(f"folder:{place}")
    (tmp_path / "VOCdevkit/VOC2012/JPEGImages").rename(tmp_path / "VOCdevkit/VOC2012/JPGImages")
    with pytest.raises(DataError, match="VOC2012 exists, but has another layout"):
        open_dataset("voc", root=tmp_path)


# -- subsets


def test_sample_is_the_same_everywhere_and_nested(tmp_path):
    """Fixed by what it means: the lowest hashes of seed and name."""
    import hashlib

    data = open_dataset("shapes", "train", train_images=30, seed=5)
    every = list(open_dataset("shapes", "train").names)
    lots = sorted(every, key=lambda n: hashlib.sha256(f"5:{n}".encode()).hexdigest())
    assert set(data.names) == set(lots[:30])
    assert list(data.names) == [n for n in every if n in set(data.names)]
    assert not data.partial and data.facts().names == tuple(data.names)
    assert set(open_dataset("shapes", "train", train_images=10, seed=5).names) < set(data.names)
    assert set(open_dataset("shapes", "train", train_images=30, seed=6).names) != set(data.names)
    assert open_dataset("shapes", "train", train_images=500).sample is None


# -- real slices, where they are


@pytest.mark.skipif(not SHARED.exists(), reason="no real data here")
class TestRealSlices:
    def test_voc(self):
        shares = []
        for split, count in (("train", 120), ("val", 80)):
            data = open_dataset("voc", split, root=SHARED / "voc-slice", limit=10_000)
            assert len(data) == count and data.partial
            for item in list(data)[:10]:
                mask = item.mask()
                present = set(np.unique(mask)) - {0, 255}
                boxes = item.boxes()
                named = {data.classes[i] for i in present}
                assert named <= set(boxes.classes)  # every class in the mask has a box
                for i in present:  # and nearly all of its pixels lie in boxes of that class
                    inside = np.zeros(mask.shape, bool)
                    for box, name in zip(boxes.xyxy.astype(int), boxes.classes, strict=True):
                        if name == data.classes[i]:
                            inside[box[1] : box[3], box[0] : box[2]] = True
                    shares.append(inside[mask == i].mean())
        assert np.mean(shares) > 0.98 and min(shares) > 0.8

    def test_ade20k(self):
        data = open_dataset("ade20k", root=SHARED / "ade-sample", limit=9)
        assert len(data) == 3
        sky = data.classes.index("sky")
        mask = data[0].mask()
        assert (mask == sky).any() or any((item.mask() == sky).any() for item in data)

    @pytest.mark.parametrize("name", ["coco", "coco20k"])
    def test_boxes_as_pycocotools_reads_them(self, name, capsys):
        from pycocotools.coco import COCO

        slice_, json_ = {
            "coco": ("coco-mini", "instances_val2017.json"),
            "coco20k": ("coco20k-slice", "instances_train2014.json"),
        }[name]
        data = open_dataset(name, root=SHARED / slice_, limit=10_000)
        other = COCO(str(SHARED / slice_ / "annotations" / json_))
        number = {image["file_name"].rpartition("/")[2]: i for i, image in other.imgs.items()}
        assert len(data) >= 25
        for item in data:
            theirs = other.loadAnns(other.getAnnIds(number[item.path.name], iscrowd=False))
            corners = [[x, y, x + w, y + h] for x, y, w, h in (a["bbox"] for a in theirs)]
            if name == "coco20k":
                corners = [[round(v) for v in box] for box in corners]
            boxes = item.boxes()
            assert sorted(boxes.xyxy.tolist()) == sorted(corners)
            named = [other.cats[a["category_id"]]["name"] for a in theirs]
            assert sorted(boxes.classes) == sorted(named)

    def test_segments_as_pycocotools_draws_them(self, capsys):
        from pycocotools.coco import COCO

        data = open_dataset("coco", root=SHARED / "coco-mini", limit=10_000)
        other = COCO(str(SHARED / "coco-mini" / "annotations" / "instances_val2017.json"))
        crowds = 0
        for item in data:
            drawn = np.zeros(item.size_hw(), int)
            theirs = other.loadAnns(other.getAnnIds(int(item.name)))
            theirs.sort(key=lambda a: (not a["iscrowd"], -a["area"]))
            mine = [a for a in theirs if not a["iscrowd"]]
            for a in theirs:
                drawn[other.annToMask(a) == 1] = -1 if a["iscrowd"] else 1 + mine.index(a)
            np.testing.assert_array_equal(item.segments(), drawn)
            crowds += len(theirs) - len(mine)
        assert len(data) == 60 and crowds == 4

    def test_facts_are_those_of_the_published_files(self):
        meta = SHARED / "meta"
        for name, file in (("ade20k", "ade"), ("cocostuff", "coco_stuff"), ("voc", "voc")):
            known = json.loads((meta / f"{file}_classes_palette.json").read_text())
            labels = source(name).labels(Path())
            assert list(labels.classes) == [c.strip() for c in known["classes"]]
            assert [list(c) for c in labels.colours] == known["palette"]
        stuff = source("cocostuff")
        fine = json.loads((meta / "cocostuff_182_to_171.json").read_text())
        fine.pop("255")
        assert stuff.labels(Path()).table == {int(k): v for k, v in fine.items()}
        coarse = json.loads((meta / "cocostuff_fine182_to_coarse27.json").read_text())
        coarse = coarse["fine_index_to_coarse_index"]
        assert stuff.labels(Path(), 27).table == {int(k): v for k, v in coarse.items()}
        content = json.loads((SHARED / "coco-mini/annotations/instances_val2017.json").read_text())
        objects = sorted(content["categories"], key=lambda category: category["id"])
        found = source("cocoobject").labels(Path()).classes
        assert found == ("background", *(category["name"] for category in objects))
        from skipbench.datasets.coco20k import official_names

        assert VOC2012.train_aug() == (meta / "voc2012_train_aug.txt").read_text().split()
        listed = (SHARED / "coco20k" / "coco_20k_filenames.txt").read_text().split()
        assert [f"train2014/{name}.jpg" for name in official_names()] == listed
