"""The protocols of both methods as a record has them, and DINO's own values of what can be set."""

from collections.abc import Mapping
from typing import Any

from skipbench.evaluations.classify.linear import MOMENTUM
from skipbench.evaluations.classify.settings import ClassifySettings
from skipbench.images import parse_size, size_name
from skipbench.records import Pool

DEFAULTS = ClassifySettings.defaults()
(K,), (TEMPERATURE,) = DEFAULTS["k"], DEFAULTS["temperature"]
NORMALISATION = {True: "standardise", False: "none"}
POOLS: Mapping[tuple[Pool, ...], str] = {
    ("cls",): "cls",
    ("mean",): "mean",
    ("cls", "mean"): "both",
}
LARGE = 4_000_000_000  # bytes of training vectors; beyond, they are searched as float16


def knn(seen: Mapping[str, Any], k: int, temperature: float, numbers: int) -> dict[str, Any]:
    """seen: what the model sees; numbers: in all training vectors."""
    bank = "float32" if 4 * numbers <= LARGE else "float16"
    return {
        "name": "dino", "method": "knn", **seen, "k": k, "temperature": temperature, "bank": bank,
    }  # fmt: skip


def linear(seen: Mapping[str, Any], settings: ClassifySettings) -> dict[str, Any]:
    return {
        "name": "dino",
        "method": "linear",
        **seen,
        "optimiser": f"sgd, momentum {MOMENTUM:g}, cosine",
        "epochs": settings.epochs,
        "batch": settings.batch,
        "rates": settings.lr,
        "normalisation": NORMALISATION[settings.standardize],
        "augmentation": None,
    }


def usual(protocol: Mapping[str, Any], pool: str) -> dict[str, Any]:
    """pool: the usual one of this model."""
    values = {
        "pool": pool,
        "size": size_name(parse_size(DEFAULTS["size"])),
        "crop": DEFAULTS["crop"],
        "k": K,
        "temperature": TEMPERATURE,
        "epochs": DEFAULTS["epochs"],
        "batch": DEFAULTS["batch"],
        "rates": DEFAULTS["lr"],
        "normalisation": NORMALISATION[DEFAULTS["standardize"]],
    }
    return {name: value for name, value in values.items() if name in protocol}
