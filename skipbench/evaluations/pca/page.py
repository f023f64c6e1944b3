"""What `skipbench pca` prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from skipbench.console import plain_table, shown, wide_page
from skipbench.errors import count_of
from skipbench.evaluations.page import images_words
from skipbench.evaluations.pca.run import PcaRun
from skipbench.records import Result


def show(run: PcaRun, results: Sequence[Result]) -> None:
    console, dataset, settings = wide_page(), results[0].dataset, run.settings
    partial = ", partial" if dataset["partial"] else ""
    where = f"[bold]{shown(dataset['name'])} {dataset['split']}[/bold], "
    name = "" if dataset["name"] == "images" else where
    console.print(f"\n{name}{images_words(dataset)}{partial}")
    many = count_of(settings.components, "component")
    words = [f"{many} of {settings.feature}", *settings.fit_words, f"images at {settings.size}"]
    lines = ["", f"pictures: {settings.out}/sheet.png, sheet.pdf and one for each image"]
    if any(len(model.blocks) > 1 for model in run.models):
        lines.append(f"curves: {settings.out}/curves.png, curves.pdf, curves.svg")
    lines.append(f"figures: {settings.out}/figures.csv")
    lines += [f"record: {settings.out}/{result.id}.json" for result in results]
    console.print(", ".join(words), markup=False)
    console.print(_table(run))
    for line in [*_remarks(run), *lines]:
        console.print(line, markup=False)


# Column of the table → key of a row, and format.
COLUMNS = {
    "block": ("block", "d"),
    "explained %": ("explained", ".1f"),
    "effective rank": ("effective_rank", ".1f"),
    "total variation": ("total_variation", ".3f"),
    "between segments %": ("coherence", ".1f"),
    "95 % interval": ("interval", ".1f"),
    "upside down %": ("upside_down", ".1f"),
    "of colours %": ("colour_coherence", ".1f"),
    "colours alike %": ("agreement", ".1f"),
    "flat images": ("degenerate", "d"),
}


def _table(run: PcaRun) -> Any:
    """A row per checkpoint and block, without empty columns."""
    rows = [(model.title, row) for model in run.models for row in model.rows]
    empty = {"degenerate": 0}
    columns = {
        title: (key, how)
        for title, (key, how) in COLUMNS.items()
        if any(row[key] not in (None, empty.get(key)) for _, row in rows)
    }
    table = plain_table()
    table.add_column("checkpoint", no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for title, row in rows:
        table.add_row(shown(title), *(_number(row, *how) for how in columns.values()))
    return table


def _number(row: Mapping[str, Any], key: str, how: str) -> str:
    value = row[key]
    if value is None:
        return ""
    return " to ".join(format(v, how) for v in (value if isinstance(value, list) else [value]))


def _remarks(run: PcaRun) -> list[str]:
    """What the columns mean."""
    lines = ["", "total variation: distance of neighbours to that of any two tokens; 1 is noise"]
    if any(item.has_segments for item in run.data):
        own = run.models[0].figures.pixels_coherence
        reference = "" if own is None else f"; of the images' own colours: {own:.1f}"
        lines += [
            f"between segments: share of the features' variance (coherence){reference}",
            "upside down: with the segments rotated by 180°, which smooth features score without "
            "knowing objects",
        ]
        lines += [
            f"{model.title}: no coherence: tokens of the deepest block are constant, or no image "
            "has two segments"
            for model in run.models
            if not model.figures.coherent
        ]
    else:
        lines.append("no segments are known of these images, so no coherence: dataset:NAME has "
                     "some, if it has masks or is COCO with its annotations")  # fmt: skip
    if len(run.models) > 1 and run.settings.align:
        first = run.models[0].title
        lines.append(f"colours alike: how much of {first}'s colours the others reach; where it is "
                     "low, the same thing cannot have the same colour")  # fmt: skip
    return lines
