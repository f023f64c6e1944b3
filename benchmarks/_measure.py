"""What several benchmarks measure alike."""

import resource
from pathlib import Path


def peak_bytes() -> int:
    """Most memory this process has held. (`ru_maxrss` would count that of the one it was forked
    from, before it became this program.)"""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
