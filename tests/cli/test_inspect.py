"""`skipbench inspect`: what a checkpoint is, and whether it is skip or skipless."""

import json
import re

import torch
from conftest import original_state

from skipbench.demo import make_weights, small_facts


def test_inspect_page(cli, skip_ckpt):
    done = cli("inspect", "--ckpt", skip_ckpt)
    assert done.exit_code == 0, done.output
    for words in (
        "skip.pth",
        "read from",
        "64-wide heads",
        "weights look skip",
        "verdict: healthy",
    ):
        assert words in done.stdout
    assert re.search(r"^ +2 +\S+ +0\.\d\d", done.stdout, re.MULTILINE)


def test_inspect_json(cli, skip_ckpt):
    done = cli("inspect", "--ckpt", skip_ckpt, "--json")
    page = json.loads(done.stdout)
    assert page["residual"] == "skip" and page["verdict"]["winner"] == "skip"
    assert page["facts"]["sources"]["depth"] == "shapes of the weights"
    assert page["parameters"] == sum(
        v.numel() for v in torch.load(skip_ckpt, weights_only=True).values()
    )
    blocks = page["verdict"]["skip"]["blocks"]
    assert [b["block"] for b in blocks] == [-1, 0, 1, 2]
    assert all(b["finite"] and b["attention_distance"] > 0 for b in blocks[1:])
    assert "taken as skip" in done.stderr


def test_residual_against_a_clear_winner_warns_loudly(cli, skip_ckpt):
    done = cli("inspect", "--ckpt", skip_ckpt, "--residual", "skipless", "--json")
    page = json.loads(done.stdout)
    assert done.exit_code == 0 and page["residual"] == "skipless"
    assert "look SKIP" in page["warning"] and "warning:" in done.stderr


def test_undecidable_asks_for_the_flag(cli, tmp_path):
    """One block, made for skipless but tame: nothing speaks against either variant."""
    state = make_weights("skipless", small_facts(width=64, depth=1, patch=8, heads=1))
    state["blocks.0.mlp.fc2.weight"] = state["blocks.0.mlp.fc2.weight"] * 0.01
    state["blocks.0.attn.proj.weight"] = state["blocks.0.attn.proj.weight"] * 0.1
    torch.save(state, tmp_path / "w.pth")
    done = cli("inspect", "--ckpt", tmp_path / "w.pth")
    assert done.exit_code == 2, done.output
    assert "--residual skip" in done.stderr
    # … and the page shows both, for whoever has to decide.
    assert "run skip," in done.stdout and "run skipless," in done.stdout
    assert cli("inspect", "--ckpt", tmp_path / "w.pth", "--residual", "skipless").exit_code == 0


def test_nan_in_weights_is_6(cli, tmp_path):
    state = original_state()
    state["blocks.1.norm1.bias"][3] = float("nan")
    torch.save(state, tmp_path / "w.pth")
    done = cli("inspect", "--ckpt", tmp_path / "w.pth")
    assert done.exit_code == 6 and "block 1" in done.stderr


def test_nan_in_the_variant_asked_for_is_shown_and_is_6(cli, tmp_path):
    state = make_weights("skipless", small_facts(width=64, depth=3, patch=8, heads=1))
    state["blocks.0.mlp.fc2.bias"][3] = state["blocks.1.attn.proj.bias"][3] = 3e38
    torch.save(state, tmp_path / "w.pth")
    done = cli("inspect", "--ckpt", tmp_path / "w.pth", "--residual", "skip")
    assert done.exit_code == 6 and "NaN or Inf arises in block 1" in done.stderr
    assert "verdict: broken" in done.stdout
    page = cli("inspect", "--ckpt", tmp_path / "w.pth", "--residual", "skip", "--json").stdout
    assert "NaN" not in page.replace("NaN or Inf", "")
    assert json.loads(page)["verdict"]["skip"]["blocks"][-1]["norm"] is None
