"""SIGTERM as an exception, so that what was begun is closed properly, as Ctrl-C does it."""

import signal
import threading
from types import FrameType

INTERRUPTED = 130
TERMINATED = 143


class Terminated(BaseException):
    """Like KeyboardInterrupt: not an Exception, so that no handler of errors swallows it."""


def raise_on_sigterm() -> None:
    def handler(signum: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
