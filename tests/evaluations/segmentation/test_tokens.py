"""Class maps from tokens, and tokens of length one, against torch."""

import numpy as np
import torch
import torch.nn.functional as F

from skipbench.evaluations.segmentation.tokens import (
    Grid,
    ImageTokens,
    TokenMap,
    normalised,
    predict,
)

CLASSES = 4


def test_windows_are_averaged_as_mmsegmentation_does():
    """Written out pixel by pixel: resize each window's logits, add them up, divide, resize."""
    random = np.random.default_rng(0)
    picture_hw, size, mask_hw = (40, 63), 32, (57, 90)
    weight = torch.from_numpy(random.normal(size=(6, CLASSES))).float()
    bias = torch.zeros(CLASSES)
    boxes = [(top, left, size, size) for top in (0, 8) for left in (0, 21, 31)]
    # A patch of 10 does not divide 32: tokens reach to 40.
    grid = Grid((4, 4), (3.2, 3.2))
    parts = [TokenMap(grid, random.normal(size=(16, 6)).astype(np.float32), box) for box in boxes]
    total, count = np.zeros((CLASSES, *picture_hw)), np.zeros(picture_hw)
    for part, (top, left, _, _) in zip(parts, boxes, strict=True):
        logits = (torch.from_numpy(part.tokens) @ weight).T.reshape(1, CLASSES, 4, 4)
        pixels = F.interpolate(logits, (40, 40), mode="bilinear")[0, :, :size, :size].numpy()
        total[:, top : top + size, left : left + size] += pixels
        count[top : top + size, left : left + size] += 1
    assert count.min() == 1 and count.max() > 1  # every pixel is seen, some by several windows
    mean = torch.from_numpy(total / count)[None]
    expected = F.interpolate(mean, mask_hw, mode="bilinear").argmax(1)[0].numpy()
    found = next(predict(ImageTokens(parts, picture_hw), mask_hw, weight, bias, CLASSES))
    assert found.shape == mask_hw and (found != expected).mean() < 1e-3


def test_tokens_of_length_one():
    given = np.random.default_rng(0).normal(size=(30, 5)) * np.logspace(-3, 3, 30)[:, None]
    given[4] = 0
    for dtype in (np.float16, np.float32, np.float64):
        tokens = given.astype(dtype)
        kept = tokens.copy()
        found = normalised(tokens)
        expected = F.normalize(torch.from_numpy(kept).double(), dim=1).float().numpy()
        np.testing.assert_allclose(found, expected, atol=2e-7)
        assert found.dtype == np.float32 and not found[4].any()
        np.testing.assert_array_equal(tokens, kept)  # and what was given is as it was


def test_large_tokens_have_a_length_too():
    found = normalised(np.array([[3e30, 4e30], [3e4, -4e4]], np.float32))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.6, -0.8]], rtol=1e-6)
    assert normalised(np.zeros((0, 3), np.float16)).shape == (0, 3)
