"""Linear classifiers: against torch's own layer and optimiser, and scikit-learn's regression."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from skipbench.evaluations.classify.linear import Training, fit, statistics
from skipbench.evaluations.segmentation.tokens import randomness

CLASSES, IMAGES, WIDTH = 5, 130, 7
HOW = Training(rates=(0.01, 0.1), epochs=6, batch=32, standardise=False, seed=3)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, WIDTH))
    labels = rng.integers(0, CLASSES, IMAGES)
    vectors = centres[labels] + 1.5 * rng.standard_normal((IMAGES, WIDTH))
    return (vectors * np.arange(1, WIDTH + 1) + 3).astype(np.float32), labels


def logits_of(made, vectors, head):
    weight, bias = made.head(head)
    return vectors @ weight.numpy() + bias.numpy()


def by_torch(vectors, labels, how, rate, left_out=()):
    """torch.nn.Linear, SGD with momentum 0.9, cosine from step to step, the same batches."""
    layer = torch.nn.Linear(WIDTH, CLASSES)
    start = 0.01 * torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(how.seed))
    layer.weight.data, layer.bias.data = start.T.clone(), torch.zeros(CLASSES)
    optimiser = torch.optim.SGD(layer.parameters(), rate * how.batch / 256, momentum=0.9)
    per_epoch = math.ceil(len(vectors) / how.batch)
    steps = how.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    for epoch in range(how.epochs):
        order = randomness("order", how.seed, epoch).permutation(len(vectors))
        for batch in np.split(order, range(how.batch, len(order), how.batch)):
            batch = [image for image in batch if image not in left_out]
            x, y = torch.from_numpy(vectors[batch]), torch.from_numpy(labels[batch])
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(layer(x), y).backward()
            optimiser.step()
            schedule.step()
    with torch.inference_mode():
        return layer(torch.from_numpy(vectors)).numpy()


def test_as_torch(data):
    vectors, labels = data
    made = fit(vectors, labels, CLASSES, HOW)
    assert len(made.held_out) == 13
    for head, rate in enumerate(HOW.rates):
        expected = by_torch(vectors, labels, HOW, rate)
        assert np.allclose(logits_of(made, vectors, head), expected, atol=2e-3)
        expected = by_torch(vectors, labels, HOW, rate, set(made.held_out.tolist()))
        assert np.allclose(logits_of(made, vectors, 2 + head), expected, atol=2e-3)


def test_as_scikit_learn(data):
    """Trained for long without regularisation, both find the same probabilities."""
    vectors, labels = data
    long = replace(HOW, rates=(1.0,), epochs=2000, batch=IMAGES, standardise=True)
    made = fit(vectors, labels, CLASSES, long)
    logits = logits_of(made, vectors, 0)
    mine = np.exp(logits - logits.max(1, keepdims=True))
    mine /= mine.sum(1, keepdims=True)
    scaled = (vectors - vectors.mean(0)) / vectors.std(0)
    theirs = LogisticRegression(C=np.inf, max_iter=10_000, tol=1e-8).fit(scaled, labels)
    expected = theirs.predict_proba(scaled)
    assert np.mean(mine.argmax(1) == expected.argmax(1)) > 0.98
    loss, least = (
        -np.log(p[np.arange(IMAGES), labels]).mean() for p in (mine, expected)
    )  # fmt: skip
    assert loss == pytest.approx(least, abs=0.01) and 0.1 < least < 1.2


def test_rates_do_not_affect_each_other(data):
    vectors, labels = data
    both = fit(vectors, labels, CLASSES, HOW)
    more = fit(vectors, labels, CLASSES, replace(HOW, rates=(0.01, 0.03, 0.1)))
    for mine, theirs in ((0, 0), (1, 2)):
        assert np.allclose(both.head(mine)[0], more.head(theirs)[0], atol=1e-5)


def test_resumed_it_ends_the_same(data):
    vectors, labels = data
    kept = []

    def keep(state, losses):
        kept.append({name: value.clone() for name, value in state.items()})

    whole = fit(vectors, labels, CLASSES, HOW, after_epoch=keep)
    again = fit(vectors, labels, CLASSES, HOW, state=kept[2])
    assert torch.equal(whole.weight, again.weight) and torch.equal(whole.bias, again.bias)
    assert whole.loss == again.loss
    done = fit(vectors, labels, CLASSES, HOW, state=kept[-1])
    assert torch.equal(whole.weight, done.weight) and whole.loss == done.loss


def test_half_precision_is_what_is_stored(data):
    vectors, labels = data
    half = vectors.astype(np.float16)
    made, expected = (fit(v, labels, CLASSES, HOW) for v in (half, half.astype(np.float32)))
    assert torch.equal(made.weight, expected.weight)


def test_channels_that_do_not_vary(data):
    vectors, labels = data
    vectors = np.concatenate([vectors, np.full((IMAGES, 1), 5, np.float32)], axis=1)
    mean, scale = statistics(vectors)
    assert np.allclose(mean, vectors.mean(0), atol=1e-5) and scale[-1] == 0
    assert np.allclose(1 / scale[:-1], vectors.std(0)[:-1], rtol=1e-4)
    made = fit(vectors, labels, CLASSES, replace(HOW, standardise=True))
    assert made.weight[-1].abs().max() == 0


def test_too_high_a_rate(data):
    vectors, labels = data
    """It is a poor one, and no more; the highest that the option takes."""
    made = fit(vectors, labels, CLASSES, replace(HOW, rates=(0.01, 1e6)))
    ranks, _ = made.ranks(vectors, labels, made.full)
    assert made.weight.isfinite().all() and np.isfinite(made.loss).all()
    assert ranks.shape == (2, IMAGES)


def test_nothing_is_held_out_for_one_rate_or_image():
    assert len(replace(HOW, rates=(0.1,)).held_out(100)) == len(HOW.held_out(1)) == 0
    assert len(HOW.held_out(100)) == 10 and len(HOW.held_out(2)) == 1
    assert not np.array_equal(HOW.held_out(100), replace(HOW, seed=4).held_out(100))


def test_fewer_images_than_a_batch(data):
    vectors, labels = data
    made = fit(vectors[:9], labels[:9], CLASSES, replace(HOW, batch=1024))
    assert len(made.loss) == 4 and len(made.held_out) == 1
