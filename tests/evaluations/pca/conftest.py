"""PCA pictures of three small photographs by three small models, in this process."""

from functools import cache

import pytest
import torch
from conftest import original_state, records
from plain_pca import SIZES_HW, STATES, Plain, pixels_of, put, scene
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from skipbench import pipeline
from skipbench.cli import app
from skipbench.evaluations import find_evaluation
from skipbench.evaluations.pca import pictures


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_blas():
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Checkpoints a.pth, b.pth and c.pth, three pictures, one cache for all tests."""
    folder = tmp_path_factory.mktemp("world")
    for name, shape in STATES.items():
        said = {"num_heads": 1, "position_rule": "offset"}
        torch.save(original_state(width=64, **shape) | said, folder / f"{name}.pth")
    for seed, (name, size_hw) in enumerate(SIZES_HW.items()):
        put(folder / "photos" / f"{name}.png", scene(size_hw, seed))
    return folder


@pytest.fixture(scope="session")
def run(world):
    """The command on these pictures and the models named."""

    def run(models, out, *more, images=None, residual="skip", size="native"):
        given = images if images is not None else [world / "photos"]
        given = given if isinstance(given, list) else [given]
        weights = [word for model in models for word in ("--ckpt", world / f"{model}.pth")]
        words = ["pca", *given, *weights, "--out", out, "--cache", world / "cache", *more]
        words += ["--residual", residual] if residual else []
        words += ["--size", size] if size else []
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


@pytest.fixture
def done(run):
    """The same, where nothing may go wrong; the records by checkpoint."""

    def done(models, out="out", *more, **rest):
        shown = run(models, out, *more, **rest)
        assert shown.exit_code == 0, shown.stderr
        return {record.checkpoint["name"]: record for record in records(out)}

    return done


@pytest.fixture(scope="session")
def examined():
    return {}


@pytest.fixture
def no_sheets(monkeypatch):
    """Neither contact sheets nor curves, which take longer than all else."""
    monkeypatch.setattr(pictures, "contact_sheet", lambda *given, **more: iter(()))
    monkeypatch.setattr(pictures, "save_curves", lambda panels, stem: [])


@pytest.fixture
def bare(no_sheets, monkeypatch, examined):
    """Nor tiles, but each picture, the figures and the record. A checkpoint is examined once."""
    inspect = pipeline.inspect

    def once(path, **reading):
        key = str((path, reading))
        return examined.get(key) or examined.setdefault(key, inspect(path, **reading))

    monkeypatch.setattr(pipeline, "inspect", once)
    monkeypatch.setattr(pictures.Folder, "draw_tiles", lambda self, number: None)


@pytest.fixture
def opened(bare):
    """A run that has not begun."""

    def opened(ckpts, images, **given):
        evaluation = find_evaluation("pca")
        how = {"ckpts": ckpts, "images": images, "residual": "skip", "size": "native"}
        return pipeline.open_run(evaluation, evaluation.settings.make({**how, **given}))

    return opened


@pytest.fixture(scope="session")
def originals(world):
    return {name: pixels_of(world / "photos" / f"{name}.png") for name in SIZES_HW}


@pytest.fixture(scope="session")
def plain(world, originals):
    """By size: features are computed once."""
    return cache(lambda size: Plain(world, originals, size))
