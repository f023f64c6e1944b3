"""What `skipbench pca` draws.

OUT/sheet.png, sheet.pdf           a row per image, a column per checkpoint
OUT/NAME/IMAGE.png                 single pictures, at the size of the image
OUT/NAME/IMAGE_block7.png …        the same, for several blocks
OUT/NAME/blocks/sheet.png, .pdf    and these in columns, a row per image
OUT/NAME/components4-6/IMAGE.png   the same for further components
OUT/curves.png, .pdf, .svg         the numbers over blocks; figures.csv has all of them
OUT/<id>/tiles/                    the first pictures, for the report's page
"""

import logging
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from PIL import Image

from skipbench.drawing.curves import KINDS, save_curves
from skipbench.drawing.sheet import Row, contact_sheet, save, save_contact_sheet
from skipbench.engine.progress import progress
from skipbench.errors import UsageError
from skipbench.evaluations.pca.method import FLAT, colours, limits, resampled
from skipbench.evaluations.pca.record import panels, table
from skipbench.evaluations.pca.settings import MARK
from skipbench.evaluations.pictures import file_names, save_tile, write_tiles
from skipbench.files import ensure_writable, unlike, write_csv, write_whole
from skipbench.images import read_image

if TYPE_CHECKING:
    from skipbench.evaluations.pca.model import Model, Painted
    from skipbench.evaluations.pca.run import PcaRun
    from skipbench.evaluations.segmentation.tokens import Grid

log = logging.getLogger("skipbench")

TILES = 12
BACKGROUND = 0.0  # black, as in DINOv2's figures
FILES = (".png", ".pdf", ".csv", ".json", ".npz")
CURVES = tuple(f"curves.{kind}" for kind in KINDS)
WRITTEN = ("sheet.png", "sheet.pdf", "figures.csv", *CURVES)
WRITERS, WAITING = 2, 8  # threads that write pictures, and pictures queued for them

Column = tuple["Model", int]  # place of its block
Sheet = tuple[Path, list[str], list[Column], str]  # without ending; titles; columns; a note


def claim(folder: Path, inside: Sequence[Path]) -> None:
    """Refuse to overwrite files of other origin. inside: folders for pictures."""
    ensure_writable(folder)
    if (folder / MARK).exists() or any(folder.glob("pca-*.json")):
        log.info("%s: overwriting pictures of an earlier run", folder)
    else:
        there = [folder / name for name in WRITTEN if (folder / name).exists()]
        there += [place for place in inside if place.is_dir() and any(place.iterdir())]
        if there:
            raise UsageError(
                f"{there[0]} already exists and was not written by `skipbench pca`; "
                "choose another folder with --out"
            )
    write_whole(folder / MARK, b"")
    for place in inside:
        ensure_writable(place)


class Folder:
    """Where the pictures of a run go."""

    def __init__(self, run: "PcaRun") -> None:
        self.run, self.out = run, run.folder
        self.images = file_names(run.data.names)
        for folder in run.folders:
            for first in range(3, run.settings.components, 3):
                ensure_writable(folder / self._further(first))
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="draw")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)  # waits, so that no unfinished file remains

    def path(self, model: "Model", place: int, image: int, first: int = 0) -> Path:
        """first: of the components shown."""
        stem = self.images[image]
        if len(model.blocks) > 1:
            stem += f"_block{model.blocks[place]}"
        return model.folder / self._further(first) / f"{stem}.png"

    def _further(self, first: int) -> str:
        """The sub-folder for these components; none for the first three."""
        last = min(first + 3, self.run.settings.components)
        return f"components{first + 1}-{last}" if first else ""

    def draw(
        self, model: "Model", place: int, group: Sequence[int], painted: "Sequence[Painted]"
    ) -> None:
        """A picture per image and three components; the group shares one colour range."""
        started = time.monotonic()
        ends = limits(np.concatenate([one.counted for one in painted]))
        for one, image in zip(painted, group, strict=True):
            shares = colours(one.scores, ends)
            shares[~one.shown] = BACKGROUND
            if one.flat:
                shares[:] = FLAT
            for first in range(0, shares.shape[-1], 3):
                where = self.path(model, place, image, first)
                rgb = _rgb(shares[..., first : first + 3])
                grid = model.grid(image, place)
                self._waiting.append(self._pool.submit(self._save, rgb, grid, image, where))
                self._wait(WAITING)
        model.seconds["drawing"] += time.monotonic() - started

    def _wait(self, most: int = 0) -> None:
        """Until at most this many pictures are queued; raises the errors of the writers."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def _save(self, shares: np.ndarray, grid: "Grid", image: int, path: Path) -> None:
        size_hw = self.run.data[image].size_hw()
        drawn = resampled(shares, grid, size_hw, self.run.settings.upsample)
        save(Image.fromarray((255 * drawn).round().astype(np.uint8)), path)

    def finish(self) -> None:
        """Sheets and curves, once all pictures are drawn."""
        self._wait()
        sheets = [self._by_checkpoint(), *self._by_block()]
        with progress("sheets", len(sheets), "sheets") as advance:
            for stem, titles, columns, note in sheets:
                pages = contact_sheet(["image", *titles], self._rows(columns), note=note)
                save_contact_sheet(pages, stem)
                advance(1)
        for name in CURVES:
            (self.out / name).unlink(missing_ok=True)  # of an earlier run
        if len(sheets) > 1:
            save_curves(panels(self.run), self.out / "curves")
        write_csv(self.out / "figures.csv", table(self.run))

    def _by_checkpoint(self) -> Sheet:
        """The deepest block of each."""
        models = self.run.models
        columns = [(model, len(model.blocks) - 1) for model in models]
        apart = len({model.blocks[-1] for model in models}) > 1
        titles = [m.title + (f", block {m.blocks[-1]}" if apart else "") for m in models]
        return self.out / "sheet", titles, columns, self._note(columns)

    def _by_block(self) -> Iterator[Sheet]:
        """For each checkpoint with several blocks."""
        for model in self.run.models:
            folder = model.folder / "blocks"
            if folder.is_dir():
                save_contact_sheet([], folder / "sheet")  # removes those of an earlier run
            if len(model.blocks) > 1:
                ensure_writable(folder)
                columns = [(model, place) for place in range(len(model.blocks))]
                titles = [f"block {block}" for block in model.blocks]
                yield folder / "sheet", titles, columns, f"{model.title}: {self._note(columns)}"

    def _rows(self, columns: Sequence[Column]) -> Iterator[Row]:
        for image, item in enumerate(self.run.data):
            drawn = [self.path(*column, image) for column in columns]
            yield Row(item.name, [item.read, *(partial(read_image, path) for path in drawn)])

    def _note(self, columns: Sequence[Column]) -> str:
        """How the pictures were made, and how much of the variance they explain."""
        settings = self.run.settings
        shown = min(settings.components, 3)
        what = "the first component" if shown == 1 else f"the first {shown} components"
        words = [f"{what} of {settings.feature}"]
        blocks = {model.blocks[place] for model, place in columns}
        words[0] += f" of block {blocks.pop()}" if len(blocks) == 1 else ""
        words += settings.fit_words
        figures = [(model.figures, place) for model, place in columns]
        if not all(np.isnan(one.agreement[:, place]).all() for one, place in figures):
            words.append(f"colours aligned to those of {self.run.models[0].title}")
        shares = [one.explained[:, place, :shown].sum(-1) for one, place in figures]
        percent = ["–" if np.isnan(s).all() else f"{100 * np.nanmean(s):.0f}" for s in shares]
        return f"{', '.join(words)}; % of the variance: {', '.join(percent)}"

    def draw_tiles(self, model: "Model") -> None:
        folder = self.run.settings.out / model.id / "tiles"
        place, note = len(model.blocks) - 1, f"block {model.blocks[-1]}"
        ensure_writable(folder)
        tiles = []
        for image, item in enumerate(self.run.data[:TILES]):
            own = {"pca": read_image(self.path(model, place, image))}
            tiles.append(save_tile(folder, image, item.name, note, {"image": item.read()}, own))
        write_tiles(folder, tiles)


def _rgb(shares: np.ndarray) -> np.ndarray:
    """(height, width, 1 to 3) → three channels: one component is grey, two have constant blue."""
    if shares.shape[-1] == 1:
        return shares.repeat(3, -1)
    missing = 3 - shares.shape[-1]
    return np.pad(shares, ((0, 0), (0, 0), (0, missing)), constant_values=FLAT)


def folder_names(names: Sequence[str]) -> list[str]:
    """Safe and unique, and no name of a file that is written next to them."""
    safe = [re.sub(r"[^\w.+-]+", "_", name).strip("._")[:80] or "model" for name in names]
    return unlike(f"{name}_" if Path(name).suffix in FILES else name for name in safe)
