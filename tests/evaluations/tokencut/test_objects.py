"""Objects on the grid of tokens, and the boxes around them in pixels."""

import numpy as np
import pytest

from skipbench.evaluations.tokencut.method import Found, enlarged, part_of


def object_of(*tokens, grid_hw=(3, 4)):
    mask = np.zeros(grid_hw, bool)
    mask.flat[list(tokens)] = True
    return Found(mask, mask.astype(float), seed=tokens[0])


@pytest.mark.parametrize(
    ("tokens", "box"),
    [
        ([0], (0, 0, 16, 16)),
        ([6], (32, 16, 48, 32)),
        ([11], (48, 32, 61, 45)),  # at the padded corner: cut off at 61 and 45
        ([1, 2], (16, 0, 48, 16)),
        ([3, 7, 11], (48, 0, 61, 45)),
        ([8, 9, 5], (0, 16, 32, 45)),
        (range(12), (0, 0, 61, 45)),
    ],
)
def test_boxes_end_with_the_image(tokens, box):
    """x0, y0, x1, y1: three rows of four tokens, an image of 45×61 pixels."""
    found = object_of(*tokens)
    assert found.box(16, (45, 61)) == box
    assert all(type(side) is int for side in found.box(16, (45, 61)))
    pixels = enlarged(found.mask, 16, (45, 61))
    assert pixels.shape == (45, 61) and pixels.dtype == bool
    rows, columns = np.nonzero(pixels)
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == box
    assert found.tokens == len(list(tokens))


def test_pixels_are_those_of_their_tokens():
    mask = np.random.default_rng(0).random((3, 4)) < 0.5
    pixels = enlarged(mask, 5, (13, 18))
    for row, column in np.ndindex(13, 18):
        assert pixels[row, column] == mask[row // 5, column // 5]


def test_diagonal_neighbours_are_not_connected():
    mask = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]], bool)
    mine, apart = part_of(mask, 2, np.array([2]))
    assert np.flatnonzero(mine).tolist() == [2, 5, 6] and not apart
    mine, apart = part_of(mask, 11, np.array([11, 6]))
    assert np.flatnonzero(mine).tolist() == [11] and apart
