"""Files from which an interrupted run is resumed.

Chunks           results by image, shard by shard
TrainingState    tensors, after every epoch
"""

import hashlib
import logging
import shutil
from pathlib import Path

import numpy as np
from safetensors.torch import load, save
from torch import Tensor

from skipbench.errors import ResourceError
from skipbench.files import write_whole
from skipbench.record_store import packed, unpacked

log = logging.getLogger("skipbench")

Arrays = dict[str, np.ndarray]

SHARD = 32  # images


class Chunks:
    """folder/00007.npz for the eighth shard, after its checksum. No folder: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def load(self, shard: int) -> Arrays | None:
        """None if missing or damaged."""
        path = self.folder and self.folder / f"{shard:05d}.npz"
        content = path and _read_sealed(path, "its images are recomputed")
        return unpacked(content) if content else None

    def save(self, shard: int, arrays: Arrays) -> None:
        if self.folder is None:
            return
        path, content = self.folder / f"{shard:05d}.npz", packed(arrays)
        try:
            _write_sealed(path, content)
        except ResourceError:
            if self.folder.exists():
                raise
            _write_sealed(path, content)  # another process has just finished and removed the folder

    def forget(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class TrainingState:
    """One file: a checksum, then tensors. No path: nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def save(self, state: dict[str, Tensor]) -> None:
        if self.path is not None:
            tensors = {name: value.contiguous().cpu() for name, value in state.items()}
            _write_sealed(self.path, save(tensors))

    def load(self) -> dict[str, Tensor] | None:
        """None if missing or damaged."""
        content = self.path and _read_sealed(self.path, "starting over")
        return load(content) if content else None

    def forget(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _write_sealed(path: Path, data: bytes) -> None:
    """Preceded by its checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, hashlib.sha256(data).digest() + data)


def _read_sealed(path: Path, consequence: str) -> bytes | None:
    """None if missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content[32:]).digest() == content[:32]:
        return content[32:]
    log.warning("%s is damaged: %s", path, consequence)
    return None
