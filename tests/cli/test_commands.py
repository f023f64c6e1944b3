"""The command line as users meet it: quick to answer, right exit codes, the right streams."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import clean_environment, command, original_state

from skipbench import __version__
from skipbench.demo import make_weights, small_facts

HEAVY = {"torch", "timm", "torchvision", "faiss", "scipy", "skimage", "numpy"}


def imported_by(arguments, code, tmp_path):
    """Run in a fresh process, which must end with this code: the packages it has imported."""
    script = (
        "import sys\nfrom skipbench.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    code = end.code or 0\n"
        "print('MODULES', *sys.modules)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=60, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return {name.split(".")[0] for name in done.stdout.split("MODULES")[1].split()}


@pytest.fixture
def skip_ckpt(tmp_path):
    """Small weights that are clearly skip."""
    path = tmp_path / "skip.pth"
    torch.save(make_weights("skip", small_facts(width=64, depth=3, patch=8, heads=1)), path)
    return path


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["inspect", "--help"], 0),
        (["probe", "--help"], 0),
        (["report", "--help"], 0),
        (["report", "x", "--opn"], 2),
        (["run", "--help"], 0),
        (["run", "x.toml", "--onyl", "y"], 2),
        (["probe", "--ckpt", "x", "--epochs", "0", "--dataset", "voc"], 2),
        (["tokencut", "--help"], 0),
        (["tokencut", "--ckpt", "x", "--dataset", "voc", "--tau", "low"], 2),
        (["pca", "--help"], 0),
        (["pca", "x", "--ckpt", "y", "--components", "few"], 2),
        (["inspect", "--ckptt", "x"], 2),
        (["inspct"], 2),
        (["extract", "x", "--ckpt", "y", "--limit", "many"], 2),
        (["--show-completion", "bash"], 0),
    ],
)
def test_parsing_imports_nothing_heavy(arguments, code, tmp_path):
    """In a fresh process: what did it import?"""
    assert not imported_by(arguments, code, tmp_path) & HEAVY


def test_shell_completion_imports_nothing_heavy(tmp_path):
    script = (
        "import sys\nfrom skipbench.cli import app\nimport atexit\n"
        "atexit.register(lambda: print('MODULES', *sys.modules))\napp(prog_name='skipbench')"
    )
    environment = clean_environment(tmp_path) | {
        "_SKIPBENCH_COMPLETE": "complete_bash", "COMP_WORDS": "skipbench ins", "COMP_CWORD": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment
    )
    assert "inspect" in done.stdout.split("MODULES")[0]
    assert not {n.split(".")[0] for n in done.stdout.split("MODULES")[1].split()} & HEAVY


def test_version_and_typo(cli):
    assert cli("--version").stdout == f"skipbench {__version__}\n"
    assert cli("inspct").exit_code == 2


def test_env(cli):
    facts = json.loads(cli("env", "--json").stdout)
    assert (
        facts["packages"]["torch"] == torch.__version__.split("+")[0] or facts["packages"]["torch"]
    )
    assert facts["threads"] == torch.get_num_threads()
    assert {"faiss", "devices", "cache_free", "python"} <= facts.keys()
    assert "torch" in cli("env").stdout


def test_faiss_builds_that_overwrite_each_other_are_named(cli, monkeypatch):
    from skipbench.engine import vectors

    installed = {"faiss-cpu": "1.9", "faiss-gpu": "1.7"}
    monkeypatch.setattr(vectors, "builds", lambda: installed)
    said = json.loads(cli("env", "--json").stdout)["faiss"]
    assert "broken" in said and "pip uninstall -y faiss-cpu faiss-gpu" in said
    installed.pop("faiss-gpu")
    assert json.loads(cli("env", "--json").stdout)["faiss"] == "faiss-cpu 1.9"


# --- inspect ---------------------------------------------------------------------------------


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


# --- exit codes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["inspect", "--ckpt", "nowhere.pth"], 3, "no checkpoint at"),
        (["inspect", "--ckpt", "CKPT", "--residual", "none"], 2, "give skip, skipless, auto"),
        (["inspect", "--ckpt", "CKPT", "--weights", "techer"], 2, "Did you mean 'teacher'"),
        (["inspect", "--ckpt", "CKPT", "--weights", "teacher"], 3, "has no teacher"),
        (["inspect", "--ckpt", "CKPT", "--expect", "depth=12"], 3, "depth 12 was asked for"),
        (["inspect", "--ckpt", "CKPT", "--expect", "deep=12"], 2, "Did you mean 'depth'"),
        (["inspect", "--ckpt", "CKPT", "--heads", "5"], 3, "5 heads"),
        (["inspect", "--ckpt", "CKPT", "--position-rule", "x"], 2, "offset, size, antialias"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--layers", "9"], 2, "no block 9"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--size", "big"], 2, "size 'big'"),
        (["extract", "nowhere", "--ckpt", "CKPT"], 4, "no such image or folder"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--tensor", "kes"], 2, "Did you mean 'keys'"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--batch-size", "0"], 2, "--batch-size"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--precision", "int8"], 2, "--precision"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--device", "tpu"], 2, "--device"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--cache-limit", "much"], 2, "50GB"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--cache", "CKPT/sub"], 7, "cannot write in"),
        (["cache", "clear", "abc", "--yes"], 2, "cache list"),
    ],
)
def test_exit_codes(cli, skip_ckpt, pictures, arguments, code, words):
    places = {"CKPT": str(skip_ckpt), "PICTURES": str(pictures)}
    full = [re.sub("CKPT|PICTURES", lambda m: places[m[0]], a) for a in arguments]
    done = cli(*full)
    assert done.exit_code == code, done.output
    assert words in done.stderr and "Traceback" not in done.output
    assert len(done.stderr.strip().splitlines()) <= 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_where_there_is_none(cli, skip_ckpt):
    done = cli("inspect", "--ckpt", skip_ckpt, "--device", "cuda")
    assert done.exit_code == 2 and "no CUDA device" in done.stderr


def test_unwritable_output_is_found_before_any_computing(skipbench, skip_ckpt, pictures):
    """Before even torch is loaded: it answers at once, also as root."""
    done = skipbench("extract", pictures, "--ckpt", skip_ckpt, "--cache", "/proc/skipbench")
    assert done.returncode == 7 and "cannot write in /proc/skipbench" in done.stderr


def test_a_bug_of_ours(cli, skip_ckpt, monkeypatch):
    import skipbench.pipeline

    def broken(*a, **k):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(skipbench.pipeline, "inspect", broken)
    done = cli("inspect", "--ckpt", skip_ckpt)
    assert done.exit_code == 1 and "a bug in skipbench: ZeroDivisionError: oh" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in cli("inspect", "--ckpt", skip_ckpt, "--verbose").stderr


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


# --- extract and cache -----------------------------------------------------------------------


def test_extract_list_and_clear(cli, skip_ckpt, pictures, tmp_path):
    arguments = ["extract", pictures, "--ckpt", skip_ckpt, "--layers", "all", "--size", "native"]
    first = cli(*arguments, "--tensor", "keys", "--tensor", "tokens", "--json")
    assert first.exit_code == 0, first.output
    summary = json.loads(first.stdout)
    assert (
        summary["images"] == 7
        and "keys.2" in summary["columns"]
        and "tokens.0" in summary["columns"]
    )
    assert "positions of 14×14 patches interpolated to each image's grid (offset)" in first.stderr
    assert summary["degenerate"]["keys.2"] == 0
    again = cli(*arguments, "--tensor", "keys")
    assert (
        "found in the cache" in again.stderr and "7 images, keys.0, keys.1, keys.2" in again.stdout
    )
    listed = json.loads(cli("cache", "list", "--json").stdout)
    assert len(listed) == 1 and listed[0]["complete"] and listed[0]["bytes"] > 1000
    assert "skip.pth" in cli("cache", "list").stdout
    assert cli("cache", "clear", listed[0]["key"][:6], "--yes").exit_code == 0
    assert json.loads(cli("cache", "list", "--json").stdout) == []
    assert "nothing stored" in cli("cache", "list").stdout
    limited = cli("extract", pictures, "--ckpt", skip_ckpt, "--limit", "2", "--size", "24x40", "-q")
    assert limited.stdout.startswith("2 images") and limited.stderr == ""


def test_clear_asks_only_a_person(cli, skip_ckpt, pictures):
    assert cli("extract", pictures, "--ckpt", skip_ckpt, "--size", "24x40").exit_code == 0
    done = cli("cache", "clear")
    assert done.exit_code == 2 and "--yes" in done.stderr
    assert len(json.loads(cli("cache", "list", "--json").stdout)) == 1


def test_a_failure_before_anything_is_stored_leaves_nothing(cli, skip_ckpt, pictures):
    (pictures / "0.png").write_bytes(b"no picture")
    assert cli("extract", pictures, "--ckpt", skip_ckpt, "--size", "24x40").exit_code == 4
    assert json.loads(cli("cache", "list", "--json").stdout) == []


@pytest.mark.parametrize("arguments", [["inspect", "--ckpt", "CKPT"], ["env"], ["cache", "list"]])
def test_a_reader_that_goes_away_is_no_error(arguments, skip_ckpt, tmp_path):
    """`skipbench … | head`"""
    child = subprocess.Popen(
        command(*[str(skip_ckpt) if a == "CKPT" else a for a in arguments]),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(tmp_path),
    )  # fmt: skip
    child.stdout.close()
    assert child.wait(60) == 0, child.stderr.read()
    assert "Error" not in child.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", "--ckpt", "nowhere.pth"], 3),
        (["inspect", "--ckpt", "CKPT", "--residual", "skiples"], 2),
        (["inspect", "--ckpt", "CKPT", "--device", "gpu"], 2),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--layers", "lst"], 2),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--size", "big"], 2),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--tensor", "key"], 2),
        (["extract", "nowhere", "--ckpt", "CKPT"], 4),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--cache", "/proc/skipbench"], 7),
        (["tokencut", "--ckpt", "CKPT"], 2),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "shapes", "--method", "los"], 2),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "shapes", "--feature", "key"], 2),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "vocc", "--out", "PICTURES"], 2),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "voc", "--tau", "2", "--out", "PICTURES"], 2),
        (["tokencut", "--ckpt", "CKPT", "--images", "nowhere", "--out", "PICTURES"], 4),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "shapes", "--out", "/proc/skipbench"], 7),
        (["pca", "PICTURES", "--ckpt", "nowhere.pth"], 3),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--components", "13"], 2),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--fit", "al"], 2),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--residual", "skip", "--residual", "auto"], 2),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--split", "val", "--out", "OUT"], 2),
        (["pca", "dataset:vocc", "--ckpt", "CKPT", "--out", "OUT"], 2),
        (["pca", "nowhere", "--ckpt", "CKPT", "--out", "OUT"], 4),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--out", "/proc/skipbench"], 7),
    ],
)
def test_what_is_cheap_to_check_is_answered_without_torch(
    arguments, code, skip_ckpt, pictures, tmp_path
):
    places = {"CKPT": str(skip_ckpt), "PICTURES": str(pictures), "OUT": str(tmp_path / "out")}
    full = [places.get(a, a) for a in arguments]
    assert not {"torch", "timm"} & imported_by(full, code, tmp_path)


def test_python_twin(skip_ckpt, pictures, tmp_path):
    import skipbench as package

    backbone = package.load_backbone(skip_ckpt, device="cpu")
    with package.extract(backbone, pictures, size="native", cache=tmp_path / "c") as store:
        assert store[0]["tokens_norm.2"].shape == (5, 7, 64)


# --- fault 39: signals -----------------------------------------------------------------------


SIGNALS = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)


@SIGNALS
def test_signals_end_it_at_once_and_keep_what_was_done(number, code, ckpt, pictures, tmp_path):
    """Many pictures, stopped once the first shard has been stored."""
    copies = [tmp_path / f"copy{i}" for i in range(40)]
    for copy in copies:
        shutil.copytree(pictures, copy)
    arguments = ["extract", *copies, "--ckpt", ckpt, "--residual", "skip", "--layers", "all"]
    child = subprocess.Popen(
        command(*arguments, "--size", "320x480", "--device", "cpu"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(tmp_path),
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not any(j.read_text() for j in (tmp_path / "cache").rglob("journal.jsonl")):
        assert time.monotonic() < deadline and child.poll() is None, child.communicate()
        time.sleep(0.02)
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert child.returncode == code, err
    assert "what was done is kept" in err and "Traceback" not in err
    assert any(j.read_text().count("\n") for j in (tmp_path / "cache").rglob("journal.jsonl"))


@SIGNALS
def test_signals_end_even_a_step_that_takes_longer(number, code):
    """Deep in compiled code, where Python's own handlers wait until it returns."""
    script = (
        "import hashlib\nfrom skipbench.engine.signals import signals_end_it\n"
        "with signals_end_it():\n    print('ready', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2 * 10**9)  # more than ten minutes"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == code and "what was done is kept" in err


# --- fault 42: plain output ------------------------------------------------------------------

ESCAPE = "\x1b"


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--nope"], ["cache", "list"]])
def test_no_escape_codes_where_it_is_not_a_terminal(skipbench, arguments):
    done = skipbench(*arguments)
    assert ESCAPE not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--nope"]])
def test_no_escape_codes_in_ci(skipbench, arguments):
    done = skipbench(*arguments, GITHUB_ACTIONS="true", CI="true")
    assert ESCAPE not in done.stdout + done.stderr


def test_plain_lines_in_a_log(skipbench, skip_ckpt, pictures):
    done = skipbench(
        "extract", pictures, "--ckpt", skip_ckpt, "--size", "24x40", "--residual", "skipless"
    )
    assert done.returncode == 0, done.stderr
    assert "features: 7 of 7 images" in done.stderr and "\r" not in done.stderr
    assert "warning:" in done.stderr and ESCAPE not in done.stdout + done.stderr


def in_terminal(arguments, environment):
    """Run with a real pseudo-terminal as all three streams."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(environment)
        os.execv(sys.executable, command(*arguments))
    output = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 1)
        try:
            chunk = os.read(terminal, 65536) if ready else b""
        except OSError:
            break
        output += chunk
        if ready and not chunk:
            break
    os.waitpid(pid, 0)
    return output.decode(errors="replace")


def test_colour_and_animation_in_a_terminal_unless_no_color(tmp_path, skip_ckpt, pictures):
    arguments = [
        "extract",
        pictures,
        "--ckpt",
        skip_ckpt,
        "--residual",
        "skipless",
        "--size",
        "24x40",
    ]
    environment = clean_environment(tmp_path) | {"TERM": "xterm-256color"}
    coloured = in_terminal(arguments, environment)
    assert re.search(r"\x1b\[[0-9;]*(1|33)[0-9;]*m", coloured), coloured
    plain = in_terminal([*arguments, "--limit", "5"], environment | {"NO_COLOR": "1"})
    assert ESCAPE not in plain, plain
    assert "5 of 5 images" in plain


def test_demo(skipbench, tmp_path):
    done = skipbench("demo", "--out", tmp_path / "demo", timeout=300)
    assert done.returncode == 0, done.stderr
    assert "weights look skip:" in done.stdout and "weights look skipless:" in done.stdout
    assert (tmp_path / "demo" / "skip.pth").exists()
    assert (tmp_path / "demo" / "shapes.png").stat().st_size > 10_000
    assert (tmp_path / "demo" / "skipless.safetensors").exists()
    assert len(list((tmp_path / "demo" / "results").glob("probe-shapes-*.json"))) == 8
    assert "multiscale" in done.stdout and "untrained" in done.stdout
    assert "B − A" in done.stdout and "0 skipless" in done.stdout
    page = tmp_path / "demo" / "report.html"
    assert done.stdout.strip().endswith(str(page)) and page.stat().st_size > 100_000
