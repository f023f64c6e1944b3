"""Pictures drawn by code: repeatable, truly labelled, and nothing but texture tells the class."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from skipbench.datasets.shapes import CLASSES, COLOURS, IGNORED, draw, size_of

CELL = 8  # pixels on a side; features and labels are compared per cell
CHANCE = 100 * 0.56 / 7  # mIoU of calling everything background


@cache
def pictures(split):
    return [draw(0, split, index) for index in range(100)]


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


# Repeatable


def test_the_order_of_drawing_does_not_matter():
    assert all(same(draw(0, "train", i), pictures("train")[i]) for i in (7, 3, 40))


def test_another_process_draws_the_same():
    code = (
        "import sys; from skipbench.datasets.shapes import draw\n"
        "for i in (5, 2): d = draw(0, 'val', i); sys.stdout.buffer.write(\n"
        "    d.image.tobytes() + d.mask.tobytes() + d.boxes_xyxy.tobytes() + d.labels.tobytes())"
    )
    drawn = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    here = [draw(0, "val", i) for i in (5, 2)]
    assert drawn == b"".join(
        part.tobytes() for d in here for part in (d.image, d.mask, d.boxes_xyxy, d.labels)
    )


def test_splits_seeds_and_numbers_differ():
    drawn = [draw(*key).image for key in ((0, "train", 6), (0, "val", 6), (1, "train", 6))]
    drawn += [picture.image for picture in pictures("train")[:6]]
    assert len({image.tobytes() for image in drawn}) == len(drawn)


# Labelled as promised


def test_shapes_types_and_ranges():
    for number, picture in enumerate(pictures("train")):
        height, width = size_of(0, "train", number)
        assert picture.image.shape == (height, width, 3) and picture.image.dtype == np.uint8
        assert picture.mask.shape == (height, width) and picture.mask.dtype == np.uint8
        assert height != width
        assert set(np.unique(picture.mask)) == {0, IGNORED, *picture.labels}
        assert 1 <= len(picture.labels) <= 4
        assert picture.boxes_xyxy.shape == (len(picture.labels), 4)
        assert picture.boxes_xyxy.dtype == picture.labels.dtype == np.int64


def test_names_and_colours():
    assert len(CLASSES) == len(COLOURS) == len(set(COLOURS)) == 7
    assert CLASSES[0] == "background" and COLOURS[0] == (0, 0, 0)


def test_several_sizes_in_both_orientations():
    sizes = {picture.mask.shape for picture in pictures("train")}
    assert len(sizes) >= 4 and {height > width for height, width in sizes} == {True, False}
    assert any(height % 16 or width % 16 for height, width in sizes)


def box_around(region):
    ys, xs = np.nonzero(region)
    return [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


def test_the_box_of_a_lone_shape_is_that_of_the_mask():
    lone = [p for p in pictures("train") if len(p.labels) == 1]
    assert len(lone) > 10
    for picture in lone:
        assert picture.boxes_xyxy.tolist() == [box_around(picture.mask > 0)]


def test_the_box_of_a_shape_is_that_of_its_class_but_for_the_rim():
    # No class occurs twice in a picture. The tip of a star is all rim, hence not 1 everywhere.
    off = [
        np.abs(box - box_around(picture.mask == label)).max()
        for picture in pictures("train")
        for box, label in zip(picture.boxes_xyxy, picture.labels, strict=True)
    ]
    assert np.median(off) <= 2 and np.quantile(off, 0.95) <= 5


def test_boxes_are_tight_and_cover_all_shapes():
    for picture in pictures("train"):
        outside = picture.mask > 0
        for (x0, y0, x1, y1), label in zip(picture.boxes_xyxy, picture.labels, strict=True):
            assert 0 <= x0 < x1 <= outside.shape[1] and 0 <= y0 < y1 <= outside.shape[0]
            outside[y0:y1, x0:x1] = False
            own = np.isin(picture.mask, (label, IGNORED))[y0:y1, x0:x1]
            assert own[0].any() and own[-1].any() and own[:, 0].any() and own[:, -1].any()
            within = (picture.mask[y0:y1, x0:x1] == label).sum()
            assert within == (picture.mask == label).sum() >= 0.02 * picture.mask.size
        assert not outside.any()


def test_a_thin_rim_parts_every_two_regions():
    for mask in (picture.mask for picture in pictures("train")):
        assert 0.003 < (mask == IGNORED).mean() < 0.06
        for one, other in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1])):
            assert not ((one != other) & (one < IGNORED) & (other < IGNORED)).any()


def test_balance():
    labels = np.concatenate([picture.labels for picture in pictures("train")])
    counts = np.bincount(labels, minlength=7)[1:]
    assert counts.min() > 0.7 * counts.mean() and counts.max() < 1.3 * counts.mean()
    background = np.mean([(picture.mask == 0).mean() for picture in pictures("train")])
    assert 0.4 < background < 0.6
    for start in range(0, 90, 7):
        six = pictures("train")[start : start + 6]
        assert set(np.concatenate([picture.labels for picture in six])) == set(range(1, 7))


# Told apart by texture, and by nothing else


def cells(field):
    """(height, width, CELL², channels) of whole cells."""
    height, width = field.shape[0] // CELL, field.shape[1] // CELL
    parts = field[: height * CELL, : width * CELL].reshape(height, CELL, width, CELL, -1)
    return parts.swapaxes(1, 2).reshape(height, width, CELL * CELL, -1)


def around(features):
    """The mean over a cell and its eight neighbours."""
    wide = np.pad(features, ((1, 1), (1, 1), (0, 0)), mode="edge")
    height, width = features.shape[:2]
    steps = [(y, x) for y in range(3) for x in range(3)]
    return np.mean([wide[y : y + height, x : x + width] for y, x in steps], axis=0)


def mean_colour(image):
    return cells(image).mean(2)


def raw_pixels(image):
    return cells(image).reshape(image.shape[0] // CELL, image.shape[1] // CELL, -1)


def random_filters(image):
    """What an untrained layer sees: the strength of random filters' answers."""
    pixels = raw_pixels(image) - raw_pixels(image).mean(-1, keepdims=True)
    filters = np.random.default_rng(0).standard_normal((pixels.shape[-1], 64))
    return around(np.abs(pixels @ filters))


@cache
def gabor_bank(height, width, directions=6):
    """(periods, directions, height, width) of a spectrum; one-sided, so that phase drops out."""
    y, x = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]
    octaves = [np.log2(np.hypot(y, x) * period + 1e-9) for period in (5, 8, 12, 18)]
    turns = [
        np.angle((x + 1j * y) * np.exp(-1j * np.pi * d / directions)) for d in range(directions)
    ]
    bank = [[np.exp(-((o / 0.6) ** 2) - (t / 0.35) ** 2) for t in turns] for o in octaves]
    return np.array(bank, np.float32)


def texture_energies(image):
    """Gabor energies, directions in order of strength (textures are turned), and their sum."""
    grey = image.mean(2, dtype=np.float32)
    spectrum = np.fft.fft2(grey - grey.mean())
    energy = np.abs(np.fft.ifft2(spectrum * gabor_bank(*image.shape[:2])))
    pooled = around(cells(energy.reshape(-1, *image.shape[:2]).transpose(1, 2, 0)).mean(2))
    ordered = np.sort(pooled.reshape(*pooled.shape[:2], 4, 6), -1).reshape(pooled.shape)
    total = ordered.sum(-1, keepdims=True)
    return np.concatenate([ordered / total, np.log(total)], -1)


def cell_labels(mask):
    """The commonest label in each cell, 255 included."""
    counts = [(cells(mask) == label).sum((2, 3)) for label in (*range(7), IGNORED)]
    return np.argmax(counts, 0)


def samples(split, features, count):
    found = [(features(p.image), cell_labels(p.mask)) for p in pictures(split)[:count]]
    x = np.concatenate([values.reshape(labels.size, -1) for values, labels in found])
    y = np.concatenate([labels.ravel() for _, labels in found])
    return x[y < 7], y[y < 7]


def ridge(x, y, strength=1e-3):
    """Least squares to one-hot labels, as a function from features to the likeliest class."""
    mean, scale = x.mean(0), x.std(0) + 1e-9

    def ready(values):
        return np.c_[(values - mean) / scale, np.ones(len(values))]

    gram = ready(x).T @ ready(x) + strength * len(x) * np.eye(x.shape[1] + 1)
    weights = np.linalg.solve(gram, ready(x).T @ np.eye(7)[y])
    return lambda values: np.argmax(ready(values) @ weights, 1)


def miou_percent(truth, found):
    confusion = np.bincount(7 * truth + found, minlength=49).reshape(7, 7)
    both = np.diag(confusion)
    return 100 * np.mean(both / (confusion.sum(0) + confusion.sum(1) - both))


@cache
def score(features):
    x, y = samples("val", features, 40)
    return miou_percent(y, ridge(*samples("train", features, 60))(x))


@pytest.mark.parametrize("features", [mean_colour, raw_pixels])
def test_a_linear_look_at_the_pixels_tells_nothing(features):
    assert score(features) < CHANCE + 3


def test_better_features_score_better():
    assert score(random_filters) > score(mean_colour) + 4
    assert score(random_filters) > score(raw_pixels) + 4
    assert score(texture_energies) > score(random_filters) + 10
    assert score(texture_energies) < 75  # room for real features above


def test_colour_size_place_and_outline_do_not_tell():
    def describe(picture):
        for (x0, y0, x1, y1), label in zip(picture.boxes_xyxy, picture.labels, strict=True):
            (height, width), own = picture.mask.shape, picture.mask == label
            place = ((x0 + x1) / width, (y0 + y1) / height)
            filled = own.sum() / ((x1 - x0) * (y1 - y0))
            yield [*picture.image[own].mean(0), own.mean(), *place, (x1 - x0) / (y1 - y0), filled]

    def table(split):
        rows = [row for picture in pictures(split) for row in describe(picture)]
        return np.array(rows), np.concatenate([p.labels for p in pictures(split)])

    x, y = table("val")
    right = np.mean(ridge(*table("train"))(x) == y)
    assert right < 1 / 6 + 0.1
