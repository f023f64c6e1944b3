"""Ctrl-C and SIGTERM: files are closed properly, and the process ends within two seconds.

Python handles a signal only between two bytecode instructions, and one matrix product can take
longer than that. So a thread listens too, and ends the process if it does not end by itself in
time. Either way Python's own teardown is skipped: on a busy machine it takes many seconds. Nothing
is lost, because files on disk are complete at every moment.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
TERMINATED = 143
CODES = {int(signal.SIGINT): INTERRUPTED, int(signal.SIGTERM): TERMINATED}
GRACE = 1.5  # seconds for a clean exit


class Terminated(BaseException):
    """Like KeyboardInterrupt not an Exception, so that no error handler swallows it."""


def leave(code: int, tidy: Callable[[], None]) -> NoReturn:
    tidy()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    os._exit(code)


@contextmanager
def signals_end_it(tidy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Raise Terminated on SIGTERM, and end the process soon after either signal.

    tidy: called just before that, in any thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handler, wakeup = signal.signal(signal.SIGTERM, _raise_terminated), signal.set_wakeup_fd(writer)
    threading.Thread(target=_end_in_time, args=(reader, tidy), daemon=True, name="signals").start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)  # the thread reads the end of the pipe and ends, unless it got a signal


def _raise_terminated(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def _end_in_time(reader: int, tidy: Callable[[], None]) -> None:
    code = None
    while code is None and (byte := os.read(reader, 1)):
        code = CODES.get(byte[0])
    os.close(reader)
    if code is not None:
        time.sleep(GRACE)
        sys.stderr.write("skipbench: stopped during a long step; finished work is kept\n")
        leave(code, tidy)
