"""`--dry-run`: what an evaluation would take, from a trial on a few images."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skipbench.datasets import Item
from skipbench.engine.machine import peak_bytes
from skipbench.engine.progress import duration
from skipbench.evaluations.run import Cell, FeatureRun
from skipbench.evaluations.segmentation.tokens import normalised
from skipbench.features.source import compute
from skipbench.features.store import missing_images
from skipbench.files import size_text
from skipbench.images import Picture

TRIAL_IMAGES = 6


@dataclass(frozen=True)
class Estimate:
    images: int  # to be run through the backbone
    stored: int  # whose features exist
    features_seconds: float
    training_seconds: float
    scoring_seconds: float
    disk_bytes: int  # to be written
    memory_bytes: int
    work: str = "finding objects"  # name of the scoring stage, if there is no training

    @property
    def seconds(self) -> float:
        return self.features_seconds + self.training_seconds + self.scoring_seconds

    def lines(self) -> list[str]:
        stored = f" ({self.stored:,} are stored)" if self.stored else ""
        work = {"training": self.training_seconds, "scoring": self.scoring_seconds}
        if not self.training_seconds:
            work = {self.work: self.scoring_seconds}
        return [
            f"features of {self.images:,} images{stored}: {duration(self.features_seconds)}",
            ", ".join(f"{name}: {duration(seconds)}" for name, seconds in work.items()),
            f"in all about {duration(self.seconds)}, "
            f"{size_text(self.disk_bytes)} of disk, {size_text(self.memory_bytes)} of memory",
        ]


class Trial:
    """Features of a few images, and the seconds per image."""

    def __init__(self, run: FeatureRun, few: Sequence[Item], cells: Sequence[Cell]) -> None:
        self.run, self.few, self.spec = run, few, run.spec(cells)
        source = run.settings.source
        compute(run.backbone, few[:1], self.spec, workers=source.workers)  # the first is slower
        started = time.monotonic()
        self.features = compute(run.backbone, few, self.spec, batch_size=source.batch_size)
        self.per_image = (time.monotonic() - started) / len(few)
        values = (self.features.read(i, c) for i in range(len(few)) for c in self.spec.columns)
        self.bytes_of_an_image = sum(one.nbytes for one in values) / len(few)

    def missing(self, pictures: Sequence[Picture]) -> int:
        """Number of these that are to be run through the backbone."""
        source = self.run.settings.source
        if source.in_memory:
            return len(pictures)
        return missing_images(self.run.backbone, pictures, self.spec, source.cache)

    def tokens(self, cell: Cell) -> np.ndarray:
        columns = self.run.columns(cell)
        read = [self.features.tokens(image, columns) for image in range(len(self.few))]
        return normalised(np.concatenate(read))

    def tokens_of_an_image(self, cell: Cell) -> float:
        columns, images = self.run.columns(cell), range(len(self.few))
        return sum(self.features.token_count(image, columns) for image in images) / len(images)

    def estimate(
        self, lists: Sequence[Sequence[Item]], work: float, held: int, words: str
    ) -> Estimate:
        """lists: the images of each split; work: seconds of scoring; held: bytes of memory that it
        needs; words: what it is called."""
        missing, in_memory = sum(map(self.missing, lists)), self.run.settings.source.in_memory
        size = round(self.bytes_of_an_image * missing)
        return Estimate(
            images=missing,
            stored=sum(map(len, lists)) - missing,
            features_seconds=self.per_image * missing,
            training_seconds=0.0,
            scoring_seconds=work,
            disk_bytes=0 if in_memory else size,
            memory_bytes=peak_bytes() + held + (size if in_memory else 0),
            work=words,
        )
