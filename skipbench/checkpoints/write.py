"""Save weights so that nothing about them has to be guessed later."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from skipbench.files import write_whole


def save_checkpoint(
    path: str | Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str | int | float]
) -> Path:
    """Write a safetensors file with its facts in the header (residual, heads, epoch, optimizer, …).

    `open_checkpoint` reads them back. The file appears whole or not at all.
    """
    from safetensors.torch import save

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {name: str(value) for name, value in metadata.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_whole(path, _in_order(save(tensors, header)))
    return path


def _in_order(content: bytes) -> bytes:
    """safetensors writes the facts in any order: the same weights would have another hash each
    time, and their figures would not be recognised."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header = {"__metadata__": dict(sorted(header.pop("__metadata__", {}).items())), **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + content[8 + length :]
