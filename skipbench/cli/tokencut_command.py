"""`skipbench tokencut`: object discovery, CorLoc with an interval."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options
from skipbench.cli.page import plain_table, say_estimate, wide_page
from skipbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipbench.records import Result


def add_to(app: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    app.command("tokencut")(ending_well(tokencut))


def tokencut(
    ckpt: options.Ckpt,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="With boxes: voc, voc07, coco20k, folder:PATH, shapes; with masks: ecssd, duts, "
            "dutomron, folder:PATH.",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            "--images",
            help="Instead of a data set: a picture or a folder of them; box, mask and eigenvector "
            "are drawn over each, into --out. Repeatable.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            "--layers",
            help="last, all, or blocks: 9,10,-1. Each block is cut by itself, all in one pass.",
        ),
    ] = "last",
    feature: Annotated[
        str,
        typer.Option(
            "--feature",
            metavar="keys|queries|values|tokens|tokens_norm",
            help="Which tensor of a block; tokens is its output.",
        ),
    ] = "keys",
    method: Annotated[
        str, typer.Option("--method", metavar="tokencut|lost", help="Whose way of finding.")
    ] = "tokencut",
    tau: Annotated[
        float | None,
        typer.Option(
            "--tau", help="TokenCut: tokens with a larger cosine are linked.", show_default="0.2"
        ),
    ] = None,
    eps: Annotated[
        float | None,
        typer.Option(
            "--eps", help="TokenCut: weight of the links between all others.", show_default="1e-5"
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            "--resize",
            help="At which the model sees images: native, N, HEIGHTxWIDTH, short:N or long:N.",
        ),
    ] = "native",
    score: Annotated[
        str | None,
        typer.Option(
            "--score",
            metavar="boxes|masks",
            help="By boxes (CorLoc) or by masks (IoU, F-beta, accuracy).",
            show_default="boxes, where there are any",
        ),
    ] = None,
    hard: Annotated[
        bool,
        typer.Option(
            "--hard/--no-hard", help="Boxes marked difficult or truncated are to be found, too."
        ),
    ] = True,
    select: Annotated[
        str,
        typer.Option(
            "--select",
            metavar="val|holdout",
            help="Of several blocks, the figure of the best on the evaluated images, as papers "
            "report, or of one chosen on half of them and scored on the rest. Both are reported.",
        ),
    ] = "val",
    split: Annotated[
        str | None,
        typer.Option(
            "--split", help="Of the data set.", show_default="trainval, else val or the only one"
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many images.")
    ] = None,
    data_root: options.DataRoot = None,
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
    cache: options.Cache = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Keep nothing for going on after an interruption.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="Folder for the records, or for the pictures of --images.",
            show_default="results, or found",
        ),
    ] = None,
    force: options.Force = False,
    pictures: Annotated[
        int,
        typer.Option(
            "--pictures", min=0, help="Draw so many images with what was found, worst and best."
        ),
    ] = 0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Find one object in each image by a cut through its frozen tokens; report CorLoc.

    All blocks come from one pass over the images. Interrupted, it goes on where it was; done
    before, it is found in the results.
    """
    from pathlib import Path

    from skipbench.evaluations.tokencut.settings import EPS, METHODS, SCORES, TAU, check_cut
    from skipbench.features.layers import check_layers
    from skipbench.files import cache_folder, ensure_writable
    from skipbench.images import find_images, parse_size
    from skipbench.records import PRECISIONS, TENSORS

    of_data: dict[str, object] = {
        "--split": split, "--score": score, "--no-hard": None if hard else True,
        "--pictures": pictures or None, "--dry-run": dry_run or None,
        "--select holdout": True if select == "holdout" else None,
    }  # fmt: skip
    _check_task(dataset, images, of_data)
    if method == "lost" and (tau, eps) != (None, None):
        raise UsageError("--tau and --eps go with --method tokencut: LOST has neither")
    tau, eps = TAU if tau is None else tau, EPS if eps is None else eps
    out = out or ("found" if images else "results")
    options.one_of("--method", method, *METHODS)
    options.one_of("--feature", feature, *TENSORS)
    options.one_of("--score", score, *SCORES)
    options.one_of("--select", select, "val", "holdout")
    options.one_of("--precision", precision, *PRECISIONS)
    check_layers(layers)
    check_cut(tau, eps)
    parse_size(size)
    at_once = options.batch_size(batch_size)
    ensure_writable(Path(out))
    if not no_cache:
        ensure_writable(cache_folder(cache) / "tokencut")
    reading = options.how_to_read(
        ckpt, residual, weights, heads, expect, position_rule, device, label
    )
    how: dict[str, Any] = {
        "layers": layers, "feature": feature, "method": method, "tau": tau, "eps": eps,
        "size": size, "hard": hard, "select": select, "precision": precision, "cache": cache,
        "in_memory": no_cache, "batch_size": at_once, "workers": workers, "out": out,
        "force": force, "pictures": pictures,
    }  # fmt: skip
    if images:
        found = find_images(images)  # what is not there is said before anything is loaded

        from skipbench.evaluations.tokencut.calls import find_objects

        folder = find_objects(ckpt, found, **reading(), **how, limit=limit, skip_bad=skip_bad)
        typer.echo(json.dumps({"pictures": str(folder)}) if as_json else f"pictures: {folder}")
        return

    from skipbench.evaluations.data import open_objects

    assert dataset is not None
    which: dict[str, Any] = {
        "split": split, "score": score, "limit": limit, "skip_bad": skip_bad,
    }  # fmt: skip
    data = open_objects(dataset, root=data_root, hard=hard, **which)

    from skipbench.evaluations.tokencut.calls import open_tokencut

    run = open_tokencut(ckpt, dataset, data=data, data_root=data_root, **reading(), **which, **how)
    if dry_run:
        from skipbench.evaluations.estimate import estimate_tokencut

        say_estimate(estimate_tokencut(run), as_json)
        return
    result = run.run()
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        show(result, out)


def _check_task(
    dataset: str | None, images: list[str] | None, of_data: "dict[str, object]"
) -> None:
    if bool(dataset) == bool(images):
        raise UsageError("give --dataset NAME for a figure, or --images DIR for pictures alone")
    if images and (given := [option for option, value in of_data.items() if value is not None]):
        raise UsageError(f"{given[0]} goes with --dataset, not with --images")


def show(result: "Result", out: str) -> None:
    console = wide_page()
    dataset, checkpoint, metrics = result.dataset, result.checkpoint, result.metrics
    partial = ", partial" if dataset["partial"] else ""
    empty = f"; {len(dataset['empty'])} without a box left out" if dataset["empty"] else ""
    console.print(
        f"\n[bold]{dataset['name']} {dataset['split']}[/bold], {dataset['images']:,} images"
        f"{partial}{empty}"
    )
    console.print(f"{checkpoint['name']} ({checkpoint['residual']})", markup=False)
    console.print(_settings(result), markup=False)
    if len(metrics["blocks"]) > 1:
        console.print(_blocks_table(metrics))
    console.print(_headlines(result))
    for line in _remarks(metrics["blocks"], dataset["images"]):
        console.print(line, markup=False)
    console.print(f"\nrecord: {out}/{result.id}.json", markup=False)
    console.print(f"by image: {out}/{result.id}/images.csv", markup=False)


def _settings(result: "Result") -> str:
    """Enough to tell two pasted pages apart."""
    protocol = result.protocol
    words = [protocol["method"], f"{protocol['feature']} of {_blocks(result.features['blocks'])}"]
    if protocol["method"] == "tokencut":
        words.append(f"τ {protocol['tau']:g}, ε {protocol['eps']:g}")
    words.append(f"images at {protocol['size']}")
    return ", ".join(words)


def _blocks(blocks: "Sequence[int]") -> str:
    if len(blocks) == 1:
        return f"block {blocks[0]}"
    whole = list(blocks) == list(range(blocks[0], blocks[-1] + 1))
    return (
        f"blocks {blocks[0]} to {blocks[-1]}" if whole else f"blocks {', '.join(map(str, blocks))}"
    )


def _headlines(result: "Result") -> Any:
    """The figure, first as it was asked for, then by the other choice of the block."""
    from skipbench.results.figures import METRICS

    metrics = result.metrics
    name = metrics["headline"]
    table = plain_table(show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    rows = [(metrics, metrics["selected_on"], "bold")]
    other = {"val": "holdout", "holdout": "val"}.get(metrics["selected_on"])
    if other and metrics["chosen"][other]:
        rows.append((metrics["chosen"][other], other, ""))
    for row, where, style in rows:
        ends = "{:.1f} to {:.1f}".format(*row["interval"])
        reason = _reason(where, row, len(metrics["blocks"]))
        table.add_row(f"{METRICS[name]} {row[name]:.1f}", ends, reason, style=style)
    whole = f"{METRICS[name]} {metrics['whole_image']:.1f}"
    table.add_row(whole, "", "of the whole image, without looking", style="dim")
    if name == "iou" and "f_beta" in metrics:
        table.add_row(f"F-beta {metrics['f_beta']:.1f}", "", "of the mask")
        words = "of the eigenvector, cut at the threshold that is best for all images"
        table.add_row(f"max F-beta {metrics['max_f_beta']:.1f}", "", words)
        table.add_row(f"accuracy {metrics['accuracy']:.1f}", "", "")
    return table


def _reason(where: str | None, row: Any, blocks: int) -> str:
    if where == "val":
        return f"block {row['block']}, best of {blocks} on these images, as papers report"
    return "block chosen on one half of the images, scored on the other" if where else ""


def _blocks_table(metrics: Any) -> Any:
    from skipbench.results.figures import METRICS

    name = metrics["headline"]
    others = ["max_f_beta", "f_beta", "accuracy"] if name == "iou" else []
    table = plain_table()
    titles = ["max Fβ", "Fβ", "accuracy"][: len(others)]
    for title in ("block", METRICS[name], "95 % interval", *titles, "degenerate", "dense", "tied"):
        table.add_column(title, justify="right", no_wrap=True)
    best = metrics["chosen"]["val"]["block"]
    for row in metrics["blocks"]:
        table.add_row(
            str(row["block"]), f"{row[name]:.1f}", "{:.1f} to {:.1f}".format(*row["interval"]),
            *(f"{row[key]:.1f}" for key in others), str(row["degenerate"]), str(row["dense"]),
            str(row["tied"]), style="bold" if row["block"] == best else "",
        )  # fmt: skip
    return table


def _remarks(rows: Any, images: int) -> list[str]:
    total = images * len(rows)
    words = {
        "degenerate": "degenerate (nothing stands out: the box is the whole image)",
        "dense": "solved densely",
        "tied": "with a tie that the rule decided",
    }
    counts = {key: sum(row[key] for row in rows) for key in words}
    return [f"{counts[key]:,} of {total:,} {text}" for key, text in words.items() if counts[key]]
