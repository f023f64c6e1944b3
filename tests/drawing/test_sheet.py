"""Masks and boxes as people see them."""

import numpy as np

from skipbench.files import unlike
from skipbench.pictures import UNLABELLED, Cell, blend, draw_boxes, paint, sheet


def test_paint():
    mask = np.array([[0, 1, 255]], np.uint8)
    painted = paint(mask, [(1, 2, 3), (200, 100, 50)])
    assert painted.tolist() == [[[1, 2, 3], [200, 100, 50], list(UNLABELLED)]]
    assert blend(np.full((1, 3, 3), 100, np.uint8), painted, 1.0).tolist() == painted.tolist()
    assert blend(np.full((1, 3, 3), 100, np.uint8), painted, 0.0).tolist() == [[[100] * 3] * 3]


def test_boxes_are_drawn_on_their_outermost_pixels():
    image = np.zeros((60, 90, 3), np.uint8)
    drawn = draw_boxes(image, np.array([[30, 20, 70, 50]]), ["dog"])
    assert image.max() == 0  # the picture itself is left alone
    rows, columns = np.nonzero(drawn.any(2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 49, 30, 69)
    assert not drawn[45, 50].any()
    draw_boxes(image, np.array([[5.0, 5.0, 5.0, 5.0]]), ["nothing"])  # no area, no crash


def test_sheet_keeps_aspect_ratios_and_has_a_legend():
    red = np.zeros((50, 100, 3), np.uint8) + np.array([200, 0, 0], np.uint8)
    tall = np.zeros((100, 50, 3), np.uint8) + np.array([0, 0, 200], np.uint8)
    plain = np.asarray(sheet([[Cell(red, "a"), Cell(tall, "b" * 500)]], height=100))
    is_red, is_blue = (plain == [200, 0, 0]).all(2), (plain == [0, 0, 200]).all(2)
    assert is_red.sum() == 100 * 200 and is_blue.sum() == 100 * 50
    with_legend = np.asarray(sheet([[Cell(red)]], [("dog", (1, 99, 2)), ("cat", (3, 4, 99))], 100))
    assert (with_legend == [1, 99, 2]).all(2).sum() > 100
    many = [(f"class {i}", (i, 99, i)) for i in range(60)]
    assert sheet([[Cell(red)]], many, 100).height > with_legend.shape[0] + 200


def test_names_are_told_apart():
    assert unlike(["a", "b", "a", "a_2", "a"]) == ["a", "b", "a_2", "a_2_2", "a_3"]
    assert unlike(["sheet", "x"], taken=["sheet"]) == ["sheet_2", "x"]
    assert unlike(["a", "a"], form="{} ({})") == ["a", "a (2)"]
