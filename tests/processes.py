"""Commands in processes of their own: fresh, forked and killed, or in a terminal."""

import multiprocessing
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from pkgutil import walk_packages

from conftest import clean_environment, command

import skipbench

HEAVY = ("timm", "faiss", "scipy.sparse.linalg", "skimage.segmentation", "matplotlib.figure")


def forks():
    """Processes forked from one that has imported all, so that none needs seconds for torch."""
    context = multiprocessing.get_context("forkserver")
    ours = (module.name for module in walk_packages(skipbench.__path__, "skipbench."))
    context.set_forkserver_preload([*HEAVY, *(name for name in ours if "__main__" not in name)])
    return context


FORKS = forks()


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


def in_terminal(arguments, environment):
    """Run with a real pseudo-terminal as all three streams."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(environment)
        os.execv(sys.executable, arguments)
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


class Forked:
    """`skipbench ARGUMENTS` in a folder. Killed (-9) before a file is renamed for the so many-th
    time: everything that skipbench keeps is renamed into its place.

    by: another signal; into: a folder, where only what is renamed into it counts.
    """

    def __init__(self, arguments, folder, killed_at=None, by=signal.SIGKILL, into="/"):
        folder.mkdir(exist_ok=True)
        self.log, self.renames = folder / "output.txt", folder / "renames.txt"
        known = (list(map(str, arguments)), folder, self.log, self.renames, killed_at, by, into)
        self.process = FORKS.Process(target=_run, args=known)
        self.process.start()

    def wait(self, timeout=120):
        """The exit code; −9 if it was killed."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running: {self.output}"
        return self.process.exitcode

    @property
    def output(self):
        return self.log.read_text()

    @property
    def renamed(self):
        return self.renames.stat().st_size


def _run(arguments, folder, log, renames, killed_at, by, into):
    os.chdir(folder)
    os.environ["SKIPBENCH_CACHE"] = str(Path(folder, "cache"))
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(written, stream)
    counter = os.open(renames, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    left = killed_at

    def watch(event, values):
        nonlocal left
        if event == "os.rename" and Path(values[1]).absolute().is_relative_to(into):
            os.write(counter, b".")
            if left is not None and (left := left - 1) == 0:
                os.kill(os.getpid(), by)

    sys.addaudithook(watch)
    sys.argv = ["skipbench", *arguments]
    from skipbench.cli import main

    with suppress(KeyboardInterrupt):
        main()


__all__ = ["Forked", "command", "imported_by", "in_terminal"]
