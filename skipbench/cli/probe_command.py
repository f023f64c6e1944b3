"""`skipbench probe`: linear-probe segmentation, mIoU with an interval."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options
from skipbench.cli.page import plain_table, say_estimate, wide_page
from skipbench.cli.segmentation import (
    blocks_words,
    interval_words,
    show_classes,
    show_spread,
    show_what,
    show_where,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipbench.records import Result


def add_to(app: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    app.command("probe")(ending_well(probe))


def probe(
    ckpt: options.Ckpt,
    dataset: options.MaskedDataset,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            "--layers",
            help="last, multiscale, last4, ibot, all, or blocks: 2,5,-1. Repeatable: several share "
            "one pass over the images (not where crops are new in every epoch).",
            show_default="last",
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="paper|dinov2|leopart", help="Whose settings.")
    ] = "paper",
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", min=1, help="Of training; paper: 30.", show_default="the protocol's"
        ),
    ] = None,
    lr: Annotated[
        str | None,
        typer.Option(
            "--lr",
            help="Learning rates, all trained at once: 1e-3,3e-3; paper: six from 1e-4 to 3e-2.",
            show_default="the protocol's",
        ),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            "--select",
            metavar="val|holdout",
            help="Where the rate of the headline is chosen: on the validation images, as papers "
            "do, or on held-out training images. Both are reported.",
        ),
    ] = "val",
    seeds: Annotated[
        str, typer.Option("--seeds", "--seed", help="0, or several: 0,1,2 (mean ± deviation).")
    ] = "0",
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            help="At which the model sees images: N, HEIGHTxWIDTH, short:N, long:N or native; "
            "paper: 448.",
            show_default="the protocol's",
        ),
    ] = None,
    score_size: Annotated[
        str | None,
        typer.Option(
            "--score-size",
            metavar="full|N",
            help="Masks at their own size, or resized to N×N.",
            show_default="the protocol's",
        ),
    ] = None,
    loss_pixels: Annotated[
        str | None,
        typer.Option(
            "--loss-pixels",
            metavar="N|all",
            help="Labelled pixels of an image in one step.",
            show_default="1024",
        ),
    ] = None,
    standardize: Annotated[
        bool | None,
        typer.Option(
            "--standardize/--no-standardize",
            help="Each channel by its mean and deviation over the training tokens.",
            show_default="as the protocol",
        ),
    ] = None,
    norm: options.Norm = True,
    views: Annotated[
        int | None,
        typer.Option(
            "--views",
            min=1,
            help="Protocols dinov2 and leopart: so many crops of each image, in turn, instead of a "
            "new one in every epoch.",
            show_default=False,
        ),
    ] = None,
    train_images: Annotated[
        int | None,
        typer.Option(
            "--train-images",
            min=1,
            help="A random subset of so many training images, the same for the same --subset-seed.",
            show_default="3000 of ade20k and of cocostuff, else all",
        ),
    ] = None,
    subset_seed: options.SubsetSeed = 0,
    limit: options.Limit = None,
    data_root: options.DataRoot = None,
    classes: options.Classes = None,
    skip_bad: options.SkipBad = 0,
    residual: options.ResidualOption = "auto",
    weights: options.Weights = None,
    heads: options.Heads = None,
    expect: options.Expect = None,
    position_rule: options.Positions = None,
    label: options.Label = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    batch_size: options.BatchSize = "auto",
    workers: options.Workers = None,
    store_dtype: options.StoreDtypeOption = "fp16",
    cache: options.Cache = None,
    cache_limit: options.CacheLimit = "50GB",
    no_cache: options.NoCache = False,
    out: options.Out = "results",
    force: options.Force = False,
    pictures: options.Predictions = 0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Train linear classifiers on frozen patch tokens; report their mIoU.

    The backbone sees each image once, all learning rates train at once. Interrupted, it goes on
    where it was; done before, it is found in the results.
    """
    from skipbench.evaluations.probe.protocols import parse_seeds, settle

    options.one_of("--select", select, "val", "holdout")
    how = settle(
        protocol, epochs=epochs, rates=lr, size=size, score_size=score_size,
        loss_pixels=loss_pixels, standardize=standardize, views=views,
    )  # fmt: skip
    wanted_seeds = parse_seeds(seeds)
    features = options.of_features(
        layers, how.size, precision, store_dtype, batch_size, cache, cache_limit, no_cache, out
    )
    reading = options.how_to_read(
        ckpt, residual, weights, heads, expect, position_rule, device, label
    )

    from skipbench.evaluations.data import open_splits

    splits = open_splits(
        dataset, how, train_images=train_images, subset_seed=subset_seed, root=data_root,
        limit=limit, classes=classes, skip_bad=skip_bad,
    )  # fmt: skip

    from skipbench.evaluations.probe.calls import open_probe

    run = open_probe(
        ckpt, dataset, seeds=wanted_seeds, splits=splits, **reading(),
        **{**features, "size": size},  # only what was given: the protocol has the rest
        protocol=protocol, epochs=epochs, lr=lr, score_size=score_size,
        loss_pixels=loss_pixels, standardize=standardize, views=views,
        select=select,  # type: ignore[arg-type]
        norm=norm, train_images=train_images, subset_seed=subset_seed, data_root=data_root,
        limit=limit, classes=classes, skip_bad=skip_bad, workers=workers, force=force,
        pictures=pictures,
    )  # fmt: skip
    if dry_run:
        from skipbench.evaluations.estimate import estimate

        say_estimate(estimate(run), as_json)
        return
    results = run.run()
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2))
    else:
        show(results, out)


def show(results: "Sequence[Result]", out: str) -> None:
    console = wide_page()
    show_what(console, results[0], _settings(results[0]), "trained on")
    for layers in dict.fromkeys(result.features["layers"] for result in results):
        group = [result for result in results if result.features["layers"] == layers]
        for result in group:
            _show_one(console, result, several=len(group) > 1)
        if len(group) > 1:
            _show_spread(console, layers, group)
    show_where(console, results, out)


def _settings(result: "Result") -> str:
    """Enough to tell two pasted pages apart."""
    protocol = result.protocol
    length = f"{protocol['epochs']} epochs" if protocol["epochs"] else f"{protocol['steps']} steps"
    side = protocol["score_size"]
    words = [
        f"protocol {protocol['name']}",
        f"images at {result.features['size']}",
        length,
        f"scored at {side}x{side}" if side else "scored at full size",
    ]
    if protocol["views"] != "whole":
        words.append(f"{protocol['different_views'] or 'new'} crops of each image")
    return ", ".join(words)


def _show_one(console: Any, result: "Result", several: bool) -> None:
    metrics, protocol = result.metrics, result.protocol
    seed = f", seed {protocol['seed']}" if several else ""
    console.print(f"\n[bold]{result.features['layers']}[/bold] ({blocks_words(result)}{seed})")
    if len(metrics["rates"]) > 1:
        console.print(_rates_table(metrics))
    console.print(_headlines(metrics, len(protocol["held_out"])))
    for edge in dict.fromkeys(row["edge"] for row in metrics["chosen"].values() if row):
        if edge:
            console.print(f"the {edge} rate of the sweep was chosen: widen the sweep with --lr")
    if not several:
        show_classes(console, metrics["per_class"])


def _headlines(metrics: Any, held_out: int) -> Any:
    """The figure, first as it was asked for, then by the other choice of the rate."""
    table = plain_table(show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    how = {
        "val": "best on val, as papers report",
        "holdout": f"best on {held_out} held-out training images",
        None: "",
    }
    first = metrics["selected_on"]
    rows = [(metrics, how[first], "bold")]
    second = {"val": "holdout", "holdout": "val"}.get(first)
    if second and metrics["chosen"][second]:
        rows.append((metrics["chosen"][second], how[second], ""))
    for row, words, style in rows:
        reason = f"rate {row['rate']:g}" + (f", {words}" if words else "")
        table.add_row(
            f"mIoU {row['miou']:.1f}", interval_words(row["interval"]), reason, style=style
        )
    return table


def _rates_table(metrics: Any) -> Any:
    table = plain_table()
    for name in ("rate", "mIoU", "95 % interval", "pAcc", "mAcc", "fwIoU", "held-out"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    chosen = {where: row and row["rate"] for where, row in metrics["chosen"].items()}
    for row in metrics["rates"]:
        if row.get("diverged"):
            table.add_row(f"{row['rate']:g}", "diverged")
            continue
        marks = [
            word
            for where, word in (("val", "val"), ("holdout", "held-out"))
            if chosen[where] == row["rate"]
        ]
        mark = "← best on " + " and ".join(marks) if marks else ""
        held_out = "–" if row["holdout_miou"] is None else f"{row['holdout_miou']:.1f}"
        table.add_row(
            f"{row['rate']:g}", f"{row['miou']:.1f}", interval_words(row["interval"]),
            f"{row['pixel_accuracy']:.1f}", f"{row['mean_accuracy']:.1f}",
            f"{row['weighted_iou']:.1f}", held_out, mark,
            style="bold" if row["rate"] == metrics["rate"] else "",
        )  # fmt: skip
    return table


def _show_spread(console: Any, layers: str, group: "Sequence[Result]") -> None:
    from statistics import mean, stdev

    show_spread(console, layers, group)
    for where, words in (("val", "best on val"), ("holdout", "best on held-out images")):
        chosen = [result.metrics["chosen"][where] for result in group]
        if group[0].metrics["selected_on"] not in (None, where) and all(chosen):
            others = [row["miou"] for row in chosen]
            console.print(f"  rates {words}: {mean(others):.2f} ± {stdev(others):.2f}")
