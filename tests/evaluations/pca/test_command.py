"""`skipbench pca` as a user meets it: what it prints, and faults."""

import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import original_state, records
from plain_pca import (
    STATES,
    files_in,
)

import skipbench as package
from skipbench.errors import UsageError
from skipbench.features.stream import Extractor

pytestmark = pytest.mark.usefixtures("nowhere_else")


def test_quiet_is_quiet(run, bare):
    assert run("ab", "out", "--json", "--quiet").stderr == ""
    shown = run("a", "out", "--quiet", "--no-cache")
    assert shown.exit_code == 0 and shown.stderr == "" and "explained" in shown.stdout


def test_the_page_names_what_was_made(run):
    shown = run("ab", "out", "--layers", "all", "--fit", "all", "--background", "mask")
    assert "\x1b" not in shown.stdout + shown.stderr and "\r" not in shown.stderr
    for path in re.findall(r"out/[\w./-]+\w", shown.stdout):
        assert Path(path).is_file(), path
    assert shown.stdout.count("record: out/") == 2 and "curves: out/curves.png" in shown.stdout
    assert "fitted to all images, foreground alone" in shown.stdout
    for record in records("out"):
        for row in record.metrics["blocks"]:
            line = rf"{record.checkpoint['name']} \(skip\) +{row['block']} +{row['explained']:.1f} "
            assert re.search(line, shown.stdout)


def test_block_0_is_a_block(run, bare):
    shown = run("a", "out", "--layers", "0")
    assert re.search(r"a\.pth \(skip\) +0 ", shown.stdout)


FAULTS = [
    (("--ckpt", "WORLD/d.pth"), 3, "no checkpoint at"),
    (("--fit", "al"), 2, "Did you mean 'all'"),
    (("--upsample", "bilinar"), 2, "Did you mean 'bilinear'"),
    (("--background", "msk"), 2, "Did you mean 'mask'"),
    (("--feature", "token"), 2, "Did you mean 'tokens'"),
    (("--layers", "al"), 2, "Did you mean 'all'"),
    (("--layers", "7"), 2, "blocks 0 to 2"),
    (("--components", "0"), 2, "--components 0: expected an integer from 1 to 12"),
    (("--components", "13"), 2, "--components 13"),
    (("--residual", "skip", "--residual", "skiples"), 2, "skiples"),
    (("--name", "x", "--name", "y", "--name", "z"), 2, "--name: 3 for 2 checkpoints"),
    (("--split", "val"), 2, "--split goes with dataset:NAME"),
    (("dataset:shapes",), 2, "dataset:NAME stands by itself"),
    (("WORLD/photo",), 4, "Did you mean 'photos'"),
    (("WORLD/a.pth",), 4, "a.pth"),
    (("--out", "WORLD/a.pth"), 7, "cannot write"),
    (("--out", "WORLD/photos"), 2, "contains the input images"),
    (("--cache", "WORLD/a.pth"), 7, "cannot write"),
]


@pytest.mark.parametrize(("more", "code", "word"), FAULTS)
def test_faults(run, bare, world, monkeypatch, more, code, word):
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed
    monkeypatch.setattr(Extractor, "stream", None)
    before = files_in(world / "photos")
    given = [one.replace("WORLD", str(world)) for one in more]
    own = {"--residual": "residual", "--size": "size"}
    shown = run("ab", "out", *given, **{own[one]: None for one in own if one in given})
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert "Traceback" not in shown.stderr and shown.stdout == ""
    assert len(shown.stderr.strip().splitlines()) <= 7  # usage and a box, or three lines
    assert not records("out") and files_in(world / "photos") == before


@pytest.mark.parametrize(
    ("images", "more", "code", "word"),
    [
        ("dataset:vocc", (), 2, "Did you mean 'voc'"),
        ("dataset:nope", (), 2, "nope"),
        ("dataset:voc", (), 4, "--data-root"),
        ("dataset:shapes", ("--split", "vla"), 2, "Did you mean 'val'"),
        ("dataset:", (), 2, "no data set"),
        ("empty", (), 4, "no images in"),
        ("nowhere", (), 4, "no such image or folder"),
    ],
)
def test_faults_of_the_images(run, monkeypatch, images, more, code, word):
    monkeypatch.setattr(Extractor, "stream", None)
    Path("empty").mkdir()
    shown = run("a", "out", *more, images=images)
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert "Traceback" not in shown.stderr and not records("out")


def test_two_variants_for_three_checkpoints(run):
    words = ("--residual", "skip", "--residual", "skip")
    shown = run("abc", "out", *words, residual=None)
    assert shown.exit_code == 2 and "--residual: 2 for 3 checkpoints" in shown.stderr


def test_the_same_checkpoint_twice(run, bare, world):
    shutil.copy(world / "a.pth", "copy.pth")
    for words in (["--ckpt", world / "a.pth"], ["--ckpt", Path("copy.pth").absolute()]):
        shown = run("a", "out", *words)
        assert shown.exit_code == 2 and "twice" in shown.stderr, shown.stderr
    assert not records("out")


def test_one_name_for_two_checkpoints(run):
    shown = run("ab", "out", "--name", "x")
    assert shown.exit_code == 2 and "--name: 1 for 2 checkpoints" in shown.stderr


@pytest.mark.parametrize(
    ("names", "words"), [(("x", "x"), "a name of its own"), (("x", " "), "expected text")]
)
def test_names_that_tell_nothing_apart(run, names, words):
    shown = run("ab", "out", *(word for name in names for word in ("--name", name)))
    assert shown.exit_code == 2 and re.search(
        "--name .*a name of its own|expected text", shown.stderr
    )


def test_a_data_set_called_by_its_bare_name(run):
    shown = run("a", "out", images="coco")
    assert shown.exit_code == 4 and "Did you mean dataset:coco?" in shown.stderr


def test_more_components_than_a_token_has_numbers(run, bare, world):
    torch.save(original_state(width=8, **STATES["a"]), "thin.pth")
    words = ("--ckpt", Path("thin.pth").absolute(), "--heads", "1", "--components", "9")
    shown = run("", "out", *words)
    assert shown.exit_code == 2 and "have 8 numbers" in shown.stderr, shown.stderr
    assert run("", "out", *words[:-1], "8").exit_code == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers(run, world, value):
    """Fault 15."""
    state = original_state(width=64, **STATES["a"])
    state["blocks.1.mlp.fc1.weight"][3, 4] = value
    torch.save(state, "bad.pth")
    shown = run("a", "out", "--ckpt", Path("bad.pth").absolute())
    assert shown.exit_code == 6 and "block" in shown.stderr and not records("out")
    assert "Traceback" not in shown.stderr and not list(Path("out").rglob("*.png"))


def test_no_checkpoint_at_all(world):
    with pytest.raises(UsageError, match="expected at least one checkpoint"):
        package.pca([], world / "photos")
    assert not Path("pca").exists()
