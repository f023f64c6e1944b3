"""`skipbench results list|show|export`: the records of a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.cli.commands import add_group, command
from skipbench.console import echo, echo_json, page, plain_table, shown, wide_page
from skipbench.errors import count_of, printable
from skipbench.settings import OUTPUT, RECORDS, Settings, parsers, same_as, setting
from skipbench.settings.groups import ResultsSettings

if TYPE_CHECKING:
    from skipbench.results.read import Stored


@dataclass(frozen=True, kw_only=True)
class ShowSettings(Settings):
    id: str = setting(
        help="Record id, its beginning, or a file.", parse=parsers.text, panel=RECORDS,
        metavar="ID", argument=True,
    )  # fmt: skip
    results: tuple[str, ...] = same_as(
        ResultsSettings, "results", ("results",), help="Folder of records. Repeatable.",
        metavar="DIR", argument=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExportSettings(ResultsSettings):
    file: Path = setting(
        help="File to write: .parquet, .csv or .jsonl.", parse=parsers.path, panel=OUTPUT,
        metavar="FILE", argument=True,
    )  # fmt: skip
    results: tuple[str, ...] = same_as(
        ShowSettings, "results", ("results",), help="Folder or file of records. Repeatable."
    )


results = add_group("results", help="List records, show one, or export them.")


@command("list", ResultsSettings, group=results)
def list_(settings: ResultsSettings, as_json: bool) -> None:
    """List records, newest last."""
    from skipbench.results.read import read_results
    from skipbench.results.scores import only, parse_where

    stored = read_results(settings.results, strict=settings.strict)
    found = only(stored, parse_where(settings.where))
    found.sort(key=lambda one: str(one.result.timing.get("finished")))
    if as_json:
        echo_json([_plain(one) for one in found])
    elif not found:
        echo("no records")
    else:
        _print(found)


def _plain(one: "Stored") -> dict[str, Any]:
    from skipbench.results.scores import Score

    score = Score(one)
    return {
        "id": one.result.id,
        "file": str(one.path),
        **score.facts,
        "metric": score.metric if score.known else None,
        "value": score.value if score.known else None,
        "interval": score.interval,
        "finished": one.result.timing.get("finished"),
    }


def _print(found: "list[Stored]") -> None:
    from skipbench.results.scores import Score
    from skipbench.results.words import DASH, score_text

    columns = ("id", "checkpoint", "variant", "data set", "features", "figure", "finished")
    table = plain_table(*columns, right=["figure"])
    for one in found:
        score = Score(one)
        facts, method = score.facts, score.facts["method"]
        usual = method in (None, score.evaluation.named_by.get("method"))
        number = score_text(score.value, score.interval) if score.known else ""
        cells = (
            one.result.id,
            facts["checkpoint"],
            facts["residual"],
            f"{facts['dataset']} {facts['split']}" + (", partial" if score.partial else ""),
            facts["features"] + ("" if usual else f", {method}"),
            f"{score.metric_name} {number}" if number else DASH,
            str(one.result.timing.get("finished") or "")[:16].replace("T", " "),
        )
        table.add_row(*map(shown, cells))
    wide_page().print(table)


@command("export", ExportSettings, group=results, flags=())
def export(settings: ExportSettings) -> None:
    """Write one row per record: the score, the checkpoint, and the settings.

    Parquet needs the extra `parquet`.
    """
    from skipbench.results.export import export as write

    count = write(
        settings.results, settings.file, where=settings.where, strict=settings.strict
    )  # fmt: skip
    echo(f"{settings.file}  {count_of(count, 'record')}")


@command("show", ShowSettings, group=results)
def show(settings: ShowSettings, as_json: bool) -> None:
    """Show everything in a record: the score, and how it was made."""
    from skipbench.results.pick import pick_one

    found = pick_one(settings.id, settings.results)
    record = found.result.to_json()
    if as_json:
        echo_json(record)
        return
    for part in ("dataset", "training"):
        for key in ("names", "bad", "empty"):
            if record[part] and record[part].get(key):
                record[part][key] = f"{len(record[part][key]):,}, listed in {found.path}"
    if record["protocol"].get("held_out"):
        record["protocol"]["held_out"] = f"{len(record['protocol']['held_out']):,} training images"
    console = page(highlight=False, soft_wrap=True)
    for line in _lines(record):
        console.print(printable(line), markup=False)


def _lines(value: Any, indent: str = "") -> list[str]:
    """The record as an indented list, short lists on one line."""
    from skipbench.results.words import prose

    lines = []
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            lines += [f"{indent}{key}", *_lines(entry, indent + "  ")]
        elif isinstance(entry, list) and any(isinstance(one, dict) for one in entry):
            lines.append(f"{indent}{key}")
            lines += [f"{indent}  {prose(one)}" for one in entry]
        else:
            lines.append(f"{indent}{key}: {prose(entry)}")
    return lines
