"""What is kept on disk so that an interrupted run can be resumed.

Chunks           results by image, shard by shard
TrainingState    tensors, after every epoch
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
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
    """folder/00007.npz for the eighth shard, behind its checksum; None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def load(self, shard: int) -> Arrays | None:
        """None where it is not there, or damaged."""
        if self.folder is None:
            return None
        content = _unsealed(self.folder / f"{shard:05d}.npz", "its images are done again")
        return unpacked(content) if content else None

    def save(self, shard: int, arrays: Arrays) -> None:
        if self.folder is None:
            return
        content = _sealed(packed(arrays))
        try:
            self._write(shard, content)
        except ResourceError:
            if self.folder.exists():
                raise
            self._write(shard, content)  # another process was done just now, and cleared it away

    def _write(self, shard: int, content: bytes) -> None:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{shard:05d}.npz", content)

    def forget(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def in_chunks(
    chunks: Mapping[str, Chunks],
    images: int,
    work: Callable[[Sequence[int], Sequence[str]], Mapping[str, Arrays]],
    advance: Callable[[int], None],
    force: bool,
    shard_images: int,
) -> dict[str, list[Arrays]]:
    """For each name, what `work` made of the images, shard by shard.

    work: called with images and the names that lack them; it tells `advance` of each image itself.
    """
    parts: dict[str, list[Arrays]] = {name: [] for name in chunks}
    for shard, start in enumerate(range(0, images, shard_images)):
        numbers = range(start, min(start + shard_images, images))
        found = {name: None if force else kept.load(shard) for name, kept in chunks.items()}
        lacking = [name for name, part in found.items() if part is None]
        if lacking:
            made = work(numbers, lacking)
            for name in lacking:
                chunks[name].save(shard, made[name])
            found |= made
        else:
            advance(len(numbers))
        for name, part in found.items():
            assert part is not None
            parts[name].append(part)
    return parts


class TrainingState:
    """One file: a checksum, then tensors. A damaged or missing file is no state."""

    def __init__(self, path: Path | None) -> None:
        self.path = path  # None: nothing is kept

    def save(self, state: dict[str, Tensor]) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            data = save({name: value.contiguous().cpu() for name, value in state.items()})
            write_whole(self.path, _sealed(data))

    def load(self) -> dict[str, Tensor] | None:
        content = self.path and _unsealed(self.path, "starting over")
        return load(content) if content else None

    def forget(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _sealed(data: bytes) -> bytes:
    """Behind its checksum."""
    return hashlib.sha256(data).digest() + data


def _unsealed(path: Path, then: str) -> bytes | None:
    """None where it is not there, or damaged; then: what that means."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content[32:]).digest() == content[:32]:
        return content[32:]
    log.warning("%s is damaged: %s", path, then)
    return None
