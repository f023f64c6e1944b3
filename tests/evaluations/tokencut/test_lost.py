"""LOST against its published definition, written out token by token."""

from itertools import combinations, product

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


# Ties at the last token of the expansion


def choices(tokens, expansion):
    """Every expansion that is as good: of tokens with as many neighbours as the last, any."""
    linked = tokens @ tokens.T > 0
    degrees = linked.sum(1)
    last = np.sort(degrees)[:expansion][-1]
    surely, rivals = np.flatnonzero(degrees < last), np.flatnonzero(degrees == last)
    seed = int(np.argsort(degrees, kind="stable")[0])
    for some in combinations(rivals.tolist(), min(expansion, len(tokens)) - len(surely)):
        few = {*surely.tolist(), *some}
        yield frozenset(token for token in few if linked[token, seed])


def test_a_tie_at_the_end_of_the_expansion_is_counted():
    """Of 18 tokens, only if another choice would be another expansion."""
    rng, kinds = np.random.default_rng(0), {True: 0, False: 0}
    for noise, expansion in product((0.2, 0.6, 1.5), range(2, 19)):
        tokens = cuts.blobs(rng, (3, 6), 1, noise)
        seed, mask = cuts.lost(tokens.astype(np.float64), (3, 6), expansion)
        degrees = (tokens @ tokens.T > 0).sum(1)
        rivals = np.flatnonzero(degrees == degrees.min())
        arbitrary = len(set(choices(tokens, expansion))) > 1
        if len(rivals) > 1 or degrees.min() == 18:  # other rules decide, or nothing stands out
            continue
        (found,) = lost(torch.from_numpy(tokens)[None], (3, 6), expansion)
        assert found.tied == arbitrary
        assert found.seed == seed and np.array_equal(found.mask, mask)
        kinds[arbitrary] += 1
    assert min(kinds.values()) > 5, kinds


@pytest.mark.parametrize(("alike", "tied"), [(99, False), (100, False), (101, True), (140, True)])
def test_of_tokens_with_as_many_neighbours_as_the_hundredth_the_first_count(alike, tied):
    """Some tokens before a background, each linked to its own kind: they are 100, or a few more."""
    tokens = np.tile(np.float32([1, 0, 0]), (300, 1))
    object_of = np.arange(300) % 300 < alike
    tokens[object_of] = [0, 1, 0]
    (found,) = lost(torch.from_numpy(tokens)[None], (15, 20))
    assert found.seed == 0 and found.tied == tied
    assert np.array_equal(found.mask.ravel(), object_of)


def test_the_first_of_the_tied_tokens_decide_what_the_object_is():
    """Three tokens are linked to the seed, two of them count: row by row, the first two. The third
    alone would have drawn another token in."""
    tokens = np.zeros((1, 12, 6), np.float32)
    tokens[0, :, 0] = 1  # the background
    seed, rivals, drawn_in = 5, (6, 7, 8), 9
    tokens[0, seed] = [0, 1, 0, 0, 0, 0]
    for channel, token in enumerate(rivals, 2):
        tokens[0, token, [0, 1]] = 0, 1
        tokens[0, token, channel] = 1
    tokens[0, drawn_in] = [1, 0, 0, 0, 1, 0]  # linked to the third
    for expansion, inside in ((3, False), (4, True)):
        (found,) = lost(torch.from_numpy(tokens[0])[None], (1, 12), expansion)
        _, mask = cuts.lost(tokens[0].astype(np.float64), (1, 12), expansion)
        assert np.array_equal(found.mask, mask)
        assert found.mask[0, drawn_in] == inside
