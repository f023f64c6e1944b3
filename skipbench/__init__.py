"""Dense-prediction evaluation of frozen vision transformers, with and without skip connections.

    import skipbench

    backbone = skipbench.load_backbone("checkpoint.pth")          # any DINO-like weights file
    store = skipbench.extract(backbone, "photos/", layers="last")  # features on disk, resumable
    tokens = store[0]["tokens_norm.11"]                            # (height, width, channels)

Importing the package imports neither torch nor timm; the first use of a name below does.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Backbone": "skipbench.backbones.base",
    "Checkpoint": "skipbench.checkpoints",
    "CheckpointFacts": "skipbench.records",
    "Dataset": "skipbench.datasets",
    "DatasetFacts": "skipbench.records",
    "FeatureSpec": "skipbench.records",
    "Result": "skipbench.records",
    "SkipbenchError": "skipbench.errors",
    "calibrate": "skipbench.results.calibrate",
    "check": "skipbench.results.check",
    "compare": "skipbench.results.compare",
    "extract": "skipbench.pipeline",
    "find_objects": "skipbench.calls",
    "inspect": "skipbench.pipeline",
    "load_backbone": "skipbench.pipeline",
    "open_checkpoint": "skipbench.checkpoints",
    "open_dataset": "skipbench.datasets",
    "read_results": "skipbench.results.read",
    "report": "skipbench.results.report",
    "reproduce": "skipbench.results.reproduce",
    "run": "skipbench.suites",
    "table": "skipbench.results.tables",
    "tables": "skipbench.results.tables",
    "update_baseline": "skipbench.results.baseline",
}


def _public() -> list[str]:
    """With a function for each evaluation, and `probe_all` where `probe` returns one record."""
    from skipbench.evaluations import evaluations

    several = [f"{one.name}_all" for one in evaluations().values() if one.returns_one]
    return sorted(["__version__", *_HOME, *evaluations(), *several])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "__all__":
        return _public()
    if not name.startswith("_") and name in _public():
        return import_module("skipbench.calls").function_of(name)
    raise AttributeError(f"module 'skipbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return _public()
