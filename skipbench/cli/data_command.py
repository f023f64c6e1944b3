"""`skipbench data list|verify|show|download`: which data sets were found, and what is missing."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.cli.commands import add_group, command
from skipbench.console import echo, echo_json, page, shown
from skipbench.errors import DataError, UsageError
from skipbench.evaluations.segmentation import SegmentationSettings
from skipbench.files import ensure_writable, is_folder, size_text
from skipbench.settings import DATA, OUTPUT, Settings, parsers, same_as, setting
from skipbench.settings.groups import DataSettings

if TYPE_CHECKING:
    from skipbench.datasets import Source
    from skipbench.datasets.common.verify import Report, SplitReport

data = add_group("data", help="List, verify, draw or download data sets.")

SHOWN = 10  # causes of problems in a split


@dataclass(frozen=True, kw_only=True)
class RootSettings(Settings):
    data_root: str | None = same_as(DataSettings, "data_root", None, panel=DATA)


@dataclass(frozen=True, kw_only=True)
class NameSettings(RootSettings):
    name: str = setting(
        help="Name from `skipbench data list`, or folder:PATH.", parse=parsers.text, panel=DATA,
        metavar="NAME", argument=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VerifySettings(NameSettings):
    split: str | None = setting(
        None, help="Only this split.", parse=parsers.text, panel=DATA, metavar="NAME",
        default_text="all that were found",
    )  # fmt: skip
    full: bool = setting(False, help="Decode every image and every mask, on all cores.", panel=DATA)
    classes: int | None = same_as(SegmentationSettings, "classes", None)


@dataclass(frozen=True, kw_only=True)
class SheetSettings(NameSettings):
    split: str | None = same_as(
        VerifySettings, "split", None, help="Split to draw.", default_text="val, or the only one"
    )
    limit: int = same_as(DataSettings, "limit", 8, help="Number of images.")
    seed: int = same_as(DataSettings, "subset_seed", 0, help="Random seed.")
    classes: int | None = same_as(SegmentationSettings, "classes", None)
    out: Path | None = setting(
        None, help="PNG to write.", parse=parsers.path, panel=OUTPUT, metavar="FILE",
        default_text="NAME-SPLIT.png",
    )  # fmt: skip

    def check(self) -> None:
        super().check()
        if self.out and (self.out.suffix.lower() != ".png" or self.out.is_dir()):
            raise UsageError(f"--out {self.out}: give the name of a .png file")


@dataclass(frozen=True, kw_only=True)
class DownloadSettings(NameSettings):
    split: tuple[str, ...] = setting(
        (), help="Only what this split needs. Repeatable.", parse=parsers.texts, panel=DATA,
        metavar="NAME", several=True, default_text="all but the extra ones",
    )  # fmt: skip
    mirror: str | None = setting(
        None, help="Download the archives from this URL or folder instead.", parse=parsers.text,
        panel=DATA, metavar="URL",
    )  # fmt: skip
    keep: bool = setting(False, help="Keep the archives after unpacking.", panel=DATA)


@command("list", RootSettings, group=data)
def list_(settings: RootSettings, as_json: bool) -> None:
    """List data sets: where they were found, and how complete they are."""
    from skipbench.datasets import data_roots, names

    rows = [_row(name, settings.data_root) for name in names() if name != "folder"]
    if as_json:
        echo_json(rows)
        return
    console = page(highlight=False, soft_wrap=True)
    for row in rows:
        where = shown(row["where"]) if row["found"] else "[dim]not found[/dim]"
        console.print(f"[bold]{row['name']:<13}[/bold]{row['title']}: {where}")
        facts = [*map(_count, row["splits"].items()), row["classes"]]
        console.print(" " * 13 + " · ".join(filter(None, facts)))
    console.print("[bold]folder:PATH[/bold]  your own images; see `skipbench data verify --help`")
    roots = data_roots(settings.data_root)
    searched = ", ".join(f"{r}" if is_folder(r) else f"{r} (no such folder)" for r in roots)
    echo(f"Searched: {searched}", err=True)
    echo("To search another folder, use --data-root DIR or set SKIPBENCH_DATA.", err=True)


def _row(name: str, root: str | None) -> dict[str, Any]:
    from skipbench.datasets import locate, source

    kind, found = source(name), locate(name, root)
    counts = {}
    for split, part in kind.splits.items():
        usable = _usable(kind, found.folder, split) if found.folder else 0
        counts[split] = {"images": usable, "official": part.images, "labels": part.labels}
    where = "not found" if found.folder is None else str(found.folder)
    return {
        "name": name,
        "title": kind.title,
        "found": found.folder is not None,
        "where": where if kind.on_disk else "drawn by the package",
        "splits": counts,
        "classes": kind.known_classes(),
    }


def _usable(kind: "Source", folder: Path, split: str) -> int:
    try:
        listing = kind.listing(folder, split, None)
    except DataError as error:  # `verify` reports it too; it must not hide the others
        echo(f"{kind.title} {split}: {error}", err=True)
        return 0
    return 0 if listing.missing else len(listing)


def _count(entry: tuple[str, dict[str, Any]]) -> str:
    """ "train 120 of 1,464 with masks"."""
    name, split = entry
    found, official = split["images"], split["official"]
    labels = "" if split["labels"] == "images" else f" with {split['labels']}"
    if not found:
        return f"[dim]{name} – of {official:,}{labels}[/dim]"
    if found == official:
        return f"[green]{name} all {official:,}{labels}[/green]"
    return f"[yellow]{name} {found:,} of {official:,}{labels}[/yellow]"


@command("verify", VerifySettings, group=data, resumable=False)
def verify(settings: VerifySettings, as_json: bool) -> None:
    """Check a data set: counts, pairs, sizes, labels.

    Without --full, up to 64 images of each split are decoded, evenly spread. Exit code 4 if
    something is wrong.

    folder:PATH is a data set of your own: PATH/images/ with PATH/masks/ (PNG whose values are the
    classes listed in PATH/classes.txt, one per line; 255 is ignored), or PATH/boxes.csv
    (image,xmin,ymin,xmax,ymax) or a COCO .json, or both. Splits are sub-folders (images/train/,
    masks/train/) or lists (PATH/train.txt).
    """
    from skipbench.datasets import how_to_download
    from skipbench.datasets.common.verify import verify as verify_dataset

    name = settings.name
    report = verify_dataset(
        name, settings.split, root=settings.data_root, classes=settings.classes, full=settings.full
    )
    if as_json:
        echo_json(report.to_json())
    else:
        _show_report(report)
    if not report.sound:
        wrong = {
            "damaged": [s.split for s in report.splits if s.damaged],
            "incomplete": [s.split for s in report.splits if s.missing],
        }
        found = "; ".join(f"{what}: {', '.join(which)}" for what, which in wrong.items() if which)
        advice = ""
        lacking = wrong["incomplete"]
        if lacking and (download := how_to_download(name, settings.data_root, *lacking)):
            advice = f"\nDownload what is missing: {download}"
        raise DataError(f"{name}: {found or 'no images found'}{advice}")


def _show_report(report: "Report") -> None:
    console = page(highlight=False, soft_wrap=True)
    console.print(f"{report.dataset}  {report.folder}", style="bold", markup=False)
    for split in report.splits:
        of = f" of {split.official:,}" if split.official else ""
        checked = "all" if split.looked_into == split.images else f"{split.looked_into:,}"
        console.print(
            f"  {shown(split.split)}: {split.images:,}{of} images, {checked} checked: "
            f"{_verdict(split)}"
        )
        for cause in split.causes[:SHOWN]:
            console.print(f"    {cause}", markup=False)
        if len(split.problems) > len(split.causes[:SHOWN]):
            console.print(f"    … --json lists all {len(split.problems):,} problems by file")
        for note in split.notes:
            console.print(f"    note: {note}", style="dim", markup=False)
    for split_name, why in report.absent.items():
        console.print(f"  {split_name}: not found ({why})", style="dim", markup=False)


def _verdict(split: "SplitReport") -> str:
    if split.damaged:
        return "[bold red]damaged[/bold red]"
    return "[yellow]incomplete[/yellow]" if split.missing else "[green]sound[/green]"


@command("show", SheetSettings, group=data, flags=(), resumable=False)
def show(settings: SheetSettings) -> None:
    """Draw random images with their masks or boxes, in the data set's colours."""
    from skipbench.datasets import open_dataset
    from skipbench.drawing.sheet import dataset_sheet, save

    data = open_dataset(
        settings.name, settings.split, root=settings.data_root, limit=10**9,
        classes=settings.classes,
    ).sampled(settings.limit, settings.seed)  # fmt: skip
    path = settings.out or Path(f"{data.name.replace(':', '-')}-{data.split}.png")
    ensure_writable(path.parent)
    save(dataset_sheet(data), path)
    echo(f"{len(data)} images of {data.name} {data.split}: {path}")


@command("download", DownloadSettings, group=data, flags=())
def download(settings: DownloadSettings) -> None:
    """Download the official archives of a data set, verify their checksums and unpack them.

    Resumable.
    """
    from skipbench.datasets import data_roots, find_split, locate, source
    from skipbench.datasets.download import download as fetch

    name, data_root = settings.name, settings.data_root
    kind = source(name)
    if not kind.archives:
        by_hand = f"\nDownload {kind.manual_download}" if kind.manual_download else ""
        raise UsageError(
            f"{name} ({kind.title}) has no archives to download: {kind.licence}{by_hand}"
        )
    wanted = [find_split(name, kind.splits, s) for s in settings.split] or [
        s for s, part in kind.splits.items() if not part.extra
    ]
    folder = locate(name, data_root).folder
    missing = _incomplete(kind, folder, wanted)
    if not missing:
        echo(f"{name} {', '.join(wanted)}: already complete, in {folder}")
        return
    root = data_roots(data_root)[0]
    archives = kind.archives_for(locate(name, root).folder, missing)
    echo(f"{kind.title}: {kind.licence}", err=True)
    for archive in archives:
        size = size_text(archive.bytes) if archive.bytes else "size not published"
        echo(f"  {archive.file}, {size}, into {root / archive.into}", err=True)
    fetch(archives, root, mirror=settings.mirror, keep=settings.keep)
    found = locate(name, root).folder
    if found:
        kind.finish(found)
    missing = _incomplete(kind, found, wanted)
    for part in wanted:
        state = "incomplete" if part in missing else "complete"
        echo(f"{name} {part}: {state}, in {found or root}")
    if missing:
        raise DataError(
            f"the archives of {name} lack some of its files; see `skipbench data verify`"
        )


def _incomplete(kind: "Source", folder: Path | None, splits: list[str]) -> list[str]:
    return [s for s in splits if folder is None or not kind.is_complete(folder, s)]
