"""`skipbench demo`: a skip and a skipless model made on the spot, inspected and run."""

from typing import TYPE_CHECKING, Annotated

import typer

from skipbench.cli import options
from skipbench.cli.running import with_exit_codes

if TYPE_CHECKING:
    from pathlib import Path

    from skipbench.results.read import Stored


def add_to(app: typer.Typer) -> None:
    app.command("demo")(with_exit_codes(demo))


def demo(
    out: Annotated[str, typer.Option("--out", help="Folder for the demo's files.")] = "demo",
    open_it: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Evaluate two small models on embedded data; tables, and a report to look at.

    A skip and a skipless checkpoint are made on the spot, untrained. About a minute on two cores,
    without network.
    """
    from pathlib import Path

    from skipbench import demo as steps
    from skipbench import pipeline
    from skipbench.cli.inspect_command import show

    folder = Path(out)
    checkpoints = steps.make_checkpoints(folder)
    for path in checkpoints:
        show(pipeline.inspect(path, device="cpu"))
    shapes = steps.draw_shapes(folder / "shapes.png")
    typer.echo(f"\nthe embedded data set, drawn with its masks: {shapes}\n")
    records = steps.evaluate(checkpoints, folder)
    _show_results(records)
    typer.echo(f"\ntheir principal components, as colours: {folder / 'pca' / 'sheet.png'}")
    _report(records, folder, open_it)


def _show_results(records: "list[Stored]") -> None:
    """What `skipbench table` and `skipbench compare` print."""
    from skipbench.cli.compare_command import show as show_comparison
    from skipbench.console import wide_page
    from skipbench.results.compare import compare
    from skipbench.results.tables import table
    from skipbench.results.tables.render import show as show_table

    typer.echo()
    for layout in ("table2", "table4"):
        show_table(table(records, layout=layout, compact=True, ci=True), wide_page())
    untrained = [one for one in records if one.result.evaluation in ("knn", "cluster")]
    show_table(table(untrained, ci=True), wide_page())
    for pair in compare("skip.pth", "skipless.safetensors", results=records):
        if pair.a[0].result.features["layers"] in ("multiscale", "all"):
            show_comparison(pair, top=3)
    typer.echo("\n(Both models are untrained: these are the figures of two initialisations.)")


def _report(records: "list[Stored]", folder: "Path", open_it: bool) -> None:
    from skipbench import demo as steps
    from skipbench.console import open_in_browser
    from skipbench.results.report import report

    page = report(records, folder / "report.html", title=steps.TITLE)
    typer.echo(
        f"\nNow your own:  skipbench inspect --ckpt CHECKPOINT\n"
        f"               skipbench probe --ckpt CHECKPOINT --dataset voc\n"
        f"               skipbench tokencut --ckpt CHECKPOINT --dataset voc --layers all\n"
        f"               skipbench knn --ckpt CHECKPOINT --dataset voc\n"
        f"               skipbench cluster --ckpt CHECKPOINT --dataset voc\n"
        f"               skipbench pca PICTURES --ckpt CHECKPOINT\n"
        f"               skipbench table\n"
        f"               skipbench data list\n"
        f"\nLook at the report: {page}"
    )
    if open_it:
        open_in_browser(page)
