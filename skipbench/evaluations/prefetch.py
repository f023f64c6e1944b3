"""One thread that prepares the next things while the present one is worked on.

What it does should be numpy or reading alone: a second thread that calls torch would have a team of
threads of its own, and both would want the same cores.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Thing = TypeVar("Thing")
Ready = TypeVar("Ready")


def ahead(prepare: Callable[[Thing], Ready], things: Sequence[Thing], most: int) -> Iterator[Ready]:
    """Each thing prepared, in order, with at most so many more under way."""
    coming: deque[Future[Ready]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        for thing in things:
            coming.append(pool.submit(prepare, thing))
            if len(coming) > most:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
