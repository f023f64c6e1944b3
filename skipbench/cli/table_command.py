"""`skipbench table`: records as a table."""

from dataclasses import dataclass
from pathlib import Path

import typer

from skipbench.cli.generated import add_command
from skipbench.console import echo, wide_page
from skipbench.errors import UsageError
from skipbench.settings import parsers, setting
from skipbench.settings.declaration import OUTPUT, RECORDS
from skipbench.settings.groups import ResultsSettings, SelectSettings

FORMATS = {".md": "md", ".tex": "latex", ".csv": "csv", ".json": "json", ".txt": "rich", "": "rich"}


@dataclass(frozen=True, kw_only=True)
class TableSettings(ResultsSettings, SelectSettings):
    layout: str = setting(
        "plain", help="table2, table3, table4 or figure3 of the paper; plain: all records, with "
        "the facts that differ.", parse=parsers.text, panel=RECORDS, metavar="NAME",
    )  # fmt: skip
    by: str | None = setting(
        None, help="One table for each protocol, evaluation, dataset, …", parse=parsers.text,
        panel=RECORDS, metavar="FACT",
    )  # fmt: skip
    ci: bool = setting(False, help="Show 95 % intervals and deviations over seeds.", panel=OUTPUT)
    paper: bool = setting(
        False, help="Show the published numbers and the difference from them.", panel=OUTPUT
    )
    compact: bool = setting(False, help="Leave out empty rows and columns.", panel=OUTPUT)
    format: str | None = setting(
        None, help="rich, md, latex, csv or json.",
        parse=parsers.choice("rich", "md", "latex", "csv", "json"), panel=OUTPUT, metavar="FORMAT",
        default_text="from --out, else rich",
    )  # fmt: skip
    fragment: bool = setting(False, help="LaTeX: only the table, for \\input.", panel=OUTPUT)
    out: Path | None = setting(
        None, help="Write to a file.", parse=parsers.path, panel=OUTPUT, metavar="FILE",
        flags=("--out", "-o", "--output"),
    )  # fmt: skip

    @property
    def chosen_format(self) -> str:
        suffix = self.out.suffix.lower() if self.out else ""
        return self.format or FORMATS[suffix]

    def check(self) -> None:
        super().check()
        suffix = self.out.suffix.lower() if self.out else ""
        if self.format is None and suffix not in FORMATS:
            raise UsageError(f"--out {self.out}: unknown format {suffix}; give --format")
        if self.paper and self.layout == "plain":
            raise UsageError("--paper needs one of the paper's tables: --layout table2, table3, …")
        if self.fragment and self.chosen_format != "latex":
            raise UsageError("--fragment needs --format latex")


def add_to(app: typer.Typer) -> None:
    add_command(app, "table", TableSettings, table, flags=())


def table(settings: TableSettings) -> None:
    """Print records as a table, in one of the paper's layouts or with every setting that differs.

    The best of each group is bold. A score of a partial run, of another protocol, or chosen with
    knowledge of the answer has a footnote.
    """
    from skipbench.results.tables import tables

    made = tables(
        settings.results, layout=settings.layout, where=settings.where, by=settings.by,
        ci=settings.ci, paper=settings.paper, compact=settings.compact, select=settings.select,
        strict=settings.strict,
    )  # fmt: skip
    format = settings.chosen_format

    from skipbench.results.tables.render import render, show

    if settings.out:
        from skipbench.files import ensure_writable, write_whole

        text = render(made, format, fragment=settings.fragment)
        ensure_writable(settings.out.parent)
        write_whole(settings.out, text.encode("utf-8", "backslashreplace"))
        echo(f"written: {settings.out}", err=True)
    elif format == "rich":
        for i, one in enumerate(made):
            if i:
                echo()
            show(one, wide_page())
    else:
        echo(render(made, format, fragment=settings.fragment), nl=False)
