"""Options that mean the same in every command."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from skipbench.errors import CheckpointError, UsageError, did_you_mean
from skipbench.files import missing_checkpoint
from skipbench.records import LABELS, PRECISIONS, PositionRule, Residual, StoreDtype
from skipbench.settings.declaration import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipbench.pipeline import Inspection, Reading

Ckpt = Annotated[
    str,
    typer.Option(
        "--ckpt",
        help="Weights: .pth, .pt, .bin, .safetensors, a folder with config.json, or timm:NAME.",
        show_default=False,
    ),
]
ResidualOption = Annotated[
    str,
    typer.Option(
        "--residual",
        metavar="skip|skipless|auto",
        help="Run the blocks with or without residual connections; auto: as the file says, or as "
        "its weights show.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="teacher|student",
        help="Which model of a training checkpoint to take; default: the teacher.",
        show_default=False,
    ),
]
Heads = Annotated[
    int | None,
    typer.Option(
        "--heads",
        min=1,
        help="Attention heads, where the file does not say and they are not 64 wide.",
        show_default=False,
    ),
]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        metavar="FACT=VALUE",
        help="Stop unless it has this depth, width, patch, heads or sha256; repeatable.",
        show_default=False,
    ),
]
Positions = Annotated[
    str | None,
    typer.Option(
        "--position-rule",
        metavar="offset|size|antialias",
        help="How position embeddings go to another grid; default: as the weights' own code does.",
        show_default=False,
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="FACT=VALUE",
        help="What the file does not say, for tables: name, epoch, optimizer, initialisation; "
        "repeatable.",
        show_default=False,
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda|cuda:N|mps", help="Where to compute.")
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="auto|fp32|bf16|fp16",
        help="auto: bf16 on a CUDA device, fp32 elsewhere.",
    ),
]
Cache = Annotated[
    str | None,
    typer.Option(
        "--cache",
        envvar="SKIPBENCH_CACHE",
        help="Folder for stored features; default: ~/.cache/skipbench.",
        show_default=False,
    ),
]
DataRoot = Annotated[
    str | None,
    typer.Option(
        "--data-root",
        help="Folder that holds the data sets; default: SKIPBENCH_DATA, ./data, ~/datasets.",
        show_default=False,
    ),
]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        help="A data set (`skipbench data list`), or folder:PATH.",
        show_default=False,
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(
        "--split", help="train, val, …; default: val, or the only one.", show_default=False
    ),
]
Classes = Annotated[
    int | None,
    typer.Option(
        "--classes", help="COCO-Stuff: 171 (default) or the 27 coarse ones.", show_default=False
    ),
]
TrainImages = Annotated[
    int | None,
    typer.Option(
        "--train-images",
        min=1,
        help="A random subset of so many images, the same for the same --seed.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random.")]
SkipBad = Annotated[
    int,
    typer.Option("--skip-bad", min=0, help="Leave out up to so many files that cannot be decoded."),
]
BatchSize = Annotated[
    str, typer.Option("--batch-size", metavar="auto|N", help="Halved when memory runs out.")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Threads that decode.", show_default="by cores"),
]
StoreDtypeOption = Annotated[
    str, typer.Option("--store-dtype", metavar="fp16|fp32", help="Precision on disk.")
]
CacheLimit = Annotated[
    str,
    typer.Option(
        "--cache-limit",
        envvar="SKIPBENCH_CACHE_LIMIT",
        help="Least recently used features go beyond this.",
    ),
]
Out = Annotated[str, typer.Option("--out", help="Folder for the records.")]
Layers = Annotated[
    list[str] | None,
    typer.Option(
        "--layers",
        help="last, multiscale, last4, ibot, all, or blocks: 2,5,-1. Repeatable: several share one "
        "pass over the images.",
        show_default="last",
    ),
]
MaskedDataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        help="voc, ade20k, cocostuff, voc07, folder:PATH or shapes.",
        show_default=False,
    ),
]
Norm = Annotated[
    bool, typer.Option("--norm/--no-norm", help="The final norm applied to every block taken.")
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="At most so many images of each split.")
]
SubsetSeed = Annotated[
    int, typer.Option("--subset-seed", help="Of the random subset of training images.")
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Keep features in memory instead of on disk.")
]
Force = Annotated[bool, typer.Option("--force", help="Do it again, though it is done.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Estimate time, disk and memory from a short trial.",
        metavar=" ",
        rich_help_panel=OUTPUT,
    ),
]
Predictions = Annotated[
    int,
    typer.Option(
        "--pictures", min=0, help="Draw so many predictions beside their masks, worst and best."
    ),
]
Results = Annotated[
    list[str] | None,
    typer.Argument(help="Folders or files of records.", show_default="results"),
]
ResultsOption = Annotated[
    list[str] | None,
    typer.Option("--results", help="Folder of records; repeatable.", show_default="results"),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FACT=VALUE",
        help="Only these: evaluation, dataset, checkpoint, residual, depth, epoch, optimizer, "
        "features, protocol, seed, split; repeatable, the same fact twice means either.",
        show_default=False,
    ),
]
Select = Annotated[
    str | None,
    typer.Option(
        "--select",
        metavar="val|holdout",
        help="Figures of the learning rate (probe) or block (tokencut) chosen on the evaluated "
        "images, or on others; records of several have both.",
        show_default="as each record has it",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="A damaged or newer record is an error (exit 4).")
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="JSON on stdout, everything else on stderr.", metavar=" ",
        rich_help_panel=OUTPUT,
    ),
]  # fmt: skip
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="No progress, no notes.", metavar=" ", rich_help_panel=OUTPUT
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Details and tracebacks.", metavar=" ", rich_help_panel=OUTPUT
    ),
]


def _show_help(context: typer.Context, value: bool) -> None:
    if value:
        typer.echo(context.get_help())
        raise typer.Exit


Help = Annotated[
    bool,
    typer.Option(
        "--help", "-h", help="Show this message.", metavar=" ", is_eager=True,
        callback=_show_help, rich_help_panel=OUTPUT,
    ),
]  # fmt: skip


def inspection(ckpt: str, reading: "Callable[[], Reading]") -> "Inspection":
    """The checkpoint opened; reading: of `how_to_read`."""
    from skipbench import pipeline  # torch: only once all that is cheap to check is right

    return pipeline.inspect(ckpt, **reading())


def how_to_read(
    ckpt: str,
    residual: str,
    weights: str | None,
    heads: int | None,
    expect: list[str] | None,
    position_rule: str | None,
    device: str,
    label: list[str] | None = None,
) -> "Callable[[], Reading]":
    """The options that say which checkpoint, checked; called, what `pipeline.inspect` takes."""
    one_of("--residual", residual, *get_args(Residual), "auto")
    one_of("--weights", weights, "teacher", "student")
    one_of("--position-rule", position_rule, *get_args(PositionRule))
    facts = _expected_facts(expect, heads)
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
        one_of("--device", device, "auto", "cpu", "cuda", "cuda:N", "mps")
    told = labels(label)
    ensure_checkpoint(ckpt)

    def reading() -> "Reading":
        from skipbench.checkpoints import Expected  # torch

        return {
            "residual": residual,
            "weights": weights,
            "expected": Expected(**facts),
            "position_rule": position_rule,  # type: ignore[typeddict-item]
            "device": device,
            "labels": told,
        }

    return reading


def of_features(
    layers: list[str] | None,
    size: str,
    precision: str,
    store_dtype: str,
    batch: str,
    cache: str | None,
    cache_limit: str,
    no_cache: bool,
    out: str,
) -> dict[str, Any]:
    """The options that say which features and where they are kept, checked, as the Python calls
    have them."""
    from skipbench.features.layers import check_layers
    from skipbench.files import cache_folder, ensure_writable, parse_bytes
    from skipbench.images import parse_size

    one_of("--precision", precision, *PRECISIONS)
    one_of("--store-dtype", store_dtype, *get_args(StoreDtype))
    for text in layers or []:
        check_layers(text)
    parse_size(size)
    at_once, cache_bytes = batch_size(batch), parse_bytes(cache_limit)
    ensure_writable(Path(out))
    if not no_cache:
        ensure_writable(cache_folder(cache) / "features")
    return {
        "layers": layers or ["last"], "size": size, "precision": precision,
        "store_dtype": store_dtype, "cache": cache, "cache_limit": cache_bytes,
        "in_memory": no_cache, "batch_size": at_once, "out": out,
    }  # fmt: skip


def ensure_checkpoint(ckpt: str) -> None:
    if not ckpt.startswith("timm:") and not Path(ckpt).expanduser().exists():
        raise CheckpointError(missing_checkpoint(Path(ckpt)))


def labels(pairs: list[str] | None) -> dict[str, str | int]:
    """["epoch=200", "optimizer=AdamW"] → {"epoch": 200, "optimizer": "AdamW"}."""
    found: dict[str, str | int] = {}
    for pair in pairs or []:
        fact, _, value = pair.partition("=")
        if fact not in LABELS or not value.strip():
            near = did_you_mean(fact, LABELS) if fact not in LABELS else ""
            raise UsageError(f"--label {pair}: give {', '.join(LABELS)}, as in epoch=200.{near}")
        if fact == "epoch" and not value.strip().isdecimal():
            raise UsageError(f"--label {pair}: a whole number belongs behind the =")
        found[fact] = int(value) if fact == "epoch" else value.strip()
    return found


def batch_size(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--batch-size {text!r}: give auto or a number from 1")
    return int(text)


def _expected_facts(expect: list[str] | None, heads: int | None) -> dict[str, Any]:
    known = ("depth", "width", "patch", "heads", "sha256")
    facts: dict[str, Any] = {} if heads is None else {"heads": heads}
    for pair in expect or []:
        fact, _, value = pair.partition("=")
        if fact not in known:
            near = did_you_mean(fact, known)
            raise UsageError(f"--expect {pair}: give {', '.join(known)}, as in depth=12.{near}")
        if fact != "sha256" and not value.isdecimal():
            raise UsageError(f"--expect {pair}: a whole number belongs behind the =")
        facts[fact] = value if fact == "sha256" else int(value)
    return facts


def one_of(option: str, value: str | None, *known: str) -> None:
    if value is not None and value not in known:
        near = did_you_mean(value, known)
        raise UsageError(f"{option} {value!r}: give {', '.join(known)}.{near}")
