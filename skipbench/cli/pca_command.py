"""`skipbench pca`: tokens as colours, side by side for several checkpoints."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipbench.cli import options
from skipbench.cli.page import plain_table, shown, wide_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skipbench.evaluations.pca.run import PcaRun


def add_to(app: typer.Typer) -> None:
    from skipbench.cli.app import ending_well

    app.command("pca")(ending_well(pca))


def pca(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Files, folders, or dataset:NAME (dataset:coco: the first of COCO val2017).",
            show_default=False,
        ),
    ],
    ckpt: Annotated[
        list[str],
        typer.Option(
            "--ckpt",
            help="Weights: .pth, .pt, .bin, .safetensors, a folder with config.json, or timm:NAME; "
            "repeatable: a column each, in the colours of the first.",
            show_default=False,
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="What stands above the pictures; one for each --ckpt.",
            show_default="the file's name",
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option("--layers", help="last, all, multiscale, or blocks: 3,7,-1. A picture each."),
    ] = "last",
    feature: Annotated[
        str,
        typer.Option(
            "--feature",
            metavar="tokens_norm|tokens|keys|queries|values",
            help="Which tensor of a block; tokens_norm is its output after the final norm.",
        ),
    ] = "tokens_norm",
    fit: Annotated[
        str,
        typer.Option(
            "--fit",
            metavar="image|all",
            help="Components of each image by itself, or of all together: then one colour means "
            "the same in all of them.",
        ),
    ] = "image",
    components: Annotated[
        int,
        typer.Option("--components", help="How many, up to 12; every three are one RGB picture."),
    ] = 3,
    upsample: Annotated[
        str,
        typer.Option(
            "--upsample", metavar="nearest|bilinear", help="From tokens to the image's size."
        ),
    ] = "nearest",
    background: Annotated[
        str,
        typer.Option(
            "--background",
            metavar="keep|mask",
            help="mask: what the first component sets apart is black, and the rest is fitted anew, "
            "as in DINOv2's figures.",
        ),
    ] = "keep",
    align: Annotated[
        bool,
        typer.Option(
            "--align/--no-align",
            help="Turn the components of further checkpoints onto those of the first, so that the "
            "same thing has the same colour.",
        ),
    ] = True,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            help="At which the model sees images: native, N, HEIGHTxWIDTH, short:N or long:N.",
        ),
    ] = "short:448",
    split: options.SplitOption = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="At most so many images, the first ones.")
    ] = 40,
    data_root: options.DataRoot = None,
    skip_bad: options.SkipBad = 0,
    residual: Annotated[
        list[str] | None,
        typer.Option(
            "--residual",
            metavar="skip|skipless|auto",
            help="Run the blocks with or without residual connections; once for all checkpoints, "
            "or once for each.",
            show_default="auto",
        ),
    ] = None,
    weights: options.Weights = None,
    heads: options.Heads = None,
    expect: options.Expect = None,
    position_rule: options.Positions = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    batch_size: options.BatchSize = "auto",
    workers: options.Workers = None,
    store_dtype: options.StoreDtypeOption = "fp32",
    cache: options.Cache = None,
    cache_limit: options.CacheLimit = "50GB",
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Keep features in memory, store none.")
    ] = False,
    out: Annotated[str, typer.Option("--out", help="Folder for pictures and records.")] = "pca",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the principal components of frozen tokens as colours, and how coherent they are.

    All blocks come from one pass over the images for each checkpoint. Their features are stored:
    another --fit or --background costs no further pass.
    """
    from pathlib import Path

    from skipbench.evaluations.pca import settings as known
    from skipbench.features.layers import check_layers
    from skipbench.files import ensure_writable, parse_bytes
    from skipbench.images import parse_size
    from skipbench.records import PRECISIONS, TENSORS

    options.one_of("--feature", feature, *TENSORS)
    options.one_of("--fit", fit, *known.FITS)
    options.one_of("--upsample", upsample, *known.UPSAMPLING)
    options.one_of("--background", background, *known.BACKGROUNDS)
    options.one_of("--precision", precision, *PRECISIONS)
    options.one_of("--store-dtype", store_dtype, "fp16", "fp32")
    known.check_components(components)
    check_layers(layers)
    parse_size(size)
    known.check_each("--residual", residual or ["auto"], len(ckpt), one_for_all=True)
    if name:
        known.check_names(name, len(ckpt))
    at_once, most = options.batch_size(batch_size), parse_bytes(cache_limit)
    variants = residual or ["auto"]
    readings = [
        options.how_to_read(
            path, variants[min(number, len(variants) - 1)], weights, heads, expect, position_rule,
            device,
        )
        for number, path in enumerate(ckpt)
    ]  # fmt: skip
    ensure_writable(Path(out))

    from skipbench.evaluations.data import open_pictures

    which: dict[str, Any] = {"split": split, "limit": limit, "skip_bad": skip_bad}
    data = open_pictures(images, root=data_root, **which)  # said before torch is loaded

    from skipbench.evaluations.pca.calls import open_pca

    shared: dict[str, Any] = {
        k: v for k, v in readings[0]().items() if k not in ("residual", "labels")
    }
    how: dict[str, Any] = {
        "layers": layers, "feature": feature, "fit": fit, "components": components,
        "upsample": upsample, "background": background, "align": align, "size": size,
        "precision": precision, "store_dtype": store_dtype, "cache": cache, "cache_limit": most,
        "in_memory": no_cache, "batch_size": at_once, "workers": workers, "out": out,
        "residual": variants if len(variants) > 1 else variants[0], "names": name or [],
    }  # fmt: skip
    run = open_pca(ckpt, images, data=data, data_root=data_root, **shared, **which, **how)
    results = run.run()
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2))
    else:
        show(run, [result.id for result in results])


def show(run: "PcaRun", ids: "list[str]") -> None:
    console = wide_page()
    data, asked = run.data, run.asked
    partial = ", partial" if data.partial else ""
    name = "" if data.name == "images" else f"[bold]{shown(data.name)} {data.split}[/bold], "
    images = "1 image" if len(data) == 1 else f"{len(data):,} images"
    console.print(f"\n{name}{images}{partial}")
    many = "1 component" if asked.components == 1 else f"{asked.components} components"
    words = [f"{many} of {asked.feature}", *asked.fitted_to, f"images at {asked.size}"]
    console.print(", ".join(words), markup=False)
    console.print(_table(run))
    for line in _remarks(run):
        console.print(line, markup=False)
    console.print(f"\npictures: {asked.out}/sheet.png, sheet.pdf and one for each image",
                  markup=False)  # fmt: skip
    if any(len(model.blocks) > 1 for model in run.models):
        console.print(f"curves: {asked.out}/curves.png", markup=False)
    console.print(f"figures: {asked.out}/figures.csv", markup=False)
    for identity in ids:
        console.print(f"record: {asked.out}/{identity}.json", markup=False)


# Column of the table → key of a row, and how it is written.
COLUMNS = {
    "block": ("block", "d"),
    "explained %": ("explained", ".1f"),
    "effective rank": ("effective_rank", ".1f"),
    "total variation": ("total_variation", ".3f"),
    "between segments %": ("coherence", ".1f"),
    "95 % interval": ("interval", ".1f"),
    "upside down %": ("upside_down", ".1f"),
    "of colours %": ("colour_coherence", ".1f"),
    "colours alike %": ("agreement", ".1f"),
    "flat images": ("degenerate", "d"),
}


def _table(run: "PcaRun") -> Any:
    """A row for each checkpoint and block; columns that would be empty are left out."""
    told = [
        (model.title, row) for model, rows in zip(run.models, run.rows, strict=True) for row in rows
    ]
    empty = {"degenerate": 0}
    columns = {
        title: (key, how)
        for title, (key, how) in COLUMNS.items()
        if any(row.get(key) not in (None, empty.get(key)) for _, row in told)
    }
    table = plain_table()
    table.add_column("checkpoint", no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for title, row in told:
        table.add_row(shown(title), *(_number(row, *how) for how in columns.values()))
    return table


def _number(row: "Mapping[str, Any]", key: str, how: str) -> str:
    value = row.get(key)
    if value is None:
        return ""
    return " to ".join(format(v, how) for v in (value if isinstance(value, list) else [value]))


def _remarks(run: "PcaRun") -> list[str]:
    """What the columns mean."""
    from skipbench.evaluations.pca.record import headline, pixels

    lines = ["", "total variation: distance of neighbours to that of any two tokens; 1 is noise"]
    if any(item.has_segments for item in run.data):
        own = pixels(run.figures[0])
        reference = "" if own is None else f"; of the images' own colours: {own:.1f}"
        lines += [
            f"between segments: share of the features' variance (coherence){reference}",
            "upside down: by the same segments turned, which takes no knowledge of objects",
        ]
        lines += [
            f"{model.title}: no coherence, for tokens of the deepest block are all alike, or "
            "images have one segment each"
            for model, figures in zip(run.models, run.figures, strict=True)
            if not headline(figures)
        ]
    else:
        lines.append("no segments are known of these images, so no coherence: dataset:NAME has "
                     "some, if it has masks or is COCO with its annotations")  # fmt: skip
    if len(run.models) > 1 and run.asked.align:
        first = run.models[0].title
        lines.append(f"colours alike: how much of {first}'s colours the others reach; where it is "
                     "low, the same thing cannot have the same colour")  # fmt: skip
    return lines
