"""The linear probe on arrays: training and scoring against other libraries, what is reported."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from skipbench.datasets import open_dataset
from skipbench.errors import NumbersError
from skipbench.evaluations.probe.method import (
    Draws,
    Trained,
    fit,
    held_out_images,
    score,
    statistics,
)
from skipbench.evaluations.probe.record import metrics
from skipbench.evaluations.probe.settings import PROTOCOLS, TrainingPlan
from skipbench.evaluations.segmentation.tokens import Grid, ImageTokens, TokenMap, predict
from skipbench.images import resize_mask

CLASSES = 4
QUICK = replace(PROTOCOLS["paper"], epochs=4, batch=3, rates=(1e-3, 1e-1), loss_pixels=64)


class Arrays:
    """Images that are arrays: tokens that carry the class under them, and noise."""

    def __init__(self, count=8, classes=CLASSES, channels=6, noise=0.3, seed=0, grid_hw=(5, 7)):
        random = np.random.default_rng(seed)
        means = np.random.default_rng(99).normal(size=(classes, channels))
        self.grid_hw = grid_hw
        self.masks, self.values = [], []
        for i in range(count):
            coarse = random.integers(0, classes, grid_hw)
            self.values.append(
                (
                    means[coarse.ravel()] + noise * random.normal(size=(coarse.size, channels))
                ).astype(np.float16)
            )
            mask = resize_mask(coarse.astype(np.uint8), (30 + i, 45))
            mask[random.random(mask.shape) < 0.1] = 255
            self.masks.append(mask)

    def __len__(self):
        return len(self.masks)

    def grid(self, image):
        return Grid(self.grid_hw, tuple(map(float, self.grid_hw)))

    def tokens(self, image, rows=None):
        return self.values[image] if rows is None else self.values[image][rows]

    def mask(self, image):
        return self.masks[image]

    def image_tokens(self, image):
        return ImageTokens([TokenMap(self.grid(image), self.tokens(image))])


def trained_on(images, protocol=QUICK, seed=0, **more):
    return fit(lambda epoch: images, len(images), CLASSES, protocol, seed, **more)


def plain_prediction(tokens, grid_hw, size_hw, weight, bias):
    logits = (torch.from_numpy(tokens).float() @ weight + bias).T.reshape(1, -1, *grid_hw)
    return F.interpolate(logits, size_hw, mode="bilinear", align_corners=False).argmax(1)[0].numpy()


# -- training


def test_it_learns_what_tokens_carry():
    images, other = Arrays(12), Arrays(6, seed=1)
    trained = trained_on(images, replace(QUICK, epochs=20))
    counts = score(other, *trained.heads(trained.full), CLASSES)
    found = metrics(trained, counts, None, list("abcd"))
    assert found["miou"] > 80 and found["rate"] == 1e-1
    assert trained.loss[1] < trained.loss[0]


def test_the_same_seed_gives_the_same_heads_another_one_others():
    images = Arrays()
    one, two, other = trained_on(images), trained_on(images), trained_on(images, seed=1)
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)
    assert not torch.equal(one.weight, other.weight) and one.held_out != other.held_out


@pytest.mark.parametrize("stop", [0, 2, 3])
@pytest.mark.parametrize("name", ["paper", "dinov2", "leopart"])
def test_training_goes_on_bit_for_bit(stop, name):
    """Stopped after any epoch and taken up again: the very same heads. Also where a mask is
    decoded anew, because not all epochs were drawn at once."""
    protocol = replace(PROTOCOLS[name], epochs=4, steps=None, batch=3, loss_pixels=64)
    images, states = Arrays(), {}

    def keep(epoch, state, losses):
        states[epoch] = {key: value.clone() for key, value in state.items()}

    whole = trained_on(images, protocol, after_epoch=keep)
    later = trained_on(images, protocol, state=states[stop], drawn_bytes=1)
    assert torch.equal(whole.weight, later.weight) and torch.equal(whole.bias, later.bias)
    assert whole.loss == pytest.approx(later.loss) and whole.finite == later.finite


def test_heads_that_choose_know_nothing_of_the_labels_held_out():
    """Change the held-out images' masks: the heads that choose stay as they are, the others not."""
    images = Arrays(12)
    before = trained_on(images)
    assert len(before.held_out) == 1 and len(before.finite) == 4
    for i in before.held_out:
        images.masks[i] = np.where(images.masks[i] == 255, 255, 0).astype(np.uint8)
    after = trained_on(images)
    assert after.held_out == before.held_out
    for which, same in ((before.choosing, True), (before.full, False)):
        assert torch.equal(before.heads(which)[0], after.heads(which)[0]) == same


def test_held_out_images_are_spread_over_the_batches_of_every_epoch():
    for count, seed in ((1464, 0), (3000, 1)):
        held_out = set(held_out_images(count, 6, seed))
        assert len(held_out) == round(count / 10)
        course = PROTOCOLS["paper"].training_plan(count, seed)
        for epoch in range(5):
            most = max(sum(i in held_out for i in batch) for batch in course.batches(epoch))
            assert most < 10


def test_statistics_against_numpy():
    images = Arrays(5)
    for values in images.values:
        values += 50  # large means must not drown small deviations
    mean, deviation = statistics(images)
    every = np.concatenate(images.values).astype(np.float64)
    np.testing.assert_allclose(mean, every.mean(0), rtol=1e-6)
    np.testing.assert_allclose(deviation, every.std(0), rtol=1e-4)


def test_one_rate_needs_no_holding_out():
    trained = trained_on(Arrays(), replace(QUICK, rates=(1e-2,)))
    assert trained.held_out == () and trained.weight.shape[1] == CLASSES


def test_rates_that_are_too_high_are_told_apart():
    wild = replace(QUICK, rates=(1e-2, 1e38), optimiser=PROTOCOLS["leopart"].optimiser)
    trained = trained_on(Arrays(), wild)
    assert trained.finite[:2] == (True, False) and trained.weight.isfinite().all()
    counts = score(Arrays(), *trained.heads(trained.full), CLASSES)
    found = metrics(trained, counts, counts, list("abcd"))
    assert found["rate"] == 1e-2 and found["rates"][1]["miou"] is None
    with pytest.raises(NumbersError, match="lower"):
        trained_on(Arrays(), replace(wild, rates=(1e38,)))


# -- courses


@pytest.mark.parametrize("images", [1, 2, 15, 16, 17, 100])
def test_every_image_once_an_epoch(images):
    course = PROTOCOLS["paper"].training_plan(images, seed=0)
    assert course.epochs == 30
    for epoch in (0, 29):
        batches = course.batches(epoch)
        assert sorted(np.concatenate(batches)) == list(range(images))
        assert max(map(len, batches)) <= 16 and len(batches) == course.steps_per_epoch


def test_a_number_of_steps_ends_in_the_middle_of_an_epoch():
    course = PROTOCOLS["dinov2"].training_plan(1464, seed=0)
    assert course.steps == 40_000 and course.warm_up == 1500
    assert sum(len(course.batches(e)) for e in range(course.epochs)) == 40_000
    assert len(course.batches(course.epochs - 1)) < course.steps_per_epoch


def test_schedules():
    def factor(step, schedule, warm_up=0):
        return TrainingPlan(16, 16, 100, schedule, 64, 0, warm_up).rate_factor(step)

    assert factor(0, "cosine") == 1
    assert factor(50, "cosine") == pytest.approx(0.5)
    assert factor(25, "poly") == pytest.approx(0.75)
    assert factor(79, "step") == 1
    assert factor(80, "step") == pytest.approx(0.1)
    assert factor(0, "poly", warm_up=10) == pytest.approx(1e-6)
    assert factor(5, "poly", warm_up=10) == pytest.approx(0.5 * 0.95)
    assert factor(10, "poly", warm_up=10) == pytest.approx(0.9)


def test_draws_depend_on_seed_image_and_epoch_alone():
    images = Arrays(4)
    course = replace(PROTOCOLS["paper"], epochs=3, loss_pixels=32).training_plan(4, seed=5)
    order = [(i, e) for e in range(3) for i in range(4)]
    one = {key: Draws(course).of(images, *key, False) for key in order}
    draws = Draws(course)
    two = {(i, e): draws.of(images, i, e, False) for i, e in order}
    assert all(np.array_equal(one[k].places, two[k].places) for k in order)
    assert not np.array_equal(one[0, 0].places, one[0, 1].places)


# -- scoring


def test_scores_are_those_of_interpolate_and_argmax_and_scikit_learn():
    from sklearn.metrics import confusion_matrix, jaccard_score

    images = Arrays(5)
    trained = trained_on(images)
    weight, bias = trained.heads(trained.full)
    counts = score(images, weight, bias, CLASSES)
    found = metrics(trained, counts, None, list("abcd"))
    for head in range(2):
        mine = slice(head * CLASSES, (head + 1) * CLASSES)
        truth, guess = [], []
        for image, mask in enumerate(images.masks):
            prediction = plain_prediction(
                images.values[image], images.grid_hw, mask.shape, weight[:, mine], bias[mine]
            )
            counted = mask != 255
            truth.append(mask[counted])
            guess.append(prediction[counted])
        truth, guess = np.concatenate(truth), np.concatenate(guess)
        matrix = confusion_matrix(truth, guess, labels=range(CLASSES))
        total = counts[:, head].sum(0)
        np.testing.assert_array_equal(total[0], np.diag(matrix))
        np.testing.assert_array_equal(total[1:], [matrix.sum(0), matrix.sum(1)])
        expected = 100 * jaccard_score(truth, guess, average="macro")
        assert found["rates"][head]["miou"] == pytest.approx(expected)


def test_only_some_images_and_in_parts():
    images = Arrays(5)
    weight = torch.randn(6, 5 * CLASSES, generator=torch.Generator().manual_seed(0))
    bias = torch.zeros(5 * CLASSES)
    whole = score(images, weight, bias, CLASSES)
    np.testing.assert_array_equal(score(images, weight, bias, CLASSES, (3, 0)), whole[[3, 0]])
    for image in range(5):
        given = images.image_tokens(image), images.masks[image].shape, weight, bias, CLASSES
        together, parts = predict(*given), predict(*given, heads_at_once=2)
        np.testing.assert_array_equal(list(together), list(parts))
    assert score(images, weight, bias, CLASSES, ()).shape == (0, 5, 3, CLASSES)


# -- what is reported


def made_up(rates=(1e-3, 1e-2, 1e-1)):
    heads = 2 * len(rates)
    weight, bias = torch.zeros(2, heads * 2), torch.zeros(heads * 2)
    return Trained(rates, 2, weight, bias, (0,), (1.0,) * heads, (True,) * heads)


def counts_of(*right):
    """(3 images, rates, 3, 2 classes): so many of 10 pixels of each class are right."""
    one = [[[r, r], [10, 10], [10, 10]] for r in right]
    return np.array([one] * 3, np.int32)


def test_both_choices_are_reported():
    trained = made_up()
    val, holdout = counts_of(3, 9, 6), counts_of(2, 4, 8)
    found = metrics(trained, val, holdout, ["a", "b"])
    assert found["rate"] == 1e-2 and found["selected_on"] == "val" and found["edge"] is None
    assert found["chosen"]["val"]["rate"] == 1e-2
    # The rate that was best on held-out images; the figure is that rate's on validation images.
    assert found["chosen"]["holdout"]["rate"] == 1e-1
    assert found["chosen"]["holdout"]["miou"] == pytest.approx(100 * 6 / 14)
    honest = metrics(trained, val, holdout, ["a", "b"], select="holdout")
    assert honest["rate"] == 1e-1 and honest["miou"] == pytest.approx(100 * 6 / 14)
    assert honest["edge"] == "highest" and honest["selected_on"] == "holdout"


@pytest.mark.parametrize(("right", "edge"), [((9, 4, 3), "lowest"), ((3, 4, 9), "highest")])
def test_a_winner_at_the_edge_is_said(right, edge):
    assert metrics(made_up(), counts_of(*right), None, ["a", "b"])["edge"] == edge


def test_a_choosing_head_that_diverged_or_has_no_label_chooses_nothing():
    trained = replace(made_up(), finite=(True, True, True, True, True, False))
    val, holdout = counts_of(3, 9, 6), counts_of(2, 4, 8)
    found = metrics(trained, val, holdout, ["a", "b"])
    assert found["chosen"]["holdout"]["rate"] == 1e-2 and found["rates"][2]["holdout_miou"] is None
    found = metrics(made_up(), val, np.zeros_like(holdout), ["a", "b"], select="holdout")
    assert found["chosen"]["holdout"] is None and found["selected_on"] == "val"


def test_equal_rates_the_lower_one_is_taken():
    assert metrics(made_up(), counts_of(5, 5, 5), None, ["a", "b"])["rate"] == 1e-3


def test_absent_classes():
    trained = made_up((1e-2,))
    counts = np.zeros((3, 1, 3, 2), np.int32)
    counts[:, :, :, 0] = 4
    found = metrics(trained, counts, None, ["a", "b"])
    assert found["miou"] == 100 and found["absent_classes"] == ["b"]
    assert found["per_class"] == {"a": 100.0, "b": None}
    assert metrics(trained, counts, None, ["a", "b"], absent="zero")["miou"] == 50


def test_the_interval_holds_the_score_and_is_wider_for_fewer_images():
    images = Arrays(30, noise=1.5)
    trained = trained_on(images)
    counts = score(images, *trained.heads(trained.full), CLASSES)

    def width(part):
        found = metrics(trained, part, None, list("abcd"))
        low, high = found["interval"]
        assert low < found["miou"] < high
        return high - low

    assert width(counts[:5]) > 1.3 * width(counts)


# -- on the embedded data set


class Shapes:
    """`shapes` with tokens that carry the class: the share of each class in a patch, and noise."""

    def __init__(self, split, count, shuffled=False, grid_hw=(14, 18)):
        self.data = open_dataset("shapes", split, limit=count)
        self.grid_hw = grid_hw
        random = np.random.default_rng(len(split))
        self.values = []
        for item in self.data:
            mask = item.mask()
            fine = resize_mask(mask, (4 * grid_hw[0], 4 * grid_hw[1]))
            shares = np.eye(len(self.data.classes))[np.minimum(fine, 6)]
            shares = shares.reshape(grid_hw[0], 4, grid_hw[1], 4, -1).mean((1, 3))
            self.values.append(shares.reshape(-1, shares.shape[-1]))
        every = np.stack(self.values)
        if shuffled:  # over all images: within one they would still tell which classes it has
            every = random.permutation(every.reshape(-1, every.shape[-1])).reshape(every.shape)
        self.values = (every + 0.05 * random.normal(size=every.shape)).astype(np.float16)

    grid, tokens = Arrays.grid, Arrays.tokens
    image_tokens = Arrays.image_tokens

    def __len__(self):
        return len(self.data)

    def mask(self, image):
        return self.data[image].mask()


@pytest.mark.parametrize("shuffled", [False, True])
def test_shapes(shuffled):
    """Tokens that carry the class score above 95, the same tokens in another order at chance."""
    train, val = Shapes("train", 40, shuffled), Shapes("val", 20, shuffled)
    classes = len(train.data.classes)
    protocol = replace(PROTOCOLS["paper"], epochs=15, rates=(3e-2, 1e-1))
    trained = fit(lambda epoch: train, len(train), classes, protocol, 0)
    counts = score(val, *trained.heads(trained.full), classes)
    held_out = score(train, *trained.heads(trained.choosing), classes, trained.held_out)
    found = metrics(trained, counts, held_out, train.data.classes)
    if not shuffled:
        assert found["miou"] > 95 and found["chosen"]["holdout"]["miou"] > 95
        return
    # Nothing can be known: at best everything is called background, the most frequent class.
    true = counts[:, 0, 2].sum(0)
    assert found["miou"] <= 100 * true.max() / true.sum() / classes + 2
