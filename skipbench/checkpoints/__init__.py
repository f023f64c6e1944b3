"""The only place that opens weights files: any known layout in, plain state dict and facts out."""

from skipbench.checkpoints.facts import Expected
from skipbench.checkpoints.files import save_checkpoint
from skipbench.checkpoints.read import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "Expected", "open_checkpoint", "save_checkpoint"]
