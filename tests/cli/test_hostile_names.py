"""Strings from outside are made visible before they are printed, wherever that is."""

import pytest
import torch
from conftest import original_state
from PIL import Image

RED = "esc\x1b[31mred\x1b]0;title\x07a"  # colours the terminal, renames its window
SEEN = r"esc\x1b[31mred\x1b]0;title\x07a"


@pytest.fixture
def hostile(tmp_path):
    path = tmp_path / f"{RED}.pth"
    torch.save(original_state(width=64, depth=2), path)
    return path


def of_ours(text):
    """Without control characters other than line breaks."""
    return all(sign.isprintable() or sign == "\n" for sign in text)


def test_a_checkpoint(hostile, skipbench, pictures):
    for arguments in (
        ("inspect", "--ckpt", hostile),
        ("extract", "pictures", "--ckpt", hostile, "--size", "32"),
        ("inspect", "--ckpt", hostile, "--residual", "skipless"),
        ("probe", "--ckpt", hostile, "--dataset", "shapes", "--limit", "4", "--epochs", "1",
         "--size", "64", "--residual", "skip", "--verbose"),
        ("table",),
        ("results", "list"),
        ("compare", "nothing", hostile.name),
    ):  # fmt: skip
        done = skipbench(*arguments)
        assert SEEN in done.stdout + done.stderr, arguments
        assert of_ours(done.stdout) and of_ours(done.stderr), arguments
        assert "Traceback" not in done.stderr


def test_what_is_not_there(skipbench, hostile):
    hostile.unlink()
    done = skipbench("inspect", "--ckpt", hostile)
    assert done.returncode == 3 and SEEN in done.stderr and of_ours(done.stderr)


def test_images_data_sets_and_labels(skipbench, ckpt, pictures, tmp_path):
    (tmp_path / f"{RED}.png").write_bytes(b"no image")
    (tmp_path / "line\nbreak.png").write_bytes(b"no image")
    for arguments, words in (
        (("extract", f"{RED}.png", "--ckpt", ckpt), SEEN),
        (("probe", "--ckpt", ckpt, "--dataset", RED), SEEN),
        (("probe", "--ckpt", ckpt, "--dataset", f"folder:{RED}"), SEEN),
        (("pca", "line\nbreak.png", "--ckpt", ckpt, "--size", "32"), r"\n"),
        (("inspect", "--ckpt", ckpt, "--residual", "skip", "--label", f"name={RED}"), SEEN),
        (("table", RED), SEEN),
    ):
        done = skipbench(*arguments)
        assert words in done.stdout + done.stderr, arguments
        assert of_ours(done.stdout) and of_ours(done.stderr), arguments


def test_a_broken_image_whose_name_has_a_line_break(skipbench, ckpt, tmp_path):
    """Its name cannot pass for a line of ours."""
    (tmp_path / "x\nskipbench: done.png").write_bytes(b"no image")
    for name in ("x\nskipbench: done.png", "x\nskipbench: gone.png"):
        done = skipbench("extract", name, "--ckpt", ckpt, "--size", "32", "--residual", "skip")
        assert done.returncode == 4 and r"x\nskipbench: " in done.stderr, done.stderr


def test_a_suite_and_a_data_set(skipbench, ckpt, tmp_path):
    """Its names, unknown keys, and the classes and images of a data set."""
    for split in ("train", "val"):
        for folder, mode in (("images", "RGB"), ("masks", "L")):
            (tmp_path / "data" / folder / split).mkdir(parents=True)
            Image.new(mode, (48, 40)).save(tmp_path / "data" / folder / split / f"{RED}.png")
    (tmp_path / "data" / "classes.txt").write_text(f"0\t{RED}\n1\tb{RED}\n")
    name = '"' + RED.replace("\x1b", r"\u001b").replace("\x07", r"\u0007") + '"'
    cells = f"[[checkpoint]]\npath = '{ckpt}'\nname = {name}\nresidual = 'skip'\n"
    cells += f"[[evaluation]]\nkind = 'knn'\nname = {name}\nsize = '32'\n"
    (tmp_path / "good.toml").write_text(f"{cells}datasets = ['folder:data']\n")
    (tmp_path / "bad.toml").write_text(f"{name} = 1\n{cells}datasets = [{name}]\n{name} = {name}")
    knn = ("knn", "--ckpt", ckpt, "--dataset", "folder:data", "--size", "32", "--out", "results")
    for arguments, code in (
        (("run", "good.toml"), 0),
        (("run", "good.toml", "--only", f"{RED}x"), 2),
        (("run", "bad.toml"), 2),
        ((*knn, "--residual", "skip"), 0),
        (("results", "list"), 0),
        (("data", "verify", "folder:data"), 0),
    ):
        done = skipbench(*arguments)
        assert done.returncode == code, done.stderr
        assert SEEN in done.stdout + done.stderr, arguments
        assert of_ours(done.stdout) and of_ours(done.stderr), arguments
