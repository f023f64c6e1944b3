"""`skipbench cache list|clear`: stored features."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import typer

from skipbench.cli.commands import add_group, command
from skipbench.console import echo, echo_json
from skipbench.errors import UsageError
from skipbench.features.cache import Entry, entries, remove
from skipbench.files import cache_folder, size_text
from skipbench.settings import FEATURES, OUTPUT, Settings, parsers, same_as, setting
from skipbench.settings.groups import FeatureSettings


@dataclass(frozen=True, kw_only=True)
class CacheSettings(Settings):
    cache: str | None = same_as(FeatureSettings, "cache", None)


@dataclass(frozen=True, kw_only=True)
class ClearSettings(CacheSettings):
    key: tuple[str, ...] = setting(
        (), help="Keys from `skipbench cache list`; none: all.", parse=parsers.texts,
        panel=FEATURES, metavar="KEY", argument=True, several=True,
    )  # fmt: skip
    yes: bool = setting(
        False, help="Do not ask for confirmation.", panel=OUTPUT, flags=("--yes", "-y")
    )


cache = add_group("cache", help="List or clear cached features.")


@command("list", CacheSettings, group=cache)
def list_(settings: CacheSettings, as_json: bool) -> None:
    """List cached features: checkpoint, images, size, last use."""
    root = cache_folder(settings.cache) / "features"
    found = list(entries(root))
    if as_json:
        echo_json([asdict(entry) | {"folder": str(entry.folder)} for entry in found])
    elif not found:
        echo(f"nothing stored in {root}")
    else:
        for entry in found:
            echo(_line(entry))
        echo(f"{size_text(sum(e.bytes for e in found))} in {root}")


def _line(entry: Entry) -> str:
    about = entry.about
    parts = [
        entry.key[:8],
        str(about.get("checkpoint", "?")),
        str(about.get("residual", "?")),
        str(about.get("size", "?")),
        f"{about.get('images', '?')} images",
        _columns(entry.columns),
        size_text(entry.bytes),
        time.strftime("used %Y-%m-%d %H:%M", time.localtime(entry.last_used)),
    ]
    return "  ".join(parts if entry.complete else [*parts, "(incomplete)"])


def _columns(names: Sequence[str]) -> str:
    """tokens_norm.2, tokens_norm.5 → tokens_norm of blocks 2,5."""
    blocks: dict[str, list[int]] = {}
    for name in names:
        tensor, _, block = name.partition(".")
        blocks.setdefault(tensor, []).append(int(block))
    return ", ".join(f"{t} of {','.join(map(str, sorted(b)))}" for t, b in blocks.items())


@command("clear", ClearSettings, group=cache, flags=())
def clear(settings: ClearSettings) -> None:
    """Delete cached features, except those in use by a running process."""
    key = settings.key
    found = list(entries(cache_folder(settings.cache) / "features"))
    chosen = [e for e in found if not key or any(e.key.startswith(k) for k in key)]
    if key and not chosen:
        raise UsageError(f"nothing stored under {', '.join(key)}; see `skipbench cache list`")
    if chosen and not settings.yes:
        what = f"{len(chosen)} sets of features, {size_text(sum(e.bytes for e in chosen))}"
        if not sys.stdin.isatty():
            raise UsageError(f"{what}: give --yes to delete them")
        if not typer.confirm(f"Delete {what}?"):
            raise typer.Exit(0)
    if not key:
        for small in ("indexes", "cells"):  # of COCO files; of suites
            shutil.rmtree(cache_folder(settings.cache) / small, ignore_errors=True)
    gone = [entry for entry in chosen if remove(entry.folder)]
    echo(f"{size_text(sum(e.bytes for e in gone))} deleted, {len(gone)} of {len(chosen)}")
    if len(gone) < len(chosen):
        echo("the others are in use by a running process", err=True)
