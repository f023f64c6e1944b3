"""A lock on a file, which the system itself lets go of when a process dies, however it dies."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

try:
    import fcntl
except ImportError:  # Windows: one process at a time is the user's business there
    fcntl = None  # type: ignore[assignment]


class FileLock:
    """Exclusive for the one who writes, shared for those who read."""

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
            if self._is_there():
                break
            self.release()  # removed meanwhile: another process would lock a new file
        if exclusive:
            self.sign_of_life()
        return True

    def _is_there(self) -> bool:
        """Whether the file that is locked is still the one of that name."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file or 0))  # noqa: PTH116
        except FileNotFoundError:
            return False

    def acquire(
        self,
        exclusive: bool,
        stalled_after: float,
        on_wait: Callable[[], None],
        poll: float = 0.2,
    ) -> bool:
        """Wait while the holder shows signs of life; False once it has shown none for so long."""
        waited_since = time.time()
        told = False
        while not self.try_acquire(exclusive):
            if not told:
                on_wait()
                told = True
            if time.time() - max(self._last_sign(), waited_since) > stalled_after:
                return False
            time.sleep(poll)
        return True

    def sign_of_life(self) -> None:
        with suppress(FileNotFoundError):
            os.utime(self.path)

    def _last_sign(self) -> float:
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)  # closing lets the lock go
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
