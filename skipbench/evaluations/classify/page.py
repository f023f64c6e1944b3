"""What `skipbench classify` prints."""

from collections.abc import Sequence
from typing import Any

from skipbench.console import plain_table, wide_page
from skipbench.errors import count_of
from skipbench.evaluations import page
from skipbench.evaluations.classify import baseline_words
from skipbench.records import Result

POOLS = {
    "cls": "class token",
    "mean": "mean patch token",
    "both": "class token and mean patch token",
}
SCORES = ("top-1", "95 % interval", "top-5", "mean over classes")


def show(run: Any, results: Sequence[Result]) -> None:
    console, first = wide_page(), results[0]
    classes = count_of(first.dataset["classes"], "class", "classes")
    page.show_what(console, first, _settings(first), f"{classes}; trained on")
    console.print(f"chance {baseline_words(first.metrics)}", markup=False)
    for layers, group in page.grouped(results, page.layers_of).items():
        knn = [result for result in group if result.protocol["method"] == "knn"]
        linear = [result for result in group if result.protocol["method"] == "linear"]
        blocks = page.blocks_words(group[0])
        if knn:
            console.print(f"\n[bold]k-NN, {layers}[/bold] ({blocks})")
            console.print(_knn_table(knn))
        for result in linear:
            seed = f", seed {result.protocol['seed']}" if len(linear) > 1 else ""
            console.print(f"\n[bold]linear, {layers}[/bold] ({blocks}{seed})")
            _show_linear(console, result)
        if len(linear) > 1:
            figure = page.spread_words([result.metrics["top1"] for result in linear])
            seeds = f"mean ± standard deviation over {len(linear)} seeds"
            console.print(f"\n[bold]linear, {layers}[/bold]: top-1 [bold]{figure}[/bold], {seeds}")
    if len(results) == 1:
        page.show_classes(console, first.metrics["per_class"])
    page.show_where(console, results, run.settings.out)


def _settings(result: Result) -> str:
    protocol = result.protocol
    crop = protocol["crop"]
    how = "whole images" if isinstance(crop, str) else f"centre crops ({crop:g})"
    return f"{POOLS[protocol['pool']]}, {how} at {protocol['size']}"


def _knn_table(results: Sequence[Result]) -> Any:
    table = page.numbers_table("k", "temperature", *SCORES)
    for result in results:
        vote = [f"{result.protocol[name]:g}" for name in ("k", "temperature")]
        table.add_row(*vote, *_scores(result.metrics), f"{result.metrics['mean_accuracy']:.1f}")
    return table


def _scores(row: Any) -> list[str]:
    top5 = "–" if row["top5"] is None else f"{row['top5']:.1f}"
    return [f"{row['top1']:.1f}", page.interval_words(row["interval"]), top5]


def _show_linear(console: Any, result: Result) -> None:
    metrics = result.metrics
    if len(metrics["rates"]) > 1:
        console.print(_rates_table(metrics))
    table = plain_table(show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    held_out = count_of(result.protocol["held_out"], "held-out training image")
    how = {"val": ", best on the evaluated images, as papers report",
           "holdout": f", best on {held_out}", None: ""}  # fmt: skip
    first = metrics["selected_on"]
    rows = [(metrics, first, "bold")]
    second = {"val": "holdout", "holdout": "val"}.get(first)
    if second and metrics["chosen"][second]:
        rows.append((metrics["chosen"][second], second, ""))
    for row, where, style in rows:
        ends = page.interval_words(row["interval"])
        reason = f"rate {row['rate']:g}{how[where]}"
        table.add_row(f"top-1 {row['top1']:.1f}", ends, reason, style=style)
    console.print(table)
    if edge := metrics["edge"]:
        console.print(f"rate {metrics['rate']:g} is the {edge} of the sweep: widen it with --lr")


def _rates_table(metrics: Any) -> Any:
    table = page.numbers_table("rate", *SCORES[:3], "loss", "held-out")
    for row in metrics["rates"]:
        held_out = "–" if row["holdout_top1"] is None else f"{row['holdout_top1']:.1f}"
        style = "bold" if row["rate"] == metrics["rate"] else ""
        table.add_row(
            f"{row['rate']:g}", *_scores(row), f"{row['loss']:.3g}", held_out, style=style
        )
    return table
