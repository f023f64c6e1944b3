"""A file lock, which the operating system releases when the process dies, however it dies."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

try:
    import fcntl
except ImportError:  # Windows: no locking; run one process at a time
    fcntl = None  # type: ignore[assignment]


class FileLock:
    """Exclusive for a writer, shared for readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def try_acquire(self, exclusive: bool) -> bool:
        if fcntl is None:
            return True
        while True:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            how = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
            try:
                fcntl.flock(self._file, how)
            except BlockingIOError:
                return False
            with suppress(FileNotFoundError):
                if os.path.samestat(self.path.stat(), os.fstat(self._file)):
                    break
            self.release()  # deleted meanwhile: other processes would lock a new file
        if exclusive:
            self.heartbeat()
        return True

    def acquire(
        self,
        exclusive: bool,
        stalled_after: float,
        on_wait: Callable[[], None],
        poll: float = 0.2,
    ) -> bool:
        """Wait while the holder is active; False after `stalled_after` seconds without a heartbeat.

        on_wait: called once, if the lock is taken.
        """
        if self.try_acquire(exclusive):
            return True
        on_wait()
        last_active = time.time()
        while not self.try_acquire(exclusive):
            with suppress(OSError):
                last_active = max(last_active, self.path.stat().st_mtime)
            if time.time() - last_active > stalled_after:
                return False
            time.sleep(poll)
        return True

    def heartbeat(self) -> None:
        with suppress(FileNotFoundError):
            os.utime(self.path)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)  # which releases the lock
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
