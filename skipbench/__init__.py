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
    "Backbone": "skipbench.backbones.vit",
    "Checkpoint": "skipbench.checkpoints",
    "CheckpointFacts": "skipbench.records",
    "Dataset": "skipbench.datasets",
    "DatasetFacts": "skipbench.records",
    "FeatureSpec": "skipbench.records",
    "Result": "skipbench.records",
    "SkipbenchError": "skipbench.errors",
    "calibrate": "skipbench.calibrate",
    "check": "skipbench.results.check",
    "cluster": "skipbench.evaluations.knn.calls",
    "compare": "skipbench.results.compare",
    "extract": "skipbench.pipeline",
    "find_objects": "skipbench.evaluations.tokencut.calls",
    "inspect": "skipbench.pipeline",
    "knn": "skipbench.evaluations.knn.calls",
    "load_backbone": "skipbench.pipeline",
    "open_checkpoint": "skipbench.checkpoints",
    "open_dataset": "skipbench.datasets",
    "pca": "skipbench.evaluations.pca.calls",
    "probe": "skipbench.evaluations.probe.calls",
    "probe_all": "skipbench.evaluations.probe.calls",
    "read_results": "skipbench.results.read",
    "report": "skipbench.results.report",
    "run": "skipbench.suites",
    "table": "skipbench.results.tables",
    "tables": "skipbench.results.tables",
    "tokencut": "skipbench.evaluations.tokencut.calls",
    "update_baseline": "skipbench.results.baseline",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'skipbench' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
