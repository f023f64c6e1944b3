"""Every layout that DINO-like weights come in: same features, right facts, or a clear error."""

import argparse
import json
import re

import numpy as np
import pytest
import timm
import torch
from conftest import original_state, pixels
from safetensors.torch import load_file, save_file

from skipbench.backbones.vit import ViTBackbone
from skipbench.checkpoints import Expected, open_checkpoint, save_checkpoint
from skipbench.errors import CheckpointError, NumbersError

ARGUMENTS = argparse.Namespace(
    arch="vit_small",
    patch_size=8,
    optimizer="adamw",
    lr=np.float64(5e-4),
    warm=np.int64(10),
    fp16=np.bool_(True),
    epochs=300,
)


def features(path, **options):
    checkpoint = open_checkpoint(path, **options)
    return ViTBackbone(checkpoint, "skip")(pixels(1, 3, 24, 40)).patches[2, "tokens_norm"]


def saved(tmp_path, content, name="w.pth", **options):
    path = tmp_path / name
    torch.save(content, path, **options)
    return path


def prefixed(state, prefix):
    return {prefix + key: value for key, value in state.items()}


def without(state, start):
    return {key: value for key, value in state.items() if not key.startswith(start)}


def head(prefix="head."):
    return {
        f"{prefix}mlp.0.weight": torch.ones(4, 4),
        f"{prefix}last_layer.weight_g": torch.ones(4),
    }


def heads_of(state):
    return {"head.weight": torch.ones(10, 128), "head.bias": torch.ones(10)} | state


def transformers_state(state, scale=False):
    """The same weights under the names of transformers' ViTModel or Dinov2Model."""
    out = {
        "embeddings.cls_token": state["cls_token"],
        "embeddings.position_embeddings": state["pos_embed"],
        "embeddings.mask_token": torch.zeros(1, 128),
        "embeddings.patch_embeddings.projection.weight": state["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": state["patch_embed.proj.bias"],
        "layernorm.weight": state["norm.weight"],
        "layernorm.bias": state["norm.bias"],
        "pooler.dense.weight": torch.ones(4, 4),
    }
    names = {
        "norm1": "norm1" if scale else "layernorm_before",
        "norm2": "norm2" if scale else "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "mlp.fc1" if scale else "intermediate.dense",
        "mlp.fc2": "mlp.fc2" if scale else "output.dense",
        "ls1.gamma": "layer_scale1.lambda1",
        "ls2.gamma": "layer_scale2.lambda1",
    }
    for key, value in state.items():
        if not key.startswith("blocks."):
            continue
        _, index, rest = key.split(".", 2)
        if rest.startswith("attn.qkv"):
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                kind = rest.split(".")[-1]
                out[f"encoder.layer.{index}.attention.attention.{part}.{kind}"] = piece
            continue
        for ours, theirs in names.items():
            if rest.startswith(ours):
                out[f"encoder.layer.{index}.{theirs}{rest.removeprefix(ours)}"] = value
    return {key: value.contiguous() for key, value in out.items()}


LAYOUTS = {
    "released backbone": (lambda s: s, "dino", None),
    "dino training": (
        lambda s: {
            "student": prefixed(s, "module.backbone.") | head("module.head."),
            "teacher": prefixed(s, "backbone.") | head(),
            "optimizer": {"state": {}, "param_groups": []},
            "dino_loss": {"center": torch.ones(1, 4)},
            "epoch": 100,
            "args": ARGUMENTS,
        },
        "dino",
        "teacher",
    ),
    "ibot": (
        lambda s: {
            "state_dict": prefixed(s, "backbone.") | {"backbone.masked_embed": torch.zeros(1, 128)}
        },
        "ibot",
        None,
    ),
    "mae": (
        lambda s: {
            "model": s
            | {"mask_token": torch.zeros(1, 1, 4), "decoder_pos_embed": torch.ones(1, 5, 4)}
            | {"decoder_blocks.0.norm1.weight": torch.ones(4), "decoder_pred.bias": torch.ones(4)}
        },
        "mae",
        None,
    ),
    "moco v3": (
        lambda s: {
            "epoch": 300,
            "arch": "vit_small",
            "state_dict": prefixed(heads_of(s), "module.base_encoder.")
            | prefixed(original_state(seed=9), "module.momentum_encoder.")
            | {"module.predictor.0.weight": torch.ones(3, 3)},
        },
        "mocov3",
        "student",
    ),
    "deit": (lambda s: {"model": heads_of(s)}, "deit", None),
    "timm": (heads_of, "timm", None),
    "lightning, flat branches": (
        lambda s: {
            "state_dict": prefixed(original_state(seed=9), "student.backbone.")
            | prefixed(s, "teacher.backbone.")
            | prefixed(head(), "student.")
            | prefixed(head(), "teacher.")
        },
        "dino",
        "teacher",
    ),
    "wrapper with DINO's head": (lambda s: prefixed(s, "backbone.") | head(), "dino", None),
    "compiled and wrapped": (lambda s: prefixed(s, "_orig_mod.module.encoder."), "dino", None),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
def test_known_layouts_give_identical_features(tmp_path, state, name, new_format):
    wrap, layout, weights = LAYOUTS[name]
    path = saved(tmp_path, wrap(state), _use_new_zipfile_serialization=new_format)
    checkpoint = open_checkpoint(path)
    assert checkpoint.facts.layout == layout
    assert checkpoint.facts.weights == weights
    assert (checkpoint.facts.depth, checkpoint.facts.width, checkpoint.facts.patch) == (3, 128, 8)
    rule = checkpoint.facts.position_rule
    bare = features(saved(tmp_path, state, "bare.pth"), position_rule=rule)
    assert torch.equal(features(path), bare)


def test_position_rules_follow_the_layout(tmp_path, state):
    rules = {
        name: open_checkpoint(saved(tmp_path, wrap(state))).facts.position_rule
        for name, (wrap, _, _) in LAYOUTS.items()
    }
    assert rules["dino training"] == rules["released backbone"] == rules["ibot"] == "offset"
    assert rules["mae"] == rules["deit"] == rules["moco v3"] == "size"
    assert rules["timm"] == "antialias"
    for registers, rule in ((0, "offset"), (4, "antialias")):
        state2 = original_state(registers=registers, layer_scale=True)
        facts = open_checkpoint(saved(tmp_path, state2)).facts
        assert (facts.layout, facts.position_rule, facts.registers) == ("dinov2", rule, registers)


@pytest.mark.parametrize(
    "prefix",
    ["module.", "backbone.", "teacher.", "student.", "module.backbone.", "student.module.backbone.",
     "teacher.backbone.module.", "model.encoder.backbone.", "base_encoder."],
)  # fmt: skip
def test_prefixes_in_any_stacking(tmp_path, state, prefix):
    rule = {"position_rule": "offset"}
    bare = features(saved(tmp_path, state, "bare.pth"), **rule)
    assert torch.equal(features(saved(tmp_path, prefixed(state, prefix)), **rule), bare)


def test_a_prefix_inside_a_name_is_not_eaten(tmp_path, state):
    odd = state | {"blocks.0.backbone.norm1.weight": torch.ones(128)}
    with pytest.raises(CheckpointError, match=re.escape("blocks.0.backbone.norm1.weight")):
        open_checkpoint(saved(tmp_path, odd))


def test_teacher_is_taken_and_student_can_be_chosen(tmp_path, state):
    other = original_state(seed=9)
    path = saved(tmp_path, {"student": prefixed(other, "module.backbone."), "teacher": state})
    checkpoint = open_checkpoint(path)
    assert checkpoint.facts.weights == "teacher"
    assert "student" in checkpoint.facts.notes[0]
    assert torch.equal(features(path), features(saved(tmp_path, state, "t.pth")))
    assert torch.equal(features(path, weights="student"), features(saved(tmp_path, other, "s.pth")))
    with pytest.raises(CheckpointError, match="has no student"):
        open_checkpoint(saved(tmp_path, {"teacher": state}), weights="student")


def test_two_models_of_the_same_standing_are_not_guessed_between(tmp_path, state):
    path = saved(tmp_path, {"model": state, "network": original_state(seed=9)})
    with pytest.raises(CheckpointError, match="several models"):
        open_checkpoint(path)


def test_an_ema_is_used_if_asked_for_as_the_note_says(tmp_path, state):
    other = original_state(seed=9)
    path = saved(tmp_path, {"model": state, "model_ema": other})
    notes = open_checkpoint(path).facts.notes
    assert notes[0] == "using model; the file also contains model_ema (--weights teacher)"
    names = [open_checkpoint(path, weights=asked).facts.name for asked in (None, "teacher")]
    assert names == [path.name, f"{path.name} (teacher)"]  # two models in tables
    assert torch.equal(features(path), features(saved(tmp_path, state, "m.pth")))
    assert torch.equal(features(path, weights="teacher"), features(saved(tmp_path, other, "e.pth")))


def test_a_number_of_heads_that_is_assumed_is_said(tmp_path, state):
    path = saved(tmp_path, state)
    (doubt,) = open_checkpoint(path).facts.doubts
    assert "its number of heads (2 assumed) or whose code trained it (DINO's position" in doubt
    assert doubt.endswith("; --heads 2 --position-rule offset confirms this")
    sure = {"expected": Expected(heads=2), "position_rule": "offset"}
    assert not open_checkpoint(path, **sure).facts.doubts
    (doubt,) = open_checkpoint(path, expected=Expected(heads=2)).facts.doubts
    assert "heads" not in doubt
    wrap, *_ = LAYOUTS["dino training"]
    assert not open_checkpoint(saved(tmp_path, wrap(state))).facts.doubts
    assert not open_checkpoint(saved(tmp_path, state, "dino_deitsmall16_pretrain.pth")).facts.doubts


def test_dinov2_blocks_in_chunks(tmp_path, state):
    chunked = {
        re.sub(r"^blocks\.(\d)", lambda m: f"blocks.{int(m[1]) // 2}.{m[1]}", k): v
        for k, v in state.items()
    }
    assert "blocks.1.2.norm1.weight" in chunked
    path = saved(tmp_path, {"teacher": prefixed(chunked, "backbone.")})
    assert torch.equal(features(path), features(saved(tmp_path, state, "b.pth")))


def test_distilled_deit_keeps_its_token(tmp_path, state):
    """The distillation token is one more token that patches attend to."""
    distilled = dict(state)
    distilled["dist_token"] = torch.full((1, 1, 128), 0.3)
    positions = state["pos_embed"]
    extra = torch.full((1, 1, 128), 0.2)
    distilled["pos_embed"] = torch.cat([positions[:, :1], extra, positions[:, 1:]], 1)
    path = saved(tmp_path, {"model": heads_of(distilled)})
    checkpoint = open_checkpoint(path)
    assert checkpoint.facts.registers == 1 and checkpoint.facts.layout == "deit"
    assert torch.allclose(checkpoint.state["reg_token"], torch.full((1, 1, 128), 0.5))
    as_register = state | {"register_tokens": torch.full((1, 1, 128), 0.5)}
    same = features(saved(tmp_path, as_register, "r.pth"), position_rule="size")
    assert torch.allclose(features(path), same, atol=1e-6)


@pytest.mark.parametrize("prefix", ["", "vit."])
def test_transformers_folder(tmp_path, state, prefix):
    folder = tmp_path / "hub"
    folder.mkdir()
    save_file(prefixed(transformers_state(state), prefix), folder / "model.safetensors")
    config = {"model_type": "vit", "num_attention_heads": 2, "hidden_size": 128, "patch_size": 8}
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-6}))
    facts = open_checkpoint(folder).facts
    assert (facts.layout, facts.heads) == ("transformers", 2)
    assert facts.sources["heads"] == "config.json num_attention_heads"
    assert torch.equal(features(folder), features(saved(tmp_path, state)))


def test_transformers_dinov2_folder(tmp_path):
    state = original_state(layer_scale=True)
    folder = tmp_path / "hub"
    folder.mkdir()
    save_file(transformers_state(state, scale=True), folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "dinov2", "num_attention_heads": 2})
    )
    assert torch.equal(features(folder), features(saved(tmp_path, state)))


def test_timm_folder(tmp_path, state):
    folder = tmp_path / "hub"
    folder.mkdir()
    save_file(heads_of(state), folder / "model.safetensors")
    config = {"architecture": "vit_small_patch8_224.dino", "model_args": {"num_heads": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    facts = open_checkpoint(folder).facts
    assert (facts.layout, facts.heads, facts.position_rule) == ("dino", 4, "offset")


def test_facts_and_where_they_were_read(tmp_path, state):
    wrap, *_ = LAYOUTS["dino training"]
    facts = open_checkpoint(saved(tmp_path, wrap(state), "checkpoint0100.pth")).facts
    assert (facts.epoch, facts.sources["epoch"]) == (100, "epoch")
    assert (facts.optimizer, facts.sources["optimizer"]) == ("adamw", "args.optimizer")
    assert (facts.residual, facts.sources["residual"]) == (None, "not in the file")
    assert (facts.heads, facts.grid_hw, facts.mlp_width) == (2, (5, 5), 512)
    assert facts.dropped == {"head": 2}
    assert set(facts.sources) >= set(facts.to_json()) - {
        "name", "sources", "dropped", "notes", "doubts", "rope_keys",
    }  # fmt: skip


def test_optimizer_from_its_state(tmp_path, state):
    for slot, name in (("GG", "soap"), ("exp_avg_sq", "adam(w)"), ("momentum_buffer", "sgd")):
        slots = {"state": {0: {slot: torch.ones(2)}}, "param_groups": []}
        facts = open_checkpoint(saved(tmp_path, {"model": state, "optimizer": slots})).facts
        assert facts.optimizer == name


@pytest.mark.parametrize(
    ("arguments", "residual"),
    [
        ({"skipless": True}, "skipless"),
        ({"skipless": False}, "skip"),
        ({"residual": "skipless"}, "skipless"),
        ({"residual": False}, "skipless"),
        ({"use_skip": True}, "skip"),
        ({"no_skip": 1}, "skipless"),
        ({"residual": "maybe"}, None),
        ({}, None),
    ],
)
def test_residual_from_the_arguments(tmp_path, state, arguments, residual):
    path = saved(tmp_path, {"teacher": state, "args": argparse.Namespace(**arguments)})
    assert open_checkpoint(path).facts.residual == residual


def test_a_file_that_contradicts_itself(tmp_path, state):
    arguments = argparse.Namespace(skipless=True, residual="skip")
    with pytest.raises(CheckpointError, match="contradicts itself"):
        open_checkpoint(saved(tmp_path, {"teacher": state, "args": arguments}))


def test_what_we_save_we_read(tmp_path, state):
    told = {
        "residual": "skipless",
        "heads": 4,
        "epoch": 200,
        "optimizer": "SOAP",
        "initialisation": "x",
    }
    path = save_checkpoint(tmp_path / "sub" / "w.safetensors", state, told)
    facts = open_checkpoint(path).facts
    assert (facts.residual, facts.heads, facts.epoch) == ("skipless", 4, 200)
    assert (facts.optimizer, facts.initialisation) == ("soap", "x")
    assert facts.sources["residual"] == "w.safetensors: header residual=skipless"


@pytest.mark.parametrize(
    ("width", "layout", "heads"), [(384, "mocov3", 12), (384, "dino", 6), (1280, "dino", 16)]
)
def test_heads_that_weights_cannot_tell(tmp_path, width, layout, heads):
    state = original_state(width=width, depth=1, patch=2, grid=2)
    if layout == "mocov3":
        state = prefixed(state, "module.base_encoder.")
    assert open_checkpoint(saved(tmp_path, state)).facts.heads == heads


def test_heads_must_be_said_where_they_are_not_64_wide(tmp_path):
    path = saved(tmp_path, original_state(width=96, depth=1))
    with pytest.raises(CheckpointError, match="--heads"):
        open_checkpoint(path)
    assert open_checkpoint(path, expected=Expected(heads=3)).facts.heads == 3
    with pytest.raises(CheckpointError, match=r"5 heads .* width of 96"):
        open_checkpoint(path, expected=Expected(heads=5))


# --- faults 8, 11, 12, 13, 15 ----------------------------------------------------------------


def test_another_hash_is_told_with_both(tmp_path, state):
    path = saved(tmp_path, state)
    actual = open_checkpoint(path).facts.sha256
    with pytest.raises(CheckpointError, match=f"(?s){actual}.*{'0' * 64}"):
        open_checkpoint(path, expected=Expected(sha256="0" * 64))
    assert open_checkpoint(path, expected=Expected(sha256=actual.upper()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: {"foo.bar": torch.ones(2)}, "no vision transformer.*(?s:.*)foo.bar"),
        (lambda s: without(s, "norm.bias"), "missing: norm.bias"),
        (lambda s: without(s, "blocks.1.attn.qkv.bias"), "missing: blocks.1.attn.qkv.bias"),
        (lambda s: without(s, "cls_token"), "missing: cls_token"),
        (lambda s: without(s, "blocks.1."), "missing: blocks.1.norm1.weight"),
        (lambda s: s | {"blocks.0.attn.rope": torch.ones(2)}, "unexpected: blocks.0.attn.rope"),
        (lambda s: s | {"extra.weight": torch.ones(2)}, "unexpected: extra.weight"),
        (
            lambda s: prefixed(s, "backbone.") | {"x.y": torch.ones(2)},
            "nor to a known head.*(?s:.*)x.y",
        ),
        (lambda s: prefixed(s, "unheard_of."), r"(?s:.*)\(--weights unheard_of\)"),
        (lambda s: s | {"norm.bias": torch.ones(7)}, r"norm.bias is \(7,\), not \(128,\)"),
        (lambda s: s | {"pos_embed": torch.ones(1, 24, 128)}, "not a square grid"),
        (lambda s: s | {"pos_embed": torch.ones(1, 26, 64)}, "pos_embed .*128 wide"),
        (lambda s: s | {"cls_token": torch.ones(128)}, "cls_token .*3 dimensions"),
        (
            lambda s: {"img_size": [8, 8], **s, "patch_embed.proj.weight": torch.ones(())},
            "patch embedding has the shape",
        ),
        (lambda s: s | {"blocks.0.mlp.fc1.weight": torch.ones(())}, "fc1.weight is "),
        (lambda s: s | {"norm.bias": torch.ones(128).int()}, r"\(torch.int32\): norm.bias"),
        (lambda s: s | {"blocks.0.norm1.bias": torch.ones(128).to_sparse()}, "not plain"),
        (lambda s: s | {f"blocks.{10**6}.x": torch.ones(2)}, "unexpected: blocks.1000000.x"),
        (lambda s: s | {"patch_embed.proj.weight": torch.ones(128, 3, 0, 0)}, "patch embedding"),
        (lambda s: torch.ones(3), "contains a Tensor"),
        (lambda s: {"epoch": 3}, "contains no tensors"),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_are_listed(tmp_path, state, change, words):
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(saved(tmp_path, change(state)))


TIMM = {
    "swin_tiny_patch4_window7_224": "a Swin",
    "beit_base_patch16_224": "a BEiT",
    "convnext_atto": "a ConvNeXt",
    "resnet18": "a ResNet",
    "vit_base_patch16_siglip_224": "a SigLIP",
    "vit_base_patch32_clip_224": "a CLIP",
    "vit_small_patch16_dinov3": "with rotary positions",
    "eva02_tiny_patch14_224": "an EVA",
}
FOREIGN = {
    "openai clip": ("visual.transformer.resblocks.0.ln_1.weight", "a CLIP"),
    "transformers clip": ("vision_model.pre_layrnorm.weight", "a CLIP"),
    "transformers siglip": ("vision_model.head.probe", "a SigLIP"),
    "transformers swin": ("encoder.layers.0.blocks.0.layernorm_before.weight", "a Swin"),
    "transformers resnet": ("encoder.stages.0.layers.0.layer.0.convolution.weight", "a ResNet"),
    "dinov3": ("storage_tokens", "a DINOv3"),
    "transformers dinov3": ("layer.0.attention.q_proj.weight", "a DINOv3"),
    "meta convnext": ("stages.0.0.dwconv.weight", "a ConvNeXt"),
    "in a branch": ("teacher.backbone.layers.0.blocks.0.norm1.weight", "a Swin"),
}


@pytest.mark.parametrize("name", TIMM)
def test_timms_other_architectures_are_named(tmp_path, monkeypatch, name):
    monkeypatch.setattr(timm, "list_models", lambda **asked: [])  # see test_forty
    with torch.device("meta"):
        model = timm.create_model(name, depth=1) if "vit" in name else timm.create_model(name)
    state = {key: torch.zeros(()).expand(value.shape) for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=TIMM[name]) as caught:
        open_checkpoint(saved(tmp_path, state))
    assert "--ckpt timm:NAME@" in str(caught.value) and str(caught.value).count("\n") < 3


@pytest.mark.parametrize("name", FOREIGN)
def test_other_architectures_are_named_by_a_key(tmp_path, monkeypatch, name):
    monkeypatch.setattr(timm, "list_models", lambda **asked: [])
    key, words = FOREIGN[name]
    with pytest.raises(CheckpointError, match=rf"{words}.*{key}.*(?s:.*)--ckpt (timm|hf):"):
        open_checkpoint(saved(tmp_path, {key: torch.ones(2)}))


@pytest.mark.parametrize(
    ("fact", "asked", "actual"), [("depth", 12, 3), ("width", 384, 128), ("patch", 16, 8)]
)
def test_what_disagrees_with_what_was_asked(tmp_path, state, fact, asked, actual):
    with pytest.raises(CheckpointError, match=f"expected {fact} {asked}, .* {actual}"):
        open_checkpoint(saved(tmp_path, state), expected=Expected(**{fact: asked}))


def test_what_disagrees_with_its_own_metadata(tmp_path, state):
    arguments = argparse.Namespace(patch_size=16)
    words = r"args.patch_size states patch 16, but its weights have 8"
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(saved(tmp_path, {"teacher": state, "args": arguments}))
    path = save_checkpoint(tmp_path / "w.safetensors", state, {"heads": 4})
    with pytest.raises(CheckpointError, match=r"expected 2 heads, .* states 4"):
        open_checkpoint(path, expected=Expected(heads=2))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("blocks.1.attn.qkv.weight", float("nan"), "NaN .* first in block 1"),
        ("blocks.2.norm2.bias", float("inf"), "Inf .* first in block 2"),
        ("patch_embed.proj.weight", float("nan"), "NaN .* the embedding"),
    ],
)
def test_nan_in_the_weights_is_named(tmp_path, state, key, value, words):
    broken = dict(state)
    broken[key] = state[key].clone()
    broken[key].view(-1)[5] = value
    with pytest.raises(NumbersError, match=words) as caught:
        open_checkpoint(saved(tmp_path, broken))
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("value", [float("nan"), 0, -1e-6, 7, "small", []])
def test_an_epsilon_that_cannot_be(tmp_path, state, value):
    arguments = argparse.Namespace(norm_eps=value)
    with pytest.raises(CheckpointError, match="states an epsilon of"):
        open_checkpoint(saved(tmp_path, {"teacher": state, "args": arguments}))


def test_an_epoch_beyond_all_numbers_is_not_known(tmp_path, state):
    assert (
        open_checkpoint(saved(tmp_path, {"teacher": state, "epoch": 10**400})).facts.epoch is None
    )


@pytest.mark.parametrize("shape", [(128, 64), ()])
def test_three_parts_that_do_not_fit(tmp_path, state, shape):
    parts = transformers_state(state)
    parts["encoder.layer.0.attention.attention.key.weight"] = torch.ones(shape)
    with pytest.raises(CheckpointError, match="its three parts do not fit"):
        open_checkpoint(saved(tmp_path, parts))


def test_half_precision_weights_are_read(tmp_path, state):
    half = {key: value.half() for key, value in state.items()}
    assert all(
        v.dtype == torch.float32 for v in open_checkpoint(saved(tmp_path, half)).state.values()
    )


def test_the_same_weights_and_facts_are_the_same_file(tmp_path, state):
    facts = {"residual": "skip", "heads": 2, "epoch": 3, "optimizer": "soap", "note": "é"}
    contents = {
        save_checkpoint(tmp_path / f"{i}.safetensors", state, facts).read_bytes() for i in range(8)
    }
    assert len(contents) == 1
    assert open_checkpoint(tmp_path / "0.safetensors").facts.optimizer == "soap"
    read = load_file(tmp_path / "0.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
