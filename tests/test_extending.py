"""The examples of `skipbench manual extending`, put into a copy of the package and used.

The copy has no other evaluation: nothing but the folder can be what tables, report, check, suites
and the demo know it by.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import skipbench

PACKAGE = Path(skipbench.__file__).parent
PAGE = PACKAGE / "manual" / "extending.md"
SUITE = """
out = "results"
cache = "cache"
[[checkpoint]]
path = "demo/skip.pth"
residual = "skip"
[[checkpoint]]
path = "demo/skipless.safetensors"
[[evaluation]]
kind = "spread"
datasets = ["mine"]
layers = ["last", "all"]
size = "64x80"
"""


def examples():
    """Path in the package → text of each code block that begins with its path."""
    blocks = re.findall(r"```python\n# (skipbench/\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(blocks)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "skipbench", ignore=skip)
    for registered in (folder / "skipbench" / "evaluations").glob("*/__init__.py"):
        if "EVALUATION = " in registered.read_text():
            shutil.rmtree(registered.parent)
    for path, text in examples().items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    draw_photographs(folder / "data" / "mine")
    return folder


def draw_photographs(folder):
    """Bands of three values, and of one that is ignored."""
    for split, count in (("train", 8), ("val", 4)):
        for number in range(count):
            mask = np.repeat(np.arange(4, dtype=np.uint8), 12)[:, None].repeat(60, axis=1)
            image = np.stack([60 * mask, 255 - 60 * mask, mask * number], axis=2)
            for kind, pixels, suffix in (("images", image, "jpg"), ("masks", mask, "png")):
                path = folder / kind / split / f"{number}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def run(tree):
    def run(*words, code=0):
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "skipbench", *words]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def evaluated(run, tree):
    """The demo, then a suite on the example's own data set."""
    shown = run("demo")
    (tree / "suite.toml").write_text(SUITE)
    run("run", "suite.toml", "--quiet")
    return shown


def test_an_evaluation_is_at_most_120_lines_in_one_folder():
    files = {path: text for path, text in examples().items() if "/evaluations/" in path}
    assert {str(Path(path).parent) for path in files} == {"skipbench/evaluations/spread"}
    assert sum(len(text.splitlines()) for text in files.values()) <= 120


def test_a_data_set_is_one_file():
    assert [path for path in examples() if "/datasets/" in path] == ["skipbench/datasets/mine.py"]


def test_help_and_data_list_show_them(run):
    assert "How far apart an image's tokens are." in run("--help")
    assert "--layers" in run("spread", "--help")
    assert "mine" in run("data", "list")


def test_suite_and_command_give_one_record(run, tree, evaluated):
    records = [json.loads(path.read_text()) for path in (tree / "results").glob("*.json")]
    assert len(records) == 4 and {record["evaluation"] for record in records} == {"spread"}
    found = run(
        "spread", "--ckpt", "demo/skip.pth", "--dataset", "mine", "--size", "64x80", "--cache",
        "cache", "--json",
    )  # fmt: skip
    assert [record["id"] for record in json.loads(found)] in [[r["id"]] for r in records]


def test_table_compare_and_report(run, evaluated):
    assert "spread" in run("table", "results")
    shown = run("compare", "results", "skip.pth", "skipless.safetensors")
    assert "spread on mine" in shown and "B − A" in shown
    run("report", "results", "--out", "page.html")


def test_report_names_it(run, tree, evaluated):
    run("report", "results", "--out", "named.html")
    assert "token spread" in (tree / "named.html").read_text()


def test_check_fails_where_a_figure_has_fallen(run, tree, evaluated):
    run("check", "results", "--update")
    assert "4 met" in run("check", "results")
    text = (tree / "baseline.json").read_text()
    raised = re.sub(r'"value": ([\d.]+)', lambda found: f'"value": {float(found[1]) + 9}', text)
    (tree / "baseline.json").write_text(raised)
    assert "4 worse" in run("check", "results", code=5)


def test_the_demo_runs_it(tree, evaluated):
    assert "token spread" in (tree / "demo" / "report.html").read_text()


def test_your_own_model(tmp_path, monkeypatch):
    """The module of the manual, as it stands there."""
    (text,) = re.findall(r"```python\n# mine.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(text)
    found = subprocess.run(
        [sys.executable, "-m", "skipbench", "cluster", "--ckpt", "python:mine:Mine", "--dataset",
         "shapes", "--limit", "4", "--size", "64x80", "--clusters", "4", "--json"],
        cwd=tmp_path, env={**os.environ, "SKIPBENCH_CACHE": "cache"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    record, *_ = json.loads(found.stdout)  # one for each seed
    assert record["checkpoint"]["layout"] == "Mine" and record["checkpoint"]["width"] == 192
