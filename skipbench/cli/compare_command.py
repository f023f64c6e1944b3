"""`skipbench compare A B`: a paired difference with its interval and p-value."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options
from skipbench.console import plain_table, shown, wide_page

if TYPE_CHECKING:
    from skipbench.records import Result
    from skipbench.results.compare import Move, Paired


def add_to(app: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    app.command("compare")(ending_well(compare))


def compare(
    things: Annotated[
        list[str],
        typer.Argument(
            metavar="[RESULTS] A B",
            help="Ids of records or names of checkpoints; RESULTS is where they are, or "
            "give two folders or files.",
            show_default=False,
        ),
    ],
    resamples: Annotated[
        int, typer.Option("--resamples", min=100, help="Of the bootstrap.")
    ] = 2000,
    seed: options.Seed = 0,
    select: options.Select = None,
    top: Annotated[
        int, typer.Option("--top", min=0, help="So many classes and images are listed.")
    ] = 5,
    pictures: Annotated[
        int, typer.Option("--pictures", min=0, help="Draw the images that moved most.")
    ] = 0,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Folder for the pictures.", show_default="RESULTS/compare"),
    ] = None,
    ckpt_a: Annotated[
        str | None,
        typer.Option(
            "--ckpt-a", help="For pictures: where A's weights lie now.", show_default=False
        ),
    ] = None,
    ckpt_b: Annotated[
        str | None, typer.Option("--ckpt-b", help="And B's.", show_default=False)
    ] = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    cache: options.Cache = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare two models on the images both have seen: B minus A, paired.

    Of two checkpoints, every evaluation that both have; of two records, just these.
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
    from skipbench.results.baseline import unusual
    from skipbench.results.scores import METRICS, Score
    from skipbench.results.tables.render import chance, signed

    console = wide_page()
    first = pair.a[0].result
    metric = METRICS.get(pair.metric, pair.metric)
    method = first.protocol.get("method") or first.evaluation
    told = [word for word in unusual(Score(pair.a[0])) if word != method]
    where = f"{first.dataset['name']} {first.dataset['split']}"
    heading = f"\n{method} on {', '.join([where, *told])}"
    console.print(heading, style="bold", markup=False)
    for letter, side, value in (("A", pair.a, pair.a_value), ("B", pair.b, pair.b_value)):
        console.print(f"{letter}  {metric} {value:.2f}  {_who(side)}", markup=False)
    low, high = pair.interval
    console.print(
        f"B − A  [bold]{signed(pair.difference, 2)}[/]  95 % interval {signed(low, 2)} to "
        f"{signed(high, 2)}, {chance(pair.p_value)}, {pair.images:,} images in common"
    )
    if pair.only_a or pair.only_b:
        console.print(f"left out: {pair.only_a:,} images that only A has, {pair.only_b:,} only B")
    for name, values in pair.differs.items():
        a, b = map(_short, values)
        console.print(f"not made alike: {name} {a} and {b}", markup=False)
    console.print(_verdict(pair))
    if len(pair.a) == len(pair.b) == 1 and _has_chance(first):
        made = {"knn": "bank", "cluster": "clustering"}.get(first.evaluation, "training")
        words = f"One {made} each: what another seed would do is not in it (--seeds, calibrate)."
        console.print(words, style="dim")
    _moves(console, "classes", [m for m in pair.classes if m.difference][:top])
    _moves(console, "images", [m for m in pair.moved if m.effect and m.difference][:top])


def _has_chance(result: "Result") -> bool:
    """Whether another seed could have given another figure."""
    bank = result.metrics.get("bank")
    whole = isinstance(bank, dict) and bank.get("whole") and "recall" not in bank
    return result.protocol.get("seed") is not None and not whole


def _who(side: Any) -> str:
    from skipbench.results.scores import Score
    from skipbench.results.tables.render import printable

    result = side[0].result
    seeds = f", {len(side)} seeds" if len(side) > 1 else ""
    name, residual = result.checkpoint["name"], result.checkpoint["residual"]
    features = Score(side[0]).facts["features"]
    return printable(f"{name} ({residual}), {features}{seeds}  {result.id}")


def _short(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) > 6:
        return f"{sum(value):,} in all"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _verdict(pair: "Paired") -> str:
    low, high = pair.interval
    if low <= 0 <= high:
        return "Not shown to differ: 0 lies within the interval."
    from skipbench.metrics.intervals import SIGNIFICANT

    if pair.p_value > SIGNIFICANT:  # of hits, exactly: a few images make the interval too narrow
        return "Not shown to differ: too few images on which they do."
    words = f"B is {'better' if low > 0 else 'worse'}, by more than other images would explain"
    return f"{words}; but the two were not made alike." if pair.differs else f"{words}."


def _moves(console: Any, what: str, moves: "list[Move]") -> None:
    from skipbench.results.tables.render import signed

    if not moves:
        return
    table = plain_table(header_style="dim")
    table.add_column(f"{what} that moved it most", no_wrap=True)
    last = "95 % interval" if what == "classes" else "part in the difference"
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
