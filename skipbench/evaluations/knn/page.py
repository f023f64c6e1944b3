"""What `skipbench knn` prints."""

from collections.abc import Sequence
from typing import Any

from skipbench.console import wide_page
from skipbench.evaluations import page
from skipbench.records import Result


def show(run: Any, results: Sequence[Result]) -> None:
    console, first = wide_page(), results[0]
    words = [
        f"images at {first.features['size']}",
        f"a bank of up to {first.protocol['memory']:,} tokens",
        "scored at full size",
    ]
    page.show_what(console, first, ", ".join(words), "neighbours from")
    seeds = len({result.protocol["seed"] for result in results}) > 1
    columns = ("k", "temperature", *(["seed"] if seeds else []))
    for layers, group in page.grouped(results, page.layers_of).items():
        console.print(f"\n[bold]{layers}[/bold] ({page.blocks_words(group[0])}), {_bank(group)}")
        rows = [([f"{r.protocol[name]:g}" for name in columns], r) for r in group]
        console.print(page.scores_table(columns, rows))
        if len(group) == 1:
            page.show_classes(console, group[0].metrics["per_class"])
        for vote, same in page.grouped(group, _vote).items() if seeds else ():
            page.show_spread(console, f"{layers}, {vote}", same)
    page.show_where(console, results, run.settings.out)


def _bank(group: Sequence[Result]) -> str:
    """Of several k and seeds, the lowest recall."""
    result = min(group, key=lambda result: result.metrics["bank"].get("recall", 1))
    bank, protocol = result.metrics["bank"], result.protocol
    kept = "product-quantised" if protocol["bank"] == "pq" else protocol["bank"]
    words = f"{bank['tokens']:,} tokens in the bank ({kept}), "
    if protocol["index"] == "flat":
        return words + "all of them searched"
    return words + (
        f"{bank['searched']} of {bank['lists']} lists searched: {100 * bank['recall']:.1f} % of "
        f"the {protocol['k']} exact neighbours found"
    )


def _vote(result: Result) -> str:
    return f"k {result.protocol['k']}, temperature {result.protocol['temperature']:g}"
