"""`skipbench cache list|clear`: stored features."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from skipbench.cli.generated import Group, add_command
from skipbench.console import echo
from skipbench.settings import Settings, parsers, same_as, setting
from skipbench.settings.declaration import FEATURES, OUTPUT
from skipbench.settings.groups import FeatureSettings

if TYPE_CHECKING:
    from skipbench.features.cache import Entry


@dataclass(frozen=True, kw_only=True)
class CacheSettings(Settings):
    cache: str | None = same_as(FeatureSettings, "cache", None)


@dataclass(frozen=True, kw_only=True)
class ClearSettings(CacheSettings):
    key: tuple[str, ...] = setting(
        (), help="Keys as `skipbench cache list` shows them; none: all.", parse=parsers.texts,
        panel=FEATURES, metavar="KEY", argument=True, several=True,
    )  # fmt: skip
    yes: bool = setting(False, help="Do not ask.", panel=OUTPUT, flags=("--yes", "-y"))


app = typer.Typer(cls=Group, help="List or clear cached features.", no_args_is_help=True)


def add_to(parent: typer.Typer) -> None:
    add_command(app, "list", CacheSettings, list_)
    add_command(app, "clear", ClearSettings, clear, flags=())
    parent.add_typer(app, name="cache")


def list_(settings: CacheSettings, as_json: bool) -> None:
    """List cached features: checkpoint, images, size, last use."""
    from skipbench.features.cache import entries
    from skipbench.files import cache_folder, size_text

    root = cache_folder(settings.cache) / "features"
    found = list(entries(root))
    if as_json:
        echo(json.dumps([_plain(entry) for entry in found], indent=2))
        return
    if not found:
        echo(f"nothing stored in {root}")
        return
    for entry in found:
        echo(_line(entry))
    echo(f"{size_text(sum(e.bytes for e in found))} in {root}")


def _line(entry: "Entry") -> str:
    """One entry in one line, most important facts first."""
    from skipbench.files import size_text

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


def clear(settings: ClearSettings) -> None:
    """Delete cached features, except those in use by a running process."""
    from skipbench.errors import UsageError
    from skipbench.features.cache import entries, remove
    from skipbench.files import cache_folder, size_text

    key, yes = settings.key, settings.yes
    found = list(entries(cache_folder(settings.cache) / "features"))
    chosen = [e for e in found if not key or any(e.key.startswith(k) for k in key)]
    if key and not chosen:
        raise UsageError(f"nothing stored under {', '.join(key)}; see `skipbench cache list`")
    total = size_text(sum(entry.bytes for entry in chosen))
    if chosen and not yes and not sys.stdin.isatty():
        raise UsageError(f"{len(chosen)} sets of features, {total}: give --yes to delete them")
    if chosen and not yes and not typer.confirm(f"Delete {len(chosen)} sets of features, {total}?"):
        raise typer.Exit(0)
    if not key:
        for small in ("indexes", "cells"):  # of COCO files; of suites
            shutil.rmtree(cache_folder(settings.cache) / small, ignore_errors=True)
    gone = [entry for entry in chosen if remove(entry.folder)]
    echo(f"{size_text(sum(e.bytes for e in gone))} deleted, {len(gone)} of {len(chosen)}")
    if len(gone) < len(chosen):
        echo("the others are in use by a running process", err=True)


def _plain(entry: "Entry") -> dict[str, Any]:
    return {
        "key": entry.key,
        "folder": str(entry.folder),
        "bytes": entry.bytes,
        "last_used": entry.last_used,
        "complete": entry.complete,
        "columns": list(entry.columns),
        "about": dict(entry.about),
    }
