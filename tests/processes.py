"""Commands in processes of their own: fresh, forked and killed, or in a terminal."""

import multiprocessing
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from pkgutil import walk_packages

from conftest import clean_environment

import skipbench

HEAVY = ("timm", "faiss", "scipy.sparse.linalg", "skimage.segmentation", "matplotlib.figure")


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


def forks():
    """Processes forked from one that has imported all, so that none needs seconds for torch."""
    context = multiprocessing.get_context("forkserver")
    ours = (module.name for module in walk_packages(skipbench.__path__, "skipbench."))
    context.set_forkserver_preload([*HEAVY, *(name for name in ours if "__main__" not in name)])
    return context


FORKS = forks()


class Forked:
    """`skipbench ARGUMENTS` in a real process, which starts in this folder.

    killed_at: it is killed (-9) before a file is renamed for the so many-th time: everything that
    skipbench keeps is renamed into its place. by: another signal; into: a folder, where only what
    is renamed into it counts. terminal: path of the one that it runs in.
    """

    def __init__(self, arguments, folder, *, killed_at=None, by=signal.SIGKILL, into="/",
                 terminal=None, **environment):  # fmt: skip
        folder.mkdir(exist_ok=True)
        self.log, self.renames = folder / "output.txt", folder / "renames.txt"
        where = {**clean_environment(folder), **environment}
        known = (list(map(str, arguments)), folder, where, terminal or self.log)
        self.process = FORKS.Process(target=_run, args=(*known, self.renames, killed_at, by, into))
        self.process.start()

    def wait(self, timeout=300):
        """The exit code; −9 if it was killed."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            raise AssertionError(f"it did not end: {self.output}")
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    @property
    def output(self):
        return self.log.read_text()

    @property
    def renamed(self):
        """How many files were."""
        return self.renames.stat().st_size


def _run(arguments, folder, environment, output, renames, killed_at, by, into):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.setsid()
    written = os.open(output, os.O_RDWR | os.O_CREAT)
    for stream in (0, 1, 2):
        os.dup2(written, stream)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
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

    main()


def forked_in_terminal(arguments, folder, **environment):
    """What a command shows in a real pseudo-terminal."""
    terminal, inside = pty.openpty()
    forked = Forked(arguments, folder, terminal=os.ttyname(inside), **environment)
    shown = _read(terminal, forked.process.is_alive)
    os.close(inside)
    assert forked.wait() == 0, shown
    return shown


def in_terminal(arguments, environment):
    """The same of any program."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(environment)
        os.execv(sys.executable, arguments)
    shown = _read(terminal, lambda: True)
    os.waitpid(pid, 0)
    return shown


def _read(terminal, is_alive, timeout=60):
    """Until nobody writes into it any more."""
    output, deadline = b"", time.monotonic() + timeout
    while time.monotonic() < deadline:
        alive = is_alive()
        ready, _, _ = select.select([terminal], [], [], 0.1)
        if not ready and not alive:
            break
        try:
            output += os.read(terminal, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
    return output.decode(errors="replace")
