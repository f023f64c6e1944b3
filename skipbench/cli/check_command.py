"""`skipbench check`: scores against a baseline, for CI. `skipbench calibrate`: their noise."""

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from skipbench.cli import options
from skipbench.cli.running import with_exit_codes
from skipbench.console import plain_table, shown, wide_page
from skipbench.errors import UsageError

if TYPE_CHECKING:
    from skipbench.results.baseline import Baseline
    from skipbench.results.check import Verdict

CHECK_FAILED = 5

BaselineOption = Annotated[
    str, typer.Option("--baseline", help="File of expected scores.", metavar="FILE")
]


def add_to(app: typer.Typer) -> None:
    app.command("check")(with_exit_codes(check))
    app.command("calibrate")(with_exit_codes(calibrate))


def check(
    results: options.Results = None,
    baseline: BaselineOption = "baseline.json",
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", min=0, help="Points below that still pass.", show_default="0.5"
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            "--sigma",
            min=0,
            help="Instead: tolerance in standard deviations over seeds (`skipbench calibrate`). "
            "2.8 is two deviations of the difference of two runs.",
            show_default=False,
        ),
    ] = None,
    paired: Annotated[
        bool,
        typer.Option(
            "--paired",
            help="Instead: fail if the paired 95 % interval over images lies below 0. With "
            "--update: store the counts by image that this needs.",
        ),
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Write these scores as the baseline.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="With --update: drop scores without a record."),
    ] = False,
    junit: Annotated[
        str | None,
        typer.Option("--junit", metavar="FILE", help="Write JUnit XML.", show_default=False),
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="GitHub annotations and step summary.")
    ] = False,
    where: options.Where = None,
    strict: options.Strict = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Check scores against a baseline; exit 5 if one is worse or missing."""
    if prune and not update:
        raise UsageError("--prune needs --update")
    if update:
        if junit or github or tolerance is not None or sigma is not None:
            raise UsageError("--update writes a baseline and checks nothing: give it alone")
        from skipbench.results.baseline import update_baseline

        old, made = update_baseline(
            results or ["results"], baseline, where=where or (), strict=strict, paired=paired,
            prune=prune,
        )  # fmt: skip
        _say_update(baseline, old, made, as_json)
        return
    from skipbench.results.check import check as run

    verdicts = run(
        results or ["results"], baseline, tolerance=tolerance, sigma=sigma, paired=paired,
        where=where or (), strict=strict,
    )  # fmt: skip
    _report(verdicts, junit, github, as_json)
    if any(verdict.fails for verdict in verdicts):
        raise typer.Exit(CHECK_FAILED)


def _report(verdicts: "list[Verdict]", junit: str | None, github: bool, as_json: bool) -> None:
    from pathlib import Path

    from skipbench.files import ensure_writable, write_whole
    from skipbench.results import check_formats

    if junit:
        ensure_writable(Path(junit).parent)
        write_whole(Path(junit), check_formats.junit(verdicts).encode())
    if as_json:
        typer.echo(json.dumps([verdict.to_json() for verdict in verdicts], indent=2))
    else:
        _show(verdicts)
    if github:
        for line in check_formats.annotations(verdicts):
            typer.echo(line, err=as_json)
        if place := os.environ.get("GITHUB_STEP_SUMMARY"):
            try:
                with Path(place).open("a", encoding="utf-8", errors="replace") as file:
                    file.write(check_formats.step_summary(verdicts))
            except OSError as error:  # the verdict matters more
                typer.echo(f"no step summary: {error}", err=True)


def _show(verdicts: "list[Verdict]") -> None:
    from skipbench.results.check_formats import sentence, summary, worst_first

    styles = {"worse": "bold red", "missing": "bold red", "better": "green", "new": "dim"}
    table = plain_table()
    for name in ("verdict", "figure", "what"):
        table.add_column(name, no_wrap=True)
    for verdict in worst_first(verdicts):
        cells = (verdict.state, verdict.figure, sentence(verdict))
        table.add_row(*map(shown, cells), style=styles.get(verdict.state, ""))
    console = wide_page()
    console.print(table)
    console.print(summary(verdicts), style="bold")


def _say_update(path: str, old: "Baseline | None", made: "Baseline", as_json: bool) -> None:
    before = old.figures if old else {}
    for name in sorted(made.figures):
        was, now = before.get(name), made.figures[name]
        state = "new" if was is None else "unchanged" if was == now else f"was {was.value:.2f}"
        kept = ", not in these results: kept" if was is now else ""
        typer.echo(f"{now.value:6.2f}  {name}  ({state}{kept})", err=True)
    for name in sorted(set(before) - set(made.figures)):
        typer.echo(f"        {name}  (dropped)", err=True)
    typer.echo(f"written: {path}, {len(made.figures)} scores", err=True)
    if as_json:
        typer.echo(
            json.dumps([vars(made.figures[name]) for name in sorted(made.figures)], indent=2)
        )


def calibrate(
    results: options.Results = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Write the noise to this baseline, for `check --sigma`.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Further seeds to run.")] = "1,2,3,4",
    where: options.Where = None,
    ckpt: Annotated[
        str | None,
        typer.Option("--ckpt", help="Weights, if they moved.", show_default=False),
    ] = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    cache: options.Cache = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure the noise of scores: rerun evaluations with other seeds.

    Settings are read from each record. New records go to RESULTS/calibration, apart from those in
    tables. Resumable.
    """
    from skipbench.results.read import read_results
    from skipbench.settings.parsers import InvalidError, integers

    try:
        wanted = integers(0)(seeds)
    except InvalidError as error:
        raise UsageError(f"--seeds {seeds}: {error}") from None
    stored = read_results(results or ["results"])  # before torch is loaded

    from skipbench.results.calibrate import calibrate as run

    found = run(
        stored, baseline, seeds=wanted, where=where or (), ckpt=ckpt,
        data_root=data_root, device=device, cache=cache,
    )  # fmt: skip
    if as_json:
        plain = [vars(noise) | {"noise": noise.deviation, "mean": noise.mean} for noise in found]
        typer.echo(json.dumps(plain, indent=2))
        return
    for noise in found:
        values = ", ".join(f"{value:.2f}" for value in noise.values)
        typer.echo(
            f"{noise.figure}: {noise.mean:.2f} ± {noise.deviation:.2f} "
            f"over {len(noise.values)} seeds ({values})"
        )
    if baseline:
        typer.echo(f"written: {baseline}", err=True)
