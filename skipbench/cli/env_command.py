"""`skipbench env`: versions, device, threads. Paste it into a bug report."""

import platform
import shutil
from dataclasses import dataclass

from skipbench import __version__
from skipbench.cli.commands import command
from skipbench.console import echo, echo_json
from skipbench.engine.machine import processor, versions
from skipbench.files import cache_folder, size_text
from skipbench.settings import Settings, same_as
from skipbench.settings.groups import FeatureSettings


@dataclass(frozen=True, kw_only=True)
class EnvSettings(Settings):
    cache: str | None = same_as(FeatureSettings, "cache", None)


@command("env", EnvSettings)
def env(settings: EnvSettings, as_json: bool) -> None:
    """Show versions, devices, threads, the faiss build, and free space for the cache."""
    import torch

    from skipbench.engine import vectors

    folder = cache_folder(settings.cache).absolute()
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    facts = {
        "skipbench": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions(),
        "faiss": vectors.state(),
        "devices": _devices(),
        "cuda_build": torch.version.cuda or "none: this torch has no CUDA",
        "threads": torch.get_num_threads(),
        "cache": str(cache_folder(settings.cache)),
        "cache_free": size_text(shutil.disk_usage(existing).free),
    }
    if as_json:
        echo_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = "; ".join(map(str, value)) or "none"
        echo(f"{name + ':':<18}{value}")


def _devices() -> list[str]:
    import torch

    devices = [f"cpu ({processor()})"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 1e9
        devices.append(f"cuda:{index} ({properties.name}, {memory:.0f} GB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices
