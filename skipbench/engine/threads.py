"""How torch's threads wait for each other, and when one is better than many.

They spin for milliseconds after every step, in case the next one comes at once. Where other
processes want the cores too, each spinning thread keeps away the very thread it waits for: two
commands on two cores took seven times as long as with short spinning, which costs nothing alone.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SHORT = "1000"  # turns of the waiting loop, a microsecond or so


def wait_politely() -> None:
    """To be called before torch is loaded. Whoever has set something else is not overruled."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SHORT)


@contextmanager
def one_thread() -> Iterator[None]:
    """Small eigen-problems are thousands of tiny parallel steps: on a busy machine each of them
    waits for its last thread, and a tenth of a second becomes a minute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
