"""The demo: every evaluation on two small untrained models and the embedded data set."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

from skipbench.backbones.initialisation import VIT_S_DINO, initialise_skipless
from skipbench.backbones.vit import make_vit
from skipbench.checkpoints import save_checkpoint
from skipbench.evaluations import Evaluation, evaluations
from skipbench.files import ensure_writable
from skipbench.pipeline import carry_out, open_run
from skipbench.records import CheckpointFacts, Residual
from skipbench.results.read import Stored

SEED = 0
TITLE = "skipbench demo: two untrained models on drawn shapes"


def small_facts(
    width: int = 192, depth: int = 6, patch: int = 16, heads: int = 3
) -> CheckpointFacts:
    """A ViT-Tiny, half as deep."""
    return CheckpointFacts(
        name="demo", sha256="", layout="dino", weights=None, width=width, depth=depth, patch=patch,
        heads=heads, mlp_width=4 * width, gated_mlp=False, registers=0, layer_scale=False,
        grid_hw=(14, 14), position_rule="offset", norm_eps=1e-6, epoch=0,
    )  # fmt: skip


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
    training = {
        "student": {f"module.backbone.{name}": value for name, value in state.items()},
        "teacher": {f"backbone.{name}": value for name, value in state.items()},
        "epoch": 0,
        "args": Namespace(arch="vit_tiny", patch_size=facts.patch, optimizer="adamw"),
    }
    torch.save(training, skip)
    header: dict[str, str | int] = {
        "layout": "dino", "residual": "skipless", "initialisation": str(VIT_S_DINO),
        "optimizer": "adamw", "heads": facts.heads or 0, "epoch": 0,
    }  # fmt: skip
    weights = make_weights("skipless", facts)
    return skip, save_checkpoint(folder / "skipless.safetensors", weights, header)


def evaluate(ckpts: Sequence[Path], folder: Path) -> list[Stored]:
    """Every evaluation of both models: these records alone, without those of an older demo."""
    one_each = [e for e in evaluations().values() if not e.takes_several_checkpoints]
    runs: list[tuple[Evaluation, Sequence[Path]]]
    runs = [(one, [ckpt]) for ckpt in ckpts for one in one_each]
    runs += [(one, ckpts) for one in evaluations().values() if one not in one_each]
    records = []
    for evaluation, paths in runs:
        out = folder / evaluation.settings.defaults()["out"]
        target = evaluation.target(list(map(str, paths)), "shapes")
        where = {"device": "cpu", "cache": str(folder / "cache"), "out": out}
        for given in evaluation.demo:
            settings = evaluation.settings.make({**target, **given, **where})
            records += [Stored(one, out) for one in carry_out(open_run(evaluation, settings))]
    return records


def run(folder: str | Path = "demo") -> Path:
    """`skipbench demo` without its output: the path of the report."""
    from skipbench.results.report import report

    folder = Path(folder)
    records = evaluate(make_checkpoints(folder), folder)
    return report(records, folder / "report.html", title=TITLE)
