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
GRACE = 1.0  # seconds for a clean exit
FLUSH = 0.2  # seconds for the last output: its reader may have stopped reading
SHOW_CURSOR = "\n\x1b[?25h"  # hidden by a progress bar, which ends on no line of its own


class Terminated(BaseException):
    """Like KeyboardInterrupt not an Exception, so that no error handler swallows it."""


STOPS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


def leave(code: int) -> NoReturn:
    """End at once, without Python's own teardown."""
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone
            stream.flush()


@contextmanager
def signals_end_it(tidy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Raise KeyboardInterrupt or Terminated, and end the process soon after.

    tidy: called just before that, in any thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[type[BaseException]] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        came.append(STOPS[signal.Signals(number)])
        raise came[-1]

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    listened = [one for one in STOPS if signal.getsignal(one) is not signal.SIG_IGN]
    handlers = {one: signal.signal(one, stop) for one in listened}
    wakeup = signal.set_wakeup_fd(writer)
    threading.Thread(target=_end_in_time, args=(reader, tidy), daemon=True, name="signals").start()
    try:
        yield
    except Exception:
        if came:  # an import that is broken off fails with errors of its own
            raise came[-1] from None
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)  # the thread reads the end of the pipe and ends, unless it got a signal


def _end_in_time(reader: int, tidy: Callable[[], None]) -> None:
    code = None
    while code is None and (byte := os.read(reader, 1)):
        code = CODES.get(byte[0])
    os.close(reader)
    if code is not None:
        time.sleep(GRACE)
        tidy()
        last = threading.Thread(target=_last_words, daemon=True)
        last.start()
        last.join(FLUSH)
        os._exit(code)


def _last_words() -> None:
    if terminal := sys.__stderr__:
        shown = SHOW_CURSOR if terminal.isatty() else ""
        terminal.write(f"{shown}skipbench: stopped during a long step; finished work is kept\n")
    _flush()
