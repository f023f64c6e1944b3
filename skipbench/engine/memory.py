"""How much memory there is, and how much this process has held."""

import os
import sys
from pathlib import Path


def _kilobytes(path: str, key: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), None)


def available_bytes() -> int:
    """What a process could still take; where the system does not say, half of what is built in."""
    if (free := _kilobytes("/proc/meminfo", "MemAvailable:")) is not None:
        return free * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def peak_bytes() -> int:
    """Most memory this process has held. (`ru_maxrss` would count that of the one it was forked
    from, before it became this program.)"""
    if (peak := _kilobytes("/proc/self/status", "VmHWM:")) is not None:
        return peak * 1024
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
