"""The bank of nearest neighbours: labels of patches and their choice, against plain loops."""

import random

import numpy as np
import pytest
from tokens import some_mask

from skipbench.evaluations.knn.method import choose_patches, joined, part_of_bank, patch_counts
from skipbench.evaluations.segmentation.tokens import even_shares

# -- what is known of a patch


@pytest.mark.parametrize("size_hw", [(12, 20), (11, 18), (9, 17), (1, 1)])  # 4 × 4 patches, or less
def test_pixels_by_class_are_those_of_plain_loops(size_hw):
    grid_hw = (-(-size_hw[0] // 4), -(-size_hw[1] // 4))
    mask = some_mask(size_hw, 5)
    expected = np.zeros((grid_hw[0] * grid_hw[1], 5), int)
    for y in range(size_hw[0]):
        for x in range(size_hw[1]):
            if mask[y, x] != 255:
                expected[y // 4 * grid_hw[1] + x // 4, mask[y, x]] += 1
    found = patch_counts(mask, grid_hw, 4, 5)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int64


def test_what_is_ignored_is_no_class():
    mask = np.full((8, 12), 255, np.uint8)
    mask[0, 0] = 2
    found = patch_counts(mask, (2, 3), 4, 3)
    assert found.sum() == 1 and found[0, 2] == 1
    for classes in (1, 254, 255):
        assert patch_counts(np.full((8, 12), 255, np.uint8), (2, 3), 4, classes).sum() == 0


def test_a_patch_at_the_rim_counts_what_there_is_of_it():
    found = patch_counts(np.ones((5, 9), np.uint8), (2, 3), 4, 2)
    assert found[:, 1].tolist() == [16, 16, 4, 4, 4, 1]


# -- which patches are taken


def plain_choice(counts, most, draw):
    """The rule in plain Python. draw(): a number from 0 to 1."""
    patches = [[c for c, pixels in enumerate(row) if pixels] for row in counts.tolist()]
    in_how_many = {}
    for classes in patches:
        for c in classes:
            in_how_many[c] = in_how_many.get(c, 0) + 1
    scored = []
    for i, classes in enumerate(patches):
        luck = draw()
        if classes:
            scored.append((sum(in_how_many[c] for c in classes) * luck, i))
    return sorted(i for _, i in sorted(scored)[:most])


def some_counts(patches=12, classes=4, seed=3):
    """Classes from frequent to rare, several in a patch, and two patches without any."""
    rng = np.random.default_rng(seed)
    there = rng.random((patches, classes)) < np.linspace(0.7, 0.1, classes)
    counts = there * rng.integers(1, 17, there.shape)
    counts[[2, patches - 1]] = 0
    return counts


@pytest.mark.parametrize("most", [0, 1, 5, 10, 11, 100])
def test_the_choice_is_that_of_plain_loops(most):
    for seed in range(20):
        counts = some_counts(seed=seed)
        found = choose_patches(counts, most, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        assert found.tolist() == plain_choice(counts, most, rng.random)
        assert len(found) == min(most, (counts.sum(1) > 0).sum())


def test_patches_without_a_label_are_never_taken():
    counts = some_counts(60)
    labelled = np.flatnonzero(counts.sum(1))
    assert 2 not in labelled
    for seed in range(5):
        found = choose_patches(counts, 1000, np.random.default_rng(seed))
        assert found.tolist() == labelled.tolist()
    assert len(choose_patches(np.zeros((4, 3), int), 2, np.random.default_rng(0))) == 0


def test_each_patch_is_taken_as_often_as_the_rule_says():
    """Against a simulation of it that has nothing in common with the code but the rule."""
    counts, most, times = np.zeros((17, 4), int), 5, 3000
    counts[:13, 0], counts[10:14, 1], counts[14:16, 2], counts[15, 3] = 9, 5, 16, 2
    found, expected = np.zeros((2, len(counts)))
    rng, draw = np.random.default_rng(0), random.Random(1).random
    for _ in range(times):
        found[choose_patches(counts, most, rng)] += 1
        expected[plain_choice(counts, most, draw)] += 1
    assert found.sum() == expected.sum() == most * times
    assert found[16] == 0
    allowed = 4.5 * times * (2 * 0.25 / times) ** 0.5
    assert np.abs(found - expected).max() < allowed
    assert np.abs(found[:16] - most * times / 16).max() > 5 * allowed  # uniform it is not


def test_one_of_two_patches():
    """Class a is in both, b in one: scores of 2 and 3. The lower of 2 u and 3 v is the first one in
    two thirds of the cases."""
    counts = np.array([[7, 0], [2, 9]])
    rng, times = np.random.default_rng(0), 4000
    first = sum(choose_patches(counts, 1, rng)[0] == 0 for _ in range(times))
    assert first / times == pytest.approx(2 / 3, abs=4.5 * (2 / 9 / times) ** 0.5)


def test_rare_classes_are_preferred_but_not_certain():
    counts = np.zeros((100, 2), int)
    counts[:90, 0] = counts[90:, 1] = 16
    taken = np.zeros((300, 100), bool)
    for seed, row in enumerate(taken):
        row[choose_patches(counts, 10, np.random.default_rng(seed))] = True
    rare = taken[:, 90:].sum(1)
    # Scores are below s for s/10 of 10 and for s/90 of 90 patches: 5 of each among the lowest 10.
    assert rare.mean() == pytest.approx(5, abs=0.4)  # 1, if all patches were alike
    assert rare.min() < 5 < rare.max() and not taken.all(0).any() and taken.any(0).sum() > 95


@pytest.mark.parametrize(("memory", "images"), [(1000, 7), (21, 7), (6, 7), (0, 3), (5, 1)])
def test_memory_is_shared_evenly(memory, images):
    made = [even_shares(memory, images, seed) for seed in range(30)]
    for shares in made:
        assert shares.sum() == memory and len(shares) == images
        assert set(shares.tolist()) <= {memory // images, -(-memory // images)}
    np.testing.assert_array_equal(made[0], even_shares(memory, images, 0))
    if memory % images:  # what is left over goes to others with other seeds
        assert (np.ptp(made, axis=0) == 1).all()


def test_a_bank_of_several_images():
    counts = [some_counts(12, 4, seed) for seed in range(4)]
    parts = [
        part_of_bank(c, most, 0, i)
        for i, (c, most) in enumerate(zip(counts, (3, 0, 5, 99), strict=True))
    ]
    bank = joined(parts)
    assert [len(rows) for rows in bank.rows] == [3, 0, 5, (counts[3].sum(1) > 0).sum()]
    assert len(bank) == sum(map(len, bank.rows)) and bank.labels.shape == (len(bank), 4)
    expected = [
        [pixels / sum(counts[i][row]) for pixels in counts[i][row]]
        for i, rows in enumerate(bank.rows)
        for row in rows
    ]
    np.testing.assert_allclose(bank.labels.toarray(), expected, rtol=1e-6)
    np.testing.assert_allclose(bank.labels.toarray().sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(bank.class_shares(), np.mean(expected, 0), rtol=1e-5)
    assert bank.labels.dtype == np.float32


def test_a_bank_without_tokens():
    bank = joined(
        [part_of_bank(some_counts(), 0, 0, 0), part_of_bank(np.zeros((5, 4), int), 9, 0, 1)]
    )
    assert len(bank) == 0 and bank.class_shares().tolist() == [0] * 4


def test_what_is_remembered_of_an_image_depends_on_it_and_on_the_seed_alone():
    counts = some_counts(60)

    def rows(seed, image):
        return part_of_bank(counts, 20, seed, image)[0].tolist()

    assert rows(0, 3) == rows(0, 3)
    assert len({tuple(rows(seed, image)) for seed in range(3) for image in range(3)}) == 9
