"""Masks by plain code: IoU, accuracy, F-beta, and pixels that do not count."""

from pathlib import Path

import numpy as np
import plain_tokencut as plain
import pytest
import trees
from conftest import records
from PIL import Image
from plain_tokencut import by_image, masked_folder, only, put, scene

pytestmark = pytest.mark.usefixtures("nowhere_else")


def saliency_by_hand(backbone, images, masks, block, seen_hw=None):
    """(images, 3): IoU, accuracy, F-beta; and max F-beta in percent.

    masks: 255 is ignored; seen_hw: of the images as the model sees them.
    """
    found, curves = [], []
    for pixels, mask in zip(images, masks, strict=True):
        hw = seen_hw or mask.shape
        small = Image.fromarray(pixels).resize(hw[::-1], Image.Resampling.BILINEAR)
        part, vector = plain.cut(plain.tokens(backbone, np.asarray(small), block))
        counted, true = mask != 255, mask > 0
        predicted = plain.nearest(plain.enlarged(part, hw), mask.shape)[counted] > 0
        soft, true = plain.nearest(plain.enlarged(vector, hw), mask.shape)[counted], true[counted]
        soft = ((soft - soft.min()) / (soft.max() - soft.min())).round(9)  # noise decides nothing
        iou = (predicted & true).sum() / (predicted | true).sum()
        found.append((iou, (predicted == true).mean(), plain.f_beta(predicted, true)))
        curves.append([plain.f_beta(soft > cut / 255, true) for cut in range(255)])
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
    assert honest >= 100 * scores[[0, 1, 3]].min(1).mean() - 1e-6  # each half has its own block
    assert arrays["counts_holdout"][2].tolist() == [0, 0]
    assert "nan" not in Path("results", record.id, "tiles", "index.json").read_text()


def test_masks_without_a_label(run):
    masked_folder({0, 1, 2, 3})
    shown = run(dataset="folder:mine", quick=())
    assert shown.exit_code == 4 and "no labelled pixel" in shown.stderr and not records()


def test_every_pixel_an_object_is_refused(run):
    trees.ade20k(Path("data"))
    shown = run(dataset="ade20k", quick=("--limit", "2"))
    assert shown.exit_code == 2 and "not background" in shown.stderr and not records()


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
