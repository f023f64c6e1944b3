"""Forty checkpoints as a new user finds them: what each must give, one row each."""

import argparse
import pickle
from functools import partial

import pytest
import timm
import torch
from conftest import pixels
from safetensors.torch import load_file, save_file
from timm.layers import SwiGLUPacked
from timm.models import register_model
from timm.models.swin_transformer import _create_swin_transformer
from timm.models.vision_transformer import VisionTransformer, _create_vision_transformer

from skipbench import load_backbone
from skipbench.checkpoints import Expected
from skipbench.errors import CheckpointError, NumbersError

SIDE = 32
SMALL = {"embed_dim": 128, "depth": 3, "num_heads": 2, "img_size": SIDE, "patch_size": 8}


@register_model
def tiny_siglip(pretrained=False, **given):
    how = {"class_token": False, "global_pool": "map", **SMALL}
    return _create_vision_transformer("tiny_siglip", pretrained, **how | given)


@register_model
def tiny_clip(pretrained=False, **given):
    how = {"pre_norm": True, "act_layer": "quick_gelu", "norm_layer": torch.nn.LayerNorm, **SMALL}
    return _create_vision_transformer("tiny_clip", pretrained, **how | given)


@register_model
def tiny_gap(pretrained=False, **given):
    how = {"class_token": False, "global_pool": "avg", "fc_norm": False, **SMALL}
    return _create_vision_transformer("tiny_gap", pretrained, **how | given)


@register_model
def tiny_swin(pretrained=False, **given):
    how = {"embed_dim": 12, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 3, 6), "window_size": 7}
    return _create_swin_transformer("tiny_swin", pretrained, **how | given)


def vit(**given):
    torch.manual_seed(0)
    return VisionTransformer(num_classes=0, **SMALL | given).eval()


def saved(folder, content, name="w.pth"):
    torch.save(content, folder / name)
    return folder / name


def prefixed(state, prefix):
    return {prefix + key: value for key, value in state.items()}


# -- equal to timm's features: (model, how it is saved, how it is read)


def training(state):
    head = {"mlp.0.weight": torch.ones(4, 4), "last_layer.weight_g": torch.ones(4)}
    return {
        "student": prefixed(vit(depth=1).state_dict(), "module.backbone."),
        "teacher": prefixed(state, "backbone.") | prefixed(head, "head."),
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small", patch_size=8),
    }


def ema(state):
    return {"model": vit(depth=1).state_dict(), "model_ema": state}


def bf16(folder, state):
    path = folder / "w.safetensors"
    save_file({key: value.bfloat16() for key, value in state.items()}, path)
    return path


def of_dtype(dtype, state):
    return {key: value.to(dtype) for key, value in state.items()}


TWELVE = Expected(heads=12)
REGISTERS = {"reg_tokens": 4, "no_embed_class": True}
GATED = {"mlp_layer": SwiGLUPacked, "act_layer": torch.nn.SiLU, "mlp_ratio": 4, "init_values": 1.0}
EQUAL = {
    "DINO training file": (vit, training, {}),
    "module.backbone.": (vit, partial(prefixed, prefix="module.backbone."), {}),
    "registers": (partial(vit, **REGISTERS), dict, {}),
    "B/16": (partial(vit, embed_dim=768, num_heads=12, patch_size=16, depth=2), dict, {}),
    "L/16 fp16": (
        partial(vit, embed_dim=1024, num_heads=16, patch_size=16, depth=2),
        partial(of_dtype, torch.float16), {},
    ),
    "patch 8": (partial(vit, patch_size=8), dict, {}),
    "patch 32": (partial(vit, patch_size=32, img_size=64), dict, {}),
    "no qkv bias": (partial(vit, qkv_bias=False), dict, {}),
    "depth 9": (partial(vit, depth=9), dict, {}),
    "fp64": (vit, partial(of_dtype, torch.float64), {}),
    "bf16 safetensors": (vit, bf16, {}),
    "Lightning": (
        vit,
        lambda s: {"state_dict": prefixed(s, "model."), "pytorch-lightning_version": "2"}, {},
    ),
    "compiled": (vit, partial(prefixed, prefix="_orig_mod."), {}),
    "SwiGLU": (partial(vit, **GATED), dict, {}),
    "EMA chosen by name": (vit, ema, {"weights": "model_ema"}),
    "12 heads of 32": (partial(vit, embed_dim=384, num_heads=12), dict, {"expected": TWELVE}),
}  # fmt: skip


def timm_features(model, images):
    """Of the last block with the final norm: (images, height, width, channels)."""
    with torch.no_grad():
        found = model.forward_intermediates(
            images, indices=1, norm=True, output_fmt="NCHW", intermediates_only=True
        )
    return found[0].permute(0, 2, 3, 1)


@pytest.mark.parametrize("row", EQUAL)
def test_features_are_those_of_timm(tmp_path, row, caplog):
    make, save, reading = EQUAL[row]
    model = make()
    if save is bf16:
        path = bf16(tmp_path, model.state_dict())
    else:
        path = saved(tmp_path, save(model.state_dict()))
    if "expected" in reading:
        load_backbone(path, residual="skip", device="cpu")
        assert "does not say its number of heads (6 assumed)" in caplog.text
        assert "--heads 6 --position-rule offset confirms this" in caplog.text
    backbone = load_backbone(path, residual="skip", device="cpu", **reading)
    side = model.patch_embed.img_size[0]
    mine = backbone(pixels(2, 3, side, side)).patches[backbone.depth - 1, "tokens_norm"]
    if row in ("L/16 fp16", "bf16 safetensors"):
        model.load_state_dict({k: v.half().float() if "fp16" in row else v.bfloat16().float()
                               for k, v in model.state_dict().items()})  # fmt: skip
    assert torch.allclose(mine, timm_features(model, pixels(2, 3, side, side)), atol=1e-5)


# -- other architectures, by name or by config.json


def by_name(name):
    """timm:NAME@FILE."""

    def make(folder):
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=0).eval()
        return f"timm:{name}@{saved(folder, model.state_dict())}", model

    return make


def openai(folder):
    """OpenAI's names: visual.transformer.resblocks.…, with the text tower."""
    torch.manual_seed(0)
    model = timm.create_model("tiny_clip", num_classes=0).eval()
    state = {"logit_scale": torch.ones(()), "token_embedding.weight": torch.ones(4, 4)}
    names = {
        "cls_token": "class_embedding", "pos_embed": "positional_embedding",
        "patch_embed.proj.weight": "conv1.weight", "norm_pre.": "ln_pre.", "norm.": "ln_post.",
        "norm1.": "ln_1.", "norm2.": "ln_2.", "attn.qkv.": "attn.in_proj_",
        "attn.proj.": "attn.out_proj.", "mlp.fc1.": "mlp.c_fc.", "mlp.fc2.": "mlp.c_proj.",
        "blocks.": "transformer.resblocks.",
    }  # fmt: skip
    for key, value in model.state_dict().items():
        new = key
        for ours, theirs in names.items():
            if new.startswith(ours) or f".{ours}" in new:
                new = new.replace(ours, theirs, 1)
        squeeze = value[0] if key == "pos_embed" else value[0, 0] if key == "cls_token" else value
        state[f"visual.{new}"] = squeeze
    state["visual.proj"] = torch.ones(128, 16)
    return f"timm:tiny_clip@{saved(folder, state)}", model


def of_transformers(kind, **config):
    def make(folder):
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "intermediate_size": 64, "patch_size": 8, "image_size": SIDE}  # fmt: skip
        whole = getattr(transformers, kind)(**small | config)
        model = transformers.AutoModel.from_config(whole).eval()
        model.save_pretrained(folder, max_shard_size="20KB" if kind.startswith("Dinov2") else "1GB")
        return str(folder), model

    return make


def index_of(make):
    def index(folder):
        path, model = make(folder)
        return f"{path}/model.safetensors.index.json", model

    return index


SHARDED = of_transformers("Dinov2Config")
NAMED = {
    "no class token": by_name("tiny_gap"),
    "timm SigLIP": by_name("tiny_siglip"),
    "timm CLIP": by_name("tiny_clip"),
    "HF CLIP": of_transformers("CLIPVisionConfig"),
    "HF SigLIP": of_transformers("SiglipVisionConfig"),
    "OpenAI CLIP": openai,
    "HF sharded folder": SHARDED,
    "its index.json": index_of(SHARDED),
    "Swin": by_name("tiny_swin"),
    "DINOv3": by_name("vit_tiny_patch16_dinov3_qkvb"),
    "ConvNeXt": by_name("test_convnext"),
    "ResNet": by_name("test_resnet"),
}


@pytest.mark.parametrize("row", NAMED)
def test_other_architectures_are_opened_by_name(tmp_path, row):
    ckpt, model = NAMED[row](tmp_path)
    sharded = row in ("HF sharded folder", "its index.json")
    backbone = load_backbone(ckpt, residual="skip" if sharded else "auto", device="cpu")
    side = SIDE if backbone.patch == 8 else 224
    images = pixels(1, 3, side, side)
    if hasattr(model, "forward_intermediates"):
        mine = backbone(images, (-1,), ("tokens_norm",)).patches[backbone.depth - 1, "tokens_norm"]
        assert torch.allclose(mine, timm_features(model, images), atol=1e-5)
        return
    mine = backbone(images, (-1,), ("tokens",)).patches[1, "tokens"].flatten(1, 2)
    with torch.no_grad():
        own = model(pixel_values=images, output_hidden_states=True).hidden_states[2]
    assert torch.allclose(mine, own[:, own.shape[1] - mine.shape[1] :], atol=1e-5)


# Without a name, such a file is refused: its tensors fit several models.
BARE = [
    ("tiny_swin", "a Swin Transformer", ""),
    ("test_convnext", "a ConvNeXt", "test_convnext"),
    ("test_resnet", "a ResNet", "test_resnet"),
    ("tiny_siglip", "a SigLIP", ""),
    ("tiny_clip", "a CLIP", ""),
    ("tiny_gap", "a vision transformer without a class token", ""),
    ("vit_tiny_patch16_dinov3_qkvb", "an EVA or Perception Encoder", "vit_tiny_patch16_dinov3"),
]


@pytest.mark.parametrize(("name", "what", "fits"), BARE)
def test_a_bare_file_of_another_architecture_names_it(tmp_path, monkeypatch, name, what, fits):
    some, every = ("test_", name, "vit_tiny_patch16_dinov3"), timm.list_models
    monkeypatch.setattr(  # a tenth of a second each
        timm, "list_models", lambda **asked: [n for n in every(**asked) if n.startswith(some)]
    )
    path = saved(tmp_path, timm.create_model(name, num_classes=0).state_dict())
    with pytest.raises(CheckpointError) as caught:
        load_backbone(path, device="cpu")
    words = str(caught.value)
    assert f"looks like {what} (it has " in words and f"--ckpt timm:NAME@{path}" in words
    assert not fits or fits in words.partition("These fit: ")[2]


# -- refused clearly


class Runs:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def cut(folder):
    path = saved(folder, vit().state_dict())
    path.write_bytes(path.read_bytes()[:-1000])
    return path


def cut_safetensors(folder):
    path = folder / "w.safetensors"
    save_file(vit().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-1000])
    return path


def written(content, name="w.pth"):
    def write(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return write


def changed(change):
    def save(folder):
        state = vit().state_dict()
        change(state)
        return saved(folder, state)

    return save


REFUSED = {
    "truncated": (cut, "cut off"),
    "truncated safetensors": (cut_safetensors, "cut off"),
    "LFS pointer": (written(b"version https://git-lfs.github.com/spec/v1\noid x\n"), "LFS pointer"),
    "HTML": (written(b"<!DOCTYPE html><html>login"), "web page"),
    "empty": (written(b""), "empty"),
    "malicious": (written(pickle.dumps({"model": Runs()}, protocol=2)), "could run code"),
    "malicious zip": (lambda folder: saved(folder, {"model": Runs()}), "could run code"),
    "whole pickled model": (lambda folder: saved(folder, vit()), "save its bare state dict"),
    "1 input channel": (lambda folder: saved(folder, vit(in_chans=1).state_dict()), "patch embedd"),
    "NaN weights": (changed(lambda s: s["norm.bias"].fill_(torch.nan)), "NaN in the weights"),
    "missing key": (changed(lambda s: s.pop("norm.bias")), "missing: norm.bias"),
    "missing file": (lambda folder: folder / "w.pth", "no checkpoint at"),
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_refused_clearly(tmp_path, row):
    make, words = REFUSED[row]
    with pytest.raises((CheckpointError, NumbersError), match=words):
        load_backbone(make(tmp_path), device="cpu")


def test_there_are_forty():
    assert len(EQUAL) + len(NAMED) + len(REFUSED) == 40


def test_saved_weights_are_those_that_are_loaded(tmp_path):
    """The comparison above would not see weights that both sides ignore."""
    path = bf16(tmp_path, vit().state_dict())
    assert {value.dtype for value in load_file(path).values()} == {torch.bfloat16}
