"""What the demo runs: two small models made by the two initialisations, on pictures at hand."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from skipbench.backbones.initialisation import VIT_S_DINO, initialise_skipless
from skipbench.backbones.vit import make_vit
from skipbench.checkpoints import save_checkpoint
from skipbench.files import ensure_writable
from skipbench.records import CheckpointFacts, Residual, Result

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
        {**told, "heads": facts.heads, "epoch": 0},
    )
    return skip, skipless


def draw_shapes(path: Path) -> Path:
    """Some pictures of the embedded data set, with their masks."""
    from skipbench.datasets import open_dataset
    from skipbench.pictures import dataset_sheet, save

    save(dataset_sheet(open_dataset("shapes", limit=8)), path)
    return path


def probe_shapes(ckpt: Path, folder: Path) -> list[Result]:
    """The linear probe on the embedded data set, small enough for two cores: the paper's two kinds
    of features with pictures, and two blocks more for a curve over depth."""
    from skipbench.evaluations.probe.calls import probe_all

    how: dict[str, Any] = {
        "size": "160x208",
        "epochs": 5,
        "device": "cpu",
        "out": folder / "results",
        "cache": str(folder / "cache"),
    }
    found = probe_all(ckpt, "shapes", layers=["last", "multiscale"], pictures=4, **how)
    return found + probe_all(ckpt, "shapes", layers=["1", "3"], **how)


def cut_shapes(ckpt: Path, folder: Path) -> Result:
    """Object discovery on the same pictures, with every block."""
    from skipbench.evaluations.tokencut.calls import tokencut

    return tokencut(
        ckpt, "shapes", layers="all", device="cpu", pictures=4, out=folder / "results",
        cache=str(folder / "cache"),
    )  # fmt: skip


def look_up_shapes(ckpt: Path, folder: Path) -> list[Result]:
    """What needs no training, on the features of the probe: neighbours and clusters."""
    from skipbench.evaluations.knn.calls import cluster, knn

    how: dict[str, Any] = {
        "size": "160x208",
        "device": "cpu",
        "out": folder / "results",
        "cache": str(folder / "cache"),
    }
    return [*knn(ckpt, "shapes", **how), *cluster(ckpt, "shapes", seeds=3, **how)]


def colour_shapes(ckpts: Sequence[Path], folder: Path) -> list[Result]:
    """Principal components of every block of both models, on some of the same pictures."""
    from skipbench.evaluations.pca.calls import pca

    return pca(
        ckpts, "dataset:shapes", layers="all", limit=8, size="short:288", device="cpu",
        out=folder / "pca", cache=str(folder / "cache"),
    )  # fmt: skip


def evaluate(ckpts: Sequence[Path], folder: Path) -> "list[Stored]":
    """This demo's records: those of an older one may lie beside them."""
    from skipbench.results.read import Stored

    found = []
    for ckpt in ckpts:
        figures = [
            *probe_shapes(ckpt, folder),
            cut_shapes(ckpt, folder),
            *look_up_shapes(ckpt, folder),
        ]
        found += [Stored(result, folder / "results") for result in figures]
    return found + [Stored(result, folder / "pca") for result in colour_shapes(ckpts, folder)]


def run(folder: str | Path = "demo") -> Path:
    """`skipbench demo` without its screens: the report's path."""
    from skipbench.results.report import report

    folder = Path(folder)
    records = evaluate(make_checkpoints(folder), folder)
    return report(records, folder / "report.html", title=TITLE)
