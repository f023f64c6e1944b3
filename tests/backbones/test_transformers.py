"""transformers' vision models: features equal to their own hidden states."""

import json

import pytest
import torch
from conftest import pixels
from safetensors.torch import load_file, save_file

from skipbench import load_backbone
from skipbench.backbones.base import PROJECTIONS
from skipbench.errors import CheckpointError

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64,
    "patch_size": 8,
}  # fmt: skip
# Configuration, what else it is made with, tokens before the patches, whether it takes any size.
ADAPTED = {
    "CLIPVisionConfig": ({}, 1, True),
    "ChineseCLIPVisionConfig": ({}, 1, True),
    "SiglipVisionConfig": ({}, 0, True),
    "Siglip2VisionConfig": ({"num_patches": 16}, 0, True),
    "IJepaConfig": ({}, 0, True),
    "DINOv3ViTConfig": ({"num_register_tokens": 4}, 5, True),
    "ViTMSNConfig": ({}, 1, True),
    "BeitConfig": ({"use_relative_position_bias": True}, 1, True),
    "Data2VecVisionConfig": ({}, 1, True),
    "InternVLVisionConfig": ({"image_size": [32, 32], "patch_size": [8, 8]}, 1, True),
    "Aimv2VisionConfig": ({}, 0, False),
}
OURS = ("ViTConfig", "DeiTConfig", "Dinov2Config", "Dinov2WithRegistersConfig", "ViTMAEConfig")
SIDE = 32


def made(folder, kind, more=(), **config):
    """A small model with random weights, saved as on the hub."""
    torch.manual_seed(0)
    size = {} if kind == "Siglip2VisionConfig" else {"image_size": SIDE}
    whole = getattr(transformers, kind)(**{**SMALL, **size, **dict(more), **config})
    model = transformers.AutoModel.from_config(whole).eval()
    for parameter in filter(torch.numel, model.parameters()):  # zeros would hide mistakes
        if parameter.ndim < 2 or float(parameter.detach().abs().max()) == 0:
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    model.save_pretrained(folder)
    return model


def own_states(model, images, patch=8):
    """[(images, tokens, channels)] by block, and the last with the final norm, if it has one."""
    given = {"pixel_values": images}
    if type(model).__name__.startswith("Siglip2"):
        grid = (images.shape[2] // patch, images.shape[3] // patch)
        rows = torch.nn.functional.unfold(images, patch, stride=patch)  # channels first
        rows = rows.unflatten(1, (3, patch * patch)).permute(0, 3, 2, 1).flatten(2)
        given = {
            "pixel_values": rows, "spatial_shapes": torch.tensor([grid] * len(images)),
            "pixel_attention_mask": torch.ones(rows.shape[:2], dtype=torch.int32),
        }  # fmt: skip
    elif type(model).__name__.startswith(
        ("CLIP", "Chinese", "SiglipV", "IJepa", "Beit", "Data2", "ViT", "DeiT")
    ):
        given["interpolate_pos_encoding"] = True
    if type(model).__name__ == "ViTMAEModel":
        count = images.shape[2] * images.shape[3] // patch**2
        model.config.mask_ratio = 0.0
        given["noise"] = torch.arange(count).float().expand(len(images), -1)
    with torch.no_grad():
        found = model(**given, output_hidden_states=True)
    return list(found.hidden_states[1:]), found.last_hidden_state


@pytest.mark.parametrize("kind", ADAPTED)
def test_features_are_its_hidden_states(tmp_path, kind):
    more, prefix, any_size = ADAPTED[kind]
    model = made(tmp_path, kind, more)
    backbone = load_backbone(f"hf:{tmp_path}", device="cpu")
    assert backbone.facts.layout == f"transformers {type(model).__name__}"
    assert (backbone.depth, backbone.patch) == (3, 8) and backbone.facts.heads == 2
    assert (backbone.only_hw is None) == any_size
    for height, width in [(SIDE, SIDE), (40, 56)] if any_size else [(SIDE, SIDE)]:
        images = pixels(2, 3, height, width)
        outputs = backbone(images, range(3), ("tokens", "tokens_norm"))
        states, last = own_states(model, images)
        for block, state in enumerate(states):
            mine = outputs.patches[block, "tokens"]
            assert mine.shape == (2, height // 8, width // 8, 32)
            assert torch.allclose(mine.flatten(1, 2), state[:, prefix:], atol=1e-5)
            if prefix:
                assert torch.allclose(outputs.class_token[block, "tokens"], state[:, 0], atol=1e-5)
        if kind not in ("CLIPVisionConfig", "ChineseCLIPVisionConfig"):  # normed when pooled
            normed = outputs.patches[2, "tokens_norm"].flatten(1, 2)
            assert torch.allclose(normed, last[:, prefix:], atol=1e-5)
        assert bool(outputs.class_token) == bool(prefix)


@pytest.mark.parametrize("kind", OURS)
def test_plain_vision_transformers_run_as_skipbench_s_own(tmp_path, kind):
    model = made(tmp_path, kind)
    backbone = load_backbone(str(tmp_path), residual="skip", device="cpu")
    assert backbone.facts.layout == "transformers"
    images = pixels(2, 3, SIDE, SIDE)
    outputs = backbone(images, range(3), ("tokens", "tokens_norm"))
    states, last = own_states(model, images)
    prefix = states[0].shape[1] - 16
    for block, state in enumerate(states):
        mine = outputs.patches[block, "tokens"].flatten(1, 2)
        assert torch.allclose(mine, state[:, prefix:], atol=1e-5)
    normed = outputs.patches[2, "tokens_norm"].flatten(1, 2)
    assert torch.allclose(normed, last[:, prefix:], atol=1e-5)


def test_keys_of_dinov3_before_and_after_rotary_positions(tmp_path):
    model = made(tmp_path, "DINOv3ViTConfig", {"num_register_tokens": 4})
    layer, given = model.model.layer[1].attention, []
    layer.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    images = pixels(1, 3, 40, 56)
    with torch.no_grad():
        model(pixel_values=images)
        plain = layer.k_proj(given[0])[:, 5:]
    found = {}
    for when in ("before", "after"):
        backbone = load_backbone(f"hf:{tmp_path}", rope_keys=when, device="cpu")
        assert backbone.facts.rope_keys == backbone.identity()["rope_keys"] == when
        found[when] = backbone(images, (1,), PROJECTIONS).patches[1, "keys"].flatten(1, 2)
    assert torch.allclose(found["before"], plain, atol=1e-5)
    assert not torch.allclose(found["after"], plain, atol=1e-2)
    norms = [x.unflatten(2, (2, 16)).norm(dim=3) for x in found.values()]
    assert torch.allclose(*norms, atol=1e-4)  # rotations keep the length


def clip(folder):
    """Both towers, as the hub has it."""
    torch.manual_seed(0)
    both = {
        "vision_config": {**SMALL, "image_size": SIDE},
        "text_config": SMALL | {"vocab_size": 99},
    }
    del both["text_config"]["patch_size"]
    model = transformers.CLIPModel(transformers.CLIPConfig(**both, projection_dim=16)).eval()
    model.save_pretrained(folder)
    return model


def rewritten(folder, change):
    """The weights with a change."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def test_of_clip_the_vision_tower_is_used(tmp_path):
    model = clip(tmp_path)
    stated = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28], "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
    backbone = load_backbone(tmp_path, device="cpu")  # without the prefix, too
    assert backbone.facts.layout == "transformers CLIPVisionModel"
    assert backbone.preprocessing.mean == (0.48, 0.46, 0.41)
    assert backbone.preprocessing.interpolation == "bicubic" and not backbone.facts.doubts
    images = pixels(2, 3, 40, 56)
    states, _ = own_states(model.vision_model, images)
    mine = backbone(images, (1,), ("tokens",)).patches[1, "tokens"].flatten(1, 2)
    assert torch.allclose(mine, states[1][:, 1:], atol=1e-5)


def test_a_folder_without_preprocessing_says_what_is_assumed(tmp_path, caplog):
    clip(tmp_path)
    load_backbone(tmp_path, device="cpu")
    assert "no preprocessor_config.json: pixels are normalised with ImageNet's" in caplog.text


@pytest.mark.parametrize("give", ["folder", "index"])
def test_sharded_weights(tmp_path, give):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    made(whole, "DINOv3ViTConfig")
    transformers.AutoModel.from_pretrained(whole).save_pretrained(parts, max_shard_size="20KB")
    assert len(list(parts.glob("model-*.safetensors"))) > 2
    path = parts if give == "folder" else parts / "model.safetensors.index.json"
    one, other = (load_backbone(f"hf:{whole}", device="cpu"), load_backbone(path, device="cpu"))
    images = pixels(1, 3, 40, 56)
    a, b = (each(images).patches[2, "tokens_norm"] for each in (one, other))
    assert torch.equal(a, b) and len(other.facts.sha256) == 64
    next(iter(parts.glob("model-*.safetensors"))).unlink()
    with pytest.raises(CheckpointError, match=r"weights files are missing \(1 of .\): model-0000"):
        load_backbone(path, device="cpu")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: {k: v for k, v in s.items() if "layers.1.mlp.fc1" not in k},
         "not those of a CLIPVisionModel.*(?s:.*)missing: .*fc1"),
        (lambda s: s | {"vision_model.encoder.layers.3.mlp.fc1.bias": torch.ones(64)},
         "(?s:.*)unexpected: .*layers.3"),
        (lambda s: s | {"vision_model.encoder.layers.1.mlp.fc1.bias": torch.ones(60)},
         "cannot load it|of a wrong shape"),
        (lambda s: s | {"vision_model.encoder.layers.1.mlp.fc1.bias": torch.full((64,), torch.nan)},
         "NaN or Inf in the weights, first in .*layers.1.mlp.fc1.bias"),
    ],
)  # fmt: skip
def test_nothing_is_loaded_in_part(tmp_path, change, words):
    clip(tmp_path)
    rewritten(tmp_path, change)
    with pytest.raises(CheckpointError, match=words):
        load_backbone(tmp_path, device="cpu")


def test_other_architectures_are_refused_by_name(tmp_path):
    config = transformers.SwinConfig(embed_dim=12, depths=[1, 1], num_heads=[1, 2], window_size=2)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"SwinModel is not a plain vision transformer.*(?s:.*)timm:NAME"
    ):
        load_backbone(tmp_path, device="cpu")


def test_pickles_are_refused(tmp_path):
    clip(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no safetensors weights \(it contains: config.json"):
        load_backbone(tmp_path, device="cpu")


def test_without_transformers_the_extra_is_named(tmp_path, monkeypatch):
    clip(tmp_path)
    monkeypatch.setattr("skipbench.backbones.hf_model.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"a clip of transformers.*skipbench\[hf\]"):
        load_backbone(tmp_path, device="cpu")
