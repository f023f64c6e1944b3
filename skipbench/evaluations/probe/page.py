"""What `skipbench probe` prints."""

from collections.abc import Sequence
from typing import Any

from skipbench.console import plain_table, wide_page
from skipbench.errors import count_of
from skipbench.evaluations import page
from skipbench.records import Result

# Where a rate was chosen → how a page calls it.
CHOSEN_ON = {"val": "val", "holdout": "held-out images"}


def show(run: Any, results: Sequence[Result]) -> None:
    console = wide_page()
    page.show_what(console, results[0], _settings(results[0]), "trained on")
    for layers, group in page.grouped(results, page.layers_of).items():
        for result in group:
            _show_one(console, result, several=len(group) > 1)
        if len(group) > 1:
            _show_spread(console, layers, group)
    page.show_where(console, results, run.settings.out)


def _settings(result: Result) -> str:
    """Enough to tell two pasted pages apart."""
    protocol = result.protocol
    epochs, steps = protocol["epochs"], protocol["steps"]
    length = count_of(epochs, "epoch") if epochs else count_of(steps, "step")
    side = protocol["score_size"]
    words = [
        f"protocol {protocol['name']}",
        f"images at {result.features['size']}",
        length,
        f"scored at {side}x{side}" if side else "scored at full size",
    ]
    if protocol["views"] != "whole":
        words.append(f"{protocol['different_views'] or 'new'} crops of each image")
    return ", ".join(words)


def _show_one(console: Any, result: Result, several: bool) -> None:
    metrics, protocol = result.metrics, result.protocol
    seed = f", seed {protocol['seed']}" if several else ""
    console.print(f"\n[bold]{result.features['layers']}[/bold] ({page.blocks_words(result)}{seed})")
    if len(metrics["rates"]) > 1:
        console.print(_rates_table(metrics))
    console.print(_headlines(metrics, len(protocol["held_out"])))
    for where, row in metrics["chosen"].items():
        if row and row["edge"]:
            rate = f"the best rate on {CHOSEN_ON[where]} ({row['rate']:g})"
            console.print(f"{rate} is the {row['edge']} of the sweep: widen it with --lr")
    if not several:
        page.show_classes(console, metrics["per_class"])


def _headlines(metrics: Any, held_out: int) -> Any:
    """The score with the rate as it was asked for, then with the other choice of the rate."""
    table = plain_table(show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    how = {
        "val": "best on val, as papers report",
        "holdout": f"best on {count_of(held_out, 'held-out training image')}",
        None: "",
    }
    first = metrics["selected_on"]
    rows = [(metrics, how[first], "bold")]
    second = {"val": "holdout", "holdout": "val"}.get(first)
    if second and metrics["chosen"][second]:
        rows.append((metrics["chosen"][second], how[second], ""))
    for row, words, style in rows:
        reason = f"rate {row['rate']:g}" + (f", {words}" if words else "")
        interval = page.interval_words(row["interval"])
        table.add_row(f"mIoU {row['miou']:.1f}", interval, reason, style=style)
    return table


def _rates_table(metrics: Any) -> Any:
    table = page.numbers_table("rate", *page.SCORES, "held-out")
    table.add_column("", no_wrap=True)
    chosen = {where: row and row["rate"] for where, row in metrics["chosen"].items()}
    for row in metrics["rates"]:
        if row.get("diverged"):
            table.add_row(f"{row['rate']:g}", "diverged")
            continue
        marks = [
            word
            for where, word in (("val", "val"), ("holdout", "held-out"))
            if chosen[where] == row["rate"]
        ]
        mark = "← best on " + " and ".join(marks) if marks else ""
        held_out = "–" if row["holdout_miou"] is None else f"{row['holdout_miou']:.1f}"
        style = "bold" if row["rate"] == metrics["rate"] else ""
        table.add_row(f"{row['rate']:g}", *page.scores_words(row), held_out, mark, style=style)
    return table


def _show_spread(console: Any, layers: str, group: Sequence[Result]) -> None:
    page.show_spread(console, layers, group)
    for where, words in CHOSEN_ON.items():
        chosen = [result.metrics["chosen"][where] for result in group]
        if group[0].metrics["selected_on"] not in (None, where) and all(chosen):
            spread = page.spread_words([row["miou"] for row in chosen])
            console.print(f"  rates best on {words}: {spread}")
