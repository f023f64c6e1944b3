"""What `skipbench knn` prints."""

from typing import TYPE_CHECKING, Any

from skipbench.console import wide_page
from skipbench.evaluations.segmentation.page import (
    blocks_words,
    figures_table,
    show_classes,
    show_spread,
    show_what,
    show_where,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipbench.records import Result


def show(run: Any, results: "Sequence[Result]") -> None:
    console, first = wide_page(), results[0]
    words = [
        f"images at {first.features['size']}",
        f"a bank of up to {first.protocol['memory']:,} tokens",
        "scored at full size",
    ]
    show_what(console, first, ", ".join(words), "neighbours from")
    seeds = len({result.protocol["seed"] for result in results}) > 1
    for layers in dict.fromkeys(result.features["layers"] for result in results):
        group = [result for result in results if result.features["layers"] == layers]
        console.print(f"\n[bold]{layers}[/bold] ({blocks_words(group[0])}), {_bank(group)}")
        columns = ("k", "temperature", *(["seed"] if seeds else []))
        rows = [([f"{r.protocol[name]:g}" for name in columns], r) for r in group]
        console.print(figures_table(columns, rows))
        if len(group) == 1:
            show_classes(console, group[0].metrics["per_class"])
        for vote in dict.fromkeys(_vote(r) for r in group) if seeds else ():
            show_spread(console, f"{layers}, {vote}", [r for r in group if _vote(r) == vote])
    show_where(console, results, run.settings.out)


def _bank(group: "Sequence[Result]") -> str:
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


def _vote(result: "Result") -> str:
    return f"k {result.protocol['k']}, temperature {result.protocol['temperature']:g}"
