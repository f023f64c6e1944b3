"""Records of an evaluation that this version does not know: all readers have sensible defaults."""

import json

import numpy as np
import pytest
from made import data_part, make_result

from skipbench.record_store import write_result
from skipbench.results.check import check
from skipbench.results.compare import compare
from skipbench.results.report import report
from skipbench.results.tables import table


@pytest.fixture
def folder(tmp_path):
    """skip and skipless by a "depthmap" with a score for each image, as of a newer version."""
    rng = np.random.default_rng(0)
    for residual, mean in (("skip", 0.3), ("skipless", 0.6)):
        scores = np.clip(rng.normal(mean, 0.1, 30), 0, 1)
        value = 100 * float(scores.mean())
        rows = [{"block": block, "delta1": value - 11 + block} for block in range(12)]
        record = make_result(
            evaluation="depthmap", metric="delta1", value=value, interval=[value - 2, value + 2],
            name=f"{residual}.pth", residual=residual, layers="all", blocks=list(range(12)),
            protocol={"name": "eigen"}, selected_on="val", data=data_part(images=30),
            metrics={"block": 11, "blocks": rows},
        )  # fmt: skip
        write_result(tmp_path / "r", record, {"counts": np.stack([scores, np.ones(30)], axis=1)})
    return tmp_path / "r"


def test_table(folder):
    made = table(folder)
    assert made.columns == (("delta1",),) and len(made.rows) == 2
    assert "evaluation depthmap" in made.title and "protocol eigen" in made.title
    ((_, text),) = made.footnotes  # its blocks are known as such, and its protocol needs no note
    assert text.startswith("best of 12 blocks (block 11)")


def test_list_and_check(folder, cli, tmp_path):
    told = json.loads(cli("results", "list", folder, "--json").stdout)
    assert {one["evaluation"] for one in told} == {"depthmap"}
    assert "delta1 " in cli("results", "list", folder).stdout
    path = tmp_path / "b.json"
    assert cli("check", folder, "--baseline", path, "--update", "--paired").exit_code == 0
    assert [verdict.state for verdict in check(folder, path, paired=True)] == ["met", "met"]
    done = cli("calibrate", folder)
    assert done.exit_code == 2 and "depthmap" in done.stderr


def test_compare(folder, cli):
    (found,) = compare("skip.pth", "skipless.pth", results=folder)
    assert found.metric == "delta1" and found.difference > 20 and found.p_value < 0.01
    done = cli("compare", folder, "skip.pth", "skipless.pth")
    assert "depthmap on voc val" in done.stdout and "One run each" in done.stdout
    done = cli("compare", folder, "skip.pth", "skipless.pth", "--pictures", 2)
    assert done.exit_code == 2 and "no pictures of depthmap" in done.stderr


def test_report(folder, tmp_path):
    words = report(folder, tmp_path / "page.html").read_text()
    assert "depthmap (2)" in words and "depthmap, delta1" in words
    assert "delta1 over blocks" in words
    assert "paired over 30 images" in words


def test_a_known_metric_keeps_its_name():
    made = table([make_result(evaluation="newprobe"), make_result(name="b")])
    assert made.columns == (("mIoU",),)
