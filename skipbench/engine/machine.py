"""This machine: versions, processor, memory, and how torch's threads wait for each other.

OpenMP threads spin for milliseconds after every step, in case the next one comes at once. Where
other processes need the cores too, each spinning thread keeps away the very thread it waits for:
two commands on two cores took seven times as long as with short spinning, which costs nothing when
the machine is otherwise idle.
"""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchvision", "timm", "typer", "rich", "scikit-image", "pycocotools",
            "scipy", "numpy", "safetensors", "pillow")  # fmt: skip
SHORT_SPIN = "1000"  # turns of OpenMP's waiting loop, about a microsecond


@cache
def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def versions() -> dict[str, str]:
    from skipbench.engine.vectors import builds

    return {name: version(name) for name in PACKAGES} | builds()


@cache
def commit() -> str | None:
    """Of the git checkout that the package is run from, if any; "-changed" if files were edited."""
    import subprocess

    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", here, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        changed = "-changed" if git("status", "--porcelain", "-uno") else ""
        return git("rev-parse", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def of_this_run(device: str) -> dict[str, Any]:
    """As stored in records."""
    import torch

    from skipbench import __version__

    return {
        "skipbench": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions(),
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if "cuda" in device else processor(),
        "threads": torch.get_num_threads(),
    }


def _kilobytes(path: str, key: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), None)


def available_bytes() -> int:
    """Memory a process could still allocate; half of the physical memory if that is unknown."""
    if (free := _kilobytes("/proc/meminfo", "MemAvailable:")) is not None:
        return free * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def peak_bytes() -> int:
    """Peak memory of this process. (`ru_maxrss` would include the process it was forked from.)"""
    if (peak := _kilobytes("/proc/self/status", "VmHWM:")) is not None:
        return peak * 1024
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def wait_politely() -> None:
    """Call before torch is loaded. Settings of the user are respected."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SHORT_SPIN)


@contextmanager
def one_thread() -> Iterator[None]:
    """Small eigenproblems are thousands of tiny parallel steps: on a busy machine each waits for
    its slowest thread, and a tenth of a second becomes a minute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
