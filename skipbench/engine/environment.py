"""Versions, device and threads: what a record says of the machine, and `skipbench env` shows."""

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchvision", "timm", "typer", "rich", "scikit-image", "pycocotools",
            "scipy", "numpy", "safetensors", "pillow")  # fmt: skip


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
    """Of the checkout this package is run from, if it is one; "-changed" where files differ."""
    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", here, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "-changed" if git("status", "--porcelain", "-uno") else ""
        )
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
    """For the record."""
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
