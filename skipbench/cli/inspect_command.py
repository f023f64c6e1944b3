"""`skipbench inspect`: what a checkpoint is, where each fact was read, the health of its blocks."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from skipbench.cli.commands import command
from skipbench.console import echo_json, page, plain_table, shown
from skipbench.errors import count_of
from skipbench.records import Preprocessing
from skipbench.settings.groups import CheckpointSettings

if TYPE_CHECKING:
    from skipbench.pipeline import Inspection
    from skipbench.records import BlockHealth, VariantHealth

FACTS = {
    "layout": "layout", "weights": "weights used", "residual": "residual, from the file",
    "depth": "blocks", "width": "width", "heads": "heads", "patch": "patch",
    "mlp_width": "MLP width", "grid_hw": "position grid", "position_rule": "position rule",
    "rope_keys": "keys and rotary positions", "preprocessing": "preprocessing",
    "native_hw": "native size",
    "registers": "register tokens", "layer_scale": "layer scale", "epoch": "epoch",
    "optimizer": "optimizer", "initialisation": "initialisation", "sha256": "sha256",
}  # fmt: skip


@command("inspect", CheckpointSettings)
def inspect(settings: CheckpointSettings, as_json: bool) -> None:
    """Show what a checkpoint is, where each fact was read, and the health of every block."""
    settings.ensure_files()

    from skipbench import pipeline

    found = pipeline.inspect(settings.ckpt, **settings.reading())
    if as_json:
        echo_json(to_json(found))
    else:
        show(found)
    found.require_sound()


def to_json(found: "Inspection") -> dict[str, Any]:
    choice = found.choice
    facts = {
        "facts": found.model.facts.to_json(),
        "parameters": found.model.parameters,
        "residual": choice.residual if choice else None,
        "residual_source": choice.source if choice else None,
        "warning": choice.warning if choice else None,
        "verdict": asdict(found.verdict),
    }
    # JSON has no NaN: the statistics of a broken block are null.
    plain: dict[str, Any] = json.loads(json.dumps(facts), parse_constant=lambda name: None)
    return plain


def show(found: "Inspection") -> None:
    console = page(highlight=False)
    facts = found.model.facts
    console.print(f"\n[bold]{shown(facts.name)}[/bold]  {found.model.parameters:,} parameters\n")
    console.print(_facts_table(found))
    for health in [found.health] if found.health else found.verdict.variants:
        console.print(_blocks_table(health))
    _print_verdict(console, found)


def _facts_table(found: "Inspection") -> Any:
    facts = found.model.facts
    table = plain_table()
    table.add_column("fact", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("read from", style="dim", overflow="fold")
    for name, label in FACTS.items():
        value, source = getattr(facts, name), facts.sources.get(name, "")
        if value is not None or source:  # else it has no such thing
            table.add_row(label, shown(_text(value)), shown(source))
    for head, count in facts.dropped.items():
        what = f"{shown(head)} ({count_of(count, 'tensor')})"
        table.add_row("dropped", what, "not needed for features")
    return table


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Preprocessing):
        mean, std = (" ".join(f"{x:.3g}" for x in each) for each in (value.mean, value.std))
        return f"mean {mean}, deviation {std}, {value.interpolation}"
    return f"{value[0]}×{value[1]}" if isinstance(value, tuple) else str(value)


def _blocks_table(health: "VariantHealth") -> Any:
    numbers = ("block", "norm", "spread", "rank", "attention")
    table = plain_table(
        "block", "norm", "spread", "", "rank", "attention", "finite", right=numbers,
        title=f"\nblocks, run {health.residual}, on four photographs", title_justify="left",
        title_style="bold",
    )  # fmt: skip
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
    console.print(
        "\n[dim]norm: mean length of a patch token. spread: deviation over an image's tokens "
        "relative to their length (0: all equal).\nrank: effective rank of the centred tokens. "
        "attention: mean distance from a patch to those it attends to, in patches.[/dim]\n"
    )
    if len(verdict.variants) > 1:
        winner = verdict.winner
        looks = f"look {winner}" if winner else "fit both skip and skipless or neither"
        console.print(f"[bold]weights {looks}[/bold]: {verdict.reason}")
    if choice:
        console.print(f"run as [bold]{choice.residual}[/bold], because of {shown(choice.source)}")
    for note in found.health.notes if found.health else ():
        console.print(f"note: {note}", markup=False)
    style, words = _verdict(found)
    console.print(f"verdict: {words}", style=f"bold {style}")


def _verdict(found: "Inspection") -> tuple[str, str]:
    if found.choice is None or found.health is None:
        return "yellow", "unclear"
    if not found.health.finite:
        return "red", "broken: NaN or Inf"
    if found.choice.warning:
        return "red", "probably the wrong variant"
    if found.verdict.winner is None:
        return "yellow", "unclear from the weights"
    if found.health.notes:
        return "yellow", "the right variant, but its features collapse"
    return "green", "healthy"
