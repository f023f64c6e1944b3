"""Compute missing features shard by shard. The layout on disk is described in `store.py`."""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from skipbench.backbones.base import Backbone
from skipbench.backbones.health import ROUNDING_SPREAD, spread
from skipbench.engine.locks import FileLock
from skipbench.engine.progress import progress
from skipbench.errors import NumbersError, ResourceError
from skipbench.features.cache import evict
from skipbench.features.plan import SHARD_BYTES, Plan, make_plan
from skipbench.features.stream import Extractor
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
    def __init__(
        self,
        root: Path,
        key: str,
        about: dict[str, Any],
        spec: FeatureSpec,
        *,
        shard_bytes: int = SHARD_BYTES,
        stalled_after: float = STALLED_AFTER,
    ) -> None:
        self.root, self.key, self.about, self.spec = root, key, about, spec
        self.shard_bytes, self.stalled_after = shard_bytes, stalled_after
        self.folder = root / self.key
        self._checked: set[tuple[str, str]] = set()  # (file, sha256) verified by this process

    def plan(self, items: Sequence[Picture], backbone: Backbone, workers: int) -> Plan:
        """The stored plan, or the same computed again."""
        if stored := _read_plan(self.folder / "plan.json"):
            return stored
        patch_bytes = DTYPES[self.spec.store_dtype].itemsize * backbone.most_numbers_per_patch()
        return make_plan(
            items, self.spec.size, backbone.patch, patch_bytes, workers,
            shard_bytes=self.shard_bytes,
        )  # fmt: skip

    def is_complete(self, plan: Plan) -> bool:
        return _read_plan(self.folder / "plan.json") is not None and not self.incomplete(plan)

    def degenerate(self) -> dict[str, tuple[int, ...]]:
        """For each column, the images with constant features."""
        return {
            column: tuple(sorted(i for s in self._check(column)[0].values() for i in s.degenerate))
            for column in self.spec.columns
        }

    def incomplete(self, plan: Plan) -> dict[str, list[int]]:
        """For each column that is not complete and intact: its missing shards. Read-only."""
        missing = {}
        for column in self.spec.columns:
            sound, _ = self._check(column)
            lacking = [s for s in range(len(plan.shards)) if s not in sound]
            if lacking or not (self.folder / column / "manifest.json").exists():
                missing[column] = lacking
        return missing

    def _check(self, column: str) -> tuple[dict[int, Shard], list[str]]:
        """The shards that match their checksums, and the files that do not."""
        folder = self.folder / column
        manifest = read_json(folder / "manifest.json")
        listed = manifest.get("shards", []) if manifest else _read_lines(folder / "journal.jsonl")
        shards = _parse(listed)
        large = sum(shard.bytes for shard in shards.values()) > LONG_TO_CHECK
        sound: dict[int, Shard] = {}
        with (
            progress(f"checking {column}", len(shards) if large else 0, "shards") as advance,
            ThreadPoolExecutor(4) as pool,
        ):
            checks = pool.map(lambda shard: self._is_whole(folder, shard), shards.values())
            for (index, shard), whole in zip(shards.items(), checks, strict=True):
                if whole:
                    sound[index] = shard
                advance(1)
        return sound, [s.file for i, s in shards.items() if i not in sound]

    def _is_whole(self, folder: Path, shard: Shard) -> bool:
        mark = (str(folder / shard.file), shard.sha256)
        if mark in self._checked:
            return True
        try:
            if (folder / shard.file).stat().st_size != shard.bytes:
                return False
            with (folder / shard.file).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
                    return False
        except OSError:
            return False
        self._checked.add(mark)
        return True

    def _tidy(self, plan: Plan, columns: Iterable[str]) -> None:
        """Before building: delete partial files of dead processes, write the plan, and rewrite the
        journals with intact shards only, in complete lines, so that more can be appended."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for partial in self.folder.rglob(".*.partial"):
            partial.unlink(missing_ok=True)
        write_whole(self.folder / "about.json", json.dumps(self.about, indent=1).encode())
        content = json.dumps(asdict(plan))
        digest = hashlib.sha256(content.encode()).hexdigest()
        write_whole(
            self.folder / "plan.json", json.dumps({"sha256": digest, "plan": content}).encode()
        )
        for column in columns:
            folder = self.folder / column
            folder.mkdir(exist_ok=True)
            sound, damaged = self._check(column)
            if damaged:
                names = ", ".join(damaged)
                log.warning("cache: %s of %s is damaged; recomputing", names, column)
            lines = "".join(json.dumps(asdict(shard)) + "\n" for shard in sound.values())
            write_whole(folder / "journal.jsonl", lines.encode())
            (folder / "manifest.json").unlink(missing_ok=True)

    def build(
        self,
        extractor: Extractor,
        items: Sequence[Picture],
        plan: Plan,
        limit_bytes: int,
        label: str = "features",
    ) -> int:
        """Returns the number of images computed."""
        lock = FileLock(self.root / f"{self.key}.build.lock")

        def on_wait() -> None:
            log.info("waiting for another process that computes these features")

        with lock:
            if not lock.acquire(True, self.stalled_after, on_wait):
                raise ResourceError(
                    f"another process holds {lock.path}, but shows no activity for "
                    f"{self.stalled_after:.0f} s.\nEnd it, or use another --cache."
                )
            # Meanwhile that process may have computed all of it.
            missing = self.incomplete(plan)
            self._make_room(plan, missing, extractor, limit_bytes)
            self._tidy(plan, missing)
            try:
                computed = self._compute(extractor, items, plan, missing, lock, label)
            except BaseException:
                if not any(self.folder.rglob("*.safetensors")):
                    shutil.rmtree(self.folder, ignore_errors=True)  # nothing stored yet
                raise
            for column in missing:
                self._seal(column, plan)
            return computed

    def _compute(
        self,
        extractor: Extractor,
        items: Sequence[Picture],
        plan: Plan,
        missing: dict[str, list[int]],
        lock: FileLock,
        label: str,
    ) -> int:
        todo = sorted({shard for lacking in missing.values() for shard in lacking})
        left = sum(len(plan.shards[s]) for s in todo)
        if 0 < left < len(items):
            log.info("%s: resuming after %d of %d images", label, len(items) - left, len(items))
        ending = _shard_ends(plan, todo)
        arrived: dict[str, list[torch.Tensor]] = {}
        constant: dict[str, list[int]] = {}
        count = 0
        with (
            progress(label, len(items), done=len(items) - left) as advance,
            ThreadPoolExecutor(1, thread_name_prefix="write") as pool,
        ):
            writing: Future[None] | None = None
            for batch in extractor.stream(items, plan, todo):
                for column in missing:
                    tokens = batch.columns[column].flatten(1, 2)
                    constant.setdefault(column, []).extend(constant_images(batch.images, tokens))
                    kept = in_store_dtype(tokens, column, self.spec.store_dtype)
                    arrived.setdefault(column, []).append(kept.flatten(0, 1))
                count += len(batch.images)
                advance(len(batch.images))
                lock.heartbeat()
                if count in ending:
                    shard = ending[count]
                    if writing:
                        writing.result()
                    wanted = {
                        column: (torch.cat(arrived[column]), tuple(constant[column]))
                        for column, lacking in missing.items()
                        if shard in lacking
                    }
                    arrived, constant = {}, {}
                    precision = extractor.backbone.precision
                    writing = pool.submit(self._write_shard, shard, wanted, precision)
            if writing:
                writing.result()
        return left

    def _write_shard(
        self,
        shard: int,
        columns: dict[str, tuple[torch.Tensor, tuple[int, ...]]],  # tokens, degenerate images
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
            self._checked.add((str(folder / written.file), digest))

    def _seal(self, column: str, plan: Plan) -> None:
        folder = self.folder / column
        shards, _ = self._check(column)
        if len(shards) != len(plan.shards):
            raise AssertionError(f"{folder}: {len(shards)} shards of {len(plan.shards)}")
        manifest = {
            "store_version": STORE_VERSION,
            "column": column,
            "shards": [asdict(shards[index]) for index in sorted(shards)],
        }
        write_whole(folder / "manifest.json", json.dumps(manifest, indent=1).encode())
        (folder / "journal.jsonl").unlink(missing_ok=True)

    def _make_room(
        self, plan: Plan, missing: dict[str, list[int]], extractor: Extractor, limit_bytes: int
    ) -> None:
        itemsize, need = DTYPES[self.spec.store_dtype].itemsize, 0
        for column, lacking in missing.items():
            patch_bytes = itemsize * extractor.backbone.numbers_per_patch(block_of(column))
            patches = sum(plan.tokens(image) for s in lacking for image in plan.shards[s])
            need += patch_bytes * patches
        if need > limit_bytes:
            raise ResourceError(
                f"these features need {size_text(need)}, more than --cache-limit "
                f"{size_text(limit_bytes)}.\nRaise it, or use fewer --layers or a smaller --size."
            )
        evict(self.root, limit_bytes - need, keep=self.key)
        free = shutil.disk_usage(self.root).free
        if need > free:
            raise ResourceError(
                f"these features need {size_text(need)}; {self.root} has {size_text(free)} free.\n"
                "Free some space, or use another --cache."
            )


def block_of(column: str) -> int:
    return int(column.partition(".")[2])


def constant_images(images: Sequence[int], tokens: torch.Tensor) -> list[int]:
    """Images with constant features: no variation over tokens beyond rounding.

    tokens: (images, tokens, channels).
    """
    alike = (spread(tokens.float()) < ROUNDING_SPREAD).tolist()
    return [image for image, same in zip(images, alike, strict=True) if same]


def in_store_dtype(tokens: torch.Tensor, column: str, name: str) -> torch.Tensor:
    kept = tokens.to(DTYPES[name]).cpu()
    if not torch.isfinite(kept).all():
        raise NumbersError(
            f"{column} does not fit in {name}: values beyond ±65504.\n"
            "Use --store-dtype fp32, or --tensor tokens_norm."
        )
    return kept


def _shard_ends(plan: Plan, todo: Sequence[int]) -> dict[int, int]:
    """Number of images after which a shard is complete → the shard."""
    ends, count = {}, 0
    for shard in todo:
        count += len(plan.shards[shard])
        ends[count] = shard
    return ends


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


def _read_lines(path: Path) -> list[Any]:
    """A journal's lines, without a truncated one."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return []
    lines = []
    for line in text.splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def _parse(listed: Any) -> dict[int, Shard]:
    """By number, without damaged entries, whose shards are computed again."""
    shards = {}
    for entry in listed if isinstance(listed, list) else ():
        with suppress(TypeError, ValueError, AttributeError):
            shard = Shard(**entry)
            shards[int(shard.file.removesuffix(".safetensors"))] = shard
    return shards
