"""A function applied to many items by threads: for decoding, during which Pillow and zlib release
the GIL. Threads start at once, and Ctrl-C leaves no processes behind."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from skipbench.engine.progress import progress

Thing = TypeVar("Thing")
Done = TypeVar("Done")

AHEAD = 8  # items in flight per thread


def cores() -> int:
    """Cores this process may use; at least two, so that reading and decoding overlap."""
    allowed = getattr(os, "sched_getaffinity", None)
    return max(2, len(allowed(0)) if allowed else os.cpu_count() or 1)


def in_parallel(
    work: Callable[[Thing], Done], things: Sequence[Thing], label: str, unit: str = "images"
) -> Iterator[Done]:
    """Results in the order of the items, with a progress line."""
    workers = cores()
    pool = ThreadPoolExecutor(workers)
    ahead: deque[Future[Done]] = deque()
    try:
        with progress(label, len(things), unit) as advance:
            for thing in things:
                ahead.append(pool.submit(work, thing))
                if len(ahead) > AHEAD * workers:
                    yield ahead.popleft().result()
                    advance(1)
            while ahead:
                yield ahead.popleft().result()
                advance(1)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
