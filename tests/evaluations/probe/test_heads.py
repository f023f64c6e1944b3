"""Heads trained side by side, on sampled pixels: against autograd, AdamW and the loss in full."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from skipbench.evaluations.probe.heads import Heads, LabelledPixels
from skipbench.evaluations.probe.method import batch_statistics
from skipbench.evaluations.probe.settings import Optimiser
from skipbench.evaluations.segmentation.tokens import Grid

GRID_HW, SIZE_HW, CHANNELS, CLASSES = (5, 7), (43, 52), 6, 4
GRID = Grid(GRID_HW, (5.0, 7.0))


def image(seed):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, CLASSES, (4, 5))
    mask = np.kron(coarse, np.ones((11, 11), int))[: SIZE_HW[0], : SIZE_HW[1]].astype(np.uint8)
    mask[random.random(SIZE_HW) < 0.2] = 255
    tokens = torch.from_numpy(random.normal(1, 2, (GRID_HW[0] * GRID_HW[1], CHANNELS))).float()
    return tokens, mask


def make_heads(
    rates=(1e-3,), decay=1e-2, seed=0, optimiser="adamw", normalisation="standardise", **more
):
    tokens = torch.cat([image(i)[0] for i in range(4)])
    how = Optimiser(optimiser, decay)
    return Heads(tokens.mean(0), tokens.std(0), CLASSES, rates, how, seed, normalisation, **more)


def gradients(heads, tokens, pixels, counted=None):
    """Of whole images: the tokens that the pixels need are picked here."""
    picked = [t[torch.from_numpy(p.corners())] for t, p in zip(tokens, pixels, strict=True)]
    found = batch_statistics(torch.cat(list(tokens)).numpy())
    return heads.gradients(picked, pixels, counted, list(map(torch.from_numpy, found)))


def every(mask):
    return LabelledPixels(mask, GRID).every()


def draw(mask, pixels, rng, stride=2):
    return LabelledPixels(mask, GRID).draw(pixels, rng, stride)


def standardised(heads, tokens):
    return (tokens - heads.mean) / heads.deviation


def full_loss(tokens, masks, weight, bias):
    """Of a batch, resized and compared in full, by torch."""
    logits = torch.stack([(t @ weight + bias).T.reshape(-1, *GRID_HW) for t in tokens])
    resized = F.interpolate(logits, SIZE_HW, mode="bilinear", align_corners=False)
    truth = torch.from_numpy(np.stack(masks).astype(np.int64))
    return F.cross_entropy(resized, truth, ignore_index=255)


def autograd(heads, pairs, head=0):
    """Loss and gradient of one head, by standardising, resizing and back-propagating."""
    mine = slice(head * CLASSES, (head + 1) * CLASSES)
    weight = heads.parameters["weight"][:, mine].clone().requires_grad_()
    bias = heads.parameters["bias"][mine].clone().requires_grad_()
    tokens = [standardised(heads, tokens) for tokens, _ in pairs]
    loss = full_loss(tokens, [mask for _, mask in pairs], weight, bias)
    loss.backward()
    return loss.item(), weight.grad, bias.grad


def test_every_pixel_is_the_full_loss():
    pairs = [image(seed) for seed in range(3)]
    pairs[1][1][:20] = 255  # one image has fewer labels, and weighs less
    heads = make_heads(rates=(1e-3, 1e-1))
    heads.parameters["weight"].normal_(generator=torch.Generator().manual_seed(1))
    samples = [every(mask) for _, mask in pairs]
    found = gradients(heads, [tokens for tokens, _ in pairs], samples)
    for head in range(2):
        loss, weight, bias = autograd(heads, pairs, head)
        mine = slice(head * CLASSES, (head + 1) * CLASSES)
        assert found.loss[head].item() == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(found.of["weight"][:, mine], weight, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.of["bias"][mine], bias, rtol=1e-4, atol=1e-6)


def test_in_parts_is_the_same():
    tokens, mask = image(0)
    sample = every(mask)
    whole = gradients(make_heads(), [tokens], [sample])
    parts = gradients(make_heads(logits_at_once=100, rows_at_once=1), [tokens], [sample])
    torch.testing.assert_close(parts.of["weight"], whole.of["weight"])
    torch.testing.assert_close(parts.loss, whole.loss)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_sampled_gradient_is_unbiased(stride):
    """The mean of many lies within their standard error of the gradient in full."""
    tokens, mask = image(3)
    heads = make_heads()
    heads.parameters["weight"].normal_(generator=torch.Generator().manual_seed(1))
    _, exact, _ = autograd(heads, [(tokens, mask)])
    labelled, rng = LabelledPixels(mask, GRID), np.random.default_rng(0)
    drawn = torch.stack(
        [
            gradients(heads, [tokens], [labelled.draw(20, rng, stride)]).of["weight"].flatten()
            for _ in range(1500)
        ]
    )
    off = (drawn.mean(0) - exact.flatten()) / (drawn.std(0) / math.sqrt(len(drawn)))
    assert off.abs().max() < 4.5 and 0.6 < off.square().mean().sqrt() < 1.5


def total_weight(drawn):
    return sum(sample.weights.sum().item() for sample in drawn.samples(100))


def test_weights_stand_for_all_labelled_pixels():
    _, mask = image(1)
    labelled, rng = LabelledPixels(mask, GRID), np.random.default_rng(0)
    share = (mask != 255).mean()
    assert labelled.every().labelled == pytest.approx(share)
    assert total_weight(labelled.every()) == pytest.approx(share, rel=1e-5)
    totals = [total_weight(labelled.draw(16, rng, 2)) for _ in range(400)]
    assert np.mean(totals) == pytest.approx(share, rel=0.05)
    drawn = labelled.draw(16, rng, 2)
    assert (mask.ravel()[drawn.places] == drawn.labels).all() and (drawn.labels != 255).all()


@pytest.mark.parametrize("grid_hw", [(1, 1), (2, 3), (2, 200), (1, 9)])
def test_small_and_narrow_grids(grid_hw):
    """Every draw has pixels, and on average they stand for all."""
    grid = Grid(grid_hw, tuple(map(float, grid_hw)))
    mask = np.zeros((20, 230), np.uint8)
    labelled, rng = LabelledPixels(mask, grid), np.random.default_rng(0)
    drawn = [labelled.draw(64, rng) for _ in range(200)]
    assert all(len(d.cells) for d in drawn)
    assert np.mean(list(map(total_weight, drawn))) == pytest.approx(1, abs=0.1)


def test_a_mask_without_labels_counts_for_nothing():
    tokens, _ = image(0)
    nothing = LabelledPixels(np.full(SIZE_HW, 255, np.uint8), GRID)
    rng = np.random.default_rng(0)
    for drawn in (nothing.draw(64, rng, 2), nothing.every()):
        heads = make_heads()
        for _ in range(2):  # also once there is momentum
            heads.step(gradients(heads, [image(1)[0]], [every(image(1)[1])]), 1.0)
            before = heads.parameters["weight"].clone()
            found = gradients(heads, [tokens], [drawn])
            assert not found.of["weight"].any() and not found.loss.any()
            heads.step(found, 1.0)
            assert torch.equal(heads.parameters["weight"], before)


RATES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
STEPS = 25
SHARES = [0.5 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)]


def drawn_steps(pairs):
    rng = np.random.default_rng(0)
    return [[draw(mask, 40, rng) for _, mask in pairs] for _ in range(STEPS)]


def by_torch(make_optimiser, rate, start, pairs, steps, inputs):
    """One rate on its own: autograd and torch's optimiser."""
    weight, bias = start.clone().requires_grad_(), torch.zeros(CLASSES, requires_grad=True)
    optimiser = make_optimiser([weight, bias], rate)
    for chosen, share in zip(steps, SHARES, strict=True):
        optimiser.param_groups[0]["lr"] = rate * share
        optimiser.zero_grad()
        batch_loss(
            [
                inputs(t)[p.corners()] @ weight + bias
                for (t, _), p in zip(pairs, chosen, strict=True)
            ],
            chosen,
        ).backward()
        optimiser.step()
    return weight.detach(), bias.detach()


def assert_head(heads, head, weight, bias):
    mine = slice(head * CLASSES, (head + 1) * CLASSES)
    found = heads.parameters
    torch.testing.assert_close(found["weight"][:, mine], weight, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(found["bias"][mine], bias, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize("normalisation", ["standardise", "none"])
def test_side_by_side_is_one_after_the_other(optimiser, normalisation):
    """Six rates at once give what six runs of torch's optimiser give, each on its own."""
    decay = 1e-2
    pairs = [image(seed) for seed in range(3)]
    steps = drawn_steps(pairs)
    heads = make_heads(RATES, decay, optimiser=optimiser, normalisation=normalisation)
    start = heads.parameters["weight"][:, :CLASSES].clone()
    for chosen, share in zip(steps, SHARES, strict=True):
        heads.step(gradients(heads, [tokens for tokens, _ in pairs], chosen), share)

    def theirs(parameters, rate):
        if optimiser == "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=decay)

    def inputs(tokens):
        return standardised(heads, tokens) if normalisation == "standardise" else tokens

    for head, rate in enumerate(RATES):
        assert_head(heads, head, *by_torch(theirs, rate, start, pairs, steps, inputs))


def test_a_head_that_does_not_count_an_image_has_never_seen_it():
    """Two heads of one rate: one learns from all images, the other not from the second."""
    pairs = [image(seed) for seed in range(3)]
    steps = drawn_steps(pairs)
    heads = make_heads((1e-2, 1e-2))
    start = heads.parameters["weight"][:, :CLASSES].clone()
    counted = torch.tensor([[True, True], [True, False], [True, True]])
    for chosen, share in zip(steps, SHARES, strict=True):
        heads.step(gradients(heads, [tokens for tokens, _ in pairs], chosen, counted), share)

    def theirs(parameters, rate):
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-2)

    for head, kept in ((0, [0, 1, 2]), (1, [0, 2])):
        some = [[chosen[i] for i in kept] for chosen in steps]
        found = by_torch(
            theirs, 1e-2, start, [pairs[i] for i in kept], some, lambda t: standardised(heads, t)
        )
        assert_head(heads, head, *found)


def test_batch_norm_is_torchs():
    """BatchNorm1d and Linear under AdamW, one rate after the other, on the very tokens drawn."""
    decay, rates = 1e-2, (1e-3, 3e-2)
    pairs = [image(seed) for seed in range(3)]
    steps = drawn_steps(pairs)
    heads = Heads(
        torch.zeros(CHANNELS), torch.ones(CHANNELS), CLASSES, rates,
        Optimiser("adamw", decay), 0, "batch norm",
    )  # fmt: skip
    start = heads.parameters["weight"][:, :CLASSES].clone()
    for chosen, share in zip(steps, SHARES, strict=True):
        heads.step(gradients(heads, [tokens for tokens, _ in pairs], chosen), share)
    tokens = pairs[0][0]
    weight, bias = heads.folded()
    mine = (tokens @ weight + bias).unflatten(1, (len(rates), CLASSES))
    for head, rate in enumerate(rates):
        norm, linear = torch.nn.BatchNorm1d(CHANNELS), torch.nn.Linear(CHANNELS, CLASSES)
        linear.weight.data.copy_(start.T)
        linear.bias.data.zero_()
        both = [*norm.parameters(), *linear.parameters()]
        optimiser = torch.optim.AdamW(both, lr=rate, weight_decay=decay)
        for chosen, share in zip(steps, SHARES, strict=True):
            optimiser.param_groups[0]["lr"] = rate * share
            optimiser.zero_grad()
            every_token = norm(torch.cat([tokens for tokens, _ in pairs])).split(35)
            logits = [linear(t)[p.corners()] for t, p in zip(every_token, chosen, strict=True)]
            batch_loss(logits, chosen).backward()
            optimiser.step()
        norm.eval()
        expected = linear(norm(tokens)).detach()
        torch.testing.assert_close(mine[:, head], expected, rtol=1e-3, atol=1e-4)


def batch_loss(logits, pixels):
    """logits: of each image, at the corners of its cells, (cells × 4, classes)."""
    total = 0.0
    for corners, drawn in zip(logits, pixels, strict=True):
        [sample] = drawn.samples(10**6)
        mixed = (sample.shares[..., None] * corners.view(-1, 4, CLASSES)[:, None]).sum(2)
        losses = F.cross_entropy(mixed.flatten(0, 1), sample.labels.flatten(), reduction="none")
        total = total + (losses * sample.weights.flatten()).sum()
    return total / sum(drawn.labelled for drawn in pixels)


def test_folded_heads_give_the_same_logits():
    tokens, _ = image(0)
    heads = make_heads(rates=(1e-3, 1e-2))
    heads.parameters["bias"].normal_(generator=torch.Generator().manual_seed(1))
    weight, bias = heads.folded()
    expected = standardised(heads, tokens) @ heads.parameters["weight"] + heads.parameters["bias"]
    torch.testing.assert_close(tokens @ weight + bias, expected, rtol=1e-4, atol=1e-5)


def test_a_channel_that_never_varies_is_harmless():
    mean, deviation = torch.ones(CHANNELS), torch.zeros(CHANNELS)
    heads = Heads(mean, deviation, CLASSES, (1e-2,), Optimiser(weight_decay=0.0), 0)
    tokens, mask = image(0)
    sample = every(mask)
    heads.step(gradients(heads, [tokens], [sample]), 1.0)
    weight, bias = heads.folded()
    assert weight.isfinite().all() and bias.isfinite().all() and not weight.any()


def test_state_goes_on_bit_for_bit():
    tokens, mask = image(0)
    sample = every(mask)
    one, other = make_heads(rates=(1e-3, 1e-2)), make_heads(rates=(1e-3, 1e-2), seed=5)
    for _ in range(3):
        one.step(gradients(one, [tokens], [sample]), 1.0)
    other.restore({name: value.clone() for name, value in one.state().items()})
    for heads in (one, other):
        heads.step(gradients(heads, [tokens], [sample]), 0.5)
    assert all(torch.equal(one.parameters[name], other.parameters[name]) for name in one.parameters)


def test_trained_long_enough_it_is_scikit_learns_optimum():
    """Without weight decay, on overlapping classes: the maximum of the likelihood."""
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(0)
    labels = random.integers(0, 3, (6, 8))
    tokens = torch.from_numpy(np.eye(3)[labels.ravel()] @ random.normal(size=(3, 4)))
    tokens = (tokens + torch.from_numpy(random.normal(0, 1, tokens.shape))).float()
    mask = labels.astype(np.uint8)  # as large as the grid: each pixel is a token
    grid = Grid((6, 8), (6.0, 8.0))
    sample = LabelledPixels(mask, grid).every()
    heads = Heads(tokens.mean(0), tokens.std(0), 3, (3e-2,), Optimiser(weight_decay=0.0), 0)
    for step in range(1500):
        found = gradients(heads, [tokens], [sample])
        heads.step(found, 0.5 * (1 + math.cos(math.pi * step / 1500)))
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
    theirs.fit(tokens.numpy(), labels.ravel())
    weight, bias = heads.folded()
    mine = torch.softmax(tokens @ weight + bias, 1).numpy()
    np.testing.assert_allclose(mine, theirs.predict_proba(tokens.numpy()), atol=2e-3)


@pytest.mark.parametrize("times", [1, 2])
def test_padding_beyond_the_picture_is_cut_off(times):
    """Tokens of a padded picture: as if resized to the padded size, and the padding cut off."""
    patch, picture_hw, grid_hw = 10, (55, 74), (6, 8)
    grid = Grid(grid_hw, (5.5, 7.4))
    mask = np.zeros((times * 55, times * 74), np.uint8)
    drawn = LabelledPixels(mask, grid).every()
    [sample] = drawn.samples(10**6)
    values = torch.randn(48, generator=torch.Generator().manual_seed(0))
    mixed = (sample.shares * values[drawn.corners()].view(-1, 1, 4)).sum(2)
    padded_hw = [times * patch * side for side in grid_hw]
    whole = F.interpolate(values.view(1, 1, *grid_hw), padded_hw, mode="bilinear")[0, 0]
    expected = whole[: times * picture_hw[0], : times * picture_hw[1]]
    np.testing.assert_allclose(
        mixed.numpy(), expected.numpy().ravel()[drawn.places], rtol=1e-4, atol=1e-5
    )


def test_most_cells_in_few_steps():
    """About 32 cells of an image in a step, other ones in every step, all of them in the end."""
    grid = Grid((28, 28), (28.0, 28.0))
    labelled = LabelledPixels(np.zeros((90, 120), np.uint8), grid)
    rng = np.random.default_rng(0)
    drawn = [labelled.draw(1024, rng) for _ in range(300)]
    assert 25 <= np.mean([len(d.cells) for d in drawn]) <= 40
    assert 900 <= np.mean([d.places.size for d in drawn]) <= 1150
    assert len(np.unique(np.concatenate([d.cells for d in drawn]))) == 28 * 28
