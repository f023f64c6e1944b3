"""Save weights so that nothing about them has to be guessed later."""

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
    write_whole(path, save(tensors, header))
    return path
