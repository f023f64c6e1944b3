"""The class of every pixel, against interpolate and argmax."""

import pytest
import torch
import torch.nn.functional as F

from skipbench.evaluations.segmentation.class_map import class_map


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


@pytest.mark.parametrize("size_hw", [(55, 74), (110, 148), (165, 222)])
@pytest.mark.parametrize("classes", [2, 21])
def test_padded_pictures(classes, size_hw):
    """A picture of 55 × 74 in 6 × 8 patches of 10: as cropped from what is padded to 60 × 80."""
    times = size_hw[0] // 55
    for logits in (
        smooth(2, classes, (6, 8), (3, 3), seed=classes),
        torch.randn(2, classes, 6, 8, generator=torch.Generator().manual_seed(classes)),
    ):
        padded = plainly(logits, (60 * times, 80 * times))[:, : size_hw[0], : size_hw[1]]
        assert torch.equal(class_map(logits, size_hw, (5.5, 7.4)).long(), padded)


def test_the_whole_grid_is_an_extent():
    logits = smooth(2, 7, (6, 9), (3, 3))
    whole = class_map(logits, (61, 83))
    assert torch.equal(class_map(logits, (61, 83), (6, 9)), whole)
    assert not torch.equal(class_map(logits, (61, 83), (5.5, 9)), whole)


@pytest.mark.parametrize("at_once", [1, 1000, 30_000])
def test_in_parts(at_once):
    logits = torch.randn(2, 21, 5, 7, generator=torch.Generator().manual_seed(0))
    whole = class_map(logits, (40, 61))
    assert torch.equal(class_map(logits, (40, 61), at_once=at_once), whole)
    assert torch.equal(whole.long(), plainly(logits, (40, 61)))


@pytest.mark.parametrize("seed", range(30))
def test_any_shape(seed):
    generator = torch.Generator().manual_seed(seed)
    heads, classes, height, width, rows, columns = (
        int(torch.randint(1, most, (), generator=generator)) for most in (4, 40, 9, 9, 70, 70)
    )
    logits = torch.randn(heads, classes, height, width, generator=generator)
    if seed % 3 == 0:
        logits = logits.mul(2).round()  # many ties, at corners and between
    if seed % 2:  # classes last in memory, as a product of tokens and weights has them
        logits = logits.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    found = class_map(logits, (rows, columns))
    assert found.is_contiguous()
    resized = F.interpolate(logits, (rows, columns), mode="bilinear", align_corners=False)
    chosen = resized.gather(1, found.long()[:, None])[:, 0]
    torch.testing.assert_close(chosen, resized.amax(1), rtol=1e-6, atol=1e-6)
    if seed % 3:  # without ties, the very same
        assert torch.equal(found.long(), resized.argmax(1))


# -- more classes than a byte can name


@pytest.mark.parametrize("classes", [255, 256, 257, 300, 1000])
@pytest.mark.parametrize(("grid_hw", "size_hw"), [((5, 7), (41, 60)), ((7, 4), (5, 3))])
def test_many_classes(classes, grid_hw, size_hw):
    for logits in (
        smooth(2, classes, grid_hw, (3, 3), seed=classes),
        torch.randn(2, classes, *grid_hw, generator=torch.Generator().manual_seed(classes)),
    ):
        found = class_map(logits, size_hw)
        assert found.dtype == (torch.uint8 if classes <= 256 else torch.int16)
        assert torch.equal(found.long(), plainly(logits, size_hw))
    assert found.amax() > 0.8 * classes or grid_hw == (7, 4)  # high numbers are among them


def test_the_last_of_ten_thousand_classes_has_its_own_name():
    """Nowhere does a number wrap around, be it in a sure cell, a sure column or between."""
    logits = torch.randn(1, 10_000, 3, 4, generator=torch.Generator().manual_seed(0)) / 100
    logits[:, 9_999, :, 1:3] = 1
    logits[:, 257, 1:] += 1.5
    found = class_map(logits, (25, 37))
    assert torch.equal(found.long(), plainly(logits, (25, 37)))
    assert {257, 9_999} <= set(found.unique().tolist())


def test_ties_of_many_classes_go_to_the_first():
    """Each of 600 is as good as the others: more candidates in every cell than a byte counts."""
    logits = torch.zeros(1, 600, 3, 5)
    assert not class_map(logits, (20, 31)).any()
    logits[:, 300:, 1] = 1
    found = class_map(logits, (20, 31))
    assert torch.equal(found.long(), plainly(logits, (20, 31)))
    assert set(found.unique().tolist()) <= {0, 300}


@pytest.mark.parametrize("at_once", [1, 30_000])
def test_many_classes_in_parts(at_once):
    logits = 1e-2 * torch.randn(2, 400, 3, 4, generator=torch.Generator().manual_seed(0))
    found = class_map(logits, (17, 25), at_once=at_once)
    assert torch.equal(found.long(), plainly(logits, (17, 25)))


def test_many_classes_on_a_padded_picture():
    logits = smooth(2, 300, (6, 8), (3, 3))
    padded = plainly(logits, (120, 160))[:, :110, :148]
    assert torch.equal(class_map(logits, (110, 148), (5.5, 7.4)).long(), padded)
