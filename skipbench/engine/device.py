"""Device and precision of a run, and what counts as out of memory."""

import torch

from skipbench.errors import UsageError
from skipbench.records import PRECISIONS


def choose_device(asked: str = "auto") -> torch.device:
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"--device {asked!r}: expected auto, cpu, cuda, cuda:N or mps")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"--device {asked}: no CUDA device on this machine (torch {torch.__version__}). "
            "Use --device cpu."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"--device {asked}: this machine has {torch.cuda.device_count()} CUDA device(s)"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("--device mps: no Apple GPU on this machine. Use --device cpu.")
    return device


def choose_precision(asked: str, device: torch.device) -> str:
    """auto: bf16 (or fp16 on older cards) on a CUDA device, fp32 elsewhere."""
    if asked not in PRECISIONS:
        raise UsageError(f"--precision {asked!r}: expected {', '.join(PRECISIONS)}")
    if asked != "auto":
        return asked
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def is_out_of_memory(error: BaseException) -> bool:
    """On GPUs torch has an exception class for it; on the CPU, the allocator has a message for it,
    and so has oneDNN without room for its scratch space."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = (
        "can't allocate memory", "not enough memory", "unable to allocate", "out of memory",
        "could not create a primitive", "could not create a memory", "std::bad_alloc",
    )  # fmt: skip
    return isinstance(error, RuntimeError) and any(w in str(error).lower() for w in words)
