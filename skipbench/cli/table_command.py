"""`skipbench table`: records as a table. `skipbench report`: records as one HTML page."""

from dataclasses import dataclass
from pathlib import Path

from skipbench.cli.commands import command
from skipbench.console import echo, open_in_browser, wide_page
from skipbench.errors import UsageError
from skipbench.files import ensure_writable, size_text, write_whole
from skipbench.settings import OUTPUT, RECORDS, parsers, same_as, setting
from skipbench.settings.groups import ResultsSettings, SelectSettings

FORMATS = {
    ".md": "md", ".tex": "latex", ".csv": "csv", ".json": "json", ".txt": "rich", "": "rich",
    ".yaml": "model-index", ".yml": "model-index",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TableSettings(ResultsSettings, SelectSettings):
    layout: str = setting(
        "plain", help="table2, table3, table4 or figure3 of the paper; plain: all records, with "
        "the facts that differ.", parse=parsers.text, panel=RECORDS, metavar="NAME",
    )  # fmt: skip
    by: str | None = setting(
        None, help="One table per protocol, evaluation, dataset, …", parse=parsers.text,
        panel=RECORDS, metavar="FACT",
    )  # fmt: skip
    ci: bool = setting(False, help="Show 95 % intervals and deviations over seeds.", panel=OUTPUT)
    paper: bool = setting(
        False, help="Show the published numbers and the difference from them.", panel=OUTPUT
    )
    compact: bool = setting(False, help="Leave out empty rows and columns.", panel=OUTPUT)
    format: str | None = setting(
        None, help="rich, md, latex, csv, json, or model-index for a Hugging Face model card.",
        parse=parsers.choice("rich", "md", "latex", "csv", "json", "model-index"), panel=OUTPUT,
        metavar="FORMAT", default_text="from --out, else rich",
    )  # fmt: skip
    fragment: bool = setting(False, help="LaTeX: only the table, for \\input.", panel=OUTPUT)
    out: Path | None = setting(
        None, help="Write to a file.", parse=parsers.path, panel=OUTPUT, metavar="FILE",
        flags=("--out", "-o", "--output"),
    )  # fmt: skip

    @property
    def suffix(self) -> str:
        return self.out.suffix.lower() if self.out else ""

    @property
    def chosen_format(self) -> str:
        return self.format or FORMATS[self.suffix]

    def check(self) -> None:
        super().check()
        if self.format is None and self.suffix not in FORMATS:
            raise UsageError(f"--out {self.out}: unknown format {self.suffix}; give --format")
        if self.paper and self.layout == "plain":
            raise UsageError("--paper needs one of the paper's tables: --layout table2, table3, …")
        if self.fragment and self.chosen_format != "latex":
            raise UsageError("--fragment needs --format latex")


@command("table", TableSettings, flags=())
def table(settings: TableSettings) -> None:
    """Print records as a table, in one of the paper's layouts or with every setting that differs.

    The best of each group is bold. Footnotes mark scores of partial runs, of other protocols, or
    selected on the images that they are computed on.
    """
    from skipbench.results.tables import tables
    from skipbench.results.tables.render import render, show

    made = tables(
        settings.results, layout=settings.layout, where=settings.where, by=settings.by,
        ci=settings.ci, paper=settings.paper, compact=settings.compact, select=settings.select,
        strict=settings.strict,
    )  # fmt: skip
    if settings.chosen_format == "rich" and not settings.out:
        for i, one in enumerate(made):
            if i:
                echo()
            show(one, wide_page())
        return
    text = render(made, settings.chosen_format, fragment=settings.fragment)
    if settings.out:
        ensure_writable(settings.out.parent)
        write_whole(settings.out, text.encode("utf-8", "backslashreplace"))
        echo(f"written: {settings.out}", err=True)
    else:
        echo(text, nl=False)


@dataclass(frozen=True, kw_only=True)
class ReportSettings(ResultsSettings):
    out: Path = same_as(TableSettings, "out", Path("report.html"), help="File to write.")
    title: str | None = setting(
        None, help="Title of the page.", parse=parsers.text, panel=OUTPUT, metavar="TEXT"
    )
    open: bool = setting(False, help="Open it in a browser.", panel=OUTPUT)


@command("report", ReportSettings, flags=(), resumable=False)
def report(settings: ReportSettings) -> None:
    """Write a self-contained HTML page: tables, curves, classes, pictures, provenance.

    It needs no network and no other files.
    """
    from skipbench.results.report import report as make

    path = make(
        settings.results, settings.out, title=settings.title, where=settings.where,
        strict=settings.strict,
    )  # fmt: skip
    echo(f"{path}  {size_text(path.stat().st_size)}")
    if settings.open:
        open_in_browser(path)
