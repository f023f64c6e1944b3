"""What `skipbench tokencut` prints."""

from collections.abc import Sequence
from typing import Any

from skipbench.console import plain_table, wide_page
from skipbench.errors import count_of
from skipbench.evaluations.page import interval_words, numbers_table, show_what
from skipbench.evaluations.tokencut import EVALUATION
from skipbench.records import Result

# Counted over images and blocks.
COUNTED = {
    "degenerate": "degenerate (nothing stands out: counted as misses)",
    "dense": "solved densely",
    "tied": "tied, resolved by a fixed rule (`skipbench manual tokencut`)",
}


def show(run: Any, results: Sequence[Result]) -> None:
    console, (result,), out = wide_page(), results, run.settings.out
    show_what(console, result, _settings(result))
    metrics, empty = result.metrics, len(result.dataset["empty"])
    if empty:
        console.print(f"{count_of(empty, 'image')} without a box left out", markup=False)
    if len(metrics["blocks"]) > 1:
        console.print(_blocks_table(metrics))
    console.print(_headlines(result))
    total = result.dataset["images"] * len(metrics["blocks"])
    for key, text in COUNTED.items():
        if count := sum(row[key] for row in metrics["blocks"]):
            console.print(f"{count:,} of {total:,} {text}", markup=False)
    console.print(f"\nrecord: {out}/{result.id}.json", markup=False)
    console.print(f"by image: {out}/{result.id}/images.csv", markup=False)


def _settings(result: Result) -> str:
    """Enough to tell two pasted pages apart."""
    protocol = result.protocol
    words = [protocol["method"], f"{protocol['feature']} of {_blocks(result.features['blocks'])}"]
    if protocol["method"] == "tokencut":
        words.append(f"τ {protocol['tau']:g}, ε {protocol['eps']:g}")
    words.append(f"images at {protocol['size']}")
    return ", ".join(words)


def _blocks(blocks: Sequence[int]) -> str:
    if len(blocks) == 1:
        return f"block {blocks[0]}"
    if list(blocks) == list(range(blocks[0], blocks[-1] + 1)):
        return f"blocks {blocks[0]} to {blocks[-1]}"
    return f"blocks {', '.join(map(str, blocks))}"


def _headlines(result: Result) -> Any:
    """The score as `--select` asks for it, then by the other way to choose the block."""
    metrics = result.metrics
    name = metrics["headline"]
    metric = EVALUATION.metrics[name]
    table = plain_table(show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    rows = [(metrics, metrics["selected_on"], "bold")]
    other = {"val": "holdout", "holdout": "val"}.get(metrics["selected_on"])
    if other and metrics["chosen"][other]:
        rows.append((metrics["chosen"][other], other, ""))
    for row, where, style in rows:
        score = f"{metric} {row[name]:.1f}"
        reason = _reason(where, row, len(metrics["blocks"]))
        table.add_row(score, interval_words(row["interval"]), reason, style=style)
        if row["degenerate"]:
            score = f"{metric} {row['whole_image_if_degenerate']:.1f}"
            table.add_row(score, "", "with the whole image as the object of degenerate images")
    whole = f"{metric} {metrics['whole_image']:.1f}"
    table.add_row(whole, "", "trivial baseline: a box around the whole image", style="dim")
    if name == "iou" and "f_beta" in metrics:
        table.add_row(f"F-beta {metrics['f_beta']:.1f}", "", "of the mask")
        words = "of the eigenvector, cut at the threshold that is best for all images"
        table.add_row(f"max F-beta {metrics['max_f_beta']:.1f}", "", words)
        table.add_row(f"accuracy {metrics['accuracy']:.1f}", "", "")
    return table


def _reason(where: str | None, row: Any, blocks: int) -> str:
    if where == "val":
        return f"block {row['block']}, best of {blocks} on these images, as papers report"
    return "block chosen on one half of the images, scored on the other" if where else ""


def _blocks_table(metrics: Any) -> Any:
    name, best = metrics["headline"], metrics["chosen"]["val"]["block"]
    of_masks = {"max_f_beta": "max Fβ", "f_beta": "Fβ", "accuracy": "accuracy"}
    others = of_masks if name == "iou" else {}
    if any(row["degenerate"] for row in metrics["blocks"]):
        others["whole_image_if_degenerate"] = "whole if degenerate"
    scores = "block", EVALUATION.metrics[name], "95 % interval", *others.values()
    table = numbers_table(*scores, *COUNTED)
    for row in metrics["blocks"]:
        table.add_row(
            str(row["block"]), f"{row[name]:.1f}", interval_words(row["interval"]),
            *(f"{row[key]:.1f}" for key in others), *(str(row[key]) for key in COUNTED),
            style="bold" if row["block"] == best else "",
        )  # fmt: skip
    return table
