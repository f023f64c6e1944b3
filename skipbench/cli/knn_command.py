"""`skipbench knn`: dense nearest-neighbour segmentation, mIoU with an interval."""

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

    app.command("knn")(ending_well(knn))


def knn(
    ckpt: options.Ckpt,
    dataset: options.MaskedDataset,
    layers: options.Layers = None,
    k: Annotated[
        str, typer.Option("--k", help="Neighbours that vote: 30, or several: 10,30 (one search).")
    ] = "30",
    temperature: Annotated[
        str,
        typer.Option(
            "--temperature",
            help="Their weights are softmax(similarity / temperature); or several: 0.02,0.07.",
        ),
    ] = "0.02",
    memory: Annotated[
        int,
        typer.Option(
            "--memory",
            min=1,
            help="Tokens in the bank, shared evenly between the training images; patches of rarer "
            "classes are preferred.",
        ),
    ] = 1_024_000,
    index: Annotated[
        str,
        typer.Option(
            "--index",
            metavar="flat|ivf|auto",
            help="The whole bank is searched, or lists of it, with the recall recorded; auto: ivf "
            "on the CPU for more than 100,000 tokens.",
        ),
    ] = "auto",
    bank_limit: Annotated[
        str,
        typer.Option(
            "--bank-limit",
            help="Memory for the bank: float32 where that fits (flat), else float16, else "
            "product-quantised (ivf).",
        ),
    ] = "4GB",
    seeds: Annotated[
        str,
        typer.Option("--seeds", "--seed", help="Of the bank: 0, or several: 0,1,2."),
    ] = "0",
    size: Annotated[
        str,
        typer.Option(
            "--size",
            help="At which the model sees images: N, HEIGHTxWIDTH, short:N, long:N or native.",
        ),
    ] = "512",
    norm: options.Norm = True,
    train_images: Annotated[
        int | None,
        typer.Option(
            "--train-images",
            min=1,
            help="A random subset of so many training images, the same for the same --subset-seed.",
            show_default="all",
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
    """Label every patch by its nearest neighbours among training patches; report the mIoU.

    Nothing is trained. Features are those that `probe` stores, too. Interrupted, it goes on where
    it was; done before, it is found in the results.
    """
    from skipbench.evaluations.knn import settings
    from skipbench.evaluations.probe.protocols import parse_seeds
    from skipbench.files import parse_bytes

    options.one_of("--index", index, *settings.INDEXES)
    settings.parse_ks(k), settings.parse_temperatures(temperature)
    wanted_seeds, most = parse_seeds(seeds), parse_bytes(bank_limit)
    how = options.of_features(
        layers, size, precision, store_dtype, batch_size, cache, cache_limit, no_cache, out
    )
    reading = options.how_to_read(
        ckpt, residual, weights, heads, expect, position_rule, device, label
    )

    from skipbench.engine import vectors
    from skipbench.evaluations.data import open_splits

    vectors.load()  # broken or not there: said before anything long begins
    splits = open_splits(
        dataset, train_images=train_images, subset_seed=subset_seed, root=data_root, limit=limit,
        classes=classes, skip_bad=skip_bad,
    )  # fmt: skip

    from skipbench.evaluations.knn.calls import open_knn

    run = open_knn(
        ckpt, dataset, seeds=wanted_seeds, splits=splits, **reading(), **how, k=k,
        temperature=temperature, memory=memory, index=index, bank_limit=most, norm=norm,
        train_images=train_images, subset_seed=subset_seed, data_root=data_root, limit=limit,
        classes=classes, skip_bad=skip_bad, workers=workers, force=force, pictures=pictures,
    )  # fmt: skip
    if dry_run:
        from skipbench.evaluations.knn.estimate import estimate_knn

        say_estimate(estimate_knn(run), as_json)
        return
    results = run.run()
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2))
    else:
        show(results, out)


def show(results: "Sequence[Result]", out: str) -> None:
    console, first = wide_page(), results[0]
    words = [
        f"images at {first.features['size']}",
        f"a bank of up to {first.protocol['memory']:,} tokens",
        "scored at full size",
    ]
    show_what(console, first, ", ".join(words), "neighbours from")
    seeds = len({result.protocol["seed"] for result in results}) > 1
    for layers in dict.fromkeys(result.features["layers"] for result in results):
        group = [result for result in results if result.features["layers"] == layers]
        console.print(f"\n[bold]{layers}[/bold] ({blocks_words(group[0])}), {_bank(group)}")
        columns = ("k", "temperature", *(["seed"] if seeds else []))
        rows = [([f"{r.protocol[name]:g}" for name in columns], r) for r in group]
        console.print(figures_table(columns, rows))
        if len(group) == 1:
            show_classes(console, group[0].metrics["per_class"])
        for vote in dict.fromkeys(_vote(r) for r in group) if seeds else ():
            show_spread(console, f"{layers}, {vote}", [r for r in group if _vote(r) == vote])
    show_where(console, results, out)


def _bank(group: "Sequence[Result]") -> str:
    """Of several k and seeds, the lowest recall."""
    result = min(group, key=lambda result: result.metrics["bank"].get("recall", 1))
    bank, protocol = result.metrics["bank"], result.protocol
    kept = "product-quantised" if protocol["bank"] == "pq" else protocol["bank"]
    words = f"{bank['tokens']:,} tokens in the bank ({kept}), "
    if protocol["index"] == "flat":
        return words + "all of them searched"
    return words + (
        f"{bank['searched']} of {bank['lists']} lists searched: {100 * bank['recall']:.1f} % of "
        f"the {protocol['k']} exact neighbours found"
    )


def _vote(result: "Result") -> str:
    return f"k {result.protocol['k']}, temperature {result.protocol['temperature']:g}"
