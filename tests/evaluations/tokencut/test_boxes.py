"""Boxes by plain code, from the images on; which boxes of a data set count."""

from pathlib import Path

import numpy as np
import plain_tokencut as plain
import pytest
import trees
from conftest import records
from PIL import Image
from plain_tokencut import BOXES, SIZES_HW, boxed_folder, by_image, only, put, scene, table
from skimage import data as photographs

from skipbench.datasets import Boxes, Item, open_dataset
from skipbench.evaluations.tokencut.method import Found
from skipbench.evaluations.tokencut.record import ImageObjects, score_boxes

pytestmark = pytest.mark.usefixtures("nowhere_else")


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
            part, _ = plain.cut(plain.tokens(backbone, pixels, block, tensor), tau, eps)
            assert arrays["tokens"][i, place] == part.sum()
            assert arrays["boxes"][i, place].tolist() == plain.box(part, pixels.shape[:2])


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
        part, _ = plain.cut(plain.tokens(backbone, pixels, int(row["block"])))
        corners = [float(row[key]) for key in ("xmin", "ymin", "xmax", "ymax")]
        assert corners == plain.box(part, pixels.shape[:2]) and int(row["tokens"]) == part.sum()


def test_lost_by_plain_code(run, backbone):
    assert run("--method", "lost", quick=("--limit", "5", "--layers", "all")).exit_code == 0
    record, arrays = only()
    assert record.protocol["method"] == "lost"
    assert not {"tau", "eps"} & set(record.protocol)
    assert all(row["dense"] == 0 for row in record.metrics["blocks"])
    for i, item in enumerate(open_dataset("shapes", limit=5)):
        for block in range(3):
            pixels = item.read()
            part, _ = plain.lost(plain.tokens(backbone, pixels, block))
            assert arrays["boxes"][i, block].tolist() == plain.box(part, pixels.shape[:2])


def test_an_iou_of_a_half_is_a_hit():
    found = [Found(np.ones((2, 2), bool), np.zeros((2, 2)), 0)]
    objects = ImageObjects(found, [8] * len(found), (16, 16), (16, 16))
    for height, hit in ((8, 1), (7, 0)):
        boxes = Boxes(np.array([[0.0, 0, 16, height]]), ("thing",), np.zeros(1, bool))
        item = Item("a", Path("a.png"), read_boxes=None)
        object.__setattr__(item, "read_boxes", lambda boxes=boxes: boxes)
        Image.new("RGB", (16, 16)).save("a.png")
        scored = score_boxes(item, objects)
        assert scored["score"].tolist() == [hit] and scored["whole_image"] == hit


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
        part, _ = plain.cut(plain.tokens(backbone, np.asarray(pixels), 2))
        x0, y0, x1, y1 = plain.box(part, new_hw)
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
    assert arrays["whole_image"][0] == 1  # half is enough


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
    assert "1 images without a box" in shown.stderr and "1 image without a box" in shown.stdout
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
    assert shown.exit_code == 4 and "--limit 11540" in shown.stderr and not records()


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
    assert "2 images without a box" in shown.stderr and "2 images without a box" in shown.stdout
    assert arrays["ious_of"].tolist() == [1]
    box = arrays["boxes"][0, 0].tolist()
    assert arrays["ious"][0, 0] == pytest.approx(plain.iou((3, 4, 23.5, 16), box))


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
