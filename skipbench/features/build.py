"""Compute missing features shard by shard. The layout on disk is described in `store.py`."""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from skipbench.backbones.health import ROUNDING_SPREAD, spread
from skipbench.engine.locks import FileLock
from skipbench.engine.parallel import ahead
from skipbench.engine.progress import progress
from skipbench.errors import NumbersError, ResourceError
from skipbench.features.cache import evict
from skipbench.features.stream import (
    SHARD_BYTES,
    Extractor,
    FeatureBatch,
    Plan,
    numbers_to_store,
    plan_for,
)
from skipbench.files import append_line, read_json, size_text, write_whole
from skipbench.images import Picture
from skipbench.records import FeatureSpec

log = logging.getLogger("skipbench")

STORE_VERSION = 1
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
LONG_TO_CHECK = 2 * 10**9  # bytes: checksums of more than this get a progress line
STALLED_AFTER = 600.0  # seconds without a heartbeat of the process that computes


@dataclass(frozen=True)
class Shard:
    file: str
    bytes: int
    sha256: str
    precision: str
    degenerate: tuple[int, ...]  # images with constant features


class StoreBuilder:
    """Finds and computes the missing shards of a store."""

    def __init__(
        self,
        folder: Path,
        about: dict[str, Any],
        items: Sequence[Picture],
        extractor: Extractor,
        *,
        shard_bytes: int = SHARD_BYTES,
        stalled_after: float = STALLED_AFTER,
    ) -> None:
        self.folder, self.about, self.items, self.extractor = folder, about, items, extractor
        self.backbone, self.spec = extractor.backbone, extractor.spec
        self.shard_bytes, self.stalled_after = shard_bytes, stalled_after
        self._verified: set[tuple[str, str]] = set()  # (file, sha256), by this process

    @cached_property
    def plan(self) -> Plan:
        """The stored plan, or the same computed again."""
        if stored := _read_plan(self.folder / "plan.json"):
            return stored
        itemsize = DTYPES[self.spec.store_dtype].itemsize
        return plan_for(
            self.backbone, self.items, self.spec, itemsize, self.extractor.workers,
            self.shard_bytes,
        )  # fmt: skip

    def is_complete(self) -> bool:
        return _read_plan(self.folder / "plan.json") is not None and not self.incomplete()

    def degenerate(self) -> dict[str, tuple[int, ...]]:
        """For each column, the images with constant features."""
        return {
            column: tuple(sorted(i for s in self._intact(column).values() for i in s.degenerate))
            for column in self.spec.columns
        }

    def incomplete(self) -> dict[str, list[int]]:
        """For each column that is not complete and intact: its missing shards. Read-only."""
        missing = {}
        for column in self.spec.columns:
            intact = self._intact(column)
            lacking = [s for s in range(len(self.plan.shards)) if s not in intact]
            if lacking or not (self.folder / column / "manifest.json").exists():
                missing[column] = lacking
        return missing

    def _intact(self, column: str) -> dict[int, Shard]:
        """The shards that match their checksums."""
        folder = self.folder / column
        listed = _listed(folder)
        large = sum(shard.bytes for shard in listed.values()) > LONG_TO_CHECK
        intact = {}
        checks = ahead(lambda shard: self._is_intact(folder, shard), listed.values(), 8, threads=4)
        with progress(f"checking {column}", len(listed) if large else 0, "shards") as advance:
            for (index, shard), whole in zip(listed.items(), checks, strict=True):
                if whole:
                    intact[index] = shard
                advance(1)
        return intact

    def _is_intact(self, folder: Path, shard: Shard) -> bool:
        path = folder / shard.file
        mark = (str(path), shard.sha256)
        if mark not in self._verified:
            with suppress(OSError), path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if (digest, file.tell()) == (shard.sha256, shard.bytes):
                    self._verified.add(mark)
        return mark in self._verified

    def build(self, limit_bytes: int, label: str) -> int:
        """Returns the number of images computed."""
        lock = FileLock(self.folder.with_name(f"{self.folder.name}.build.lock"))

        def on_wait() -> None:
            log.info("waiting for another process that is computing these features")

        with lock:
            if not lock.acquire(True, self.stalled_after, on_wait):
                raise ResourceError(
                    f"another process holds {lock.path}, but shows no activity for "
                    f"{self.stalled_after:.0f} s.\nEnd it, or use another --cache."
                )
            # Meanwhile that process may have computed all of it.
            missing = self.incomplete()
            self._make_room(missing, limit_bytes)
            self._prepare(missing)
            try:
                computed = self._compute(missing, lock, label)
            except BaseException:
                if not any(self.folder.rglob("*.safetensors")):
                    shutil.rmtree(self.folder, ignore_errors=True)  # nothing stored yet
                raise
            for column in missing:
                self._seal(column)
            return computed

    def _make_room(self, missing: Mapping[str, Sequence[int]], limit_bytes: int) -> None:
        numbers = 0
        for column, lacking in missing.items():
            block = int(column.partition(".")[2])
            images = [i for s in lacking for i in self.plan.shards[s]]
            pooled = bool(self.spec.pools)
            numbers += numbers_to_store(self.backbone, self.plan, images, block, pooled)
        need, root = DTYPES[self.spec.store_dtype].itemsize * numbers, self.folder.parent
        if need > limit_bytes:
            raise ResourceError(
                f"these features need {size_text(need)}, more than --cache-limit "
                f"{size_text(limit_bytes)}.\nRaise it, or use fewer --layers or a smaller --size."
            )
        evict(root, limit_bytes - need, keep=self.folder.name)
        free = shutil.disk_usage(root).free
        if need > free:
            raise ResourceError(
                f"these features need {size_text(need)}; {root} has {size_text(free)} free.\n"
                "Free some space, or use another --cache."
            )

    def _prepare(self, columns: Iterable[str]) -> None:
        """Delete partial files of dead processes, write the plan, and rewrite the journals with
        intact shards only, in complete lines, so that more can be appended."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for partial in self.folder.rglob(".*.partial"):
            partial.unlink(missing_ok=True)
        write_whole(self.folder / "about.json", json.dumps(self.about, indent=1).encode())
        content = json.dumps(asdict(self.plan))
        digest = hashlib.sha256(content.encode()).hexdigest()
        sealed = json.dumps({"sha256": digest, "plan": content})
        write_whole(self.folder / "plan.json", sealed.encode())
        for column in columns:
            folder = self.folder / column
            folder.mkdir(exist_ok=True)
            intact = self._intact(column)
            damaged = [shard.file for i, shard in _listed(folder).items() if i not in intact]
            if damaged:
                names = ", ".join(damaged)
                log.warning("cache: %s of %s is damaged; recomputing", names, column)
            lines = "".join(json.dumps(asdict(shard)) + "\n" for shard in intact.values())
            write_whole(folder / "journal.jsonl", lines.encode())
            (folder / "manifest.json").unlink(missing_ok=True)

    def _compute(self, missing: Mapping[str, Sequence[int]], lock: FileLock, label: str) -> int:
        shards = sorted({shard for lacking in missing.values() for shard in lacking})
        left, total = sum(len(self.plan.shards[s]) for s in shards), len(self.items)
        if 0 < left < total:
            log.info("%s: resuming after %d of %d images", label, total - left, total)
        batches = self.extractor.stream(self.items, self.plan, shards)
        with (
            progress(label, total, done=total - left) as advance,
            ThreadPoolExecutor(1, thread_name_prefix="write") as pool,
        ):
            writing: Future[None] | None = None
            for shard in shards:
                wanted = [column for column, lacking in missing.items() if shard in lacking]
                parts: dict[str, list[torch.Tensor]] = {column: [] for column in wanted}
                constant: dict[str, list[int]] = {column: [] for column in wanted}
                done = 0
                while done < len(self.plan.shards[shard]):
                    batch = next(batches)
                    for column in wanted:
                        tokens, same = as_stored(batch, column, self.spec)
                        parts[column].append(tokens.flatten(0, 1))
                        constant[column] += same
                    done += len(batch.images)
                    advance(len(batch.images))
                    lock.heartbeat()
                if writing:
                    writing.result()
                found = {c: (torch.cat(parts[c]), tuple(constant[c])) for c in wanted}
                writing = pool.submit(self._write, shard, found, self.backbone.precision)
            if writing:
                writing.result()
        return left

    def _write(
        self,
        shard: int,
        columns: Mapping[str, tuple[torch.Tensor, tuple[int, ...]]],  # tokens, degenerate images
        precision: str,
    ) -> None:
        from safetensors.torch import save

        for column, (tokens, degenerate) in columns.items():
            folder = self.folder / column
            folder.mkdir(parents=True, exist_ok=True)
            data = save({"tokens": tokens})
            digest = hashlib.sha256(data).hexdigest()
            written = Shard(shard_name(shard), len(data), digest, precision, degenerate)
            write_whole(folder / written.file, data)
            # The shard is in place before the journal lists it.
            append_line(folder / "journal.jsonl", json.dumps(asdict(written)))
            self._verified.add((str(folder / written.file), digest))

    def _seal(self, column: str) -> None:
        folder, shards = self.folder / column, self._intact(column)
        if len(shards) != len(self.plan.shards):
            raise AssertionError(f"{folder}: {len(shards)} shards of {len(self.plan.shards)}")
        manifest = {
            "store_version": STORE_VERSION,
            "column": column,
            "shards": [asdict(shards[index]) for index in sorted(shards)],
        }
        write_whole(folder / "manifest.json", json.dumps(manifest, indent=1).encode())
        (folder / "journal.jsonl").unlink(missing_ok=True)


def as_stored(
    batch: FeatureBatch, column: str, spec: FeatureSpec
) -> tuple[torch.Tensor, list[int]]:
    """(images, tokens, channels) in the store's precision, and the images with constant features:
    no variation over tokens beyond rounding."""
    tokens = batch.columns[column].flatten(1, 2)
    kept = tokens.to(DTYPES[spec.store_dtype]).cpu()
    if not torch.isfinite(kept).all():
        raise NumbersError(
            f"{column} does not fit in {spec.store_dtype}: values beyond ±65504.\n"
            "Use --store-dtype fp32, or features with the final norm."
        )
    if spec.pools:
        return kept, []
    alike = (spread(tokens.float()) < ROUNDING_SPREAD).tolist()
    return kept, [image for image, same in zip(batch.images, alike, strict=True) if same]


def shard_name(shard: int) -> str:
    return f"{shard:05d}.safetensors"


def _read_plan(path: Path) -> Plan | None:
    stored = read_json(path) or {}
    content = str(stored.get("plan"))
    if hashlib.sha256(content.encode()).hexdigest() != stored.get("sha256"):
        return None
    plan = json.loads(content)
    sizes = tuple((height, width) for height, width in plan["sizes_hw"])
    return Plan(sizes, tuple(tuple(shard) for shard in plan["shards"]), plan["patch"])


def _listed(folder: Path) -> dict[int, Shard]:
    """The shards of a column by number, without damaged entries: these are computed again."""
    manifest = read_json(folder / "manifest.json")
    entries = manifest.get("shards", []) if manifest else _journal(folder / "journal.jsonl")
    shards = {}
    for entry in entries if isinstance(entries, list) else ():
        with suppress(TypeError, ValueError, AttributeError):
            shard = Shard(**entry)
            shards[int(shard.file.removesuffix(".safetensors"))] = shard
    return shards


def _journal(path: Path) -> list[Any]:
    """Its lines, without a truncated one."""
    lines = []
    with suppress(OSError, UnicodeDecodeError):
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                lines.append(json.loads(line))
    return lines
