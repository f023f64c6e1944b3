"""PCA pictures as one call from Python, with the defaults of the command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

from skipbench.checkpoints import Expected
from skipbench.datasets import Dataset
from skipbench.errors import UsageError
from skipbench.evaluations.data import OF_DATASET, open_pictures
from skipbench.evaluations.pca.model import Asked
from skipbench.evaluations.pca.run import PcaRun
from skipbench.evaluations.pca.settings import (
    BACKGROUNDS,
    COMPONENTS,
    FITS,
    IMAGES,
    SIZE,
    UPSAMPLING,
    Background,
    Fit,
    Upsample,
    check_components,
    check_each,
    check_names,
)
from skipbench.evaluations.probe.calls import call_of, check_choices, keeping_of, reading_of
from skipbench.files import unlike
from skipbench.images import ImageItem, parse_size
from skipbench.pipeline import Inspection, inspect
from skipbench.records import PRECISIONS, TENSORS, PositionRule, Result, StoreDtype

Images = str | Path | Sequence[str | Path | ImageItem]


class PcaOptions(TypedDict, total=False):
    """As on the command line. residual: one for all checkpoints, or one for each; names: one for
    each."""

    layers: str
    feature: str
    fit: Fit
    components: int
    upsample: Upsample
    background: Background
    align: bool
    size: str | int
    split: str | None
    data_root: str | Path | None
    limit: int | None
    skip_bad: int
    precision: str
    store_dtype: StoreDtype
    cache: str | None
    cache_limit: int
    in_memory: bool
    batch_size: int | None
    workers: int | None
    out: str | Path
    residual: str | Sequence[str]
    names: str | Sequence[str]
    weights: str | None
    expected: Expected | None
    position_rule: PositionRule | None
    device: str
    labels: Mapping[str, str | int] | None


USUAL = {
    "layers": "last", "feature": "tokens_norm", "fit": "image", "components": COMPONENTS,
    "upsample": "nearest", "background": "keep", "align": True, "size": SIZE, "limit": IMAGES,
    "skip_bad": 0, "precision": "auto", "store_dtype": "fp32", "residual": "auto", "expected": {},
    "names": [],
}  # fmt: skip


def pca(
    ckpts: str | Path | Sequence[str | Path], images: Images, **options: Unpack[PcaOptions]
) -> list[Result]:
    """`skipbench pca`: pictures of the first components into `out`; a record for each checkpoint.

    images: files, folders, or "dataset:NAME"; options: those of `skipbench pca --help` without the
    dashes (layers, fit, background, …), and in_memory for --no-cache.
    """
    return open_pca(ckpts, images, **options).run()


def open_pca(
    ckpts: str | Path | Sequence[str | Path],
    images: Images,
    *,
    data: Dataset | None = None,
    inspections: Sequence[Inspection] | None = None,
    apart: bool = False,
    **options: Unpack[PcaOptions],
) -> PcaRun:
    """All of `pca` but the work itself. data: the images, if they are open already; inspections:
    the checkpoints, if they are; apart: pictures go into a folder named as the record."""
    if unknown := set(options) - set(PcaOptions.__annotations__):
        raise TypeError(f"pca has no option {sorted(unknown)[0]!r}")
    asked = asked_of(options)
    paths = [ckpts] if isinstance(ckpts, str | Path) else list(ckpts)
    sources = [images] if isinstance(images, str | Path) else list(images)
    readings = readings_of(len(paths), options)
    data = data or open_pictures(
        sources,
        split=options.get("split"),
        root=options.get("data_root"),
        limit=options.get("limit", IMAGES),
        skip_bad=options.get("skip_bad", 0),
    )
    opened = inspections or [
        inspect(path, **reading) for path, reading in zip(paths, readings, strict=True)
    ]
    calls = [
        _call(path, sources, options, reading)
        for path, reading in zip(paths, readings, strict=True)
    ]
    return PcaRun(opened, data, asked, _titles(paths, opened, options), calls, apart)


def readings_of(count: int, options: Mapping[str, Any]) -> list[Any]:
    """How each of so many checkpoints is read."""
    if not count:
        raise UsageError("no checkpoint: give --ckpt")
    names = names_of(options)
    residual = options.get("residual", "auto")
    variants = [residual] if isinstance(residual, str) else list(residual)
    check_each("--residual", variants, count, one_for_all=True)
    if names:
        check_names(names, count)
    shared: dict[str, Any] = {k: v for k, v in reading_of(options).items() if k != "residual"}
    if isinstance(shared.get("expected"), Mapping):  # as a record has it
        shared["expected"] = Expected(**shared["expected"])
    found = []
    for number in range(count):
        labels = dict(options.get("labels") or {})
        labels |= {"name": names[number]} if names else {}
        variant = variants[min(number, len(variants) - 1)]
        found.append({**shared, "residual": variant, "labels": labels})
    return found


def names_of(options: Mapping[str, Any]) -> list[str]:
    """One checkpoint's may be a plain word."""
    given = options.get("names") or []
    return [given] if isinstance(given, str) else list(given)


def _titles(
    paths: Sequence[str | Path], opened: Sequence[Inspection], options: Mapping[str, Any]
) -> list[str]:
    """What stands above the pictures: what the user calls it, or the file's name and the variant;
    with its folder, where that would be the same for two."""
    if names := names_of(options):
        return names
    variants = [one.choice.residual if one.choice else "" for one in opened]
    files = [one.checkpoint.facts.name for one in opened]
    plain = list(zip(files, variants, strict=True))
    titles = []
    for path, (file, variant) in zip(paths, plain, strict=True):
        alike = plain.count((file, variant)) > 1
        folder = f"{Path(path).resolve().parent.name}/" if alike else ""
        titles.append(f"{folder}{file} ({variant})")
    return unlike(titles, form="{} ({})")


def _call(
    path: str | Path,
    sources: Sequence[str | Path | ImageItem],
    options: Mapping[str, Any],
    reading: Mapping[str, Any],
) -> dict[str, Any]:
    """As it was asked for, from any folder; of this checkpoint alone."""
    name = reading["labels"].get("name")
    own = {"residual": reading["residual"], "names": [name] if options.get("names") else []}
    call = call_of(path, "", {**options, **own}, USUAL)
    del call["dataset"]
    if options.get("limit", IMAGES) is None:  # all of them, which is not usual
        call["limit"] = None
    listed = [source.path if isinstance(source, ImageItem) else source for source in sources]
    words = [
        str(one) if str(one).startswith(OF_DATASET) else str(Path(one).expanduser().absolute())
        for one in listed
    ]
    return {**call, "images": words}


def asked_of(options: Mapping[str, Any]) -> Asked:
    asked = Asked(
        layers=options.get("layers", "last"),
        feature=options.get("feature", "tokens_norm"),
        fit=options.get("fit", "image"),
        components=options.get("components", COMPONENTS),
        upsample=options.get("upsample", "nearest"),
        background=options.get("background", "keep"),
        align=options.get("align", True),
        size=str(options.get("size", SIZE)),
        precision=options.get("precision", "auto"),
        store_dtype=options.get("store_dtype", "fp32"),
        keeping=keeping_of(options),
        out=Path(options.get("out", "pca")),
    )
    check_choices(
        ("feature", asked.feature, TENSORS),
        ("fit", asked.fit, FITS),
        ("upsample", asked.upsample, UPSAMPLING),
        ("background", asked.background, BACKGROUNDS),
        ("precision", asked.precision, PRECISIONS),
        ("store-dtype", asked.store_dtype, get_args(StoreDtype)),
    )
    check_components(asked.components)
    parse_size(asked.size)
    return asked
