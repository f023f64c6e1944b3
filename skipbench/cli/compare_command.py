"""`skipbench compare A B`: a paired difference with its interval and p-value."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.cli.commands import command
from skipbench.console import echo, echo_json, plain_table, shown, wide_page
from skipbench.errors import UsageError, printable
from skipbench.settings import OUTPUT, RECORDS, parsers, same_as, setting
from skipbench.settings.groups import (
    DataSettings,
    FeatureSettings,
    PictureSettings,
    ReadingSettings,
    SelectSettings,
)

if TYPE_CHECKING:
    from skipbench.results.paired import Move, Paired
    from skipbench.results.read import Stored


@dataclass(frozen=True, kw_only=True)
class CompareSettings(SelectSettings):
    things: tuple[str, ...] = setting(
        help="Record ids or checkpoint names, and the folder of their records; or two folders or "
        "files.", parse=parsers.texts, panel=RECORDS, metavar="[RESULTS] A B", argument=True,
        several=True,
    )  # fmt: skip
    resamples: int = setting(
        2000, help="Bootstrap resamples.", parse=parsers.integer(100), panel=RECORDS, metavar="N"
    )
    seed: int = same_as(DataSettings, "subset_seed", 0, help="Random seed.", panel=RECORDS)
    top: int = setting(
        5, help="List N classes and images that differ most.", parse=parsers.integer(0),
        panel=OUTPUT, metavar="N",
    )  # fmt: skip
    pictures: int = same_as(
        PictureSettings, "pictures", 0, help="Draw the N images that differ most."
    )
    out: Path | None = setting(
        None, help="Folder for the pictures.", parse=parsers.path, panel=OUTPUT, metavar="DIR",
        default_text="RESULTS/compare",
    )  # fmt: skip
    ckpt_a: str | None = setting(
        None, help="Weights of A for --pictures, if the file has moved.", parse=parsers.text,
        panel=OUTPUT, metavar="PATH",
    )  # fmt: skip
    ckpt_b: str | None = setting(
        None, help="The same for B.", parse=parsers.text, panel=OUTPUT, metavar="PATH"
    )
    data_root: str | None = same_as(DataSettings, "data_root", None, panel=OUTPUT)
    device: str = same_as(ReadingSettings, "device", "auto", panel=OUTPUT)
    cache: str | None = same_as(FeatureSettings, "cache", None, panel=OUTPUT)

    def check(self) -> None:
        super().check()
        if len(self.things) not in (2, 3):
            raise UsageError("give two records or checkpoints: skipbench compare [RESULTS] A B")


@command("compare", CompareSettings)
def compare(settings: CompareSettings, as_json: bool) -> None:
    """Compare two models on the same images: B minus A, with a paired interval and p-value.

    Two checkpoints are compared in every evaluation that both have.
    """
    from skipbench.results.compare import compare as run

    *folder, a, b = settings.things
    found = run(
        a, b, results=folder[0] if folder else "results", resamples=settings.resamples,
        seed=settings.seed, select=settings.select,
    )  # fmt: skip
    drawn = [_draw(pair, settings) for pair in found] if settings.pictures else []
    if as_json:
        echo_json([pair.to_json() for pair in found])
        return
    for pair in found:
        show(pair, settings.top)
    for path in drawn:
        echo(f"pictures: {path}")


def _draw(pair: "Paired", settings: CompareSettings) -> Path:
    from skipbench.results.compare import draw_comparison

    name = f"{pair.a[0].result.id}-{pair.b[0].result.id.rpartition('-')[2]}"
    return draw_comparison(
        pair, settings.pictures, (settings.out or pair.b[0].folder / "compare") / name,
        ckpts=(settings.ckpt_a, settings.ckpt_b), data_root=settings.data_root,
        device=settings.device, cache=settings.cache,
    )  # fmt: skip


def show(pair: "Paired", top: int) -> None:
    from skipbench.results.scores import Score
    from skipbench.results.words import p_text, signed

    console = wide_page()
    score = Score(pair.a[0])
    result, facts = score.result, score.facts
    method = facts["method"] or facts["evaluation"]
    heading = " ".join(dict.fromkeys([facts["evaluation"], method]))
    data = f"{facts['dataset']} {facts['split']}"
    unusual = [word for word in score.unusual_settings if word != method]
    console.print(f"\n{heading} on {', '.join([data, *unusual])}", style="bold", markup=False)
    for letter, side, value in (("A", pair.a, pair.a_value), ("B", pair.b, pair.b_value)):
        console.print(f"{letter}  {score.metric_name} {value:z.2f}  {_who(side)}", markup=False)
    low, high = pair.interval
    console.print(
        f"B − A  [bold]{signed(pair.difference, 2)}[/]  95 % interval {signed(low, 2)} to "
        f"{signed(high, 2)}, {p_text(pair.p_value)}, {pair.images:,} images in common"
    )
    if pair.only_a or pair.only_b:
        only = f"{pair.only_a:,} images only in A, {pair.only_b:,} only in B"
        console.print(f"left out: {only}; both scores are of the images in common")
    for name, values in pair.differs.items():
        a, b = map(_short, values)
        console.print(f"different {name}: {a} and {b}", markup=False)
    console.print(_verdict(pair))
    remarks = [Score(side[0]).remarks for side in (pair.a, pair.b)]
    for letter, own, other in zip("AB", remarks, reversed(remarks), strict=True):
        if caveats := [remark for remark in own if remark not in other]:
            console.print(f"{letter}: {'; '.join(caveats)}", style="dim", markup=False)
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
    from skipbench.results.words import value_text

    if isinstance(value, list | tuple) and len(value) > 6:
        return f"{sum(value):,} in all"
    return value_text(value)


def _verdict(pair: "Paired") -> str:
    from skipbench.metrics.intervals import SIGNIFICANT

    low, high = pair.interval
    if low <= 0 <= high:
        return "No significant difference: the interval includes 0."
    if pair.p_value > SIGNIFICANT:  # of hits, exactly: a few images make the interval too narrow
        return "No significant difference: too few images differ."
    better = "better" if low > 0 else "worse"
    words = f"B is {better}: image sampling alone does not explain the difference"
    return f"{words}, but the settings differ." if pair.differs else f"{words}."


def _moves(console: Any, what: str, moves: "list[Move]") -> None:
    from skipbench.results.words import signed

    if not moves:
        return
    numbers = ("A", "B", "B − A", "95 % interval" if what == "classes" else "effect on B − A")
    table = plain_table(f"{what} that differ most", *numbers, right=numbers, header_style="dim")
    for move in moves:
        cells = [f"{move.a:z.1f}", f"{move.b:z.1f}", signed(move.difference or 0.0)]
        if what == "images":
            cells.append(signed(move.effect or 0.0, 2))
        elif move.interval:
            cells.append(f"{signed(move.interval[0])} to {signed(move.interval[1])}")
        table.add_row(shown(move.name), *cells)
    console.print(table)
