"""What an evaluation without a page of its own prints."""

from typing import TYPE_CHECKING, Any

from skipbench.console import plain_table, wide_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipbench.records import Result


def show(run: Any, results: "Sequence[Result]") -> None:
    console, evaluation = wide_page(), run.evaluation
    first = results[0]
    console.print(
        f"\n[bold]{first.dataset['name']} {first.dataset['split']}[/bold], "
        f"{first.dataset['images']:,} images"
    )
    console.print(f"{first.checkpoint['name']} ({first.checkpoint['residual']})", markup=False)
    table = plain_table()
    for name in ("layers", "seed", evaluation.metrics[first.metrics["headline"]], "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        ends, seed = result.metrics.get("interval"), result.protocol.get("seed")
        table.add_row(
            result.features["layers"], "" if seed is None else str(seed),
            f"{result.metrics[result.metrics['headline']]:.1f}",
            f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else "–",
        )  # fmt: skip
    console.print(table)
    for result in results:
        console.print(f"record: {run.settings.out}/{result.id}.json", markup=False)
