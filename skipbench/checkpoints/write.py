"""Save weights with everything that is needed to load them."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from skipbench.files import write_whole


def save_checkpoint(
    path: str | Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str | int | float]
) -> Path:
    """Write a safetensors file with its facts in the header (residual, heads, epoch, optimizer, …).

    `open_checkpoint` reads them back. The write is atomic.
    """
    from safetensors.torch import save

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {name: str(value) for name, value in metadata.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_whole(path, _in_order(save(tensors, header)))
    return path


def _in_order(content: bytes) -> bytes:
    """safetensors writes metadata in random order: the same weights would have another hash each
    time, and their records would not be found."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header = {"__metadata__": dict(sorted(header.pop("__metadata__", {}).items())), **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + content[8 + length :]
