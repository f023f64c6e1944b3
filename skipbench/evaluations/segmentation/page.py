"""What probe, knn and cluster print about their records."""

from typing import TYPE_CHECKING, Any

from skipbench.console import plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from skipbench.records import Result

MOST_CLASSES = 30  # listed on the screen; all are in the record


def show_what(console: Any, first: "Result", settings: str, training: str = "") -> None:
    """The first lines of a page. training: the verb, where images were learnt from."""
    dataset, checkpoint, learnt = first.dataset, first.checkpoint, first.training
    partial = dataset["partial"] or (learnt is not None and learnt["partial"])
    from_these = f"; {training} {learnt['images']:,} of {learnt['split']}" if learnt else ""
    console.print(
        f"\n[bold]{dataset['name']} {dataset['split']}[/bold], {dataset['images']:,} images"
        f"{', partial' if partial else ''}{from_these}"
    )
    console.print(f"{checkpoint['name']} ({checkpoint['residual']})", markup=False)
    console.print(settings, markup=False)


def show_where(console: Any, results: "Sequence[Result]", out: "Path") -> None:
    console.print("\nrecords:", markup=False)
    for result in results:
        console.print(f"  {out}/{result.id}.json", markup=False)


def show_spread(console: Any, what: str, group: "Sequence[Result]") -> None:
    from statistics import mean, stdev

    seeds = f"mean ± deviation over {len(group)} seeds"
    values = [result.metrics["miou"] for result in group]
    figure = f"{mean(values):.2f} ± {stdev(values):.2f}"
    console.print(f"\n[bold]{what}[/bold]: mIoU [bold]{figure}[/bold], {seeds}")


def blocks_words(result: "Result") -> str:
    blocks = result.features["blocks"]
    return f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, blocks))}"


def interval_words(ends: "Sequence[float] | None") -> str:
    return f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else "–"


def figures_table(first: "Sequence[str]", rows: "Sequence[tuple[Sequence[str], Result]]") -> Any:
    """A line for each record: what it is of, then its figures."""
    table = plain_table()
    for name in (*first, "mIoU", "95 % interval", "pAcc", "mAcc", "fwIoU"):
        table.add_column(name, justify="right", no_wrap=True)
    for words, result in rows:
        found = result.metrics
        table.add_row(
            *words, f"{found['miou']:.1f}", interval_words(found["interval"]),
            f"{found['pixel_accuracy']:.1f}", f"{found['mean_accuracy']:.1f}",
            f"{found['weighted_iou']:.1f}",
        )  # fmt: skip
    return table


def show_classes(console: Any, per_class: "dict[str, float | None]") -> None:
    """Four classes a line, names and figures below each other; of very many, none."""
    if len(per_class) > MOST_CLASSES:
        return
    table = plain_table(show_header=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
    cells = [(name, "–" if iou is None else f"{iou:.1f}") for name, iou in per_class.items()]
    for start in range(0, len(cells), 4):
        table.add_row(*(text for pair in cells[start : start + 4] for text in pair), style="dim")
    console.print(table)
