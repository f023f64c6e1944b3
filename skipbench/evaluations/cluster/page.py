"""What `skipbench cluster` prints."""

from collections.abc import Sequence
from typing import Any

from skipbench.console import wide_page
from skipbench.errors import count_of
from skipbench.evaluations import page
from skipbench.records import Result


def show(run: Any, results: Sequence[Result]) -> None:
    console, first = wide_page(), results[0]
    words = [
        f"images at {first.features['size']}",
        f"k-means on {first.metrics['tokens']:,} tokens, {first.protocol['turns']} iterations",
        "scored at full size",
    ]
    page.show_what(console, first, ", ".join(words))
    groups = page.grouped(
        results, lambda r: (page.layers_of(r), r.metrics["clusters"], r.protocol["matching"])
    )
    for (layers, clusters, matching), group in groups.items():
        title = f"{layers}, {count_of(clusters, 'cluster')}"
        console.print(f"\n[bold]{title}[/bold] ({page.blocks_words(group[0])}; {matching})")
        rows = [([str(r.protocol["seed"])], r) for r in group]
        console.print(page.scores_table(["seed"], rows))
        if len(group) == 1:
            page.show_classes(console, group[0].metrics["per_class"])
        else:
            page.show_spread(console, title, group)
    page.show_where(console, results, run.settings.out)
