"""`skipbench inspect`: what a checkpoint is, where each fact was read, and how its blocks fare."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from skipbench.cli import options

if TYPE_CHECKING:
    from skipbench.pipeline import Inspection
    from skipbench.records import BlockHealth

FACTS = (
    ("layout", "layout"),
    ("weights", "weights taken"),
    ("residual", "residual, as the file says"),
    ("depth", "blocks"),
    ("width", "width"),
    ("heads", "heads"),
    ("patch", "patch"),
    ("mlp_width", "MLP width"),
    ("grid_hw", "position grid"),
    ("position_rule", "position rule"),
    ("registers", "register tokens"),
    ("layer_scale", "layer scale"),
    ("epoch", "epoch"),
    ("optimizer", "optimizer"),
    ("initialisation", "initialisation"),
    ("sha256", "sha256"),
)


def add_to(app: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    app.command("inspect")(ending_well(inspect))


def inspect(
    ckpt: options.Ckpt,
    residual: options.ResidualOption = "auto",
    weights: options.Weights = None,
    heads: options.Heads = None,
    expect: options.Expect = None,
    position_rule: options.Positions = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show what a checkpoint is, where each fact was read, and the health of every block."""
    from skipbench import pipeline
    from skipbench.errors import NumbersError

    options.one_of("--weights", weights, "teacher", "student")
    options.one_of("--position-rule", position_rule, "offset", "size", "antialias")
    found = pipeline.inspect(
        ckpt,
        residual=residual,
        weights=weights,
        expected=options.expected(expect, heads),
        position_rule=position_rule,  # type: ignore[arg-type]
        device=device,
    )
    if as_json:
        typer.echo(json.dumps(to_json(found), indent=2))
    else:
        show(found)
    if found.broken:
        raise NumbersError(found.broken)


def to_json(found: "Inspection") -> dict[str, Any]:
    return {
        "facts": found.checkpoint.facts.to_json(),
        "parameters": found.checkpoint.parameters,
        "residual": found.choice.residual,
        "residual_source": found.choice.source,
        "warning": found.choice.warning,
        "verdict": asdict(found.verdict),
    }


def show(found: "Inspection") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    facts = found.checkpoint.facts
    console.print(f"\n[bold]{facts.name}[/bold]  {found.checkpoint.parameters:,} parameters\n")
    console.print(_facts_table(found))
    console.print(_blocks_table(found))
    _print_verdict(console, found)


def _facts_table(found: "Inspection") -> Any:
    from rich.table import Table

    facts = found.checkpoint.facts
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("fact", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("read from", style="dim", overflow="fold")
    for name, label in FACTS:
        table.add_row(label, _text(getattr(facts, name)), facts.sources.get(name, ""))
    for head, count in facts.dropped.items():
        table.add_row("left out", f"{head} ({count} tensors)", "not needed for features")
    return table


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value[0]}×{value[1]}" if isinstance(value, tuple) else str(value)


def _blocks_table(found: "Inspection") -> Any:
    from rich.table import Table

    health = getattr(found.verdict, found.choice.residual)
    table = Table(
        title=f"\nblocks, run {found.choice.residual}, on four photographs",
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="bold",
        padding=(0, 2, 0, 0),
    )
    for column in ("block", "norm", "spread", "", "rank", "attention", "finite"):
        table.add_column(column, justify="left" if column in ("", "finite") else "right")
    for block in health.blocks:
        table.add_row(*_row(block))
    return table


def _row(block: "BlockHealth") -> tuple[str, ...]:
    if not block.finite:
        return (str(block.block), "–", "–", "", "–", "–", "[bold red]NaN or Inf[/bold red]")
    spread = f"{block.spread:.2f}" if block.spread >= 0.01 else f"{block.spread:.0e}"
    return (
        "input" if block.block < 0 else str(block.block),
        f"{block.norm:.3g}",
        spread,
        "█" * max(round(block.spread * 20), 0) or "▏",
        "noise" if block.rank is None else f"{block.rank:.1f}",
        "–" if block.attention_distance is None else f"{block.attention_distance:.1f}",
        "yes",
    )


def _print_verdict(console: Any, found: "Inspection") -> None:
    verdict, choice = found.verdict, found.choice
    notes = getattr(verdict, choice.residual).notes
    console.print(
        "\n[dim]norm: mean length of a patch token. spread: deviation over an image's tokens "
        "relative to their length (0: all alike).\nrank: effective rank of the centred tokens. "
        "attention: mean distance from a patch to those it attends to, in patches.[/dim]\n"
    )
    if verdict.winner:
        console.print(f"[bold]weights look {verdict.winner}[/bold]: {verdict.reason}")
    else:
        console.print(f"[bold]weights do not tell skip from skipless[/bold]: {verdict.reason}")
    console.print(f"run as [bold]{choice.residual}[/bold], because of {choice.source}")
    for note in notes:
        console.print(f"note: {note}")
    if found.broken:
        console.print("[bold red]verdict: broken, NaN or Inf arises[/bold red]")
    elif choice.warning:
        console.print("[bold red]verdict: the wrong variant, by the look of it[/bold red]")
    elif notes:
        console.print("[bold yellow]verdict: the right variant, but its features collapse[/]")
    elif verdict.winner:
        console.print("[bold green]verdict: healthy[/bold green]")
    else:
        console.print("[bold yellow]verdict: unclear[/bold yellow]")
