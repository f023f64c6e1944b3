"""Your own model: from Python, from the command line, and what is wrong with it."""

import pytest
import torch
from conftest import pixels

from skipbench import load_backbone
from skipbench.errors import CheckpointError, NumbersError, UsageError


class Tiny(torch.nn.Module):
    """Patches and two mixing layers; gives both."""

    patch_size = 8

    def __init__(self, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Conv2d(3, width, 8, 8)
        self.mix = torch.nn.Linear(width, width)

    def forward(self, images):
        first = self.embed(images).flatten(2).mT
        return [first, first + self.mix(first).relu()]


def tiny():
    return Tiny()


class WithClassToken(Tiny):
    num_prefix_tokens = 2
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    residual = "skipless"

    def forward(self, images):
        tokens = super().forward(images)[1]
        return torch.cat([tokens.mean(1, keepdim=True), tokens[:, :1], tokens], 1)


class Maps(Tiny):
    """A map at half the resolution beside one at the full."""

    patch_size = 16

    def forward(self, images):
        fine = self.embed(images)
        return [fine, torch.nn.functional.avg_pool2d(fine, 2)]


@pytest.mark.parametrize("given", [tiny, Tiny()])
def test_a_function_and_a_module(given):
    backbone = load_backbone(given, device="cpu")
    assert (backbone.depth, backbone.patch, backbone.width(1)) == (2, 8, 16)
    assert backbone.residual == "skip" and backbone.tensors == ("tokens", "tokens_norm")
    images = pixels(2, 3, 24, 40)
    outputs = backbone(images, (0, 1), ("tokens", "tokens_norm"))
    for block, own in enumerate(Tiny()(images)):
        for tensor in ("tokens", "tokens_norm"):
            mine = outputs.patches[block, tensor]
            assert mine.shape == (2, 3, 5, 16) and torch.equal(mine.flatten(1, 2), own)
    assert not outputs.class_token


def test_prefix_tokens_and_what_else_it_says_of_itself():
    backbone = load_backbone(WithClassToken(), device="cpu")
    images = pixels(1, 3, 24, 40)
    outputs = backbone(images)
    own = backbone.module(images)
    assert torch.equal(outputs.class_token[0, "tokens_norm"], own[:, 0])
    assert torch.equal(outputs.registers[0, "tokens_norm"], own[:, 1:2])
    assert torch.equal(outputs.patches[0, "tokens_norm"].flatten(1, 2), own[:, 2:])
    assert backbone.preprocessing.mean == (0.5, 0.5, 0.5) and backbone.residual == "skipless"
    assert load_backbone(WithClassToken(), preprocess="imagenet").preprocessing.mean[0] == 0.485


def test_what_the_user_says_of_its_residuals_is_recorded():
    assert load_backbone(Tiny(), residual="skipless", device="cpu").residual == "skipless"
    assert load_backbone(WithClassToken(), residual="skip", device="cpu").residual == "skip"


def test_maps_of_two_resolutions():
    backbone = load_backbone(Maps(), device="cpu")
    assert [backbone.stride(block) for block in (0, 1)] == [8, 16]
    outputs = backbone(pixels(1, 3, 32, 48), (0, 1))
    shapes = [outputs.patches[block, "tokens_norm"].shape for block in (0, 1)]
    assert shapes == [(1, 4, 6, 16), (1, 2, 3, 16)]


def test_its_identity_is_its_source_and_its_weights(tmp_path, monkeypatch):
    code = (
        "import torch\nclass M(torch.nn.Conv2d):\n patch_size = 8\n def __init__(s):\n"
        "  super().__init__(3, 8, 8, 8, bias=False)\n  torch.nn.init.{}_(s.weight)\n"
        " def forward(s, x): return super().forward(x).flatten(2).mT {}\n"
    )
    monkeypatch.chdir(tmp_path)
    identities = []
    for number, parts in enumerate([("ones", ""), ("ones", "* 2"), ("zeros", ""), ("ones", "")]):
        (tmp_path / f"mine{number}.py").write_text(code.format(*parts))
        backbone = load_backbone(f"python:mine{number}:M", device="cpu")
        identities.append((backbone.facts.sha256, backbone.identity()["source"]))
    first, source, weights, same = identities
    assert first == same
    assert first[0] == source[0] and first[1] != source[1] and first[0] != weights[0]


# -- what is wrong with it


def changed(**attributes):
    return lambda: type("Changed", (Tiny,), attributes)()


def raises(self, images):
    raise ValueError("no such luck")


class Mixing(Tiny):
    def forward(self, images):
        tokens = super().forward(images)[1]
        return tokens - tokens.mean(0, keepdim=True)


class Random(Tiny):
    def forward(self, images):
        return torch.nn.functional.dropout(super().forward(images)[1], 0.5, training=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (changed(forward=raises), r"forward of 2×3×96×128 raised ValueError: no such luck \(.*li"),
        (changed(patch_size=0), "patch_size is 0; expected a positive integer"),
        (changed(patch_size=16), "768 tokens for images of 192×256 pixels; expected 12×16 patches"),
        (changed(mean=(1, 2)), "`mean` and `std` must be three numbers each"),
        (changed(forward=lambda self, x: x.mean()), "of .* returns one number; expected tokens"),
        (changed(forward=lambda self, x: {"x": x}), "returns dict; expected tokens"),
        (changed(forward=lambda self, x: []), "forward returns nothing"),
        (changed(forward=lambda self, x: Tiny.forward(self, x)[0].long()), "returns torch.int64"),
        (changed(residual="maybe"), "residual is 'maybe'; expected skip or skipless"),
        (changed(forward=lambda self, x: Tiny.forward(self, x)[0] * torch.nan), "NaN or Inf"),
        (Mixing, "depend on the other images of its batch"),
        (Random, "different tokens on a second pass"),
        (lambda: 3, "returns int; expected a torch.nn.Module"),
        (lambda: torch.nn.Linear(2, 2), "returns Linear; expected a torch.nn.Module with a"),
        (lambda: 1 / 0, r"raised ZeroDivisionError: division by zero \(.*test_own.py, line"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(given, words):
    with pytest.raises((CheckpointError, NumbersError), match=words):
        load_backbone(given, device="cpu")


@pytest.mark.parametrize(
    ("ckpt", "error", "words"),
    [
        ("python:nowhere:make", CheckpointError, "importing nowhere raised ModuleNotFoundError"),
        ("python:json:dumpz", CheckpointError, "json has no dumpz. Did you mean 'dump"),
        ("python:json", UsageError, "expected python:MODULE:FUNCTION"),
    ],
)
def test_a_name_that_leads_nowhere(ckpt, error, words):
    with pytest.raises(error, match=words):
        load_backbone(ckpt, device="cpu")
