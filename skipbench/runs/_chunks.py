"""Results by image, kept shard by shard, so that an interrupted run goes on where it was."""

import logging
import shutil
from pathlib import Path

import numpy as np

from skipbench.errors import DataError
from skipbench.results.store import read_arrays, write_arrays

log = logging.getLogger("skipbench")

Arrays = dict[str, np.ndarray]


class Chunks:
    """folder/00007.npz for the eighth shard; None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def load(self, shard: int) -> Arrays | None:
        """None where it is not there, or damaged."""
        if self.folder is None or not self._path(shard).exists():
            return None
        try:
            return read_arrays(self._path(shard))
        except DataError as error:
            log.warning("%s; these images are done again", error)
            return None

    def save(self, shard: int, arrays: Arrays) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_arrays(self._path(shard), arrays)

    def forget(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, shard: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{shard:05d}.npz"
