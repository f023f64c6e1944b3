"""LOST against its published definition, written out token by token."""

from itertools import product

import cuts
import numpy as np
import pytest
import torch

from skipbench.evaluations.tokencut.method import lost


@pytest.mark.parametrize("grid_hw", [(3, 4), (5, 7), (9, 14), (17, 23)])
@pytest.mark.parametrize("expansion", [100, 5])
def test_lost_is_the_published_one(grid_hw, expansion):
    """Lengths of tokens matter; fewer than 100 tokens are all of them."""
    rng = np.random.default_rng(0)
    for objects, noise, offset in product((1, 3), (0.5, 1.5), (0, 0.3)):
        tokens = cuts.blobs(rng, grid_hw, objects, noise) + np.float32(offset)
        tokens *= rng.uniform(0.2, 5, (len(tokens), 1)).astype(np.float32)
        (found,) = lost(torch.from_numpy(tokens)[None], grid_hw, expansion)
        seed, mask = cuts.lost(tokens.astype(np.float64), grid_hw, expansion)
        assert found.seed == seed and np.array_equal(found.mask, mask)
        assert not found.degenerate and found.solver == "none"
        assert found.map.flat[seed] > 0


def test_lost_takes_the_first_of_tied_seeds():
    """Two objects, each unlike all else, as large as each other: apart, so a rule decided."""
    tokens = np.tile(np.float32([1, 0, 0]), (12, 1))
    tokens[[2, 3]], tokens[[8, 9]] = [0, 1, 0], [0, 0, 1]
    (found,) = lost(torch.from_numpy(tokens)[None], (3, 4))
    assert found.seed == 2 and found.tied
    assert np.flatnonzero(found.mask).tolist() == [2, 3]
    tokens[[8, 9]] = tokens[0]
    (found,) = lost(torch.from_numpy(tokens)[None], (3, 4))
    assert found.seed == 2 and not found.tied


def test_lost_expands_by_tokens_of_few_neighbours_alone():
    """The seed's tokens are few; with more of them the object would grow."""
    tokens = np.tile(np.float32([1, 0.0]), (20, 1))
    tokens[[6, 7]] = [-0.5, 1]
    tokens[8] = [0.1, 1]
    for expansion in (1, 2, 3, 100):
        (found,) = lost(torch.from_numpy(tokens)[None], (4, 5), expansion)
        seed, mask = cuts.lost(tokens.astype(np.float64), (4, 5), expansion)
        assert found.seed == seed == 6 and np.array_equal(found.mask, mask)


def test_lost_finds_nothing_where_all_tokens_are_alike():
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.random((1, 20, 8))) + 0.1  # every inner product is positive
    (found,) = lost(tokens, (4, 5))
    assert found.degenerate and found.mask.all()


def test_lost_finds_nothing_where_a_token_is_zero():
    """It has the fewest neighbours, and nothing resembles it, not even itself."""
    tokens = cuts.images(1, (4, 5))
    tokens[0, 7] = 0
    (found,) = lost(tokens, (4, 5))
    assert found.mask.all() and found.degenerate
