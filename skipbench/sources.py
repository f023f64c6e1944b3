"""What `--ckpt` takes, without importing torch:

FILE, FOLDER          weights on disk; a folder with config.json
timm:NAME[@FILE]      a model of timm, with pretrained weights or those of a file
hf:NAME, hf:FOLDER    a model of the Hugging Face hub
python:MODULE:NAME    what a function of yours returns
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from skipbench.errors import CheckpointError
from skipbench.files import missing_checkpoint, user_path

if TYPE_CHECKING:
    from torch.nn import Module

# From Python, a function that returns a model, or the model itself, too.
ModelLike: TypeAlias = "str | Path | Callable[[], object] | Module"
Kind = Literal["file", "timm", "hf", "python"]
PREFIXES: tuple[Kind, ...] = ("timm", "hf", "python")


class Given(str):
    """A model handed over from Python: its text is what records say."""

    model: Callable[..., Any]

    def __new__(cls, model: Callable[..., Any]) -> "Given":
        named = model if hasattr(model, "__qualname__") else type(model)
        given = super().__new__(cls, f"python:{named.__module__}:{named.__qualname__}")
        given.model = model
        return given


@dataclass(frozen=True)
class ModelSource:
    kind: Kind
    name: str  # as the library calls it; of a file, empty
    path: Path | None  # of the weights, if they are on disk

    def __str__(self) -> str:
        """As a user would type it."""
        if self.kind == "file":
            return str(self.path)
        at = f"{'@' if self.name else ''}{self.path}" if self.path else ""
        return f"{self.kind}:{self.name}{at}"

    @property
    def title(self) -> str:
        """Its name in tables: without folders."""
        if self.kind == "timm" and self.path:
            return f"timm:{self.name}@{self.path.name}"
        return self.path.name or self.path.resolve().name if self.path else str(self)

    def ensure_exists(self) -> None:
        if self.path and not self.path.exists():
            raise CheckpointError(missing_checkpoint(self.path))


def source_of(ckpt: str | Path, base: Path = Path()) -> ModelSource:
    """base: of relative paths."""
    kind, colon, rest = str(ckpt).partition(":")
    if not colon or kind not in PREFIXES or isinstance(ckpt, Path):
        return ModelSource("file", "", base / user_path(ckpt))
    if kind == "timm":
        name, _, file = rest.partition("@")
        return ModelSource("timm", name, base / user_path(file) if file else None)
    if kind == "hf":
        folder = base / user_path(rest)
        # The hub's names are owner/model: a folder of that name comes first.
        if folder.is_dir() or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", rest):
            return ModelSource("hf", "", folder)
    return ModelSource(kind, rest, None)


def absolute(ckpt: str | Path) -> str:
    if isinstance(ckpt, Given):
        return ckpt
    return str(source_of(ckpt, Path.cwd()))
