"""Heads trained side by side, on sampled pixels: against autograd, AdamW and the loss in full."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from skipbench.evaluations._heads import Heads
from skipbench.evaluations._pixels import LabelledPixels

GRID_HW, SIZE_HW, CHANNELS, CLASSES = (5, 7), (43, 52), 6, 4


def image(seed):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, CLASSES, (4, 5))
    mask = np.kron(coarse, np.ones((11, 11), int))[: SIZE_HW[0], : SIZE_HW[1]].astype(np.uint8)
    mask[random.random(SIZE_HW) < 0.2] = 255
    tokens = torch.from_numpy(random.normal(1, 2, (GRID_HW[0] * GRID_HW[1], CHANNELS))).float()
    return tokens, mask


def make_heads(rates=(1e-3,), decay=1e-2, seed=0):
    tokens = torch.cat([image(i)[0] for i in range(4)])
    return Heads(tokens.mean(0), tokens.std(0), CLASSES, rates, decay, seed)


def full_loss(tokens, mask, weight, bias):
    """Resized and compared in full, by torch."""
    logits = (tokens @ weight + bias).T.reshape(1, -1, *GRID_HW)
    resized = F.interpolate(logits, mask.shape, mode="bilinear", align_corners=False)
    truth = torch.from_numpy(mask.astype(np.int64))[None]
    return F.cross_entropy(resized, truth, ignore_index=255)


def autograd(heads, pairs, head=0):
    """Loss and gradient of one head, by standardising, resizing and back-propagating."""
    mine = slice(head * CLASSES, (head + 1) * CLASSES)
    weight = heads.weight[:, mine].clone().requires_grad_()
    bias = heads.bias[mine].clone().requires_grad_()
    losses = [
        full_loss((tokens - heads.mean) * heads.scale, mask, weight, bias) for tokens, mask in pairs
    ]
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss.item(), weight.grad, bias.grad


def test_every_pixel_is_the_full_loss():
    pairs = [image(seed) for seed in range(3)]
    heads = make_heads(rates=(1e-3, 1e-1))
    heads.weight.normal_(generator=torch.Generator().manual_seed(1))
    samples = [LabelledPixels(mask, GRID_HW).every().sample(GRID_HW, SIZE_HW) for _, mask in pairs]
    found = heads.gradients([tokens for tokens, _ in pairs], samples)
    for head in range(2):
        loss, weight, bias = autograd(heads, pairs, head)
        mine = slice(head * CLASSES, (head + 1) * CLASSES)
        assert found.loss[head].item() == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(found.weight[:, mine], weight, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.bias[mine], bias, rtol=1e-4, atol=1e-6)


def test_in_parts_is_the_same(monkeypatch):
    tokens, mask = image(0)
    sample = LabelledPixels(mask, GRID_HW).every().sample(GRID_HW, SIZE_HW)
    heads = make_heads()
    whole = heads.gradients([tokens], [sample])
    monkeypatch.setattr("skipbench.evaluations._heads.PIXELS_AT_ONCE", 100)
    parts = heads.gradients([tokens], [sample])
    torch.testing.assert_close(parts.weight, whole.weight)
    torch.testing.assert_close(parts.loss, whole.loss)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_sampled_gradient_is_unbiased(stride):
    """The mean of many lies within their standard error of the gradient in full."""
    tokens, mask = image(3)
    heads = make_heads()
    heads.weight.normal_(generator=torch.Generator().manual_seed(1))
    _, exact, _ = autograd(heads, [(tokens, mask)])
    labelled, rng = LabelledPixels(mask, GRID_HW), np.random.default_rng(0)
    drawn = torch.stack(
        [
            heads.gradients(
                [tokens], [labelled.draw(20, stride, rng).sample(GRID_HW, SIZE_HW)]
            ).weight.flatten()
            for _ in range(1500)
        ]
    )
    off = (drawn.mean(0) - exact.flatten()) / (drawn.std(0) / math.sqrt(len(drawn)))
    assert off.abs().max() < 4.5 and 0.6 < off.square().mean().sqrt() < 1.5


def test_weights_stand_for_all_labelled_pixels():
    _, mask = image(1)
    labelled, rng = LabelledPixels(mask, GRID_HW), np.random.default_rng(0)
    assert labelled.every().weights.sum() == pytest.approx(1, rel=1e-6)
    totals = [labelled.draw(16, 2, rng).sample(GRID_HW, SIZE_HW).weights.sum() for _ in range(400)]
    assert np.mean(totals) == pytest.approx(1, abs=0.05)
    drawn = labelled.draw(16, 2, rng)
    assert (mask.ravel()[drawn.places] == drawn.labels).all() and (drawn.labels != 255).all()


def test_a_mask_without_labels_counts_for_nothing():
    tokens, _ = image(0)
    nothing = LabelledPixels(np.full(SIZE_HW, 255, np.uint8), GRID_HW)
    rng = np.random.default_rng(0)
    for drawn in (nothing.draw(64, 2, rng), nothing.every()):
        found = make_heads().gradients([tokens], [drawn.sample(GRID_HW, SIZE_HW)])
        assert not found.weight.any() and not found.loss.any()


def test_side_by_side_is_one_after_the_other():
    """Six rates at once give what six runs of torch's AdamW give, each on its own."""
    rates, decay, steps = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1), 1e-2, 25
    pairs = [image(seed) for seed in range(3)]
    rng = np.random.default_rng(0)
    samples = [
        [LabelledPixels(m, GRID_HW).draw(40, 2, rng).sample(GRID_HW, SIZE_HW) for _, m in pairs]
        for _ in range(steps)
    ]
    shares = [0.5 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)]
    heads = make_heads(rates, decay)
    start = heads.weight[:, :CLASSES].clone()
    for chosen, share in zip(samples, shares, strict=True):
        heads.step(heads.gradients([tokens for tokens, _ in pairs], chosen), share)
    for head, rate in enumerate(rates):
        weight, bias = start.clone().requires_grad_(), torch.zeros(CLASSES, requires_grad=True)
        optimiser = torch.optim.AdamW([weight, bias], lr=rate, weight_decay=decay)
        for chosen, share in zip(samples, shares, strict=True):
            optimiser.param_groups[0]["lr"] = rate * share
            optimiser.zero_grad()
            torch.stack(
                [
                    sampled_loss((tokens - heads.mean) * heads.scale, sample, weight, bias)
                    for (tokens, _), sample in zip(pairs, chosen, strict=True)
                ]
            ).mean().backward()
            optimiser.step()
        mine = slice(head * CLASSES, (head + 1) * CLASSES)
        torch.testing.assert_close(heads.weight[:, mine], weight.detach(), rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(heads.bias[mine], bias.detach(), rtol=2e-4, atol=2e-5)


def sampled_loss(tokens, sample, weight, bias):
    logits = tokens @ weight + bias
    mixed = (sample.shares[..., None] * logits[sample.tokens][:, None]).sum(2)
    losses = F.cross_entropy(mixed.flatten(0, 1), sample.labels.flatten(), reduction="none")
    return (losses * sample.weights.flatten()).sum()


def test_folded_heads_give_the_same_logits():
    tokens, _ = image(0)
    heads = make_heads(rates=(1e-3, 1e-2))
    heads.bias.normal_(generator=torch.Generator().manual_seed(1))
    weight, bias = heads.folded()
    standardised = (tokens - heads.mean) * heads.scale
    expected = standardised @ heads.weight + heads.bias
    torch.testing.assert_close(tokens @ weight + bias, expected, rtol=1e-4, atol=1e-5)


def test_a_channel_that_never_varies_is_harmless():
    mean, deviation = torch.ones(CHANNELS), torch.zeros(CHANNELS)
    heads = Heads(mean, deviation, CLASSES, (1e-2,), 0.0, 0)
    tokens, mask = image(0)
    sample = LabelledPixels(mask, GRID_HW).every().sample(GRID_HW, SIZE_HW)
    heads.step(heads.gradients([tokens], [sample]), 1.0)
    weight, bias = heads.folded()
    assert weight.isfinite().all() and bias.isfinite().all() and not weight.any()


def test_state_goes_on_bit_for_bit():
    tokens, mask = image(0)
    sample = LabelledPixels(mask, GRID_HW).every().sample(GRID_HW, SIZE_HW)
    one, other = make_heads(rates=(1e-3, 1e-2)), make_heads(rates=(1e-3, 1e-2), seed=5)
    for _ in range(3):
        one.step(one.gradients([tokens], [sample]), 1.0)
    other.restore({k: torch.as_tensor(v).clone() for k, v in one.state().items()})
    for heads in (one, other):
        heads.step(heads.gradients([tokens], [sample]), 0.5)
    assert torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)


def test_trained_long_enough_it_is_scikit_learns_optimum():
    """Without weight decay, on overlapping classes: the maximum of the likelihood."""
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(0)
    labels = random.integers(0, 3, (6, 8))
    tokens = torch.from_numpy(np.eye(3)[labels.ravel()] @ random.normal(size=(3, 4)))
    tokens = (tokens + torch.from_numpy(random.normal(0, 1, tokens.shape))).float()
    mask = labels.astype(np.uint8)  # as large as the grid: each pixel is a token
    sample = LabelledPixels(mask, (6, 8)).every().sample((6, 8), (6, 8))
    heads = Heads(tokens.mean(0), tokens.std(0), 3, (3e-2,), 0.0, 0)
    for step in range(3000):
        found = heads.gradients([tokens], [sample])
        heads.step(found, 0.5 * (1 + math.cos(math.pi * step / 3000)))
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
    theirs.fit(tokens.numpy(), labels.ravel())
    weight, bias = heads.folded()
    mine = torch.softmax(tokens @ weight + bias, 1).numpy()
    np.testing.assert_allclose(mine, theirs.predict_proba(tokens.numpy()), atol=2e-3)
