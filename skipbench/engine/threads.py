"""How torch's threads wait for each other.

They spin for milliseconds after every step, in case the next one comes at once. Where other
processes want the cores too, each spinning thread keeps away the very thread it waits for: two
commands on two cores took seven times as long as with short spinning, which costs nothing alone.
"""

import os

SHORT = "1000"  # turns of the waiting loop, a microsecond or so


def wait_politely() -> None:
    """To be called before torch is loaded. Whoever has set something else is not overruled."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SHORT)
