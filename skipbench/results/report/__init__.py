"""`skipbench report`: records as one page that needs no other file.

records → scores, comparisons, tables, curves, classes, pictures, provenance → page.html, jinja2

Text from files stays text: jinja2 escapes it, invisible and direction-changing characters are
written out, and the page's policy lets only its own script run.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from skipbench import __version__
from skipbench.errors import UsageError
from skipbench.files import ensure_writable, user_path, write_whole
from skipbench.results.entries import Entry, entries
from skipbench.results.read import Source, Stored, listed, sift
from skipbench.results.report.charts import environment
from skipbench.results.report.comparisons import by_class, comparisons, score_table
from skipbench.results.report.curves import over_blocks, over_epochs, over_rates
from skipbench.results.report.models import looks_of, told_apart
from skipbench.results.report.pictures import picture_groups
from skipbench.results.report.records import anchors_of, page_records
from skipbench.results.scores import Score, only, parse_where
from skipbench.results.tables import Table, tables
from skipbench.results.tables.layouts import LAYOUTS, Layout
from skipbench.results.tables.render import brackets
from skipbench.results.words import dataset_name, in_order, short

MOST_BY_PROTOCOL = 6  # tables of one layout; beyond, `plain` shows them better
MANY_ROWS = 30  # more are folded away
COPIES = (("latex", "LaTeX"), ("csv", "CSV"), ("md", "Markdown"))

# Characters that do not show, or that change the direction of what follows; half of a pair.
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
    """One page of all records in folders and files; returns its path.

    where: "dataset=voc" and so on; strict: a damaged or newer record is an error.
    """
    path = user_path(out)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give a file, such as report.html")
    ensure_writable(path.parent)
    records, left_out = read_records(results, where, strict)
    write_whole(path, page(records, title or default_title(records), left_out).encode())
    return path


def read_records(
    results: Source | Iterable[Source], where: Iterable[str], strict: bool
) -> tuple[list[Stored], list[str]]:
    """The records, and what could not be read."""
    wanted, given = parse_where(where), listed(results)
    found, wrong = sift(given, strict=strict)
    # Others may see the page: it does not tell them the names of folders.
    left_out = [str(error).replace(str(path), path.name) for path, error in wrong.items()]
    if records := only(found, wanted):
        return records, left_out
    if found:
        raise UsageError("no records match --where")
    places = ", ".join(str(source) for source in given if isinstance(source, str | Path))
    damaged = f" ({len(left_out)} could not be read)" if left_out else ""
    place = f"in {places}" if places else "to show"
    raise UsageError(f"no records {place}{damaged}: give a folder with results of an evaluation")


def default_title(records: Sequence[Stored]) -> str:
    """ "Evaluation of 7 models on VOC2012, ADE20K" """
    scores = [Score(stored) for stored in records]
    models = {(one.sha256, one.facts["residual"]): one.facts["checkpoint"] for one in scores}
    facts = sorted((one.facts for one in scores), key=lambda one: in_order(one, ["dataset"]))
    data = dict.fromkeys(dataset_name(one["dataset"]) for one in facts)
    who = short(*models.values()) if len(models) == 1 else f"{len(models)} models"
    where = ", ".join(map(short, data)) if len(data) <= 3 else f"{len(data)} data sets"
    return f"Evaluation of {who} on {where}"


def page(records: Sequence[Stored], title: str, left_out: Sequence[str] = ()) -> str:
    """left_out: what could not be read, one line each."""
    template = environment().get_template("page.html")
    text = template.render(_parts(records, left_out), title=title, **_style_and_script())
    return UNSEEN.sub(lambda found: ascii(found.group())[1:-1], text)


def _style_and_script() -> dict[str, Any]:
    """And the policy that allows just these two."""
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


def _parts(given: Sequence[Stored], left_out: Sequence[str]) -> dict[str, Any]:
    records = told_apart(given)
    found = entries(records)
    looks = looks_of(records)
    compared = comparisons(found, looks)
    pictures, unreadable = picture_groups(records, looks)
    evaluations = {entry.first.evaluation.name: entry.first.evaluation for entry in found}
    curves = (over_epochs(found), over_blocks(found, looks), over_rates(found, looks))
    scores = score_table(compared)
    return {
        "about": _about([Score(stored) for stored in records]),
        "left_out": [*left_out, *unreadable],
        "scores": _shown(scores, "table-scores", "Scores") if scores else None,
        "looks": {(p.name, p.look.variant): p.look for one in compared for p in one.scored},
        "comparisons": [one for one in compared if len(one.peers) > 1],
        "tables": page_tables(found),
        "curves": [section for section in curves if section["charts"]],
        "classes": by_class(compared),
        "pictures": pictures,
        "glossary": [term for one in evaluations.values() for term in one.glossary.items()],
        "records": page_records(records, found),
        "anchors": anchors_of(records),
        "version": __version__,
    }


def _about(scores: Sequence[Score]) -> list[tuple[str, str]]:
    """The head of the page."""
    results = [score.result for score in scores]
    by_kind = sorted(scores, key=lambda s: in_order(s.facts, ("evaluation", "method")))
    kinds = Counter(score.title for score in by_kind)
    places = sorted((s.facts for s in scores), key=lambda f: in_order(f, ("dataset", "split")))
    data = dict.fromkeys(f"{dataset_name(f['dataset'])} ({f['split']})" for f in places)
    models = {(r.checkpoint["sha256"], r.checkpoint["residual"]) for r in results}
    variants = Counter(str(variant) for _, variant in models)
    days = sorted(str(r.timing["finished"])[:10] for r in results if r.timing.get("finished"))
    made_by = sorted({str(r.environment.get("skipbench", "an unknown version")) for r in results})
    return [
        ("Records", ", ".join(f"{kind} ({count:,})" for kind, count in kinds.items())),
        ("Data sets", _some(data)),
        ("Checkpoints", ", ".join(f"{count} {word}" for word, count in sorted(variants.items()))),
        ("Dates", " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not recorded"),
        ("Version", "skipbench " + _some(made_by)),
    ]


def _some(names: Iterable[str], most: int = 12) -> str:
    listed = [short(name) for name in names]
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


# -- tables: all models, the paper's layouts where the records are the paper's, and all scores


def page_tables(found: Sequence[Entry]) -> list[dict[str, Any]]:
    made = [(layout.label, one) for layout in LAYOUTS.values() for one in _of_paper(found, layout)]
    stored = [one for entry in found for one in entry.stored]
    made += [("All scores", one) for one in tables(stored, layout="plain")] if stored else []
    return [_shown(one, f"table-{i}", name) for i, (name, one) in enumerate(made)]


def _of_paper(found: Sequence[Entry], layout: Layout) -> list[Table]:
    """Empty if the records do not fit: `plain` has them all. One score alone is no table."""
    stored = [one for e in found if _is_in_paper(e.facts, layout) for one in e.stored]
    for by in (None, "protocol"):
        try:
            made = tables(stored, layout=layout.name, by=by, compact=True) if stored else []
        except UsageError:  # several protocols, or several records for one cell
            continue
        return [t for t in made if len(t.entries) > 1] if len(made) <= MOST_BY_PROTOCOL else []
    return []


def _is_in_paper(facts: Mapping[str, Any], layout: Layout) -> bool:
    """A row, a column, and what is on no axis."""
    row, column = layout.place(facts)
    if facts["evaluation"] != layout.evaluation:
        return False
    if row not in layout.paper_rows or column not in layout.paper_columns:
        return False
    return all(facts[fact] == layout.usual_at(row, fact) for fact in layout.usual)


def _shown(made: Table, anchor: str, name: str) -> dict[str, Any]:
    ci = any(entry.interval or entry.spread is not None for entry in made.entries)
    made = replace(made, ci=ci)
    copies = [(f"{anchor}-{kind}", title, made.text(kind, fragment=True)) for kind, title in COPIES]
    if made.layout == "plain":  # all its columns are measures
        made = replace(made, columns=tuple(path[-1:] for path in made.columns))
    return {
        "name": name,
        "table": made,
        "notes": brackets(made),
        "copies": copies,
        "folded": len(made.rows) > MANY_ROWS,
    }
