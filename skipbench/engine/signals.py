"""Ctrl-C and SIGTERM: what was begun is closed properly, and the process is gone in two seconds.

Python sees a signal only between two of its own steps, and one matrix product can take longer than
anybody wants to wait. So a thread listens too: if the process has not ended by itself in time, the
thread ends it. Nothing is lost by that, because everything on disk is whole at every moment.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
TERMINATED = 143
CODES = {int(signal.SIGINT): INTERRUPTED, int(signal.SIGTERM): TERMINATED}
GRACE = 1.5  # seconds for an orderly end


class Terminated(BaseException):
    """Like KeyboardInterrupt: not an Exception, so that no handler of errors swallows it."""


@contextmanager
def signals_end_it() -> Iterator[None]:
    """Raise Terminated on SIGTERM, and end the process soon after either signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.signal(signal.SIGTERM, _raise_terminated), signal.set_wakeup_fd(told)
    threading.Thread(target=_end_in_time, args=(heard,), daemon=True, name="signals").start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.set_wakeup_fd(before[1])
        os.close(told)  # the thread reads the end of the pipe and is gone, unless it has heard


def _raise_terminated(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def _end_in_time(heard: int) -> None:
    code = None
    while code is None and (byte := os.read(heard, 1)):
        code = CODES.get(byte[0])
    os.close(heard)
    if code is not None:
        time.sleep(GRACE)
        sys.stderr.write("skipbench: stopped in the middle of a step; what was done is kept\n")
        sys.stderr.flush()
        os._exit(code)
