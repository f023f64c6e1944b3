"""`skipbench tokencut` as a user meets it: what it prints, the dry run, faults."""

import json
import re
import time
from itertools import count
from pathlib import Path

import numpy as np
import plain_tokencut as plain
import pytest
import torch
from conftest import records
from plain_tokencut import boxed_folder, by_image, only, put

import skipbench as package
from skipbench.datasets import open_dataset
from skipbench.evaluations.resume import Chunks
from skipbench.evaluations.tokencut.graph import Graphs, link
from skipbench.evaluations.tokencut.method import cut
from skipbench.features.stream import Extractor
from skipbench.pipeline import carry_out

pytestmark = pytest.mark.usefixtures("nowhere_else")


def flat_folder(size_hw=(48, 64)):
    """A picture of one colour between two of noise, each with a box around all."""
    lines = ["image,xmin,ymin,xmax,ymax"]
    for i in range(3):
        rng = np.random.default_rng(i)
        noise = rng.integers(0, 256, (*size_hw, 3), dtype=np.uint8)
        put(Path("mine", "images", f"{i}.png"), np.full_like(noise, 90) if i == 1 else noise)
        lines.append(f"{i},0,0,{size_hw[1]},{size_hw[0]}")
    Path("mine", "boxes.csv").write_text("\n".join(lines))


@pytest.mark.parametrize("method", ["tokencut", "lost"])
def test_a_picture_of_one_colour_is_degenerate(run, weights, ckpt, method):
    """Its tokens differ by their positions alone; here, by nothing."""
    flat_folder()
    torch.save(weights | {"pos_embed": torch.zeros_like(weights["pos_embed"])}, ckpt)
    shown = run("--method", method, dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert arrays["degenerate"][:, 0].tolist() == [False, True, False]
    assert arrays["boxes"][1, 0].tolist() == [0, 0, 64, 48] and arrays["score"][1, 0] == 0
    assert record.metrics["degenerate"] == record.metrics["blocks"][0]["degenerate"] == 1
    assert "1 of 3 degenerate" in shown.stdout
    assert [row["degenerate"] for row in by_image(record)] == ["0", "1", "0"]
    # The others are as they would be alone.
    backbone = package.load_backbone(ckpt, residual="skip", device="cpu")
    for i in (0, 2):
        tokens = plain.tokens(backbone, open_dataset("folder:mine")[i].read(), 2)
        part, _ = (plain.cut if method == "tokencut" else plain.lost)(tokens)
        assert arrays["boxes"][i, 0].tolist() == plain.box(part, (48, 64))


def test_features_that_are_all_nothing_are_degenerate(run, weights, ckpt):
    """Keys of zero have no cosine."""
    flat_folder()
    blank = {
        name: torch.cat([part if i != 1 else 0 * part for i, part in enumerate(value.chunk(3))])
        for name, value in weights.items()
        if name.startswith("blocks.2.attn.qkv")
    }
    torch.save(weights | blank, ckpt)
    shown = run("--layers", "1,2", dataset="folder:mine", quick=())
    assert shown.exit_code == 0, shown.stderr
    _, arrays = only()
    assert arrays["degenerate"][[0, 2]].tolist() == [[False, True]] * 2
    assert arrays["boxes"][:, 1].tolist() == [[0, 0, 64, 48]] * 3


def unconverged(tokens, grid_hw, tau, eps):
    return cut(Graphs(link(tokens, tau), eps), grid_hw, checks=(2,))


def test_where_the_solver_does_not_converge_it_is_dense(run, monkeypatch):
    how = ("--limit", "6", "--layers", "all")
    assert run("--out", "usual", quick=how).exit_code == 0
    usual, theirs = only("usual")
    assert usual.metrics["dense"] == 0
    monkeypatch.setattr("skipbench.evaluations.tokencut.run.tokencut", unconverged)
    shown = run(quick=how)
    assert shown.exit_code == 0 and "18 of 18 solved densely" in shown.output
    record, arrays = only()
    assert [row["dense"] for row in record.metrics["blocks"]] == [6, 6, 6]
    assert [row["solver"] for row in by_image(record)] == ["dense"] * 6
    for name in arrays.keys() - {"solver"}:
        assert np.array_equal(arrays[name], theirs[name]), name
    for mine, other in zip(record.metrics["blocks"], usual.metrics["blocks"], strict=True):
        assert mine | {"dense": 0} == other
    assert record.metrics["chosen"] == usual.metrics["chosen"]


def test_a_truncated_image(run):
    """Fault 19."""
    boxed_folder()
    path = Path("mine", "images", "p2.png")
    path.write_bytes(path.read_bytes()[:-900])
    shown = run(dataset="folder:mine", quick=())
    assert shown.exit_code == 4 and "p2.png" in shown.stderr and not records()
    assert run("--skip-bad", "1", dataset="folder:mine", quick=()).exit_code == 0
    record, _ = only()
    assert record.dataset["bad"] == ["p2"] and record.dataset["partial"]
    assert record.dataset["names"] == ["p0", "p1", "p3"]


def test_dry_run(run, twelve):
    shown = run("--dry-run", "--layers", "all", dataset=twelve)
    assert shown.exit_code == 0, shown.stderr
    assert "features of 12 images" in shown.stdout and "finding objects" in shown.stdout
    assert "in all about" in shown.stdout and not list(Path("results").iterdir())
    found = json.loads(run("--dry-run", "--layers", "all", "--json", dataset=twelve).stdout)
    assert found["images"] == 12 and found["stored"] == 0 == found["disk_bytes"]
    assert found["seconds"] > 0 and found["memory_bytes"] > 10**7


def test_dry_run_of_what_was_begun(opened, monkeypatch):
    save = Chunks.save

    def saving(self, shard, arrays):
        save(self, shard, arrays)
        if shard == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Chunks, "save", saving)
        carry_out(opened())
    begun = opened()
    found = begun.estimate(begun.cells)
    assert (found.images, found.stored) == (4, 8) and found.seconds > 0
    carry_out(opened())  # and the trial has taken nothing away
    assert only()[0].timing["images_computed"] == 4


def test_dry_run_of_what_was_done(opened, run, twelve):
    carry_out(opened())
    found = json.loads(run("--dry-run", "--json", dataset=twelve, quick=("--size", "40x56")).stdout)
    assert found["images"] == 0 and found["stored"] == 12 and found["seconds"] == 0
    again = opened(force=True)
    found = again.estimate(again.cells)
    assert (found.images, found.stored) == (12, 0)


def test_lines_in_a_log_have_the_figure_so_far(run, monkeypatch):
    """Fault 42: no terminal, no escape codes, no animation."""
    clock = count(step=60)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))  # so long that each has a line
    shown = run("--layers", "all")
    lines = re.findall(
        r"(\d+) of 12 images, .*CorLoc (\S+) \(block (\d)\)$", shown.stderr, re.MULTILINE
    )
    assert [int(done) for done, *_ in lines] == list(range(1, 13))
    record, _ = only()
    assert lines[-1][1] == f"{record.metrics['corloc']:.1f}"
    assert int(lines[-1][2]) == record.metrics["block"]
    assert lines[0][1] in ("0.0", "100.0") and len({line[1] for line in lines}) > 2
    assert "\x1b" not in shown.stdout + shown.stderr and "\r" not in shown.stderr


def test_quiet_is_quiet(run, twelve):
    assert run("--json", "--quiet", dataset=twelve).stderr == ""
    shown = run("--quiet", "--force", dataset=twelve)
    assert shown.exit_code == 0 and shown.stderr == "" and "CorLoc" in shown.stdout


def test_the_page_has_every_block_and_both_figures(run):
    shown = run("--layers", "all")
    record, _ = only()
    assert "\x1b" not in shown.stdout and "best of 3 on these images" in shown.stdout
    assert "τ 0.2" in shown.stdout and "blocks 0 to 2" in shown.stdout
    for row in record.metrics["blocks"]:
        ends = "{:.1f} to {:.1f}".format(*row["interval"])
        assert re.search(rf"^ +{row['block']} +{row['corloc']:.1f} +{ends} ", shown.stdout, re.M)
    unbiased = record.metrics["chosen"]["holdout"]["corloc"]
    assert re.search(rf"CorLoc {unbiased:.1f} .*scored on the other", shown.stdout)


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (("--dataset", "vocc"), 2, "Did you mean 'voc'"),
        (("--dataset", "voc"), 4, "--data-root"),
        (("--method", "tokncut"), 2, "Did you mean 'tokencut'"),
        (("--feature", "key"), 2, "Did you mean 'keys'"),
        (("--layers", "al"), 2, "Did you mean 'all'"),
        (("--layers", "7"), 2, "no block 7"),
        (("--score", "box"), 2, "Did you mean 'boxes'"),
        (("--split", "vla"), 2, "Did you mean 'val'"),
        (("--tau", "1"), 2, "--tau"),
        (("--tau", "nan"), 2, "--tau"),
        (("--eps", "0"), 2, "--eps"),
        (("--eps", "nan"), 2, "--eps"),
        (("--images", "photos"), 2, "--images"),
        (("--ckpt", "skpi.pth"), 3, "Did you mean 'skip.pth'"),
        (("--out", "skip.pth"), 7, "cannot write"),
        (("--cache", "skip.pth"), 7, "cannot write"),
    ],
)
def test_faults(run, monkeypatch, more, code, word):
    monkeypatch.setattr(Extractor, "run", None)  # nothing is computed
    shown = run(*more)
    assert shown.exit_code == code and word in shown.stderr, shown.stderr
    assert not list(Path().glob("results/*.json")) and "Traceback" not in shown.stderr


def test_an_unwritable_cache_is_no_fault_where_none_is_used(run, twelve):
    assert run("--cache", "skip.pth", "--no-cache", dataset=twelve).exit_code == 0
