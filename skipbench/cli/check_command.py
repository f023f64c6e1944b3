"""`skipbench check`: scores against a baseline, for CI. `skipbench calibrate`: their noise."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from skipbench.cli.commands import command
from skipbench.console import echo, echo_json, plain_table, shown, wide_page
from skipbench.errors import UsageError
from skipbench.files import ensure_writable, write_whole
from skipbench.settings import CHECK, OUTPUT, parsers, same_as, setting
from skipbench.settings.groups import RerunSettings, ResultsSettings

if TYPE_CHECKING:
    from skipbench.results.baseline import Baseline
    from skipbench.results.check import Verdict

CHECK_FAILED = 5


@dataclass(frozen=True, kw_only=True)
class CheckSettings(ResultsSettings):
    baseline: Path = setting(
        Path("baseline.json"), help="File of expected scores.", parse=parsers.path, panel=CHECK,
        metavar="FILE",
    )  # fmt: skip
    update: bool = setting(False, help="Write these scores as the baseline.", panel=CHECK)
    prune: bool = setting(False, help="With --update: drop scores without a record.", panel=CHECK)
    tolerance: float | None = setting(
        None, help="Points below the baseline that still pass.", parse=parsers.amount, panel=CHECK,
        metavar="POINTS", default_text="0.5",
    )  # fmt: skip
    sigma: float | None = setting(
        None, help="Instead of --tolerance: standard deviations over seeds (`skipbench "
        "calibrate`). 2.8 is two deviations of the difference between two runs.",
        parse=parsers.amount, panel=CHECK, metavar="N",
    )  # fmt: skip
    paired: bool = setting(
        False, help="Instead of --tolerance: fail if the paired 95 % interval over images lies "
        "below 0. With --update: store the per-image counts it needs.", panel=CHECK,
    )  # fmt: skip
    junit: Path | None = setting(
        None, help="Write JUnit XML.", parse=parsers.path, panel=OUTPUT, metavar="FILE"
    )
    github: bool = setting(False, help="GitHub annotations and step summary.", panel=OUTPUT)

    def check(self) -> None:
        super().check()
        if self.prune and not self.update:
            raise UsageError("--prune needs --update")
        of_checks = {"tolerance", "sigma", "junit", "github"} & set(self.changed())
        if self.update and of_checks:
            flags = ", ".join(f"--{name}" for name in sorted(of_checks))
            raise UsageError(f"--update writes a baseline and checks nothing: leave out {flags}")


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings(ResultsSettings, RerunSettings):
    baseline: Path | None = same_as(
        CheckSettings, "baseline", None, help="Baseline to write the noise to, for `check --sigma`."
    )
    seeds: tuple[int, ...] = setting(
        (1, 2, 3, 4), help="More seeds to run.", parse=parsers.integers(0), panel=CHECK,
        metavar="N,N",
    )  # fmt: skip


@command("check", CheckSettings)
def check(settings: CheckSettings, as_json: bool) -> None:
    """Check scores against a baseline; exit 5 if one is worse or missing."""
    if settings.update:
        from skipbench.results.baseline import update_baseline

        old, made = update_baseline(
            settings.results, settings.baseline, where=settings.where, strict=settings.strict,
            paired=settings.paired, prune=settings.prune,
        )  # fmt: skip
        _show_update(settings.baseline, old, made, as_json)
        return
    from skipbench.results import check as results_check

    verdicts = results_check.check(
        settings.results, settings.baseline, tolerance=settings.tolerance, sigma=settings.sigma,
        paired=settings.paired, where=settings.where, strict=settings.strict,
    )  # fmt: skip

    if settings.junit:
        ensure_writable(settings.junit.parent)
        write_whole(settings.junit, results_check.junit(verdicts).encode())
    if as_json:
        echo_json([verdict.to_json() for verdict in verdicts])
    else:
        _show(verdicts)
    if settings.github:
        for line in results_check.annotations(verdicts):
            echo(line, err=as_json)
        if place := os.environ.get("GITHUB_STEP_SUMMARY"):
            try:
                with Path(place).open("a", encoding="utf-8", errors="replace") as file:
                    file.write(results_check.step_summary(verdicts))
            except OSError as error:  # the verdict matters more
                echo(f"no step summary: {error}", err=True)
    if any(verdict.fails for verdict in verdicts):
        raise typer.Exit(CHECK_FAILED)


def _show(verdicts: "list[Verdict]") -> None:
    from skipbench.results.check import sentence, summary, worst_first

    styles = {"worse": "bold red", "missing": "bold red", "better": "green", "new": "dim"}
    table = plain_table("verdict", "figure", "what")
    for verdict in worst_first(verdicts):
        cells = (verdict.state, verdict.figure, sentence(verdict))
        table.add_row(*map(shown, cells), style=styles.get(verdict.state, ""))
    console = wide_page()
    console.print(table)
    console.print(summary(verdicts), style="bold")


def _show_update(path: Path, old: "Baseline | None", made: "Baseline", as_json: bool) -> None:
    before = old.figures if old else {}
    for name in sorted(made.figures):
        was, now = before.get(name), made.figures[name]
        state = "new" if was is None else "unchanged" if was == now else f"was {was.value:.2f}"
        kept = ", not in these results: kept" if was is now else ""
        echo(f"{now.value:6.2f}  {name}  ({state}{kept})", err=True)
    for name in sorted(set(before) - set(made.figures)):
        echo(f"        {name}  (dropped)", err=True)
    echo(f"written: {path}, {len(made.figures)} scores", err=True)
    if as_json:
        echo_json([vars(made.figures[name]) for name in sorted(made.figures)])


@command("calibrate", CalibrateSettings)
def calibrate(settings: CalibrateSettings, as_json: bool) -> None:
    """Measure the noise of scores: rerun evaluations with other seeds.

    Settings are read from each record. New records go to RESULTS/calibration, apart from those in
    tables. Resumable.
    """
    from skipbench.results.read import read_results

    stored = read_results(settings.results)  # before torch is loaded

    from skipbench.results.calibrate import calibrate as run

    found = run(
        stored, settings.baseline, seeds=settings.seeds, where=settings.where, **settings.places()
    )
    if as_json:
        plain = [vars(noise) | {"noise": noise.deviation, "mean": noise.mean} for noise in found]
        echo_json(plain)
        return
    for noise in found:
        values = ", ".join(f"{value:.2f}" for value in noise.values)
        echo(
            f"{noise.figure}: {noise.mean:.2f} ± {noise.deviation:.2f} "
            f"over {len(noise.values)} seeds ({values})"
        )
    if settings.baseline:
        echo(f"written: {settings.baseline}", err=True)
