"""Signals, closed pipes, colour: the command as a terminal, a log and a job system meet it."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import clean_environment, command
from processes import Forked, forked_in_terminal, in_terminal

ESCAPE = "\x1b"


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


SIGNALS = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)


@SIGNALS
def test_signals_end_it_at_once_and_keep_what_was_done(number, code, ckpt, pictures, tmp_path):
    """Many pictures, stopped once the first shard has been stored."""
    copies = [tmp_path / f"copy{i}" for i in range(40)]
    for copy in copies:
        shutil.copytree(pictures, copy)
    where = ("--layers", "all", "--size", "200x304", "--device", "cpu")
    child = Forked(["extract", *copies, "--ckpt", ckpt, "--residual", "skip", *where], tmp_path)
    deadline = time.monotonic() + 90
    while not stored_shards(tmp_path / "cache"):
        assert time.monotonic() < deadline and child.process.is_alive(), child.output
        time.sleep(0.02)
    child.send_signal(number)
    assert child.wait(30) == code, child.output
    assert "finished work is kept" in child.output and "Traceback" not in child.output
    assert stored_shards(tmp_path / "cache")


def stored_shards(cache):
    return sum(journal.read_text().count("\n") for journal in cache.rglob("journal.jsonl"))


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
    assert child.returncode == code and "finished work is kept" in err


def test_ctrl_c_while_it_is_being_loaded(tmp_path):
    script = (
        "import os, signal, sys\n"
        "def watch(event, values):\n    if event == 'import' and values[0] == 'typer':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(watch)\nfrom skipbench.__main__ import main\nmain()"
    )
    done = run_script(script, tmp_path, "env")
    assert done.returncode == -signal.SIGINT and done.stdout == done.stderr == ""


@SIGNALS
def test_signals_end_it_where_nobody_reads_its_output(number, code):
    script = (
        "import hashlib, os\nfrom skipbench.engine.signals import signals_end_it\n"
        "with signals_end_it():\n    print('the rest')  # stays in the buffer: the pipe is full\n"
        "    os.set_blocking(1, False)\n"
        "    try:\n        while True:\n            os.write(1, b'x' * 10**5)\n"
        "    except BlockingIOError:\n        os.set_blocking(1, True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2 * 10**9)"
    )
    reader, writer = os.pipe()
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=writer, env=buffered)
    while not select.select([reader], [], [], 0.1)[0]:
        assert child.poll() is None
    time.sleep(0.3)
    child.send_signal(number)
    assert child.wait(30) == code
    os.close(reader)
    os.close(writer)


@SIGNALS
def test_what_a_signal_breaks_off_is_no_error_of_ours(number, code, tmp_path):
    """An interrupted import of compiled code fails with errors of its own."""
    script = (
        "import os, signal, skipbench.pipeline\nfrom skipbench.cli import main\n"
        "def inspect(*args, **more):\n"
        f"    try:\n        os.kill(os.getpid(), {int(number)})\n"
        "    except BaseException:\n        raise ImportError('numpy failed to import')\n"
        "skipbench.pipeline.inspect = inspect\nmain()"
    )
    (tmp_path / "x.pth").touch()
    done = run_script(script, tmp_path, "inspect", "--ckpt", "x.pth")
    assert done.returncode == code and "finished work is kept" in done.stderr
    assert "bug" not in done.stderr


def test_the_cursor_comes_back_when_it_is_ended_in_a_long_step(tmp_path):
    script = (
        "import hashlib, os, signal, threading\nfrom skipbench.engine.progress import progress\n"
        "from skipbench.engine.signals import signals_end_it\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "with signals_end_it(), progress('work', 2):\n"
        "    hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2 * 10**9)"
    )
    shown = in_terminal([sys.executable, "-c", script], {"TERM": "xterm-256color"})
    assert shown.rindex(f"{ESCAPE}[?25h") > shown.rindex(f"{ESCAPE}[?25l"), shown
    assert "finished work is kept" in shown


def test_the_end_does_not_wait_for_the_teardown_of_python(tmp_path):
    """Which takes seconds on a busy machine, in which signals have no effect."""
    script = (
        "import atexit, builtins\nfrom skipbench.cli import main\n"
        "class Heavy:\n    def __del__(self):\n        print('torn down', flush=True)\n"
        "builtins.heavy = Heavy()\n"
        "try:\n    main()\nfinally:\n    atexit.register(print, 'other handlers are called')"
    )
    for words, code in ((["--version"], 0), (["env", "--nope"], 2)):
        done = run_script(script, tmp_path, *words)
        assert done.returncode == code
        assert "other handlers are called" in done.stdout and "torn down" not in done.stdout


def run_script(script, folder, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=60, cwd=folder, env=clean_environment(folder),
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--nope"], ["cache", "list"]])
def test_no_escape_codes_where_it_is_not_a_terminal(skipbench, arguments):
    done = skipbench(*arguments)
    assert ESCAPE not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--nope"]])
def test_no_escape_codes_in_ci(skipbench, arguments):
    done = skipbench(*arguments, GITHUB_ACTIONS="true", CI="true")
    assert ESCAPE not in done.stdout + done.stderr


EXTRACT = ("--residual", "skipless", "--size", "24x40")


def test_plain_lines_in_a_log(skip_ckpt, pictures, tmp_path):
    done = Forked(["extract", pictures, "--ckpt", skip_ckpt, *EXTRACT], tmp_path)
    assert done.wait() == 0, done.output
    assert "features: 7 of 7 images" in done.output and "warning:" in done.output
    assert "\r" not in done.output and ESCAPE not in done.output


def test_colour_and_animation_in_a_terminal_unless_no_color(tmp_path, skip_ckpt, pictures):
    words = ["extract", pictures, "--ckpt", skip_ckpt, *EXTRACT]
    coloured = forked_in_terminal(words, tmp_path, TERM="xterm-256color")
    assert re.search(r"\x1b\[[0-9;]*(1|33)[0-9;]*m", coloured), coloured
    plain = [*words, "--limit", "5"]
    shown = forked_in_terminal(plain, tmp_path, TERM="xterm-256color", NO_COLOR="1")
    assert ESCAPE not in shown and "5 of 5 images" in shown
