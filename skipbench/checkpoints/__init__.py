"""The only place that opens weights files: any known layout in, plain state dict and facts out."""

from skipbench.checkpoints.read import Checkpoint, Expected, open_checkpoint
from skipbench.checkpoints.write import save_checkpoint

__all__ = ["Checkpoint", "Expected", "open_checkpoint", "save_checkpoint"]
