"""Object discovery as one call each from Python, with the defaults of the command line."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from skipbench.datasets import Dataset, decodable
from skipbench.evaluations.data import open_objects
from skipbench.evaluations.probe.calls import (
    call_of,
    check_choices,
    check_names,
    keeping_of,
    reading_of,
)
from skipbench.evaluations.tokencut.run import Asked, Discovery, Finder
from skipbench.evaluations.tokencut.settings import (
    EPS,
    METHODS,
    SCORES,
    TAU,
    Method,
    Score,
    check_cut,
)
from skipbench.images import ImageItem, find_images, parse_size
from skipbench.pipeline import Inspection, Reading, inspect
from skipbench.records import PRECISIONS, TENSORS, Result


class TokencutOptions(Reading, total=False):
    """As on the command line; those of `Reading` say how the checkpoint is read."""

    layers: str | int | Sequence[int]
    feature: str
    method: Method
    tau: float
    eps: float
    size: str | int | None
    score: Score | None
    hard: bool
    select: Literal["val", "holdout"]
    split: str | None
    data_root: str | Path | None
    limit: int | None
    skip_bad: int
    precision: str
    cache: str | None
    in_memory: bool
    batch_size: int | None
    workers: int | None
    out: str | Path
    force: bool
    pictures: int


USUAL = {
    "layers": "last", "feature": "keys", "method": "tokencut", "tau": TAU, "eps": EPS,
    "size": "native", "hard": True, "select": "val", "skip_bad": 0, "precision": "auto",
    "residual": "auto", "expected": {},
}  # fmt: skip


def tokencut(ckpt: str | Path, dataset: str, **options: Unpack[TokencutOptions]) -> Result:
    """`skipbench tokencut`: object discovery, its record written and returned.

    options: those of `skipbench tokencut --help` without the dashes (layers, feature, tau, method,
    …), and in_memory for --no-cache.
    """
    return open_tokencut(ckpt, dataset, **options).run()


def open_tokencut(
    ckpt: str | Path,
    dataset: str,
    *,
    data: Dataset | None = None,
    inspection: Inspection | None = None,
    **options: Unpack[TokencutOptions],
) -> Discovery:
    """All of `tokencut` but the work itself. data: the images, if they are open already;
    inspection: the checkpoint, if it is."""
    data = data or open_objects(
        dataset,
        split=options.get("split"),
        score=options.get("score"),
        hard=options.get("hard", True),
        root=options.get("data_root"),
        limit=options.get("limit"),
        skip_bad=options.get("skip_bad", 0),
    )
    asked = asked_of(
        options, score="boxes" if data.kind == "boxes" else "masks",
        call=call_of(ckpt, dataset, options, USUAL),
    )  # fmt: skip
    return Discovery(inspection or inspect(ckpt, **reading_of(options)), data, asked)


def asked_of(options: Mapping[str, Any], **more: object) -> Asked:
    check_names(options, TokencutOptions, "tokencut")
    asked = Asked(
        layers=_layers(options.get("layers", "last")),
        feature=options.get("feature", "keys"),
        method=options.get("method", "tokencut"),
        tau=float(options.get("tau", TAU)),
        eps=float(options.get("eps", EPS)),
        size=str(options.get("size") or "native"),
        hard=options.get("hard", True),
        select=options.get("select", "val"),
        precision=options.get("precision", "auto"),
        keeping=keeping_of(options),
        out=Path(options.get("out", "results")),
        force=options.get("force", False),
        pictures=options.get("pictures", 0),
        **more,  # type: ignore[arg-type]
    )
    check(asked)
    return asked


def _layers(given: str | int | Iterable[int]) -> str:
    """ "9,10", 9 or [9, 10]."""
    if isinstance(given, str | int):
        return str(given)
    return ",".join(map(str, given))


def check(asked: Asked) -> None:
    """What can be said before anything is opened."""
    check_choices(
        ("method", asked.method, METHODS),
        ("feature", asked.feature, TENSORS),
        ("score", asked.score, SCORES),
        ("select", asked.select, ("val", "holdout")),
        ("precision", asked.precision, PRECISIONS),
    )
    check_cut(asked.tau, asked.eps)
    parse_size(asked.size)


def find_objects(
    ckpt: str | Path,
    images: str | Path | Iterable[str | Path | ImageItem],
    **options: Unpack[TokencutOptions],
) -> Path:
    """`skipbench tokencut --images`: box, mask and eigenvector drawn over pictures, into `out`."""
    from skipbench.evaluations.pictures import keep_originals
    from skipbench.evaluations.tokencut.pictures import draw_pictures

    asked = asked_of({"out": "found", **options})
    found = find_images([images] if isinstance(images, str | Path) else images)
    pictures: Sequence[ImageItem] = found[: options.get("limit")]
    keep_originals(pictures, [asked.out])
    if skip_bad := options.get("skip_bad"):
        pictures = decodable(pictures, skip_bad, "these pictures")
    return draw_pictures(Finder(inspect(ckpt, **reading_of(options)), asked), pictures)
