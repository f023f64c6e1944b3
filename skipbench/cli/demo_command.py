"""`skipbench demo`: a skip and a skipless model made on the spot, inspected and evaluated."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skipbench.cli.commands import command
from skipbench.console import echo, open_in_browser, wide_page
from skipbench.settings import OUTPUT, Settings, parsers, setting

if TYPE_CHECKING:
    from skipbench.results.read import Stored

NEXT = """
Now your own:  skipbench inspect --ckpt CHECKPOINT
               skipbench probe --ckpt CHECKPOINT --dataset voc
               skipbench data list
               skipbench table
               skipbench --help
               skipbench manual
"""


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Settings):
    out: Path = setting(
        Path("demo"), help="Folder for the demo's files.", parse=parsers.path, panel=OUTPUT,
        metavar="DIR",
    )  # fmt: skip
    open: bool = setting(False, help="Open the report in a browser.", panel=OUTPUT)


@command("demo", DemoSettings, flags=())
def demo(settings: DemoSettings) -> None:
    """Evaluate two small models on embedded data, with tables and a report.

    Creates an untrained skip and an untrained skipless checkpoint. Takes about a minute on two
    cores; needs no network.
    """
    from skipbench import demo as steps
    from skipbench import pipeline
    from skipbench.cli.inspect_command import show as show_inspection
    from skipbench.datasets import open_dataset
    from skipbench.drawing.sheet import dataset_sheet, save
    from skipbench.results.report import report

    folder = settings.out
    checkpoints = steps.make_checkpoints(folder)
    for path in checkpoints:
        show_inspection(pipeline.inspect(path, device="cpu"))
    save(dataset_sheet(open_dataset("shapes", limit=8)), folder / "shapes.png")
    echo(f"\nthe embedded data set with its masks: {folder / 'shapes.png'}\n")
    records = steps.evaluate(checkpoints, folder)
    _show_results(records)
    page = report(records, folder / "report.html", title=steps.TITLE)
    echo(f"{NEXT}\nLook at the report: {page}")
    if settings.open:
        open_in_browser(page)


def _show_results(records: "list[Stored]") -> None:
    """As `skipbench table` and `skipbench compare` print them."""
    from skipbench.cli.compare_command import show as show_comparison
    from skipbench.results.compare import compare
    from skipbench.results.tables import table
    from skipbench.results.tables.layouts import LAYOUTS
    from skipbench.results.tables.render import show

    echo()
    rest = list(records)
    for layout in (LAYOUTS["table2"], LAYOUTS["table4"]):
        rest = [one for one in rest if one.result.evaluation != layout.evaluation]
        if any(one.result.evaluation == layout.evaluation for one in records):
            show(table(records, layout=layout.name, compact=True, ci=True), wide_page())
    if rest:
        show(table(rest, ci=True), wide_page())
    for pair in compare("skip.pth", "skipless.safetensors", results=records):
        if pair.a[0].result.features["layers"] in ("multiscale", "all"):
            show_comparison(pair, top=3)
    echo("\n(Both models are untrained: these are the scores of two initialisations.)")
