"""Every evaluation on every family of models: nothing downstream asks which one it has."""

import json
import subprocess
import sys

import pytest
import timm
import torch

import skipbench
from skipbench.backbones.base import Backbone, BlockOutputs
from skipbench.records import CheckpointFacts


class Protocol(Backbone):
    """An object with the protocol: nothing else is asked of it."""

    tensors = ("tokens_norm",)

    def __init__(self):
        self.facts = CheckpointFacts(
            name="mine", sha256="0" * 64, layout="mine", weights=None, width=4, depth=1, patch=8
        )
        self.residual, self.device, self.precision = "skip", torch.device("cpu"), "fp32"

    def forward(self, images, blocks, tensors):
        cells = torch.nn.functional.avg_pool2d(images, 8).permute(0, 2, 3, 1)
        return BlockOutputs({(0, "tokens_norm"): torch.cat([cells, cells[..., :1]], 3)})


def test_an_object_with_the_protocol(home):
    (record,) = skipbench.knn(
        Protocol, home.dataset, **home.options(residual="auto", k=[1]), in_memory=True
    )
    assert record.checkpoint["name"] == "mine" and record.checkpoint["layout"] == "mine"


def test_from_the_command_line(tmp_path, home):
    """The module is found in the current folder."""
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\nclass Mine(torch.nn.Conv2d):\n    patch_size = 8\n\n\n"
        "def make():\n    torch.manual_seed(0)\n    return Mine(3, 16, 8, 8)\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "skipbench", "knn", "--ckpt", "python:mine:make", "--dataset",
         home.dataset, "--size", "40x56", "--k", "1", "--device", "cpu", "--no-cache", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    (record,) = json.loads(found.stdout)
    assert record["checkpoint"]["name"] == "python:mine:make"
    assert record["environment"]["call"]["ckpt"] == "python:mine:make"


# -- the whole line


class Own(torch.nn.Module):
    patch_size = 8

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed = torch.nn.Conv2d(3, 24, 8, 8)
        self.mix = torch.nn.Linear(24, 24)

    def forward(self, images):
        first = self.embed(images).flatten(2).mT
        return [first, first + self.mix(first).relu()]


def with_weights(folder, name):
    """timm:NAME@FILE, with random weights."""
    torch.manual_seed(0)
    torch.save(timm.create_model(name, num_classes=0).state_dict(), folder / f"{name}.pth")
    return f"timm:{name}@{folder / f'{name}.pth'}"


FAMILIES = {
    "rotary": ("vit_tiny_patch16_dinov3_qkvb", "keys"),
    "hierarchical": ("test_convnext", "tokens"),
    "own": (Own, "tokens_norm"),
}


@pytest.fixture(scope="module")
def everything(home, tmp_path_factory):
    """The records of all evaluations on all families."""
    folder, made = tmp_path_factory.mktemp("families"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for family, (model, feature) in FAMILIES.items():
            ckpt = with_weights(folder, model) if isinstance(model, str) else model
            usual = home.options(residual="auto", size="64x96")
            given = {"ckpt": ckpt, "dataset": home.dataset, **usual}
            made[family] = [
                *skipbench.probe_all(**given, layers=["last", "multiscale"], epochs=2, lr=[1e-2]),
                *skipbench.knn(**given, k=[3]),
                *skipbench.cluster(**given, seeds=[0]),
                skipbench.tokencut(ckpt, "shapes", **usual, limit=4, feature=feature, layers="all"),
            ]
            pictures = {**usual, "layers": "all"}
            made[family] += skipbench.pca(ckpt, [f"dataset:{home.dataset}"], **pictures)
    return folder / "results", made


@pytest.mark.parametrize("family", FAMILIES)
def test_every_evaluation_gives_records(everything, family):
    _, made = everything
    names = {"rotary": "timm Eva", "hierarchical": "timm ConvNeXt", "own": "Own"}
    assert {record.checkpoint["layout"] for record in made[family]} == {names[family]}
    kinds = {record.evaluation for record in made[family]}
    assert kinds == {"probe", "knn", "cluster", "tokencut", "pca"}
    assert {record.checkpoint["residual"] for record in made[family]} == {"skip"}


def test_they_are_compared_and_reported_together(everything):
    folder, made = everything
    names = [records[0].checkpoint["name"] for records in made.values()]
    table = skipbench.table(folder).text()
    assert all(name in table for name in names)
    assert "hummingbird with size 64x96 instead of 512x512, k 3 instead of 30; bicubic" in table
    assert "normalised with mean 0.5 0.5 0.5 and deviation 0.5 0.5 0.5, bicubic resizing" in table
    page = skipbench.report(folder, out=folder.parent / "report.html").read_text()
    assert all(name in page for name in names)
    pairs = skipbench.compare(*names[:2], results=folder)
    assert {pair.a[0].result.evaluation for pair in pairs} >= {"probe", "knn"}


def test_pictures_of_models_that_round_images_differently(home, tmp_path, monkeypatch):
    """Equal strides, other sizes: multiples of 16 and of 32."""
    monkeypatch.chdir(tmp_path)
    ckpts = [with_weights(tmp_path, n) for n in ("vit_tiny_patch16_dinov3_qkvb", "test_convnext")]
    usual = home.options(residual="auto", size="short:80")
    made = skipbench.pca(ckpts, [f"dataset:{home.dataset}"], **usual, layers="2", out="out")
    assert len(made) == 2


def test_keys_before_and_after_rotary_positions_are_told_apart(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ckpt = with_weights(tmp_path, "vit_tiny_patch16_dinov3_qkvb")
    usual = home.options(residual="auto", size="64x80", limit=3)
    one, other = (
        skipbench.tokencut(ckpt, "shapes", **usual, rope_keys=when) for when in ("before", "after")
    )
    assert one.id != other.id and other.checkpoint["rope_keys"] == "after"
    (pair,) = skipbench.compare(one, other)
    assert pair.differs["rope_keys"] == ["before", "after"]
