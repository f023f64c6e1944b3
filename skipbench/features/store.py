"""Features on disk, for evaluations that pass over them many times.

    <cache>/features/<key>/              one checkpoint, variant, size and list of images
        about.json                       what the key stands for
        plan.json                        sizes of the images, and which shard holds which
        tokens_norm.11/                  a column: one tensor of one block
            00000.safetensors            tokens of the shard's images, one after another
            journal.jsonl                a line per finished shard: its length and sha256
            manifest.json                the same for all shards; written last, so its existence
                                         means that the column is complete
    <cache>/features/<key>.build.lock    held by the process that computes
    <cache>/features/<key>.use.lock      shared by those who read; eviction needs it alone

Every file is written beside its place and renamed into it, with write(): on a full disk that
fails, where a memory-mapped file would kill the process. Reading is memory-mapped, after the
checksums have been compared. Whatever stops a run, the next one goes on after the last whole shard.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from skipbench.backbones.vit import Backbone
from skipbench.engine.locks import FileLock
from skipbench.engine.progress import progress
from skipbench.errors import NumbersError, ResourceError
from skipbench.features.plan import Plan, make_plan
from skipbench.features.stream import Extractor
from skipbench.images import TRANSFORM_VERSION, ImageItem, fingerprint
from skipbench.records import FeatureSpec

log = logging.getLogger("skipbench")

STORE_VERSION = 1
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
STALLED_AFTER = 600.0  # seconds without a sign of life from the process that computes
DEFAULT_LIMIT = 50 * 10**9


def cache_folder(given: str | Path | None = None) -> Path:
    """`--cache`, else SKIPBENCH_CACHE, else the user's cache folder."""
    if given or (given := os.environ.get("SKIPBENCH_CACHE")):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skipbench"


# --- what determines the features ------------------------------------------------------------


def describe(backbone: Backbone, items: Sequence[ImageItem], spec: FeatureSpec) -> dict[str, Any]:
    """Everything a stored feature depends on, but for its column. The key is its hash."""
    facts = backbone.facts
    return {
        "store_version": STORE_VERSION,
        "transform_version": TRANSFORM_VERSION,
        "checkpoint": facts.name,
        "sha256": facts.sha256,
        "weights": facts.weights,
        "residual": backbone.residual,
        "heads": facts.heads,
        "norm_eps": facts.norm_eps,
        "position_rule": facts.position_rule,
        "size_hw": spec.size_hw,
        "precision": backbone.precision,
        "store_dtype": spec.store_dtype,
        "images": len(items),
        "files": fingerprint(items),
    }


def key_of(about: Mapping[str, Any]) -> str:
    counted = {name: value for name, value in about.items() if name != "checkpoint"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:24]


# --- reading ---------------------------------------------------------------------------------


class FeatureStore(Sequence[dict[str, torch.Tensor]]):
    """Complete columns, by image: store[3]["tokens_norm.11"] is (height, width, channels)."""

    def __init__(self, folder: Path, plan: Plan, columns: Sequence[str], lock: FileLock) -> None:
        self.folder = folder
        self.plan = plan
        self.columns = tuple(columns)
        self._lock = lock
        self._open: dict[tuple[str, int], Any] = {}
        self._place: dict[int, tuple[int, int]] = {}  # image → shard, first token
        for shard, images in enumerate(plan.shards):
            start = 0
            for image in images:
                self._place[image] = (shard, start)
                start += plan.tokens(image)

    def __len__(self) -> int:
        return len(self.plan.sizes_hw)

    def __getitem__(self, image: int) -> dict[str, torch.Tensor]:  # type: ignore[override]
        if not -len(self) <= image < len(self):
            raise IndexError(image)
        shard, start = self._place[image % len(self)]
        grid_hw = self.plan.grid_hw(image % len(self))
        stop = start + grid_hw[0] * grid_hw[1]
        return {
            column: self._tokens(column, shard)[start:stop].unflatten(0, grid_hw)
            for column in self.columns
        }

    def _tokens(self, column: str, shard: int) -> Any:
        from safetensors import safe_open

        if (column, shard) not in self._open:
            file = safe_open(self.folder / column / _shard_name(shard), framework="pt")
            self._open[column, shard] = file.__enter__().get_slice("tokens")
        return self._open[column, shard]

    def close(self) -> None:
        self._open.clear()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# --- building --------------------------------------------------------------------------------


def open_store(
    backbone: Backbone,
    items: Sequence[ImageItem],
    spec: FeatureSpec,
    *,
    cache: str | Path | None = None,
    limit_bytes: int = DEFAULT_LIMIT,
    batch_size: int | None = None,
    workers: int = 2,
) -> FeatureStore:
    """The features of these images: from the cache, computed as far as they are not there."""
    root = cache_folder(cache) / "features"
    ensure_writable(root)
    about = describe(backbone, items, spec)
    builder = _Builder(root, about, spec)
    use = FileLock(root / f"{builder.key}.use.lock")
    if not use.acquire(False, STALLED_AFTER, lambda: log.info("waiting for the cache")):
        raise ResourceError(f"{use.path}: locked by a process that shows no sign of life")
    try:
        plan = builder.plan(items, backbone, workers)
        if builder.incomplete(plan):
            builder.build(Extractor(backbone, spec, batch_size, workers), items, plan, limit_bytes)
        else:
            log.info("features: %d images found in the cache (%s)", len(items), builder.folder)
        os.utime(builder.folder / "about.json")  # least recently used goes first
        return FeatureStore(builder.folder, plan, spec.columns, use)
    except BaseException:
        use.release()
        raise


@dataclass(frozen=True)
class _Shard:
    file: str
    bytes: int
    sha256: str
    precision: str


class _Builder:
    def __init__(self, root: Path, about: dict[str, Any], spec: FeatureSpec) -> None:
        self.root, self.about, self.spec = root, about, spec
        self.key = key_of(about)
        self.folder = root / self.key
        self._checked: set[tuple[str, str]] = set()  # (file, sha256) found sound by this process

    def plan(self, items: Sequence[ImageItem], backbone: Backbone, workers: int) -> Plan:
        """The stored plan, or a new one; the same in both cases."""
        path = self.folder / "plan.json"
        if stored := _read_json(path):
            sizes = tuple((h, w) for h, w in stored["sizes_hw"])
            return Plan(sizes, tuple(map(tuple, stored["shards"])), stored["patch"])
        self.folder.mkdir(parents=True, exist_ok=True)
        width_bytes = DTYPES[self.spec.store_dtype].itemsize * backbone.facts.width
        plan = make_plan(items, self.spec.size_hw, backbone.facts.patch, width_bytes, workers)
        write_whole(self.folder / "about.json", json.dumps(self.about, indent=1).encode())
        write_whole(path, json.dumps(asdict(plan)).encode())
        return plan

    def incomplete(self, plan: Plan) -> dict[str, list[int]]:
        """For each column that is not complete and sound: the shards it lacks."""
        missing = {}
        for column in self.spec.columns:
            sound = self._sound_shards(column)
            lacking = [s for s in range(len(plan.shards)) if s not in sound]
            if lacking or not (self.folder / column / "manifest.json").exists():
                missing[column] = lacking
        return missing

    def _sound_shards(self, column: str) -> dict[int, _Shard]:
        """The shards that are there, whole, with the checksum they were written with."""
        folder = self.folder / column
        manifest = _read_json(folder / "manifest.json")
        listed = manifest["shards"] if manifest else _read_lines(folder / "journal.jsonl")
        shards = {int(Path(s["file"]).stem): _Shard(**s) for s in listed}
        with ThreadPoolExecutor(4) as pool:
            sound = dict(zip(shards, pool.map(lambda s: self._is_sound(folder, s), shards.values())))
        damaged = [shards[s].file for s, whole in sound.items() if not whole]
        if damaged:
            log.warning(
                "cache: %s of %s is damaged and is computed again", ", ".join(damaged), column
            )
            (folder / "manifest.json").unlink(missing_ok=True)
            kept = [asdict(shards[s]) for s, whole in sound.items() if whole]
            lines = "".join(json.dumps(shard) + "\n" for shard in kept)
            write_whole(folder / "journal.jsonl", lines.encode())
        return {s: shards[s] for s, whole in sound.items() if whole}

    def _is_sound(self, folder: Path, shard: _Shard) -> bool:
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

    def build(
        self, extractor: Extractor, items: Sequence[ImageItem], plan: Plan, limit_bytes: int
    ) -> None:
        lock = FileLock(self.root / f"{self.key}.build.lock")

        def on_wait() -> None:
            log.info("another process computes these features; waiting for it")

        with lock:
            if not lock.acquire(True, STALLED_AFTER, on_wait):
                raise ResourceError(
                    f"another process holds {lock.path} and has shown no sign of life for "
                    f"{STALLED_AFTER:.0f} s.\nEnd it, or use another --cache."
                )
            # What that process has done meanwhile need not be done again.
            missing = self.incomplete(plan)
            self._make_room(plan, missing, extractor, limit_bytes)
            self._compute(extractor, items, plan, missing, lock)
            for column in missing:
                self._seal(column)

    def _compute(
        self,
        extractor: Extractor,
        items: Sequence[ImageItem],
        plan: Plan,
        missing: dict[str, list[int]],
        lock: FileLock,
    ) -> None:
        todo = sorted({shard for lacking in missing.values() for shard in lacking})
        left = sum(len(plan.shards[s]) for s in todo)
        if 0 < left < len(items):
            log.info("features: %d of %d images were done before", len(items) - left, len(items))
        ending = _shard_ends(plan, todo)
        arrived: dict[str, list[torch.Tensor]] = {}
        count = 0
        with (
            progress("features", len(items), done=len(items) - left) as advance,
            ThreadPoolExecutor(1, thread_name_prefix="write") as pool,
        ):
            writing: Future[None] | None = None
            for batch in extractor.stream(items, plan, todo):
                for column in missing:
                    flat = batch.columns[column].flatten(0, 2).to(DTYPES[self.spec.store_dtype])
                    arrived.setdefault(column, []).append(flat.cpu())
                count += len(batch.images)
                advance(len(batch.images))
                lock.sign_of_life()
                if count in ending:
                    shard = ending[count]
                    if writing:
                        writing.result()
                    wanted = {c: torch.cat(arrived[c]) for c in missing if shard in missing[c]}
                    arrived = {}
                    precision = extractor.backbone.precision
                    writing = pool.submit(self._write_shard, shard, wanted, precision)
            if writing:
                writing.result()

    def _write_shard(self, shard: int, columns: dict[str, torch.Tensor], precision: str) -> None:
        from safetensors.torch import save

        for column, tokens in columns.items():
            if not torch.isfinite(tokens).all():
                raise NumbersError(
                    f"{column} does not fit in {self.spec.store_dtype}: values beyond ±65504.\n"
                    "Store it with --store-dtype fp32, or take tokens_norm."
                )
            folder = self.folder / column
            folder.mkdir(parents=True, exist_ok=True)
            data = save({"tokens": tokens})
            digest = hashlib.sha256(data).hexdigest()
            written = _Shard(_shard_name(shard), len(data), digest, precision)
            write_whole(folder / written.file, data)
            # The shard is in place before the journal names it.
            append_line(folder / "journal.jsonl", json.dumps(asdict(written)))
            self._checked.add((str(folder / written.file), digest))

    def _seal(self, column: str) -> None:
        folder = self.folder / column
        shards = self._sound_shards(column)
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
        per_token = DTYPES[self.spec.store_dtype].itemsize * extractor.backbone.facts.width
        need = per_token * sum(
            plan.tokens(image) for lacking in missing.values() for s in lacking for image in plan.shards[s]
        )
        if need > limit_bytes:
            raise ResourceError(
                f"these features need {size_text(need)}, more than --cache-limit "
                f"{size_text(limit_bytes)}.\nRaise it, or take fewer --layers or a smaller --size."
            )
        evict(self.root, limit_bytes - need, keep=self.key)
        free = shutil.disk_usage(self.root).free
        if need > free:
            raise ResourceError(
                f"these features need {size_text(need)}, {self.root} has {size_text(free)} free.\n"
                "Free some space, or use another --cache."
            )


def _shard_ends(plan: Plan, todo: Sequence[int]) -> dict[int, int]:
    """After how many images of a run over these shards each one is complete."""
    ends, count = {}, 0
    for shard in todo:
        count += len(plan.shards[shard])
        ends[count] = shard
    return ends


def _shard_name(shard: int) -> str:
    return f"{shard:05d}.safetensors"


# --- the cache as a whole --------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    key: str
    folder: Path
    bytes: int
    last_used: float
    about: Mapping[str, Any]
    columns: tuple[str, ...]
    complete: bool


def entries(root: Path) -> Iterator[Entry]:
    """What lies in the cache, least recently used first."""
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        if not folder.is_dir():
            continue
        files = [f for f in folder.rglob("*") if f.is_file()]
        about = folder / "about.json"
        used = about.stat().st_mtime if about.exists() else 0.0
        columns = sorted(f.name for f in folder.iterdir() if f.is_dir())
        complete = all((folder / c / "manifest.json").exists() for c in columns) and bool(columns)
        size = sum(f.stat().st_size for f in files if f.exists())
        described = _read_json(about) or {}
        found.append(Entry(folder.name, folder, size, used, described, tuple(columns), complete))
    yield from sorted(found, key=lambda entry: entry.last_used)


def remove(entry: Entry) -> bool:
    """Delete it, unless a process uses it."""
    with FileLock(entry.folder.parent / f"{entry.key}.use.lock") as lock:
        if not lock.try_acquire(exclusive=True):
            return False
        # Renamed first: an entry that is half gone must not be found by its key.
        doomed = entry.folder.with_name(f".{entry.key}.{time.time_ns()}.removed")
        entry.folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        return True


def evict(root: Path, limit_bytes: int, keep: str) -> None:
    present = list(entries(root))
    total = sum(entry.bytes for entry in present)
    for entry in present:
        if total <= limit_bytes:
            return
        if entry.key != keep and remove(entry):
            total -= entry.bytes
            log.info("cache: %s removed, not used for longest", size_text(entry.bytes))


# --- files -----------------------------------------------------------------------------------


def ensure_writable(folder: Path) -> None:
    """Found out before any computing, by writing."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ResourceError(f"cannot write in {folder}: {error.strerror}. Choose another.") from None


def write_whole(path: Path, data: bytes) -> None:
    """The file appears whole or not at all, also when the machine goes down."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _write_error(path, error) from None


def append_line(path: Path, line: str) -> None:
    try:
        with path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _write_error(path, error) from None


def _write_error(path: Path, error: OSError) -> ResourceError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ResourceError(
            f"disk full while writing {path.parent}.\nWhat was stored is sound: free some space (or "
            "see `skipbench cache`) and run the same command; it goes on from there."
        )
    return ResourceError(f"cannot write {path}: {error.strerror}")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """A journal's lines; the last may have been cut short, and what follows it is not there."""
    lines = []
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            lines.append(asdict(_Shard(**entry)))
        except (ValueError, TypeError):
            continue
    return lines


def size_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def parse_bytes(text: str) -> int:
    """ "50GB", "500 MB", "1e9" → bytes."""
    from skipbench.errors import UsageError

    units = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1, "": 1}
    number = text.strip().upper().rstrip("TGMKB ")
    unit = text.strip().upper().removeprefix(number).strip()
    try:
        return int(float(number) * units[unit])
    except (KeyError, ValueError):
        raise UsageError(f"{text!r} is no amount of space; give for example 50GB") from None
