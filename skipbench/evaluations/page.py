"""What evaluations print about their records; `show` is for those without a page of their own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

from skipbench.console import plain_table, shown, wide_page
from skipbench.errors import count_of, printable
from skipbench.records import Result, chosen_words

Key = TypeVar("Key")

MOST_CLASSES = 30  # listed on the screen; the record has all
SCORES = ("mIoU", "95 % interval", "pAcc", "mAcc", "fwIoU")


def show(run: Any, results: Sequence[Result]) -> None:
    console, first = wide_page(), results[0]
    show_what(console, first)
    headline = first.metrics["headline"]
    table = numbers_table("layers", "seed", run.evaluation.metrics[headline], "95 % interval")
    for result in results:
        seed = result.protocol.get("seed")
        table.add_row(
            result.features["layers"], "" if seed is None else str(seed),
            f"{result.metrics[headline]:.1f}", interval_words(result.metrics.get("interval")),
        )  # fmt: skip
    console.print(table)
    show_where(console, results, run.settings.out)


def show_what(console: Any, first: Result, settings: str = "", training: str = "") -> None:
    """The first lines of a page. training: what was done with the training images, if any."""
    dataset, checkpoint, learnt = first.dataset, first.checkpoint, first.training
    partial = dataset["partial"] or (learnt is not None and learnt["partial"])
    words = [f"[bold]{shown(dataset['name'])} {dataset['split']}[/bold]"]
    words.append(images_words(dataset))
    words += ["partial"] if partial else []
    from_these = f"; {training} {learnt['images']:,} of {learnt['split']}" if learnt else ""
    console.print(f"\n{', '.join(words)}{from_these}")
    console.print(printable(f"{checkpoint['name']} ({checkpoint['residual']})"), markup=False)
    if settings:
        console.print(settings, markup=False)


def images_words(dataset: Mapping[str, Any]) -> str:
    return chosen_words(dataset.get("chosen"), count_of(dataset["images"], "image"))


def show_where(console: Any, results: Sequence[Result], out: Path) -> None:
    console.print("\nrecords:", markup=False)
    for result in results:
        console.print(f"  {out}/{result.id}.json", markup=False)


def show_spread(console: Any, what: str, group: Sequence[Result]) -> None:
    figure = spread_words([result.metrics["miou"] for result in group])
    seeds = f"mean ± standard deviation over {len(group)} seeds"
    console.print(f"\n[bold]{what}[/bold]: mIoU [bold]{figure}[/bold], {seeds}")


def show_classes(console: Any, per_class: dict[str, float | None]) -> None:
    """Four classes a line, in columns; nothing if there are very many."""
    if len(per_class) > MOST_CLASSES:
        return
    table = plain_table(show_header=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
    cells = [(shown(name), "–" if iou is None else f"{iou:.1f}") for name, iou in per_class.items()]
    for start in range(0, len(cells), 4):
        table.add_row(*(text for pair in cells[start : start + 4] for text in pair), style="dim")
    console.print(table)


def numbers_table(*columns: str) -> Any:
    table = plain_table()
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def scores_table(first: Sequence[str], rows: Sequence[tuple[Sequence[str], Result]]) -> Any:
    """A row for each record: its own words, then its scores."""
    table = numbers_table(*first, *SCORES)
    for words, result in rows:
        table.add_row(*words, *scores_words(result.metrics))
    return table


def scores_words(metrics: Mapping[str, Any]) -> list[str]:
    """In the order of SCORES."""
    percent = [metrics[k] for k in ("miou", "pixel_accuracy", "mean_accuracy", "weighted_iou")]
    miou, *others = (f"{value:.1f}" for value in percent)
    return [miou, interval_words(metrics["interval"]), *others]


def blocks_words(result: Result) -> str:
    blocks = result.features["blocks"]
    return f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, blocks))}"


def interval_words(ends: Sequence[float] | None) -> str:
    return f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else "–"


def spread_words(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}"


def grouped(results: Sequence[Result], key: Callable[[Result], Key]) -> dict[Key, list[Result]]:
    groups: dict[Key, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def layers_of(result: Result) -> str:
    return str(result.features["layers"])
