"""`skipbench manual [TOPIC]`: the pages of skipbench/manual in the terminal."""

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from skipbench import manual as pages
from skipbench.cli.commands import command
from skipbench.console import echo, page, plain_table
from skipbench.settings import OUTPUT, Settings, parsers, setting

if TYPE_CHECKING:
    from rich.markdown import Markdown

WIDTH = 100  # of the text; longer lines are hard to read


@dataclass(frozen=True, kw_only=True)
class ManualSettings(Settings):
    topic: str | None = setting(
        None, help="Page to show; without it, all topics are listed.", parse=parsers.text,
        panel=OUTPUT, metavar="TOPIC", argument=True,
    )  # fmt: skip
    raw: bool = setting(False, help="Print the page as Markdown.", panel=OUTPUT)


@command("manual", ManualSettings, flags=())
def manual(settings: ManualSettings) -> None:
    """Show the manual, one page per topic."""
    if settings.topic is None:
        list_topics()
    elif settings.raw:
        echo(pages.read_page(settings.topic), nl=False)
    else:
        show_page(pages.read_page(settings.topic))


def list_topics() -> None:
    table = plain_table(show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for topic, summary in pages.topics().items():
        table.add_row(topic, summary)
    console = page(highlight=False)
    console.print(table)
    console.print("\nShow a page: skipbench manual TOPIC")


def show_page(text: str) -> None:
    console = page()
    console.width = min(console.width, WIDTH)
    os.environ.setdefault("LESS", "FRX")  # colours; no paging if it fits on the screen
    with console.pager(styles=True) if sys.stdout.isatty() else nullcontext():
        console.print(_rendered(pages.for_terminal(text)), crop=False)


def _rendered(text: str) -> "Markdown":
    """Headings on the left; code without line breaks of its own."""
    from rich.markdown import CodeBlock, Heading, Markdown, TableElement
    from rich.text import Text

    class LeftHeading(Heading):
        def __rich_console__(self, console: Any, options: Any) -> Any:
            self.text.justify = "left"
            yield self.text

    class UnbrokenCode(CodeBlock):
        def __rich_console__(self, console: Any, options: Any) -> Any:
            code = str(self.text).rstrip("\n")
            for line in code.split("\n"):
                yield Text(
                    f"  {line}", style="markdown.code_block", no_wrap=True, overflow="ignore"
                )

    class FoldedTable(TableElement):
        def __rich_console__(self, console: Any, options: Any) -> Any:
            table: Any
            for table in super().__rich_console__(console, options):
                for column in table.columns:
                    column.overflow = "fold"
                yield table

    class Page(Markdown):
        elements: ClassVar[dict[str, Any]] = {
            **Markdown.elements,
            "heading_open": LeftHeading, "table_open": FoldedTable,
            "fence": UnbrokenCode, "code_block": UnbrokenCode,
        }  # fmt: skip

    return Page(text, hyperlinks=False)
