"""timm's models: features equal to its own `forward_intermediates`, whatever the architecture."""

import pytest
import torch
from conftest import pixels

from skipbench.backbones.base import PROJECTIONS
from skipbench.backbones.timm_model import timm_model
from skipbench.checkpoints import Expected
from skipbench.checkpoints.files import RawFile, digest_of_tensors
from skipbench.checkpoints.timm_hub import TimmModel, is_plain, make

VIT = {"embed_dim": 48, "depth": 3, "num_heads": 3, "img_size": 64}
EVA = {"embed_dim": 48, "depth": 3, "num_heads": 3, "img_size": 64}
STAGES = {"embed_dim": 12, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 3, 6)}
DAVIT = {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4)}
NINE = VIT | {"depth": 9}

# Name, how it is made small, native size, whether it takes other sizes.
ARCHITECTURES = [
    ("vit_small_patch16_dinov3", EVA, 64, True),
    ("vit_small_patch16_dinov3_qkvb", EVA, 64, True),
    ("vit_small_plus_patch16_dinov3", EVA, 64, True),
    ("eva02_tiny_patch14_224", EVA | {"img_size": 56}, 56, True),
    ("eva02_base_patch16_clip_224", EVA, 64, True),
    ("vit_pe_core_tiny_patch16_384", EVA, 64, True),
    ("vit_pe_spatial_small_patch16_512", EVA, 64, True),
    ("vit_small_patch16_rope_224", EVA, 64, True),
    ("vit_base_patch16_siglip_224", VIT, 64, True),
    ("vit_base_patch16_siglip_gap_224", VIT, 64, True),
    ("vit_base_patch16_clip_224", VIT, 64, True),
    ("vit_base_patch32_clip_quickgelu_224", VIT | {"img_size": 96}, 96, True),
    ("vit_relpos_small_patch16_224", VIT, 64, False),
    ("vit_base_patch16_rope_reg1_gap_256", NINE, 64, True),
    ("vit_huge_patch14_gap_224", NINE | {"img_size": 56}, 56, True),
    ("aimv2_large_patch14_224", VIT | {"img_size": 56}, 56, True),
    ("samvit_base_patch16_224", VIT | {"img_size": 64}, 64, True),
    ("beit_base_patch16_224", VIT, 64, False),
    ("vit_small_patch16_rope_mixed_224", VIT, 64, True),
    ("davit_tiny", DAVIT, 224, True),
    ("swin_tiny_patch4_window7_224", STAGES | {"img_size": 224}, 224, True),
    ("swinv2_tiny_window8_256", STAGES | {"img_size": 256}, 256, True),
    ("convnext_atto", {"depths": (1, 1, 2, 1), "dims": (8, 12, 16, 24)}, 224, True),
    ("convnextv2_atto", {"depths": (1, 1, 2, 1), "dims": (8, 12, 16, 24)}, 224, True),
    ("hiera_tiny_224", {"embed_dim": 12, "stages": (1, 1, 2, 1)}, 224, False),
    ("test_resnet", {}, 160, True),
    ("test_efficientnet", {}, 160, True),
]  # fmt: skip
SIZES_HW = [(96, 160), (112, 56)]


def opened(name, small=None, of_file=False, state=None):
    torch.manual_seed(0)
    module, options = make(name, **(small or {}))
    for parameter in module.parameters():  # zeros and layer scales of 1e-5 would hide mistakes
        if parameter.ndim < 2 or float(parameter.detach().abs().max()) == 0:
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    state = state or dict(module.state_dict())
    raw = RawFile("w.pth", state, {}, "timm", digest_of_tensors(state))
    return TimmModel(name, of_file, module, options, raw)


def backbone_of(model, **more):
    found = timm_model(
        model, f"timm:{model.name}", None, Expected(), more.get("rope_keys", "before")
    )
    return found.backbone("skip")


def own_features(module, images, norm):
    """[(patches NHWC, prefix)] of every block, by timm alone."""
    found = module.forward_intermediates(
        images, norm=norm, output_fmt="NCHW", intermediates_only=True,
        **({"return_prefix_tokens": True} if getattr(module, "num_prefix_tokens", 0) else {}),
    )  # fmt: skip
    pairs = [one if isinstance(one, tuple | list) else (one, None) for one in found]
    return [(grid.permute(0, 2, 3, 1), prefix) for grid, prefix in pairs]


@pytest.mark.parametrize(("name", "small", "native", "any_size"), ARCHITECTURES)
def test_features_are_those_of_timm(name, small, native, any_size):
    backbone = backbone_of(opened(name, small))
    depth, module = backbone.depth, backbone.module
    assert backbone.has_norm == (not name.startswith("hiera"))
    assert (backbone.only_hw is None) == any_size
    sizes = [(native, native)]
    if any_size:
        sizes += [tuple(-(-n // backbone.patch) * backbone.patch for n in hw) for hw in SIZES_HW]
    for height, width in sizes:
        images = pixels(2, 3, height, width)
        outputs = backbone(images, range(depth), ("tokens", "tokens_norm"))
        for tensor in ("tokens", "tokens_norm"):
            with torch.no_grad():
                own = own_features(module, images, tensor == "tokens_norm" and backbone.has_norm)
            for block, (patches, prefix) in enumerate(own):
                mine = outputs.patches[block, tensor]
                scale = float(patches.abs().max())
                assert mine.shape == patches.shape and mine.shape[3] == backbone.width(block)
                assert mine.shape[1] * backbone.stride(block) == height
                assert float((mine - patches).abs().max()) <= 1e-5 * max(scale, 1)
                if prefix is not None and (block, tensor) in outputs.class_token:
                    assert torch.equal(outputs.class_token[block, tensor], prefix[:, 0])
    assert bool(outputs.class_token) == any("cls_token" in key for key in module.state_dict())


def test_every_architecture_here_is_one_that_skipbench_does_not_run_itself():
    names = {name: small for name, small, *_ in ARCHITECTURES} | {"deit3_small_patch16_224": VIT}
    plain = [name for name, small in names.items() if is_plain(opened(name, small).module)]
    assert plain == ["deit3_small_patch16_224"]


@pytest.mark.parametrize("name", ["vit_base_patch16_siglip_224", "eva02_base_patch16_clip_224"])
def test_class_token_and_registers_are_no_patches(name):
    outputs = backbone_of(opened(name, VIT))(pixels(1, 3, 96, 64), (1,), ("tokens", "keys"))
    assert outputs.patches[1, "keys"].shape == (1, 6, 4, 48)
    assert bool(outputs.class_token) == ("siglip" not in name)


def attention_inputs(backbone, images):
    """What timm hands to the attention function: [(queries, keys, values)], heads joined."""
    seen, plain = [], torch.nn.functional.scaled_dot_product_attention

    def watched(q, k, v, *args, **kwargs):
        seen.append([x.transpose(1, 2).flatten(2) for x in (q, k, v)])
        return plain(q, k, v, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
        backbone.module.forward_intermediates(images, intermediates_only=True)
    return seen


@pytest.mark.parametrize(
    ("name", "small"),
    [(name, small) for name, small, *_ in ARCHITECTURES
     if name.startswith(("vit_", "eva", "aim", "beit")) and "relpos" not in name],
)  # fmt: skip
def test_projections_are_what_enters_the_attention(name, small):
    """Before rotary positions, only the values are; after them, all three."""
    for rope_keys in ("before", "after"):
        backbone = backbone_of(opened(name, small), rope_keys=rope_keys)
        assert set(PROJECTIONS) <= set(backbone.tensors)
        side = small["img_size"]
        images = pixels(2, 3, side, side)
        outputs = backbone(images, range(backbone.depth), PROJECTIONS)
        seen = attention_inputs(backbone, images)
        rotated = backbone.facts.rope_keys == "before"
        for block, all_three in enumerate(seen):
            for tensor, whole in zip(PROJECTIONS, all_three, strict=True):
                mine = outputs.patches[block, tensor].flatten(1, 2)
                same = torch.allclose(mine, whole[:, whole.shape[1] - mine.shape[1] :], atol=1e-5)
                assert same == (tensor == "values" or not rotated)


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3_qkvb", "eva02_tiny_patch14_224"])
def test_keys_before_rotary_positions_are_the_projection(name):
    small = EVA if "patch16" in name else EVA | {"img_size": 56}
    backbone = backbone_of(opened(name, small))
    attn, given = backbone.module.blocks[1].attn, []
    hook = attn.register_forward_pre_hook(lambda module, args: given.append(args[0]))
    side = small["img_size"]
    keys = backbone(pixels(1, 3, side, side), (1,), ("keys",)).patches[1, "keys"].flatten(1, 2)
    hook.remove()
    with torch.no_grad():
        if attn.qkv is None:
            plain = attn.k_proj(given[0])
        else:
            plain = given[0] @ attn.qkv.weight[48:96].T + (
                0 if attn.q_bias is None else attn.k_bias
            )
    assert torch.allclose(keys, plain[:, -keys.shape[1] :], atol=1e-5)
