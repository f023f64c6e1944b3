"""`skipbench report`: all that records tell, on one page that needs nothing else.

records → summary, tables, curves, classes, pictures, provenance → page.html with jinja2

Everything from files is text: jinja2 escapes it, signs that would not show or would turn the line
around are written out, and the page's policy lets nothing run but its own script.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from skipbench import __version__
from skipbench.errors import UsageError
from skipbench.files import ensure_writable, user_path, write_whole
from skipbench.results.read import Source, Stored
from skipbench.results.report.curves import over_blocks, over_epochs, over_rates
from skipbench.results.report.pictures import album
from skipbench.results.report.records import anchors_of, page_records
from skipbench.results.report.summary import by_class, summary
from skipbench.results.report.tables import page_tables
from skipbench.results.report.variants import (
    Shown,
    dataset_name,
    gather,
    in_order,
    kind_name,
    rivals,
)
from skipbench.results.scores import Score

TITLE = "Skip and skipless vision transformers"
LONG_NAME = 60  # signs; longer ones are cut in the middle, and whole where the record is told

# Signs that do not show, or that change the direction of what follows; half of a pair.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)


def report(
    results: Source | Iterable[Source] = "results",
    out: str | Path = "report.html",
    *,
    title: str | None = None,
    where: Iterable[str] = (),
    strict: bool = False,
) -> Path:
    """One page of all records in folders and files; returns where it is.

    where: "dataset=voc" and so on; strict: a damaged or newer record is an error.
    """
    path = user_path(out)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give the page a name in it, as in report.html")
    ensure_writable(path.parent)
    shown = gather(results, where, strict)
    write_whole(path, page(shown, title or TITLE).encode())
    return path


def page(shown: Shown, title: str) -> str:
    import jinja2

    own = jinja2.PackageLoader("skipbench.results.report", "page")
    made = jinja2.Environment(
        loader=own, autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    made.filters["short"] = short
    text = made.get_template("page.html").render(_content(shown), title=title, **_own_parts())
    return UNSEEN.sub(lambda found: _written_out(found.group()), text)


def _written_out(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def short(name: object, most: int = LONG_NAME) -> str:
    text = str(name)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def _own_parts() -> dict[str, Any]:
    """Style and script of the page, and the policy that lets just these two be."""
    from markupsafe import Markup

    folder = files("skipbench.results.report") / "page"
    css, js = ((folder / name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(css)}'; script-src '{_hash(js)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"css": Markup(css), "js": Markup(js), "policy": policy}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _content(shown: Shown) -> dict[str, Any]:
    found = shown.entries
    pairs = rivals(found)
    pictures = album(shown.records)
    return {
        "about": _about(shown.records),
        "left_out": [*shown.left_out, *pictures.left_out],
        "summary": summary(pairs),
        "tables": page_tables(found),
        "curves": [
            ("Over epochs", over_epochs(found)),
            ("Over blocks", over_blocks(found)),
            ("Over learning rates", over_rates(pairs)),
        ],
        "classes": by_class(pairs),
        "pictures": pictures.groups,
        "coherent": any(e.first.metric == "coherence" for e in found),
        "records": page_records(shown.records, found),
        "anchors": anchors_of(shown.records),
        "version": __version__,
    }


def _about(records: Sequence[Stored]) -> list[tuple[str, str]]:
    """What it is a page of, in a few lines."""
    results = [stored.result for stored in records]
    kinds = Counter(kind_name(Score(stored).facts) for stored in records)
    splits = {(r.dataset["name"], str(r.dataset["split"])) for r in results}
    data = [
        f"{dataset_name(name)} ({split})"
        for name, split in sorted(splits, key=lambda pair: (in_order(pair[0], "dataset"), pair[1]))
    ]
    variants = Counter(
        str(variant)
        for _, variant in {(r.checkpoint["sha256"], r.checkpoint["residual"]) for r in results}
    )
    days = sorted(str(r.timing["finished"])[:10] for r in results if r.timing.get("finished"))
    made_by = sorted({str(r.environment.get("skipbench", "an unknown version")) for r in results})
    return [
        ("Records", ", ".join(f"{count:,} of {kind}" for kind, count in kinds.items())),
        ("Data sets", _some(data)),
        ("Checkpoints", ", ".join(f"{count} {word}" for word, count in sorted(variants.items()))),
        ("Made", " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not said"),
        ("With", "skipbench " + _some(made_by)),
    ]


def _some(names: Iterable[str], most: int = 12) -> str:
    listed = [short(name) for name in names]
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")
