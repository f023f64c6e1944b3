"""`skipbench demo`: a skip and a skipless model made on the spot, inspected and run."""

from typing import Annotated

import typer

from skipbench.cli import options


def add_to(app: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    app.command("demo")(ending_well(demo))


def demo(
    out: Annotated[str, typer.Option("--out", help="Folder for the demo's files.")] = "demo",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a small skip and a small skipless checkpoint, untrained; inspect and probe both."""
    from pathlib import Path

    from skipbench import demo as steps
    from skipbench import pipeline
    from skipbench.cli.inspect_command import show
    from skipbench.cli.probe_command import show as show_probe

    folder = Path(out)
    checkpoints = steps.make_checkpoints(folder)
    pictures = steps.make_pictures(folder / "images")
    shapes = steps.draw_shapes(folder / "shapes.png")
    for path in checkpoints:
        found = pipeline.inspect(path, device="cpu")
        show(found)
        with pipeline.extract(
            found.backbone(), pictures, layers="multiscale", size="native", cache=folder / "cache"
        ) as store:
            typer.echo(f"\nfeatures of {len(store)} images: {', '.join(store.columns)}")
            typer.echo(f"in {store.folder}")
    typer.echo(f"\nthe embedded data set, drawn with its masks: {shapes}")
    for path in checkpoints:
        show_probe(steps.probe_shapes(path, folder), str(folder / "results"))
    typer.echo("\n(Both models are untrained: these are the figures of two initialisations.)")
    typer.echo(
        f"\nNow your own:  skipbench inspect --ckpt CHECKPOINT\n"
        f"               skipbench probe --ckpt CHECKPOINT --dataset voc\n"
        f"               skipbench extract FOLDER --ckpt CHECKPOINT\n"
        f"               skipbench data list\n"
        f"The demo's files are in {folder}/."
    )
