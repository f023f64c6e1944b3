"""`skipbench env`: versions, device, threads. Paste it into a bug report."""

import json
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from skipbench.cli.generated import add_command
from skipbench.console import echo
from skipbench.engine.machine import versions
from skipbench.settings import Settings, same_as
from skipbench.settings.groups import FeatureSettings


@dataclass(frozen=True, kw_only=True)
class EnvSettings(Settings):
    cache: str | None = same_as(FeatureSettings, "cache", None)


def add_to(app: typer.Typer) -> None:
    add_command(app, "env", EnvSettings, env)


def env(settings: EnvSettings, as_json: bool) -> None:
    """Show versions, devices, threads, the faiss build, and free space of the cache."""
    facts = environment(settings.cache)
    if as_json:
        echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = "; ".join(map(str, value)) or "none"
        echo(f"{name + ':':<18}{value}")


def environment(cache: str | None = None) -> dict[str, Any]:
    import torch

    from skipbench import __version__
    from skipbench.engine import vectors
    from skipbench.files import cache_folder, size_text

    folder = cache_folder(cache)
    return {
        "skipbench": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions(),
        "faiss": vectors.state(),
        "devices": _devices(),
        "cuda_build": torch.version.cuda or "none: this torch has no CUDA",
        "threads": torch.get_num_threads(),
        "cache": str(folder),
        "cache_free": size_text(shutil.disk_usage(_existing(folder)).free),
    }


def _devices() -> list[str]:
    import torch

    devices = [f"cpu ({platform.processor() or platform.machine()})"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 1e9
        devices.append(f"cuda:{index} ({properties.name}, {memory:.0f} GB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def _existing(folder: Path) -> Path:
    return next(f for f in (folder.absolute(), *folder.absolute().parents) if f.exists())
