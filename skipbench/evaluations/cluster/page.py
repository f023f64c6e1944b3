"""What `skipbench cluster` prints."""

from typing import TYPE_CHECKING, Any

from skipbench.console import wide_page
from skipbench.evaluations.cluster.record import clusters_words
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
        f"k-means on {first.metrics['tokens']:,} tokens, {first.protocol['turns']} turns",
        "scored at full size",
    ]
    show_what(console, first, ", ".join(words))
    for what in dict.fromkeys(map(_what, results)):
        group = [result for result in results if _what(result) == what]
        layers, clusters, matching = what
        title = f"{layers}, {clusters_words(clusters)}"
        console.print(f"\n[bold]{title}[/bold] ({blocks_words(group[0])}; {matching})")
        console.print(figures_table(["seed"], [([str(r.protocol["seed"])], r) for r in group]))
        if len(group) == 1:
            show_classes(console, group[0].metrics["per_class"])
        else:
            show_spread(console, title, group)
    show_where(console, results, run.settings.out)


def _what(result: "Result") -> tuple[str, int, str]:
    matching = result.protocol["matching"]
    return result.features["layers"], result.metrics["clusters"], matching
