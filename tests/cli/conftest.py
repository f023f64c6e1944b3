import pytest
import torch

from skipbench.demo import make_weights, small_facts


@pytest.fixture
def skip_ckpt(tmp_path):
    """Small weights that are clearly skip."""
    path = tmp_path / "skip.pth"
    torch.save(make_weights("skip", small_facts(width=64, depth=3, patch=8, heads=1)), path)
    return path
