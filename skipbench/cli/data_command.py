"""`skipbench data list|verify|show|download`: what is there, what is missing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options
from skipbench.cli.running import with_exit_codes
from skipbench.console import page

if TYPE_CHECKING:
    from skipbench.datasets import Source
    from skipbench.datasets.common.verify import Report, SplitReport
    from skipbench.records import Archive

app = typer.Typer(help="Data sets: what is there, what is missing.", no_args_is_help=True)

SHOWN = 10  # problems of a split

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="As `skipbench data list` shows it, or folder:PATH.")
]


def add_to(parent: typer.Typer) -> None:
    app.command("list")(with_exit_codes(list_))
    app.command("verify")(with_exit_codes(verify, keeps=False))
    app.command("show")(with_exit_codes(show, keeps=False))
    app.command("download")(with_exit_codes(download))
    parent.add_typer(app, name="data")


def list_(data_root: options.DataRoot = None, as_json: options.Json = False) -> None:
    """Show every data set: whether it was found, where, and how much of it."""
    from skipbench.datasets import names

    rows = [_row(name, data_root) for name in names() if name != "folder"]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.markup import escape

    console = page(highlight=False, soft_wrap=True)
    for row in rows:
        where = escape(row["where"]) if row["found"] else "[dim]not found[/dim]"
        console.print(f"[bold]{row['name']:<13}[/bold]{row['title']}: {where}")
        console.print(" " * 13 + " · ".join(map(_count, row["splits"].items())))
    console.print("[bold]folder:PATH[/bold]  your own images; see `skipbench data verify --help`")
    _say_roots(data_root)


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
    }


def _usable(kind: "Source", folder: Path, split: str) -> int:
    from skipbench.errors import DataError

    try:
        listing = kind.listing(folder, split, None)
    except DataError as error:  # `verify` says so too; here it must not hide the others
        typer.echo(f"{kind.title} {split}: {error}", err=True)
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


def _say_roots(data_root: str | None) -> None:
    from skipbench.datasets import data_roots
    from skipbench.files import is_folder

    roots = data_roots(data_root)
    looked = ", ".join(f"{r}" if is_folder(r) else f"{r} (no such folder)" for r in roots)
    typer.echo(f"looked in {looked} (--data-root DIR or SKIPBENCH_DATA for elsewhere)", err=True)


def verify(
    name: Name,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Only this one.", show_default="all that are there"),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Decode every image and every mask, on all cores.")
    ] = False,
    classes: options.Classes = None,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare a data set with what it should be: counts, pairs, sizes, labels.

    Without --full, up to 64 images of each split are decoded, evenly spread. Exit code 4 where
    something is wrong.

    folder:PATH is a data set of your own: PATH/images/ with PATH/masks/ (PNG whose values are the
    classes that PATH/classes.txt lists, one a line; 255 is ignored), and/or PATH/boxes.csv (image,
    xmin,ymin,xmax,ymax) or a COCO .json. Splits are sub-folders (images/train/, masks/train/) or
    lists (PATH/train.txt).
    """
    from skipbench.datasets.common.verify import verify as verify_dataset
    from skipbench.errors import DataError

    report = verify_dataset(name, split, root=data_root, classes=classes, full=full)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _show_report(report)
    if not report.sound:
        wrong = {
            "damaged": [s.split for s in report.splits if s.damaged],
            "not complete": [s.split for s in report.splits if s.missing],
        }
        found = "; ".join(f"{what}: {', '.join(which)}" for what, which in wrong.items() if which)
        raise DataError(f"{name}: {found or 'nothing of it is there'}")


def _show_report(report: "Report") -> None:
    from rich.markup import escape

    console = page(highlight=False, soft_wrap=True)
    console.print(f"{report.dataset}  {report.folder}", style="bold", markup=False)
    for split in report.splits:
        of = f" of {split.official:,}" if split.official else ""
        looked = "all" if split.looked_into == split.images else f"{split.looked_into:,}"
        verdict = _verdict(split)
        console.print(
            f"  {escape(split.split)}: {split.images:,}{of} images, {looked} looked into: {verdict}"
        )
        for problem in split.problems[:SHOWN]:
            console.print(f"    {problem}", markup=False)
        if len(split.problems) > SHOWN:
            console.print(f"    … {len(split.problems):,} in all (--json lists them)")
        for note in split.notes:
            console.print(f"    note: {note}", style="dim", markup=False)
    for split_name, why in report.absent.items():
        console.print(f"  {split_name}: not there ({why})", style="dim", markup=False)


def _verdict(split: "SplitReport") -> str:
    if split.damaged:
        return "[bold red]damaged[/bold red]"
    return "[yellow]not complete[/yellow]" if split.missing else "[green]sound[/green]"


def show(
    name: Name,
    split: options.SplitOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="PNG to write.", show_default="NAME-SPLIT.png"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many images.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Which ones.")] = 0,
    classes: options.Classes = None,
    data_root: options.DataRoot = None,
    verbose: options.Verbose = False,
) -> None:
    """Draw some images with their masks or boxes, in the data set's colours."""
    from skipbench.datasets import open_dataset
    from skipbench.drawing.dataset_sheet import dataset_sheet
    from skipbench.drawing.sheet import save
    from skipbench.errors import UsageError
    from skipbench.files import ensure_writable

    data = open_dataset(name, split, root=data_root, limit=10**9, classes=classes)
    data = data.sampled(limit, seed)
    path = out or Path(f"{data.name.replace(':', '-')}-{data.split}.png")
    if path.suffix.lower() != ".png" or path.is_dir():
        raise UsageError(f"--out {path}: give the name of a .png file")
    ensure_writable(path.parent)
    save(dataset_sheet(data), path)
    typer.echo(f"{len(data)} images of {data.name} {data.split}: {path}")


def download(
    name: Name,
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split",
            help="Only what this split needs; repeatable. Default: all but the extra ones.",
            show_default=False,
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", metavar="URL", help="Fetch the archives from here instead."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the archives once they are unpacked.")
    ] = False,
    data_root: options.DataRoot = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Fetch a data set's official archives, compare their checksums, and unpack them.

    Cut off, it goes on where it was; run again, it does what is left.
    """
    from skipbench.datasets import data_roots, find_split, locate, source
    from skipbench.datasets.download import download as fetch
    from skipbench.errors import DataError, UsageError

    kind = source(name)
    if not kind.archives:
        raise UsageError(f"{name} ({kind.title}) is not to be fetched: {kind.licence}")
    wanted = [find_split(name, kind.splits, s) for s in split or ()] or [
        s for s, part in kind.splits.items() if not part.extra
    ]
    there = locate(name, data_root).folder
    lacking = _lacking(kind, there, wanted)
    if not lacking:
        typer.echo(f"{name} {', '.join(wanted)}: all there, in {there}")
        return
    root = data_roots(data_root)[0]
    archives = kind.archives_for(locate(name, root).folder, lacking)
    _say_what_comes(kind, archives, root)
    fetch(archives, root, mirror=mirror, keep=keep)
    found = locate(name, root).folder
    if found:
        kind.finish(found)
    still = _lacking(kind, found, wanted)
    for part in wanted:
        state = "not complete" if part in still else "complete"
        typer.echo(f"{name} {part}: {state}, in {found or root}")
    if still:
        raise DataError(
            f"the archives of {name} did not hold what was expected; see `skipbench data verify`"
        )


def _lacking(kind: "Source", folder: Path | None, splits: list[str]) -> list[str]:
    return [s for s in splits if folder is None or not kind.is_complete(folder, s)]


def _say_what_comes(kind: "Source", archives: "list[Archive]", root: Path) -> None:
    from skipbench.files import size_text

    typer.echo(f"{kind.title}: {kind.licence}", err=True)
    for archive in archives:
        size = size_text(archive.bytes) if archive.bytes else "size not published"
        typer.echo(f"  {archive.file}, {size}, into {root / archive.into}", err=True)
