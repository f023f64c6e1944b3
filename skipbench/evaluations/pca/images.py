"""The images that `skipbench pca` draws, opened before anything heavy is loaded."""

import logging
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from skipbench.datasets import Dataset, Item, Items, decodable, names, open_dataset
from skipbench.errors import DataError, UsageError
from skipbench.evaluations.pca.settings import MARK, OF_DATASET, PcaSettings
from skipbench.files import unlike
from skipbench.images import ImageItem, find_images, part_of
from skipbench.records import Chosen

log = logging.getLogger("skipbench")


def open_images(settings: PcaSettings) -> Dataset:
    """Files and folders, or `dataset:NAME`, which may have masks or segments."""
    sources, options, seed = settings.images, settings.of_data(), settings.subset_seed
    given = [str(source) for source in sources if not isinstance(source, ImageItem)]
    if any(word.startswith(OF_DATASET) for word in given):
        if len(sources) > 1:
            raise UsageError(f"{OF_DATASET}NAME stands by itself: give it, or files and folders")
        return open_dataset(given[0].removeprefix(OF_DATASET), settings.split, **options)
    if settings.split is not None:
        raise UsageError(f"--split goes with {OF_DATASET}NAME: files and folders have none")
    for word in given:
        if word in names() and not Path(word).exists():
            raise DataError(f"no such image or folder: {word}. Did you mean {OF_DATASET}{word}?")
    originals = _originals(sources)
    found = part_of(originals, options["limit"], settings.sample, seed)
    chosen: Chosen | None = None
    if len(found) < len(originals):
        chosen = "first" if settings.sample is None else "random"
    if chosen == "first":
        log.info("the first %d of %d pictures; --limit takes more", len(found), len(originals))
    kept = decodable(found, settings.skip_bad, "these pictures") if settings.skip_bad else found
    if not kept:
        raise DataError("no readable images remain")
    bad = tuple(item.name for item in found if item not in kept)
    items = {
        name: Item(name, item.path) for name, item in zip(_unique_names(kept), kept, strict=True)
    }
    return Dataset(
        name="images", split="all", folder=None, items=Items(list(items), items.__getitem__),
        labels=None, kind="images", official=None, bad=bad,
        sample=(len(found), seed) if chosen == "random" else None, chosen=chosen,
    )  # fmt: skip


def _originals(sources: Sequence[str | Path | ImageItem]) -> list[ImageItem]:
    """Without pictures drawn by `skipbench pca` below one of the folders: `skipbench pca .`"""
    folders = {Path(s).resolve() for s in sources if not isinstance(s, ImageItem)}
    drawn = cache(lambda folder: (folder / MARK).exists() and bool(folders & set(folder.parents)))
    return [i for i in find_images(sources) if not any(map(drawn, i.path.resolve().parents))]


def _unique_names(items: Sequence[ImageItem]) -> list[str]:
    """Unique names: with the folder, and then a number, where several are the same."""
    times = Counter(item.name for item in items)
    return unlike(
        (i.name if times[i.name] == 1 else f"{i.path.parent.name}/{i.name}" for i in items),
        form="{} ({})",
    )
