"""`skipbench cluster`: k-means segmentation, mIoU with mean and deviation over seeds."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from skipbench.cli import options
from skipbench.cli.page import say_estimate, wide_page
from skipbench.cli.segmentation import (
    blocks_words,
    figures_table,
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

    app.command("cluster")(ending_well(cluster))


def cluster(
    ckpt: options.Ckpt,
    dataset: options.MaskedDataset,
    layers: options.Layers = None,
    clusters: Annotated[
        str,
        typer.Option(
            "--clusters",
            metavar="classes|N",
            help="As many as classes, matched one to one; or more, each the class of most of its "
            "pixels; or several: classes,500.",
        ),
    ] = "classes",
    seeds: Annotated[
        str,
        typer.Option("--seeds", help="How many: 5 stands for 0 to 4; or which: 0,7 (3, for one)."),
    ] = "5",
    sample: Annotated[
        int,
        typer.Option(
            "--sample",
            min=1,
            help="Tokens that k-means looks at, from all images evenly, drawn by the seed; all "
            "where there are no more. At most 4 GB of them.",
        ),
    ] = 1_000_000,
    redo: Annotated[
        int,
        typer.Option(
            "--redo",
            min=1,
            help="k-means from so many starts, of which the tightest counts; some papers take 5.",
        ),
    ] = 1,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            help="At which the model sees images: N, HEIGHTxWIDTH, short:N, long:N or native.",
        ),
    ] = "448",
    norm: options.Norm = True,
    split: options.SplitOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many images.")
    ] = None,
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
    """Cluster the tokens of all images by k-means; report how well clusters are classes.

    Labels serve only to name the clusters, on the whole split at once. Interrupted, it goes on
    where it was; done before, it is found in the results.
    """
    from skipbench.evaluations.knn import settings

    settings.check_sample(sample, settings.parse_clusters(clusters))
    wanted_seeds = settings.parse_how_many_seeds(seeds)
    how = options.of_features(
        layers, size, precision, store_dtype, batch_size, cache, cache_limit, no_cache, out
    )
    reading = options.how_to_read(
        ckpt, residual, weights, heads, expect, position_rule, device, label
    )

    from skipbench.engine import vectors
    from skipbench.evaluations.data import open_masks

    vectors.load()  # broken or not there: said before anything long begins
    data = open_masks(
        dataset, split=split, root=data_root, limit=limit, classes=classes, skip_bad=skip_bad
    )

    from skipbench.evaluations.knn.calls import open_cluster

    run = open_cluster(
        ckpt, dataset, seeds=wanted_seeds, data=data, **reading(), **how, clusters=clusters,
        sample=sample, redo=redo, norm=norm, split=split, data_root=data_root, limit=limit,
        classes=classes, skip_bad=skip_bad, workers=workers, force=force, pictures=pictures,
    )  # fmt: skip
    if dry_run:
        from skipbench.evaluations.knn.estimate import estimate_cluster

        say_estimate(estimate_cluster(run), as_json)
        return
    results = run.run()
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2))
    else:
        show(results, out)


def show(results: "Sequence[Result]", out: str) -> None:
    from skipbench.evaluations.knn.settings import clusters_words

    console, first = wide_page(), results[0]
    words = [
        f"images at {first.features['size']}",
        f"k-means on {first.metrics['tokens']:,} tokens, {first.protocol['turns']} turns",
        "scored at full size",
    ]
    show_what(console, first, ", ".join(words))
    for what in dict.fromkeys(map(_what, results)):
        group = [result for result in results if _what(result) == what]
        layers, clusters, matching = what
        title = f"{layers}, {clusters_words(clusters)}"
        console.print(f"\n[bold]{title}[/bold] ({blocks_words(group[0])}; {matching})")
        console.print(figures_table(["seed"], [([str(r.protocol["seed"])], r) for r in group]))
        if len(group) == 1:
            show_classes(console, group[0].metrics["per_class"])
        else:
            show_spread(console, title, group)
    show_where(console, results, out)


def _what(result: "Result") -> tuple[str, int, str]:
    matching = result.protocol["matching"]
    return result.features["layers"], result.metrics["clusters"], matching
