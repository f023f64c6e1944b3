"""Progress of long work: a bar on a terminal, a few plain lines in a log, nothing with --quiet."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, Protocol

from skipbench.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress(Protocol):
    def __call__(self, n: int, note: str = "") -> None:
        """`n` more are done; a note is shown at the end of the line."""


Begin = Callable[[int, str], None]  # (number of parts done, name of the next one)
Reach = Callable[[int], None]  # called with the number of bytes done so far
MB = 10**6

SECONDS_BETWEEN_LINES = 10.0
quiet = False  # set by --quiet


@contextmanager
def progress(label: str, total: int, unit: str = "images", done: int = 0) -> Iterator[Progress]:
    """done: by an earlier run, which counts for the bar but not for the rate."""
    label = printable(label)
    unit = unit.removesuffix("s") if total == 1 else unit
    if quiet or total <= done:
        yield lambda n, note="": None
    elif _is_animated():
        with _animated(label, total, unit, done) as advance:
            yield advance
    else:
        yield _in_lines(label, total, unit, done)


@contextmanager
def megabytes(label: str, total: int, done: int = 0) -> Iterator[Reach]:
    """Progress in whole megabytes; the last, partial one counts once all bytes are done."""
    whole, shown = -(-total // MB), done // MB
    with progress(label, whole, "MB", shown) as advance:

        def reach(count: int) -> None:
            nonlocal shown
            now = whole if count >= total else count // MB
            if now > shown:
                advance(now - shown)
                shown = now

        yield reach


@contextmanager
def overall(total: int, unit: str) -> Iterator[Begin]:
    """Work in many parts, called `unit`: progress of a part is shown below that of the whole."""
    if quiet:
        yield lambda done, label: None
    elif _is_animated():
        with _all_animated(total, unit) as begin:
            yield begin
    else:
        yield lambda done, label: _say(f"{unit} {done + 1} of {total}: {printable(label)}")


@contextmanager
def _animated(label: str, total: int, unit: str, done: int) -> Iterator[Progress]:
    start, fresh = time.monotonic(), 0
    with nullcontext(_shown) if _shown else _bar() as bar:
        task = bar.add_task(label, total=total, completed=done, unit=unit, rate="", note="")

        def advance(n: int, note: str = "") -> None:
            nonlocal fresh
            fresh += n
            rate = fresh / max(time.monotonic() - start, 1e-9)
            bar.update(task, advance=n, rate=_per_second(rate), note=note)

        try:
            yield advance
        finally:
            if _shown:
                bar.remove_task(task)


_shown: "Bar | None" = None  # the display of `overall`, while it is active


@contextmanager
def _all_animated(total: int, unit: str) -> Iterator[Begin]:
    global _shown
    with _bar() as bar:
        task = bar.add_task("", total=total, unit=f"{unit}s", rate="", note="")
        _shown = bar
        try:
            yield lambda done, label: bar.update(task, completed=done, description=printable(label))
            bar.update(task, completed=total, description="all")
        finally:
            _shown = None


@contextmanager
def _bar() -> "Iterator[Bar]":
    from rich.console import Console
    from rich.file_proxy import FileProxy
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    class Above(FileProxy):
        """Output written meanwhile appears above the bars. Without this property, rich and Click
        would look for the terminal behind it."""

        encoding, errors = "utf-8", "strict"

        @property
        def rich_proxied_file(self) -> IO[str]:
            return self  # type: ignore[return-value]

    terminal = sys.stderr
    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=Console(file=terminal),
        redirect_stderr=False,
    )
    with bar:
        sys.stderr = Above(bar.console, terminal)
        try:
            yield bar
        finally:
            sys.stderr = terminal


def _in_lines(label: str, total: int, unit: str, done: int) -> Progress:
    start = last = time.monotonic()
    fresh = 0

    def advance(n: int, note: str = "") -> None:
        nonlocal done, fresh, last
        done, fresh, now = done + n, fresh + n, time.monotonic()
        if done < total and now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        rate = fresh / max(now - start, 1e-9)
        rest = f", {clock((total - done) / max(rate, 1e-9))} left" if done < total else ""
        rest += f", {note}" if note else ""
        _say(f"{label}: {done:,} of {total:,} {unit}, {_per_second(rate)}{rest}")

    return advance


def _per_second(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def is_plain() -> bool:
    """No escape codes, no animation."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return True
    return not (sys.stdout.isatty() or sys.stderr.isatty())


def _is_animated() -> bool:
    return sys.stderr.isatty() and not is_plain()


def duration(seconds: float) -> str:
    """For estimates: "40 s", "12 min", "2 h 5 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{round(seconds)} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
