"""Pictures of nearly the same frames have nearly the same colours."""

from itertools import pairwise

import numpy as np
import pytest
from conftest import records
from PIL import Image
from plain_pca import put, scene

FRAMES = 12


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """A still camera whose sensor is noisy."""
    folder = tmp_path_factory.mktemp("film")
    still, rng = scene((48, 64), 3).astype(float), np.random.default_rng(0)
    for frame in range(FRAMES):
        noisy = still + rng.normal(0, 6, still.shape)
        put(folder / f"{frame:03d}.png", noisy.clip(0, 255).round().astype(np.uint8))
    return folder


def agreement(one, other):
    """Correlation of two pictures, the least of the three channels."""
    pairs = zip(one.reshape(-1, 3).T, other.reshape(-1, 3).T, strict=True)
    return min(np.corrcoef(a, b)[0, 1] for a, b in pairs)


def test_colours_do_not_flip_from_frame_to_frame(run, film, tmp_path):
    out = tmp_path / "out"
    shown = run("a", out, "--fit", "image", "--components", 1, images=film)
    assert shown.exit_code == 0, shown.stderr
    assert len(records(out)) == 1
    paths = sorted((out / "a.pth_skip").glob("???.png"))
    assert len(paths) == FRAMES
    frames = [np.asarray(Image.open(path).convert("RGB"), float) for path in paths]
    agreements = [agreement(a, b) for a, b in pairwise(frames)]
    assert min(agreements) > -0.2, agreements  # a flip is near −1
