"""`skipbench data list|verify|show|download`: what is there, what is missing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options
from skipbench.cli.page import page

if TYPE_CHECKING:
    from skipbench.datasets import Source
    from skipbench.records import Archive
    from skipbench.verify import Report

app = typer.Typer(help="Data sets: what is there, what is missing.", no_args_is_help=True)

FIRST = 10  # offenders shown

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="As `skipbench data list` shows it, or folder:PATH.")
]


def add_to(parent: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    app.command("list")(ending_well(list_))
    app.command("verify")(ending_well(verify))
    app.command("show")(ending_well(show))
    app.command("download")(ending_well(download))
    parent.add_typer(app, name="data")


def list_(data_root: options.DataRoot = None, as_json: options.Json = False) -> None:
    """Show every data set: whether it was found, where, and how much of it."""
    from skipbench.datasets import names

    rows = [_row(name, data_root) for name in names() if name != "folder"]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    console = page(highlight=False, soft_wrap=True)
    for row in rows:
        where = row["where"] if row["found"] else "[dim]not found[/dim]"
        console.print(f"[bold]{row['name']:<11}[/bold]{row['title']}: {where}")
        console.print(" " * 11 + " · ".join(map(_count, row["splits"].items())))
    console.print("[bold]folder:PATH[/bold] your own images; see `skipbench data verify --help`")
    _say_roots(data_root)


def _row(name: str, root: str | None) -> dict[str, Any]:
    from skipbench.datasets import locate, source

    kind, found = source(name), locate(name, root)
    counts = {}
    for split, part in kind.splits.items():
        listing = kind.listing(found.folder, split, None) if found.folder else None
        usable = len(listing) if listing and not listing.missing else 0
        counts[split] = {"images": usable, "official": part.images, "labels": part.labels}
    where = "not found" if found.folder is None else str(found.folder)
    return {
        "name": name,
        "title": kind.title,
        "found": found.folder is not None,
        "where": where if kind.on_disk else "drawn by the package",
        "splits": counts,
    }


def _count(entry: tuple[str, dict[str, Any]]) -> str:
    """ "train 120 of 1,464 masks"."""
    name, split = entry
    found, official, labels = split["images"], split["official"], split["labels"]
    if not found:
        return f"[dim]{name} – of {official:,} {labels}[/dim]"
    if found == official:
        return f"[green]{name} all {official:,} {labels}[/green]"
    return f"[yellow]{name} {found:,} of {official:,} {labels}[/yellow]"


def _say_roots(data_root: str | None) -> None:
    from skipbench.datasets import data_roots

    looked = ", ".join(str(root) for root in data_roots(data_root))
    typer.echo(f"looked in {looked} (--data-root DIR or SKIPBENCH_DATA for elsewhere)", err=True)


def verify(
    name: Name,
    split: options.SplitOption = None,
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

    Without --full, 64 images of each split are decoded, evenly spread. Exit code 4 where something
    is wrong.

    folder:PATH is a data set of your own: PATH/images/ with PATH/masks/ (PNG whose values are the
    classes that PATH/classes.txt lists, one a line; 255 is ignored), and/or PATH/boxes.csv (image,
    xmin,ymin,xmax,ymax) or a COCO .json. Splits are sub-folders (images/train/, masks/train/) or
    lists (PATH/train.txt).
    """
    from skipbench.errors import DataError
    from skipbench.verify import verify as look

    report = look(name, split, root=data_root, classes=classes, full=full)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _show_report(report)
    if not report.sound:
        wrong = sum(len(s.offenders) for s in report.splits)
        raise DataError(
            f"{name}: {wrong:,} things are wrong" if report.splits else f"{name}: nothing is there"
        )


def _show_report(report: "Report") -> None:
    console = page(highlight=False, soft_wrap=True)
    console.print(f"[bold]{report.dataset}[/bold]  {report.folder}")
    for split in report.splits:
        ok = not split.offenders
        of = f" of {split.official:,}" if split.official else ""
        looked = "all" if split.looked_into == split.images else f"{split.looked_into:,}"
        verdict = "[green]sound[/green]" if ok else "[bold red]faulty[/bold red]"
        console.print(
            f"  {split.split}: {split.images:,}{of} images, {looked} looked into: {verdict}"
        )
        for offender in split.offenders[:FIRST]:
            console.print(f"    {offender}", markup=False)
        if len(split.offenders) > FIRST:
            console.print(f"    … {len(split.offenders):,} in all (--json lists them)")
        for note in split.notes:
            console.print(f"    note: {note}", style="dim", markup=False)
    for split_name, why in report.absent.items():
        console.print(f"  {split_name}: not there ({why})", style="dim", markup=False)


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
    from skipbench.files import ensure_writable
    from skipbench.pictures import dataset_sheet

    data = open_dataset(name, split, root=data_root, limit=10**9, classes=classes)
    data = data.sampled(limit, seed)
    path = out or Path(f"{data.name.replace(':', '-')}-{data.split}.png")
    ensure_writable(path.parent)
    dataset_sheet(data).save(path)
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
    from skipbench.download import download as fetch
    from skipbench.errors import UsageError

    kind = source(name)
    if not kind.archives:
        raise UsageError(f"{name} ({kind.title}) is not to be fetched: {kind.licence}")
    wanted = [find_split(name, kind.splits, s) for s in split or ()] or [
        s for s, part in kind.splits.items() if not part.extra
    ]
    root = data_roots(data_root)[0]
    if not (lacking := _lacking(kind, name, root, wanted)):
        typer.echo(f"{name} {', '.join(wanted)}: all there, in {locate(name, root).folder}")
        return
    archives = needed(kind, lacking)
    _say_what_comes(kind, archives, root)
    fetch(archives, root, mirror=mirror, keep=keep)
    found = locate(name, root).folder
    if found:
        kind.finish(found)
    still = _lacking(kind, name, root, wanted)
    for part in wanted:
        state = "not complete" if part in still else "complete"
        typer.echo(f"{name} {part}: {state}, in {found or root}")
    if still:
        from skipbench.errors import DataError

        raise DataError(
            f"the archives of {name} did not hold what was expected; see `skipbench data verify`"
        )


def needed(kind: "Source", splits: list[str]) -> "list[Archive]":
    """The archives that these splits are in."""
    return [a for a in kind.archives if not a.splits or set(a.splits) & set(splits)]


def _lacking(kind: "Source", name: str, root: Path, splits: list[str]) -> list[str]:
    """The splits that are not complete below this root."""
    from skipbench.datasets import locate

    folder = locate(name, root).folder
    if folder is None:
        return splits
    lists = {split: kind.listing(folder, split, None) for split in splits}
    return [s for s in splits if len(lists[s]) != kind.splits[s].images or lists[s].without_label]


def _say_what_comes(kind: "Source", archives: "list[Archive]", root: Path) -> None:
    from skipbench.files import size_text

    typer.echo(f"{kind.title}: {kind.licence}", err=True)
    for archive in archives:
        size = size_text(archive.bytes) if archive.bytes else "size not published"
        typer.echo(f"  {archive.file}, {size}, into {root / archive.into}", err=True)
