"""Parts of pictures: the same as the whole resized and cut, image and mask together."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import RandomResizedCrop
from trees import blocks, grey_png, photo

from skipbench.datasets import Item, Labels, open_dataset
from skipbench.errors import DataError, UsageError
from skipbench.evaluations.probe.views import (
    View,
    central_crop_box,
    crop_dinov2,
    crop_leopart,
    resized_crop_box,
    resized_to,
    view_randomness,
    windows,
)
from skipbench.images import Picture, normalise, resize, resize_mask, stack, turn
from skipbench.records import Side

LABELS = Labels(("a", "b", "c", "d"), ((0, 0, 0),) * 4, {i: i for i in range(4)})
COLOURS = np.zeros((256, 3), np.uint8)  # of each label, in the pictures drawn here
COLOURS[[0, 1, 2, 3]] = [[250, 10, 10], [10, 250, 10], [10, 10, 250], [240, 240, 240]]
MEAN = [124, 116, 104]
CROPS = {"dinov2": crop_dinov2, "leopart": crop_leopart}

# A resized whole, a box in it: inside, at the corners, enlarged, shrunk, along one side alone.
PARTS = [
    ((30, 44), (0, 0, 30, 44)),
    ((30, 44), (3, 5, 20, 21)),
    ((60, 88), (17, 31, 33, 40)),
    ((67, 99), (34, 66, 33, 33)),
    ((13, 19), (2, 4, 11, 9)),
    ((11, 70), (0, 20, 11, 11)),
]
BEYOND = [((20, 29), (0, 0, 32, 32)), ((37, 55), (7, 40, 40, 24)), ((40, 20), (3, 0, 24, 24))]


def item_of(folder, name, pixels, mask):
    image, labels = folder / "images" / f"{name}.png", folder / "masks" / f"{name}.png"
    grey_png(image, pixels)
    grey_png(labels, mask)
    return Item(f"{name}.png", image, mask_path=labels, labels=LABELS)


@pytest.fixture
def noisy(tmp_path):
    """30 × 44, as many edges as can be; its mask too."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (30, 44, 3), dtype=np.uint8)
    return item_of(tmp_path, "noisy", pixels, random.integers(0, 4, (30, 44), dtype=np.uint8))


def quarters(size_hw=(45, 66)):
    """A mask of four parts of different sizes."""
    mask = np.zeros(size_hw, np.uint8)
    mask[20:, :30], mask[:28, 30:], mask[28:, 30:] = 1, 2, 3
    return mask


@pytest.fixture
def coloured(tmp_path):
    """The colour of a pixel says its label."""
    return item_of(tmp_path, "coloured", COLOURS[quarters()], quarters())


def blank(size_hw, name="blank"):
    """For what needs nothing but a size."""

    class Sized(Item):
        def size_hw(self):
            return size_hw

    return Sized(name, Path(name))


def plain(whole, view, fill):
    """Cut from the whole, flipped, padded: one step after the other."""
    top, left, height, width = view.box
    part = whole[top : top + height, left : left + width]
    part = part[:, ::-1] if view.flip else part
    missing = [(0, height - part.shape[0]), (0, width - part.shape[1])]
    if whole.ndim == 2:
        return np.pad(part, missing, constant_values=fill)
    channels = [np.pad(part[..., c], missing, constant_values=fill[c]) for c in range(3)]
    return np.stack(channels, axis=2)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("resized_hw", "box"), PARTS + BEYOND)
def test_a_view_is_the_whole_resized_and_cut(noisy, resized_hw, box, flip):
    """On noise, where antialiasing matters most: no border of its own, only rounding differs.

    Pillow rounds to 8 bits between columns and rows, and begins with either, as the shape is.
    """
    view = View(noisy, resized_hw, box, flip)
    expected = plain(resize(noisy.read(), resized_hw), view, MEAN)
    shown = view.read()
    assert shown.dtype == np.uint8 and shown.shape == (*view.size_hw(), 3) == (*box[2:], 3)
    difference = shown.astype(int) - expected
    assert np.abs(difference).max() <= 1 and np.abs(difference).mean() < 0.3
    assert abs(difference.mean()) < 0.1  # neither brighter nor darker
    mask = view.mask()
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(
        mask, plain(resize_mask(noisy.mask(), resized_hw), view, 255)
    )  # to the last label


def test_whole_pixels_are_copied(noisy):
    view = View(noisy, (30, 44), (3, 5, 20, 21))
    np.testing.assert_array_equal(view.read(), noisy.read()[3:23, 5:26])


def colour_faults(view):
    """Share of pixels whose colour is not that of their label, away from edges of labels."""
    pixels, mask = view.read().astype(int), view.mask()
    expected = COLOURS.astype(int).copy()
    expected[255] = MEAN
    around = np.pad(mask, 2, mode="edge")
    height, width = mask.shape
    shifted = [around[y : y + height, x : x + width] for y in range(5) for x in range(5)]
    inner = np.all([s == mask for s in shifted], axis=0)
    assert inner.mean() > 0.3
    return (np.abs(pixels - expected[mask]).max(2) > 3)[inner].mean()


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    ("resized_hw", "box"),
    [((45, 66), (8, 12, 32, 40)), ((90, 140), (20, 30, 64, 64)), ((32, 47), (0, 10, 48, 48))],
)
def test_image_and_mask_show_the_same_part(coloured, resized_hw, box, flip):
    view = View(coloured, resized_hw, box, flip)
    assert len(np.unique(view.mask())) >= 4
    assert colour_faults(view) == 0
    assert colour_faults_when_flipped_alone(view) > 0.2  # the test would notice


def colour_faults_when_flipped_alone(view):
    pixels, mask = view.read()[:, ::-1].astype(int), view.mask()
    known = mask != 255
    return (np.abs(pixels - COLOURS[mask]).max(2) > 60)[known].mean()


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
def test_crops_keep_image_and_mask_together(coloured, crop):
    for epoch in range(25):
        assert colour_faults(crop(coloured, 48, 0, epoch)) == 0


def test_windows_keep_image_and_mask_together(coloured):
    views = windows(coloured, 48, 20)
    assert len(views) == 3  # 48 × 70
    assert all(colour_faults(view) == 0 for view in views)


@pytest.mark.parametrize("flip", [False, True])
def test_padding_is_right_and_bottom_flipped_or_not(noisy, flip):
    view = View(noisy, (20, 29), (0, 0, 32, 32), flip)
    pixels, mask = view.read(), view.mask()
    assert (pixels[20:] == MEAN).all() and (pixels[:, 29:] == MEAN).all()
    assert (mask[20:] == 255).all() and (mask[:, 29:] == 255).all()
    assert (mask[:20, :29] < 4).all()
    batch = normalise(stack([pixels], 1), [(32, 32)])[0]
    assert batch[:, 20:].abs().max() < 0.01 and batch[:, :20, :29].abs().max() > 1


def test_a_view_can_be_resized_again(noisy):
    view = View(noisy, (60, 88), (17, 31, 32, 40))
    np.testing.assert_array_equal(view.read((16, 20)), resize(view.read(), (16, 20)))
    assert view.read(Side("short", 16)).shape == (16, 20, 3)
    np.testing.assert_array_equal(view.read((32, 40)), view.read())


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 44, 5, 5), (30, 0, 5, 5), (0, 0, 0, 5)])
def test_boxes_that_start_outside_are_refused(noisy, box):
    with pytest.raises(ValueError, match="box"):
        View(noisy, (30, 44), box)


def test_a_view_is_a_picture(noisy):
    def name_of(picture: Picture) -> str:
        return picture.name

    view = View(noisy, (60, 88), (17, 31, 32, 40), True)
    assert name_of(view) == "noisy.png@60x88+17+31+32x40-flipped"
    again = pickle.loads(pickle.dumps(view))
    assert again == view and again.mark() == view.mark()
    np.testing.assert_array_equal(again.read(), view.read())


def test_names_and_marks_tell_views_apart(noisy):
    views = [View(noisy, hw, box, flip) for hw, box in PARTS + BEYOND for flip in (False, True)]
    assert len({v.name for v in views}) == len({v.mark() for v in views}) == len(views)
    old = views[0].mark()
    photo(noisy.path, (30, 45), 3)
    assert views[0].mark() != old


@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 8])
def test_turned_photographs(tmp_path, orientation):
    """The file is turned, as EXIF says; the mask is drawn on the picture as stored."""
    stored = quarters()
    image = Image.fromarray(COLOURS[stored])
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / "x.png", exif=exif)
    grey_png(tmp_path / "mask.png", stored)
    item = Item("x.png", tmp_path / "x.png", mask_path=tmp_path / "mask.png", labels=LABELS)
    shown = turn(stored, orientation)
    first, *_ = views = windows(item, 48, 24)
    assert first.resized_hw == resized_to(shown.shape, 48)
    views += [crop(item, 48, 0, epoch) for crop in CROPS.values() for epoch in range(4)]
    assert all(colour_faults(view) == 0 for view in views)
    whole = View(item, shown.shape, (0, 0, *shown.shape))
    np.testing.assert_array_equal(whole.mask(), shown)
    np.testing.assert_array_equal(whole.read(), COLOURS[shown])


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
def test_crops_follow_from_seed_epoch_and_name(crop):
    data = open_dataset("shapes", "train", limit=4)
    names = [crop(item, 64, 0, 1).name for item in data]
    backwards = [crop(item, 64, 0, 1).name for item in reversed(list(data))]
    assert names == backwards[::-1]
    assert crop(data[2], 64, 0, 1) == crop(data[2], 64, 0, 1)
    others = [crop(data[2], 64, seed, epoch).name for seed in range(3) for epoch in range(4)]
    assert len(set(others)) == 12  # and (1, 0) is not (0, 1)


def test_crops_are_the_same_on_every_machine():
    """Should these change, so has NumPy's stream: published numbers come from another one."""
    item = open_dataset("shapes", "train")[0]
    assert crop_dinov2(item, 64, 0, 2).name == "train_00000@47x63+0+0+64x64-flipped"
    assert crop_leopart(item, 64, 0, 2).name == "train_00000@64x67+0+1+64x64"


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
def test_half_of_the_crops_are_flipped(coloured, crop):
    flips = [crop(coloured, 24, 0, epoch).flip for epoch in range(400)]
    assert 160 < sum(flips) < 240
    assert all(isinstance(flip, bool) for flip in flips)


def test_dinov2_ratios(coloured):
    """45 × 66, crops of 64: the short side is 32 to 128, every length as often as any other."""
    views = [crop_dinov2(coloured, 64, 1, epoch) for epoch in range(400)]
    shorts = np.array([view.resized_hw[0] for view in views])
    assert 32 <= shorts.min() <= 34 and 125 <= shorts.max() <= 128
    assert abs(shorts.mean() - 80) < 5 and abs((shorts < 64).mean() - 1 / 3) < 0.08
    for view in views:
        height, width = view.resized_hw
        assert view.size_hw() == (64, 64) and abs(width / height - 66 / 45) < 0.03
        assert 0 <= view.box[0] <= max(height - 64, 0) and 0 <= view.box[1] <= max(width - 64, 0)
    assert any(view.box[0] == view.resized_hw[0] - 64 > 0 for view in views)  # to the very edge
    large = [view for view in views if view.resized_hw[0] > 120]
    assert len({view.box for view in large}) > len(large) * 0.8


def test_dinov2_limits_the_long_side(tmp_path):
    """10 × 100: the long limit, 4 · 16 · ratio, is reached before the short one."""
    mask = blocks((10, 100), [0, 1, 2, 3])
    item = item_of(tmp_path, "long", COLOURS[mask], mask)
    widths = [crop_dinov2(item, 16, 0, epoch).resized_hw[1] for epoch in range(200)]
    assert 32 <= min(widths) <= 34 and 124 <= max(widths) <= 128


def most_of_one(mask):
    counts = np.bincount(mask[mask != 255])
    return counts.max() / counts.sum()


def test_dinov2_avoids_crops_of_one_class(tmp_path):
    """Label 1 is a band in the middle: half of all crops would have too little of it."""
    mask = np.zeros((40, 120), np.uint8)
    mask[:, 50:70] = 1
    mask[:, :10] = 255
    item = item_of(tmp_path, "band", COLOURS[mask], mask)
    views = [crop_dinov2(item, 40, 0, epoch) for epoch in range(150)]
    views = [view for view in views if view.resized_hw[1] > 100]  # one that fits has the band
    bad = [most_of_one(view.mask()) >= 0.75 for view in views]
    blind = [replaced_at_random(view, n) for n, view in enumerate(views)]
    assert np.mean(bad) < 0.1 < 0.4 < np.mean([most_of_one(v.mask()) >= 0.75 for v in blind])


def replaced_at_random(view, seed):
    random = np.random.default_rng(seed)
    top, left = (random.integers(max(side - 40, 0) + 1) for side in view.resized_hw)
    return View(view.item, view.resized_hw, (int(top), int(left), 40, 40))


@pytest.mark.parametrize("label", [0, 255])
def test_dinov2_takes_what_there_is(tmp_path, label):
    """One class alone, or no label at all: no crop will do, one is taken all the same."""
    mask = np.full((30, 44), label, np.uint8)
    item = item_of(tmp_path, "flat", COLOURS[mask], mask)
    boxes = {crop_dinov2(item, 16, 0, epoch).box for epoch in range(20)}
    assert len(boxes) > 10


def test_dinov2_needs_a_mask(tmp_path):
    photo(tmp_path / "x.png", (30, 44))
    with pytest.raises(DataError, match="no mask"):
        crop_dinov2(Item("x.png", tmp_path / "x.png"), 16, 0, 0)


def test_leopart_areas():
    """Shares in [0.8, 1], but for whole pixels; aspect ratios too."""
    for size_hw in [(375, 500), (500, 375), (400, 420)]:
        views = [crop_leopart(blank(size_hw), 224, 0, epoch) for epoch in range(300)]
        whole = np.array([view.resized_hw for view in views], float)
        areas = 224 * 224 / whole.prod(1)
        aspects = (size_hw[1] / whole[:, 1]) / (size_hw[0] / whole[:, 0])
        assert 0.795 < areas.min() < 0.82 and 0.9 < areas.max() <= 1
        assert aspects.min() > 0.74 and aspects.max() < 1.345 and aspects.std() > 0.03
        for view in views:
            top, left, *size = view.box
            assert size == [224, 224]
            assert 0 <= top <= view.resized_hw[0] - 224 and 0 <= left <= view.resized_hw[1] - 224


def test_leopart_shows_the_crop_that_was_drawn():
    """To one pixel of the view, where its edges lie between pixels."""
    for epoch in range(300):
        item = blank([(375, 500), (333, 290), (41, 27)][epoch % 3])
        view = crop_leopart(item, 96, 0, epoch)
        crop = resized_crop_box(item.size_hw(), view_randomness(item, 0, epoch))
        for axis in (0, 1):
            factor = view.resized_hw[axis] / item.size_hw()[axis]
            start, end = crop[axis] * factor, (crop[axis] + crop[axis + 2]) * factor
            assert abs(view.box[axis] - start) <= 0.5 + 1e-9
            assert abs(view.box[axis] + 96 - end) <= 1 + 1e-9


@pytest.mark.parametrize("size_hw", [(75, 100), (100, 75), (80, 90)])
def test_leopart_draws_as_torchvision_does(size_hw):
    """Means and spreads of top, left, height and width, over many draws."""
    import torch

    torch.manual_seed(0)
    image = Image.new("L", size_hw[::-1])
    rng = np.random.default_rng(0)
    ours = np.array([resized_crop_box(size_hw, rng) for _ in range(1500)], float)
    theirs = np.array(
        [RandomResizedCrop.get_params(image, [0.8, 1.0], [3 / 4, 4 / 3]) for _ in range(1500)],
        float,
    )
    error = 4 * np.sqrt(2 / 1500) * theirs.std(0)  # four standard errors
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < error).all()
    assert (np.abs(ours.std(0) - theirs.std(0)) < 0.15 * theirs.std(0)).all()


@pytest.mark.parametrize("size_hw", [(20, 100), (100, 20), (31, 97), (1, 50), (50, 1), (97, 33)])
def test_pictures_too_long_are_cut_in_the_middle(size_hw):
    crop = RandomResizedCrop.get_params(
        Image.new("L", size_hw[::-1]), [0.8, 1.0], [3 / 4, 4 / 3]
    )  # no random one fits
    assert crop == central_crop_box(size_hw) == resized_crop_box(size_hw, np.random.default_rng(0))
    view = crop_leopart(blank(size_hw), 32, 0, 0)
    assert view.size_hw() == (32, 32)


def test_a_long_thin_picture_needs_no_more_memory_than_its_view(tmp_path):
    """1 × 900, seen at 448: resized whole it would have 180 million pixels."""
    mask = blocks((1, 900), [0, 1, 2])
    view = crop_leopart(item_of(tmp_path, "thin", COLOURS[mask], mask), 448, 0, 0)
    assert view.resized_hw == (448, 403200)
    assert (view.mask() == 1).all() and (view.read() == COLOURS[1]).all()


def windows_in_loops(height, width, size, stride):
    """As mmsegmentation counts and moves them."""
    found = []
    for row in range(max(height - size + stride - 1, 0) // stride + 1):
        for column in range(max(width - size + stride - 1, 0) // stride + 1):
            bottom = min(row * stride + size, height)
            right = min(column * stride + size, width)
            found.append((max(bottom - size, 0), max(right - size, 0), size, size))
    return found


def test_windows_are_mmsegmentations():
    random = np.random.default_rng(0)
    for _ in range(300):
        height, width, size = random.integers(1, 200, 3).tolist()
        stride = int(random.integers(1, size + 1))
        stride = max(stride, size // 8, 1)  # not thousands of them
        item = blank((height, width))
        views = windows(item, size, stride)
        whole = resized_to((height, width), size)
        assert [v.box for v in views] == windows_in_loops(*whole, size, stride)
        assert all(v.resized_hw == whole and not v.flip for v in views)
        assert len({v.name for v in views}) == len(views)
        seen = np.zeros(whole, bool)
        for top, left, *_ in (v.box for v in views):
            seen[top : top + size, left : left + size] = True
        assert seen.all()


@pytest.mark.parametrize(
    ("size_hw", "expected"),
    [
        ((375, 500), (512, 683)),
        ((500, 375), (683, 512)),
        ((512, 512), (512, 512)),
        ((100, 399), (512, 2043)),
        ((100, 1000), (205, 2048)),
        ((1000, 100), (2048, 205)),
        ((1, 9000), (1, 2048)),
    ],
)
def test_short_side_unless_the_long_one_is_too_long(size_hw, expected):
    assert resized_to(size_hw, 512) == expected


def test_windows_put_together_are_the_picture(noisy):
    views = windows(noisy, 24, 10)
    whole = resize(noisy.read(), (24, 35))
    assert Counter(v.box[0] for v in views) == {0: 3}
    assert [v.box[1] for v in views] == [0, 10, 11]
    for view in views:
        left = view.box[1]
        assert np.abs(view.read().astype(int) - whole[:, left : left + 24]).max() <= 1


@pytest.mark.parametrize("stride", [0, -3, 33])
def test_strides_that_leave_gaps_are_refused(noisy, stride):
    with pytest.raises(UsageError, match="stride"):
        windows(noisy, 32, stride)


def test_shapes():
    """Drawn pictures have no file: views need none."""
    item = open_dataset("shapes", "val")[1]
    views = [*windows(item, 64, 48), *(crop(item, 64, 0, 0) for crop in CROPS.values())]
    for view in views:
        again = pickle.loads(pickle.dumps(view))
        assert again.read().shape == (64, 64, 3) and again.mask().shape == (64, 64)
        assert set(np.unique(again.mask())) <= {*range(7), 255}
