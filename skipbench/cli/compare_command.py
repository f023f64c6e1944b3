"""`skipbench compare A B`: a paired difference with its interval and p-value."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options
from skipbench.cli.running import with_exit_codes
from skipbench.console import plain_table, printable, shown, wide_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipbench.results.paired import Move, Paired
    from skipbench.results.read import Stored


def add_to(app: typer.Typer) -> None:
    app.command("compare")(with_exit_codes(compare))


def compare(
    things: Annotated[
        list[str],
        typer.Argument(
            metavar="[RESULTS] A B",
            help="Record ids or checkpoint names, and the folder of their records; or two folders "
            "or files.",
            show_default=False,
        ),
    ],
    resamples: Annotated[
        int, typer.Option("--resamples", min=100, help="Bootstrap resamples.")
    ] = 2000,
    seed: options.Seed = 0,
    select: options.Select = None,
    top: Annotated[
        int, typer.Option("--top", min=0, help="List N classes and images that differ most.")
    ] = 5,
    pictures: Annotated[
        int, typer.Option("--pictures", min=0, help="Draw the N images that differ most.")
    ] = 0,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Folder for the pictures.", show_default="RESULTS/compare"),
    ] = None,
    ckpt_a: Annotated[
        str | None,
        typer.Option(
            "--ckpt-a", help="--pictures: weights of A, if they moved.", show_default=False
        ),
    ] = None,
    ckpt_b: Annotated[
        str | None,
        typer.Option("--ckpt-b", help="Weights of B, if they moved.", show_default=False),
    ] = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    cache: options.Cache = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare two models on the same images: B minus A, with a paired interval and p-value.

    Two checkpoints are compared in every evaluation that both have.
    """
    from pathlib import Path

    from skipbench.errors import UsageError
    from skipbench.results.compare import compare as run

    if len(things) not in (2, 3):
        raise UsageError("give two records or checkpoints: skipbench compare [RESULTS] A B")
    folder, (a, b) = (things[0] if len(things) == 3 else "results"), things[-2:]
    options.one_of("--select", select, "val", "holdout")
    found = run(a, b, results=folder, resamples=resamples, seed=seed, select=select)
    drawn = []
    if pictures:
        from skipbench.results.compare_pictures import draw_comparison

        for pair in found:
            place = Path(out or pair.b[0].folder / "compare")
            name = f"{pair.a[0].result.id}-{pair.b[0].result.id.rpartition('-')[2]}"
            drawn.append(
                draw_comparison(
                    pair, pictures, place / name, ckpts=(ckpt_a, ckpt_b), data_root=data_root,
                    device=device, cache=cache,
                )
            )  # fmt: skip
    if as_json:
        typer.echo(json.dumps([pair.to_json() for pair in found], indent=2))
        return
    for pair in found:
        show(pair, top)
    for path in drawn:
        typer.echo(f"pictures: {path}")


def show(pair: "Paired", top: int) -> None:
    from skipbench.results.scores import Score
    from skipbench.results.words import p_text, signed

    console = wide_page()
    score = Score(pair.a[0])
    result, facts = score.result, score.facts
    method = facts["method"] or facts["evaluation"]
    data = f"{facts['dataset']} {facts['split']}"
    told = [word for word in score.unusual_settings if word != method]
    console.print(f"\n{method} on {', '.join([data, *told])}", style="bold", markup=False)
    for letter, side, value in (("A", pair.a, pair.a_value), ("B", pair.b, pair.b_value)):
        console.print(f"{letter}  {score.metric_name} {value:.2f}  {_who(side)}", markup=False)
    low, high = pair.interval
    console.print(
        f"B − A  [bold]{signed(pair.difference, 2)}[/]  95 % interval {signed(low, 2)} to "
        f"{signed(high, 2)}, {p_text(pair.p_value)}, {pair.images:,} images in common"
    )
    if pair.only_a or pair.only_b:
        console.print(f"left out: {pair.only_a:,} images only in A, {pair.only_b:,} only in B")
    for name, values in pair.differs.items():
        a, b = map(_short, values)
        console.print(f"different {name}: {a} and {b}", markup=False)
    console.print(_verdict(pair))
    if len(pair.a) == len(pair.b) == 1 and score.evaluation.seed_matters(result):
        what = score.evaluation.seed_changes
        words = f"One {what} each: variation over seeds is not included (--seeds, calibrate)."
        console.print(words, style="dim")
    _moves(console, "classes", [m for m in pair.classes if m.difference][:top])
    _moves(console, "images", [m for m in pair.moved if m.effect and m.difference][:top])


def _who(side: "Sequence[Stored]") -> str:
    from skipbench.results.scores import Score

    facts, seeds = Score(side[0]).facts, f", {len(side)} seeds" if len(side) > 1 else ""
    model = f"{facts['checkpoint']} ({facts['residual']})"
    return printable(f"{model}, {facts['features']}{seeds}  {side[0].result.id}")


def _short(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) > 6:
        return f"{sum(value):,} in all"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _verdict(pair: "Paired") -> str:
    from skipbench.metrics.intervals import SIGNIFICANT

    low, high = pair.interval
    if low <= 0 <= high:
        return "No significant difference: the interval includes 0."
    if pair.p_value > SIGNIFICANT:  # of hits, exactly: a few images make the interval too narrow
        return "No significant difference: too few images differ."
    words = f"B is {'better' if low > 0 else 'worse'}, beyond chance over images"
    return f"{words}; but the settings differ." if pair.differs else f"{words}."


def _moves(console: Any, what: str, moves: "list[Move]") -> None:
    from skipbench.results.words import signed

    if not moves:
        return
    table = plain_table(header_style="dim")
    table.add_column(f"{what} that differ most", no_wrap=True)
    last = "95 % interval" if what == "classes" else "effect on B − A"
    for name in ("A", "B", "B − A", last):
        table.add_column(name, justify="right", no_wrap=True)
    for move in moves:
        cells = [f"{move.a:.1f}", f"{move.b:.1f}", signed(move.difference or 0.0)]
        if what == "images":
            cells.append(signed(move.effect or 0.0, 2))
        elif move.interval:
            cells.append(f"{signed(move.interval[0])} to {signed(move.interval[1])}")
        table.add_row(shown(move.name), *cells)
    console.print(table)
