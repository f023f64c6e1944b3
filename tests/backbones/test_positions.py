"""Position embeddings at other grids, against bicubic weights written out by hand."""

import pytest
import reference
import torch

from skipbench.backbones.vit import interpolate_positions


@pytest.mark.parametrize("rule", ["offset", "size", "antialias"])
@pytest.mark.parametrize("new_hw", [(14, 14), (28, 28), (30, 22), (5, 9), (7, 28)])
def test_rules_agree_with_weights_written_out(rule, new_hw):
    grid = torch.randn(1, 14 * 14, 6, generator=torch.Generator().manual_seed(1))
    ours = interpolate_positions(grid, (14, 14), new_hw, rule)
    _, theirs = reference.positions(grid, new_hw, rule, prefix=0)
    assert ours.shape == (1, new_hw[0] * new_hw[1], 6)
    assert (ours[0].double() - theirs).abs().max() < 1e-5


def test_the_rules_differ():
    grid = torch.randn(1, 14 * 14, 6, generator=torch.Generator().manual_seed(1))
    offset, size, antialias = (
        interpolate_positions(grid, (14, 14), (9, 12), rule)
        for rule in ("offset", "size", "antialias")
    )
    assert (offset - size).norm() / size.norm() > 0.01
    assert (size - antialias).norm() / size.norm() > 0.01


@pytest.mark.parametrize("new", range(1, 80))
def test_the_offset_never_loses_a_row(new):
    grid = torch.zeros(1, 14 * 14, 2)
    assert interpolate_positions(grid, (14, 14), (new, 81 - new), "offset").shape[1] == new * (
        81 - new
    )


def test_height_comes_before_width():
    """A grid that grows downwards stays one when it is stretched."""
    rows = torch.arange(4.0).repeat_interleave(4).view(1, 16, 1)
    wide = interpolate_positions(rows, (4, 4), (4, 8), "size").view(4, 8)
    assert torch.allclose(wide, torch.arange(4.0).view(4, 1).expand(4, 8), atol=1e-5)
