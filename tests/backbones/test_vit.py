"""The backbone against a second forward pass that shares no line with it."""

import pytest
import reference
import torch
from conftest import original_state, pixels

from skipbench.backbones.vit import SkipBlock, SkiplessBlock, ViTBackbone
from skipbench.checkpoints import Expected, open_checkpoint
from skipbench.errors import NumbersError, UsageError
from skipbench.records import TENSORS


def load(tmp_path, state, residual="skip", heads=2, **options):
    path = tmp_path / "w.pth"
    torch.save(state, path)
    return ViTBackbone(open_checkpoint(path, expected=Expected(heads=heads), **options), residual)


def assert_close(ours, theirs, tolerance=1e-5):
    assert ours.shape == theirs.shape
    error = (ours.double() - theirs).abs().max() / theirs.abs().max()
    assert error < tolerance, f"relative error {error:.2e}"


@pytest.mark.parametrize("residual", ["skip", "skipless"])
@pytest.mark.parametrize("size_hw", [(40, 40), (24, 56), (64, 48)])
def test_every_tensor_of_every_block_agrees(tmp_path, state, residual, size_hw):
    backbone = load(tmp_path, state, residual)
    image = pixels(1, 3, *size_hw)
    features = backbone(image, range(3), TENSORS)
    blocks = reference.forward(state, image[0], residual=residual, heads=2)
    grid_hw = (size_hw[0] // 8, size_hw[1] // 8)
    for block in range(3):
        for tensor in TENSORS:
            expected = blocks[block][tensor]
            ours = features.patches[block, tensor][0]
            assert tuple(ours.shape[:2]) == grid_hw
            assert_close(ours.flatten(0, 1), expected[1:])
            assert_close(features.class_token[block, tensor][0], expected[0])


@pytest.mark.parametrize("residual", ["skip", "skipless"])
@pytest.mark.parametrize("gated", [False, True])
def test_dinov2_with_registers_and_layer_scale(tmp_path, residual, gated):
    state = original_state(registers=4, layer_scale=True, gated=gated)
    backbone = load(tmp_path, state, residual)
    backbone.vit.double()  # random gates amplify rounding: float64 shows none is ours
    image = pixels(1, 3, 48, 72).double()
    features = backbone(image, [1, -1], ("tokens_norm", "keys"))
    blocks = reference.forward(state, image[0], residual=residual, heads=2, rule="antialias")
    for block in (1, 2):
        for tensor in ("tokens_norm", "keys"):
            expected = blocks[block][tensor]
            assert_close(features.class_token[block, tensor][0], expected[0], 1e-6)
            assert_close(features.registers[block, tensor][0], expected[1:5], 1e-6)
            assert_close(features.patches[block, tensor][0].flatten(0, 1), expected[5:], 1e-6)


def test_batch_size_and_order_change_nothing(tmp_path, state):
    backbone = load(tmp_path, state)
    images = pixels(5, 3, 24, 40)
    together = backbone(images, [-1], ("tokens",)).patches[2, "tokens"]
    for i in range(5):
        alone = backbone(images[i : i + 1], [-1], ("tokens",)).patches[2, "tokens"]
        assert_close(alone[0], together[i].double())
    turned = backbone(images.flip(0), [-1], ("tokens",)).patches[2, "tokens"]
    assert_close(turned.flip(0), together.double())


def test_only_the_needed_blocks_run(tmp_path, state):
    backbone = load(tmp_path, state)
    ran = []
    for i, block in enumerate(backbone.vit.blocks):
        block.mlp.register_forward_hook(lambda *_, i=i: ran.append(i))
    backbone(pixels(1, 3, 24, 40), [1], ("tokens",))
    assert ran == [0, 1]
    ran.clear()
    backbone(pixels(1, 3, 24, 40), [1], ("keys",))
    assert ran == [0]  # of the last block, keys need the projection alone


def test_keys_alone_are_the_keys_of_a_whole_block(tmp_path, state):
    backbone = load(tmp_path, state)
    image = pixels(2, 3, 24, 40)
    alone = backbone(image, [2], ("keys",)).patches[2, "keys"]
    beside = backbone(image, [2], ("keys", "tokens")).patches[2, "keys"]
    assert torch.equal(alone, beside)


def test_no_hooks_and_no_gradients_are_left(tmp_path, state):
    backbone = load(tmp_path, state)
    features = backbone(pixels(1, 3, 24, 40), range(3), TENSORS)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in backbone.vit.modules())
    assert not any(p.requires_grad for p in backbone.vit.parameters())
    assert all(not x.requires_grad for x in features.patches.values())


def test_attention_stays_fused(tmp_path, state, monkeypatch):
    """No attention matrix: the only mixing of tokens is scaled_dot_product_attention."""
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *a, **k: calls.append(1) or fused(*a, **k),
    )
    load(tmp_path, state, "skipless")(pixels(1, 3, 24, 40), [-1])
    assert len(calls) == 3


def test_timms_own_forward_gives_the_same(tmp_path, state):
    backbone = load(tmp_path, state, "skipless")
    image = pixels(2, 3, 24, 56)
    ours = backbone(image, [0, 2], ("tokens",)).patches
    theirs = backbone.vit.forward_intermediates(
        image, [0, 2], intermediates_only=True, output_fmt="NCHW"
    )
    assert_close(ours[0, "tokens"].permute(0, 3, 1, 2), theirs[0].double())
    assert_close(ours[2, "tokens"].permute(0, 3, 1, 2), theirs[1].double())


def test_the_variants_differ_only_in_the_residual(tmp_path, state):
    for kind in (SkipBlock, SkiplessBlock):
        assert set(vars(kind)) - {"__doc__", "__module__", "__static_attributes__"} <= {
            "forward",
            "__firstlineno__",
        }
    skip, skipless = (load(tmp_path, state, r).vit.state_dict() for r in ("skip", "skipless"))
    assert skip.keys() == skipless.keys()


@pytest.mark.parametrize(
    ("blocks", "tensors", "size", "words"),
    [
        ([7], ["tokens"], (24, 40), "block 7"),
        ([0], ["token"], (24, 40), "no tensor 'token'"),
        ([0], ["tokens"], (25, 40), "25×40"),
        ([], ["tokens"], (24, 40), "no block"),
    ],
)
def test_wrong_requests_are_named(tmp_path, state, blocks, tensors, size, words):
    with pytest.raises(UsageError, match=words):
        load(tmp_path, state)(pixels(1, 3, *size), blocks, tensors)


def test_nan_that_arises_in_a_block_is_named(tmp_path):
    state = original_state(seed=3)
    state["blocks.1.mlp.fc2.weight"] = state["blocks.1.mlp.fc2.weight"] * 1e38
    state["blocks.1.mlp.fc1.weight"] = state["blocks.1.mlp.fc1.weight"] * 1e5
    with pytest.raises(NumbersError, match="arises in block 1"):
        load(tmp_path, state)(pixels(1, 3, 24, 40), [-1])
    load(tmp_path, state)(pixels(1, 3, 24, 40), [0])  # as far as it is sound, it runs


@pytest.mark.gpu
def test_gpu_agrees_with_cpu(tmp_path, state):
    path = tmp_path / "w.pth"
    torch.save(state, path)
    checkpoint = open_checkpoint(path)
    image = pixels(2, 3, 24, 40)
    on_cpu = ViTBackbone(checkpoint, "skip", "cpu")(image, [-1]).patches[2, "tokens_norm"]
    on_gpu = ViTBackbone(checkpoint, "skip", "cuda")(image, [-1]).patches[2, "tokens_norm"]
    assert_close(on_gpu.cpu(), on_cpu.double(), 1e-3)
