"""The demo: every evaluation on two small untrained models and the embedded data set."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from skipbench import pipeline
from skipbench.backbones.initialisation import VIT_S_DINO, initialise_skipless
from skipbench.backbones.vit import make_vit
from skipbench.checkpoints import save_checkpoint
from skipbench.evaluations import Evaluation, evaluations
from skipbench.files import ensure_writable
from skipbench.records import CheckpointFacts, Residual

if TYPE_CHECKING:
    from skipbench.results.read import Stored

SEED = 0
TITLE = "skipbench demo: two untrained models on drawn shapes"


def small_facts(
    width: int = 192, depth: int = 6, patch: int = 16, heads: int = 3
) -> CheckpointFacts:
    """A ViT-Tiny, half as deep."""
    return CheckpointFacts(
        name="demo",
        sha256="",
        layout="dino",
        weights=None,
        width=width,
        depth=depth,
        patch=patch,
        heads=heads,
        mlp_width=4 * width,
        gated_mlp=False,
        registers=0,
        layer_scale=False,
        grid_hw=(14, 14),
        position_rule="offset",
        norm_eps=1e-6,
        epoch=0,
        optimizer=None,
        residual=None,
        initialisation=None,
    )


def make_weights(
    residual: Residual, facts: CheckpointFacts, seed: int = SEED
) -> dict[str, torch.Tensor]:
    """Untrained weights: timm's default for skip, the paper's initialisation for skipless."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vit = make_vit(facts, residual)
    if residual == "skipless":
        initialise_skipless(vit, VIT_S_DINO, torch.Generator().manual_seed(seed))
    return dict(vit.state_dict())


def make_checkpoints(folder: Path) -> tuple[Path, Path]:
    """skip.pth as DINO's training script lays it out, skipless.safetensors with its facts."""
    ensure_writable(folder)
    facts = small_facts()
    skip = folder / "skip.pth"
    state = make_weights("skip", facts)
    arguments = argparse.Namespace(arch="vit_tiny", patch_size=facts.patch, optimizer="adamw")
    torch.save(
        {
            "student": {f"module.backbone.{name}": value for name, value in state.items()},
            "teacher": {f"backbone.{name}": value for name, value in state.items()},
            "epoch": 0,
            "args": arguments,
        },
        skip,
    )
    told = {
        "layout": "dino",
        "residual": "skipless",
        "initialisation": str(VIT_S_DINO),
        "optimizer": "adamw",
    }
    skipless = save_checkpoint(
        folder / "skipless.safetensors",
        make_weights("skipless", facts),
        {**told, "heads": facts.heads or 0, "epoch": 0},
    )
    return skip, skipless


def draw_shapes(path: Path) -> Path:
    """A sheet of images of the embedded data set with their masks."""
    from skipbench.datasets import open_dataset
    from skipbench.drawing.sheet import dataset_sheet, save

    save(dataset_sheet(open_dataset("shapes", limit=8)), path)
    return path


def evaluate(ckpts: Sequence[Path], folder: Path) -> "list[Stored]":
    """Every evaluation of both models. Records of an older demo may lie beside these."""
    one_each = [e for e in evaluations().values() if not e.takes_several_checkpoints]
    runs = [(one, [ckpt]) for ckpt in ckpts for one in one_each]
    together = [(one, ckpts) for one in evaluations().values() if one not in one_each]
    return [record for one, paths in [*runs, *together] for record in _records(one, paths, folder)]


def _records(evaluation: Evaluation, ckpts: Sequence[Path], folder: Path) -> "Iterator[Stored]":
    from skipbench.results.read import Stored

    out = folder / evaluation.settings.defaults()["out"]
    where = {"device": "cpu", "cache": str(folder / "cache"), "out": out}
    target = evaluation.target([str(ckpt) for ckpt in ckpts], "shapes")
    for given in evaluation.demo:
        settings = evaluation.settings.make({**target, **given, **where})
        yield from (Stored(result, out) for result in pipeline.evaluate(evaluation, settings))


def run(folder: str | Path = "demo") -> Path:
    """`skipbench demo` without its output on screen: the path of the report."""
    from skipbench.results.report import report

    folder = Path(folder)
    records = evaluate(make_checkpoints(folder), folder)
    return report(records, folder / "report.html", title=TITLE)
