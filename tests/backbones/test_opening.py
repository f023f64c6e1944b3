"""What `--ckpt` takes, and how a model is read: names, files, flags, and what is recorded."""

from pathlib import Path

import pytest
import timm
import torch
from conftest import original_state, pixels

import skipbench
from skipbench.backbones.opening import open_model
from skipbench.errors import CheckpointError, UsageError
from skipbench.features.store import model_part
from skipbench.records import IMAGENET
from skipbench.sources import Given, absolute, source_of


@pytest.mark.parametrize(
    ("text", "kind", "name", "path"),
    [
        ("w.pth", "file", "", "w.pth"),
        ("runs/timm:x", "file", "", "runs/timm:x"),
        ("timm:vit_tiny.dino", "timm", "vit_tiny.dino", None),
        ("timm:vit_tiny@runs/w.pth", "timm", "vit_tiny", "runs/w.pth"),
        ("hf:facebook/dinov2-small", "hf", "facebook/dinov2-small", None),
        ("hf:./folder", "hf", "", "folder"),
        ("hf:/some/folder", "hf", "", "/some/folder"),
        ("python:mine:make", "python", "mine:make", None),
    ],
)
def test_what_the_text_means(tmp_path, monkeypatch, text, kind, name, path):
    monkeypatch.chdir(tmp_path)
    source = source_of(text)
    assert (source.kind, source.name) == (kind, name)
    assert source.path == (path and Path(path))
    whole = source_of(absolute(text))
    assert (whole.kind, whole.name) == (kind, name) and absolute(absolute(text)) == absolute(text)
    assert whole.path == (path and tmp_path / path)


def test_a_folder_comes_before_a_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facebook" / "dinov2-small").mkdir(parents=True)
    assert source_of("hf:facebook/dinov2-small").path == Path("facebook/dinov2-small")


def test_a_function_has_a_name_that_leads_to_it():
    assert Given(original_state) == "python:conftest:original_state"
    assert Given(torch.nn.Linear(1, 1)) == "python:torch.nn.modules.linear:Linear"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"heads": 12}, r"'heads'\. Give expected=Expected\(heads="),
        ({"residaul": "skip"}, "'residaul'. Did you mean 'residual'"),
        ({"wieghts": "teacher"}, "'wieghts'. Did you mean 'weights'"),
    ],
)
def test_a_misspelt_keyword_is_no_silent_default(given, words):
    with pytest.raises(TypeError, match=words):
        skipbench.load_backbone("w.pth", **given)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        skipbench.inspect("w.pth", **given)


@pytest.fixture(scope="module")
def rotary(tmp_path_factory):
    """timm:NAME@FILE of a model with rotary positions."""
    path = tmp_path_factory.mktemp("rotary") / "w.pth"
    torch.manual_seed(0)
    torch.save(timm.create_model("vit_tiny_patch16_dinov3_qkvb").state_dict(), path)
    return f"timm:vit_tiny_patch16_dinov3_qkvb@{path}"


def part(source, **reading):
    return model_part(open_model(source, **reading).backbone("skip"))


def test_all_that_features_depend_on_is_in_their_key(rotary):
    plain = part(rotary)
    assert plain["rope_keys"] == "before" and plain["timm"] == "vit_tiny_patch16_dinov3_qkvb"
    assert plain["preprocessing"]["interpolation"] == "bicubic"
    assert part(rotary, rope_keys="after")["rope_keys"] == "after"
    assert "preprocessing" not in part(rotary, preprocess="imagenet")
    other_name = rotary.replace("qkvb@", "qkvb.eupe_lvd1689m@")
    assert part(other_name)["timm"] == "vit_tiny_patch16_dinov3_qkvb.eupe_lvd1689m"
    assert part(other_name)["sha256"] == plain["sha256"]


def test_imagenet_s_preprocessing_is_said(rotary):
    facts = open_model(rotary, preprocess="imagenet").facts
    assert facts.preprocessing == IMAGENET
    assert facts.sources["preprocessing"] == "--preprocess imagenet"


def test_weights_that_do_not_fit_the_name(tmp_path):
    path = tmp_path / "w.pth"
    torch.save(timm.create_model("test_convnext").state_dict(), path)
    with pytest.raises(CheckpointError, match=r"not those of this model \(Eva\).*(?s:.*)missing: "):
        open_model(f"timm:vit_small_patch16_dinov3@{path}")
    with pytest.raises(CheckpointError, match=r"no model 'test_convnxt'. Did you mean"):
        open_model(f"timm:test_convnxt@{path}")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        open_model(f"timm:test_convnext@{path}x")


def test_branches_and_prefixes_of_any_architecture(tmp_path):
    model = timm.create_model("test_convnext", num_classes=0).eval()
    teacher = {f"module.backbone.{k}": v for k, v in model.state_dict().items()}
    student = {k: torch.zeros_like(v) for k, v in teacher.items()}
    torch.save({"student": student, "teacher": teacher, "epoch": 3}, tmp_path / "w.pth")
    source = f"timm:test_convnext@{tmp_path / 'w.pth'}"
    images = pixels(1, 3, 64, 96)
    with torch.no_grad():
        own = model.forward_intermediates(images, intermediates_only=True)[-1]
    found = open_model(source).backbone("skip")(images, (-1,), ("tokens",))
    assert torch.allclose(found.patches[3, "tokens"].permute(0, 3, 1, 2), own, atol=1e-5)
    other = open_model(source, weights="student").backbone("skip")(images, (-1,), ("tokens",))
    assert not torch.allclose(other.patches[3, "tokens"], found.patches[3, "tokens"])
    chosen, student = open_model(source).facts, open_model(source, weights="student").facts
    assert (chosen.weights, chosen.name) == ("teacher", "timm:test_convnext@w.pth")
    assert (student.weights, student.name) == ("student", "timm:test_convnext@w.pth (student)")
    assert "the file also contains student" in chosen.notes[0] and "--weights" in chosen.notes[0]


def test_a_folder_as_timm_pushes_it(tmp_path):
    """Its model_args repeat what is decided here."""
    model = timm.create_model("test_convnext", num_classes=7).eval()
    timm.models.save_for_hf(model, tmp_path, model_args={"num_classes": 7, "in_chans": 3})
    images = pixels(1, 3, 64, 96)
    with torch.no_grad():
        own = model.forward_intermediates(images, intermediates_only=True)[2]
    mine = open_model(tmp_path).backbone("skip")(images, (2,), ("tokens",)).patches[2, "tokens"]
    assert torch.allclose(mine.permute(0, 3, 1, 2), own, atol=1e-5)


def test_flags_of_plain_vision_transformers_are_refused_elsewhere(rotary):
    with pytest.raises(UsageError, match=r"--position-rule offset: timm:.* by itself"):
        open_model(rotary, position_rule="offset")


def test_what_goes_with_other_families_only(tmp_path, rotary):
    torch.save(original_state(), tmp_path / "w.pth")
    with pytest.raises(UsageError, match=r"--rope-keys after: w.pth .* has no rotary positions"):
        open_model(tmp_path / "w.pth", rope_keys="after")
    with pytest.raises(UsageError, match="always runs skip: drop --residual skipless"):
        skipbench.inspect(rotary, residual="skipless")


def test_sizes_of_a_model_that_takes_one_only(tmp_path):
    torch.save(timm.create_model("test_vit_relpos").state_dict(), tmp_path / "w.pth")
    source = f"timm:test_vit_relpos@{tmp_path / 'w.pth'}"
    backbone = skipbench.load_backbone(source, device="cpu")
    assert backbone(pixels(1, 3, 160, 160)).patches[8, "tokens_norm"].shape == (1, 10, 10, 96)
    with pytest.raises(UsageError, match=r"images of 160×160 pixels only.*: use --size 160x160"):
        backbone(pixels(1, 3, 160, 176))


def test_a_model_of_the_hub_is_a_folder(tmp_path, monkeypatch):
    """As downloaded; without a network, the message says so."""
    import huggingface_hub

    (tmp_path / "config.json").write_text('{"model_type": "vit", "num_attention_heads": 2}')
    torch.save(original_state(), tmp_path / "pytorch_model.bin")
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download",
        lambda name, allow_patterns: asked.append((name, allow_patterns)) or str(tmp_path),
    )  # fmt: skip
    model = open_model("hf:someone/vit")
    assert asked[0][0] == "someone/vit" and "*config.json" in asked[0][1]
    assert model.facts.name == "hf:someone/vit"
    assert model.facts.heads == 2 and model.variants == ("skip", "skipless")

    def fails(name, allow_patterns):
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(CheckpointError, match="hf:someone/vit could not be loaded: the download f"):
        open_model("hf:someone/vit")


def test_pretrained_weights_of_timm(monkeypatch):
    """As if they were in the hub's cache."""
    from huggingface_hub import constants

    plain, asked = timm.create_model, []

    def create(name, pretrained=False, **options):
        asked.append(pretrained)
        torch.manual_seed(0)
        return plain(name, **options)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(timm, "create_model", create)
    model = open_model("timm:test_convnext")
    assert asked[-1] is True and model.facts.name == "timm:test_convnext"
    assert model.facts.sources["sha256"] == "hash of the tensors"
    assert open_model("timm:test_convnext").facts.sha256 == model.facts.sha256
    images = pixels(1, 3, 64, 96)
    with torch.no_grad():
        module = create("test_convnext", num_classes=0).eval()
        own = module.forward_intermediates(images, intermediates_only=True)
    mine = model.backbone("skip")(images, (2,), ("tokens",)).patches[2, "tokens"]
    assert torch.allclose(mine.permute(0, 3, 1, 2), own[2], atol=1e-5)
