"""A function applied to many items by threads: for decoding, during which Pillow and zlib release
the GIL. Threads start at once, and Ctrl-C leaves no processes behind."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from skipbench.engine.progress import progress

Item = TypeVar("Item")
Done = TypeVar("Done")

AHEAD = 8  # items in flight per thread


def cores() -> int:
    """Cores this process may use; at least two, so that reading and decoding overlap."""
    allowed = getattr(os, "sched_getaffinity", None)
    return max(2, len(allowed(0)) if allowed else os.cpu_count() or 1)


def ahead(
    work: Callable[[Item], Done], items: Iterable[Item], most: int, threads: int = 1
) -> Iterator[Done]:
    """Results in the order of the items, computed up to `most` items ahead of the consumer.

    `work` should only read and call numpy: a thread that calls torch would start a second team of
    OpenMP threads on the same cores.
    """
    pending: deque[Future[Done]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > most:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def in_parallel(
    work: Callable[[Item], Done], items: Sequence[Item], label: str, unit: str = "images"
) -> Iterator[Done]:
    """Results in the order of the items, with a progress line."""
    threads = cores()
    with progress(label, len(items), unit) as advance:
        for done in ahead(work, items, AHEAD * threads, threads):
            yield done
            advance(1)
