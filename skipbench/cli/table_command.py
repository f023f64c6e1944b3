"""`skipbench table`: records as a table."""

from typing import Annotated

import typer

from skipbench.cli import options
from skipbench.cli.running import with_exit_codes
from skipbench.console import wide_page

SUFFIXES = {".md": "md", ".tex": "latex", ".csv": "csv", ".json": "json"}


def add_to(app: typer.Typer) -> None:
    app.command("table")(with_exit_codes(table))


def table(
    results: options.Results = None,
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            metavar="table2|table3|table4|figure3|plain",
            help="One of the paper's tables, or all records with the facts that differ.",
        ),
    ] = "plain",
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="rich|md|latex|csv|json",
            help="Output format.",
            show_default="from --out, else rich",
        ),
    ] = None,
    ci: Annotated[
        bool, typer.Option("--ci", help="Show 95 % intervals and deviations over seeds.")
    ] = False,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Show the published numbers and the difference to them."),
    ] = False,
    where: options.Where = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="FACT",
            help="One table for each protocol, evaluation, dataset, …",
            show_default=False,
        ),
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Leave out empty rows and columns.")
    ] = False,
    fragment: Annotated[
        bool, typer.Option("--fragment", help="LaTeX: only the table, for \\input.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", "--output", help="Write to a file.", metavar="FILE", show_default=False
        ),
    ] = None,
    select: options.Select = None,
    strict: options.Strict = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Print records as a table, in one of the paper's layouts or with all that differs.

    The best of each group is bold. A score of a partial run, of another protocol, or chosen with
    knowledge of the answer has a footnote.
    """
    from pathlib import Path

    from skipbench.errors import UsageError
    from skipbench.results.tables import FORMATS, tables

    options.one_of("--format", format, *FORMATS)
    options.one_of("--select", select, "val", "holdout")
    suffix = Path(output or "").suffix.lower()
    if format is None and suffix not in (*SUFFIXES, "", ".txt"):
        raise UsageError(f"{output}: unknown format {suffix}; give --format")
    if paper and layout == "plain":
        raise UsageError("--paper needs one of the paper's tables: --layout table2, table3, …")
    format = format or SUFFIXES.get(suffix, "rich")
    if fragment and format != "latex":
        raise UsageError("--fragment needs --format latex")
    made = tables(
        results or ["results"], layout=layout, where=where or (), by=by, ci=ci, paper=paper,
        compact=compact, select=select, strict=strict,
    )  # fmt: skip

    from skipbench.results.tables.render import render, show

    if output:
        from skipbench.files import ensure_writable, write_whole

        text = render(made, format, fragment=fragment)
        ensure_writable(Path(output).parent)
        write_whole(Path(output), text.encode("utf-8", "backslashreplace"))
        typer.echo(f"written: {output}", err=True)
    elif format == "rich":
        for i, one in enumerate(made):
            if i:
                typer.echo()
            show(one, wide_page())
    else:
        typer.echo(render(made, format, fragment=fragment), nl=False)
