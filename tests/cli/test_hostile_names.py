"""Strings from outside are made visible before they are printed, wherever that is."""

import pytest
import torch
from conftest import original_state

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
