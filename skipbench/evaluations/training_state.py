"""Training that goes on after an interruption: its state on disk after every epoch."""

import hashlib
import logging
from pathlib import Path

from torch import Tensor

from skipbench.files import write_whole

log = logging.getLogger("skipbench")


class TrainingState:
    """One file: a checksum, then tensors. What is damaged, or not there, is no state."""

    def __init__(self, path: Path | None) -> None:
        self.path = path  # None: nothing is kept

    def save(self, state: dict[str, Tensor]) -> None:
        from safetensors.torch import save

        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            data = save({name: value.contiguous().cpu() for name, value in state.items()})
            write_whole(self.path, hashlib.sha256(data).digest() + data)

    def load(self) -> dict[str, Tensor] | None:
        from safetensors.torch import load

        if self.path is None:
            return None
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            log.warning("%s is damaged: it begins anew", self.path)
            return None
        return load(content[32:])

    def forget(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
