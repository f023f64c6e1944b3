"""The class of every pixel, against interpolate and argmax."""

import pytest
import torch
import torch.nn.functional as F

from skipbench.evaluations._class_map import class_map


def plainly(logits, size_hw):
    resized = F.interpolate(logits, size_hw, mode="bilinear", align_corners=False)
    return resized.argmax(1)


def smooth(heads, classes, size_hw, coarse_hw, seed=0, noise=0.1):
    """Regions of one class with soft borders, as a trained head gives them."""
    generator = torch.Generator().manual_seed(seed)
    coarse = 4 * torch.randn(heads, classes, *coarse_hw, generator=generator)
    fine = F.interpolate(coarse, size_hw, mode="bicubic")
    return fine + noise * torch.randn(heads, classes, *size_hw, generator=generator)


@pytest.mark.parametrize("classes", [1, 2, 7, 21, 150])
@pytest.mark.parametrize(
    ("grid_hw", "size_hw"),
    [
        ((6, 9), (60, 131)),
        ((9, 6), (97, 64)),
        ((6, 9), (6, 9)),
        ((6, 9), (4, 5)),  # smaller than the grid
        ((1, 5), (3, 40)),
        ((4, 1), (50, 7)),
        ((3, 3), (1, 1)),
    ],
)
def test_pixel_for_pixel(classes, grid_hw, size_hw):
    for logits in (
        smooth(3, classes, grid_hw, (3, 3), seed=classes),
        torch.randn(2, classes, *grid_hw, generator=torch.Generator().manual_seed(classes)),
    ):
        found = class_map(logits, size_hw)
        assert found.dtype == torch.uint8 and found.shape == (len(logits), *size_hw)
        assert torch.equal(found.long(), plainly(logits, size_hw))


def test_many_candidates_in_every_cell():
    """The worst case: every class is as good as every other, but for a little noise."""
    logits = 1e-3 * torch.randn(2, 171, 5, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(class_map(logits, (50, 75)).long(), plainly(logits, (50, 75)))


def test_ties_go_to_the_first_class():
    logits = torch.zeros(1, 4, 3, 5)
    logits[:, 2:, 1] = 1
    found = class_map(logits, (30, 50))
    assert set(found.unique().tolist()) <= {0, 2}
    assert torch.equal(found.long(), plainly(logits, (30, 50)))


def test_large_logits_and_a_single_sure_class():
    logits = torch.full((1, 5, 4, 6), -1e6)
    logits[:, 3] = 1e6
    assert (class_map(logits, (40, 61)) == 3).all()
