"""Object discovery by TokenCut or LOST, as CorLoc or mask IoU.

Find one object in each image by a graph cut on its frozen tokens and report how often its box is
right (CorLoc). All blocks come from one pass over the images.
"""

from typing import TYPE_CHECKING

from skipbench.errors import UsageError
from skipbench.evaluations import Evaluation
from skipbench.evaluations.tokencut.settings import TokencutSettings
from skipbench.records import Result

if TYPE_CHECKING:
    from skipbench.datasets import Dataset

MANY_DEGENERATE = 0.02  # share of the images from which a warning and a footnote say so


class Tokencut(Evaluation):
    name, title, order = "tokencut", "TokenCut", 2
    run = "TokencutRun"
    settings = TokencutSettings
    version = 2  # 1 counted degenerate images as hits where the whole image would be one
    metrics = {"corloc": "CorLoc", "iou": "IoU"}
    task = "object-detection"
    by_block = writes_one = True
    methods = {"tokencut": "TokenCut", "lost": "LOST"}
    named_by = {"method": "tokencut", "tensor": "keys", "score": "boxes"}
    hidden_settings = frozenset({"feature"})
    tiles = {"box": "box found", "mask": "mask found"}
    fixed_in_suites = {"images": ()}
    demo = ({"layers": "all", "pictures": 4},)

    def run_instead(self, settings: TokencutSettings, dry_run: bool, as_json: bool) -> bool:
        if not settings.images:
            return False
        if dry_run:
            raise UsageError("--dry-run goes with --dataset, not with --images")

        import json

        import typer

        from skipbench.images import find_images

        find_images(settings.images)  # missing files are reported before torch is loaded

        from skipbench.evaluations.tokencut.pictures import find_objects

        folder = find_objects(settings)
        typer.echo(json.dumps({"pictures": str(folder)}) if as_json else f"pictures: {folder}")
        return True

    def open_data(self, settings: TokencutSettings) -> "list[Dataset]":
        from skipbench.evaluations.data import open_objects

        if settings.dataset is None:
            raise UsageError("images alone give no record: use find_objects")
        return [
            open_objects(
                settings.dataset, split=settings.split, score=settings.score, hard=settings.hard,
                **settings.of_data(),
            )
        ]  # fmt: skip

    def remarks(self, result: Result) -> list[str]:
        """A box around the whole image is often right, but discovers nothing."""
        count, images = result.metrics.get("degenerate"), result.dataset["images"]
        if not count or count < MANY_DEGENERATE * images:
            return []
        many = f"{count:,} of {images:,} images degenerate"
        other = result.metrics.get("whole_image_if_degenerate")
        if other is None:  # of version 1
            return [f"{many}: their box is the whole image"]
        return [f"{many}: counted as misses; with the whole image as their object {other:.1f}"]


EVALUATION = Tokencut()
