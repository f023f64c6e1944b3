"""Features on disk, for evaluations that make many passes over them.

    <cache>/features/<key>/              one checkpoint, variant, size and list of images
        about.json                       what the key was computed from
        plan.json                        sizes of the images, and the images of each shard
        tokens_norm.11/                  a column: one tensor of one block
            00000.safetensors            tokens of the shard's images, one after another
            journal.jsonl                a line per finished shard: its size and sha256
            manifest.json                the same for all shards; written last, so its existence
                                         means that the column is complete
    <cache>/features/<key>.build.lock    held by the process that computes
    <cache>/features/<key>.use.lock      shared by readers; exclusive for eviction

Every file is written under a temporary name and renamed, with write(): on a full disk that fails,
where writing to a memory-mapped file would kill the process. Checksums are verified before anything
is read. However a run ends, the next one resumes after the last complete shard.
"""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.backbones.base import Backbone
from skipbench.engine.locks import FileLock
from skipbench.errors import ResourceError
from skipbench.features.build import STALLED_AFTER, STORE_VERSION, StoreBuilder, shard_name
from skipbench.features.cache import DEFAULT_LIMIT
from skipbench.features.plan import SHARD_BYTES, Plan
from skipbench.features.reader import Features
from skipbench.features.stream import Extractor
from skipbench.files import cache_folder, ensure_writable
from skipbench.images import TRANSFORM_VERSION, Picture, fingerprint, size_name
from skipbench.records import IMAGENET, FeatureSpec, Preprocessing

log = logging.getLogger("skipbench")

MOST_OPEN = 128  # shards of a store; many systems allow 1,024 open files per process


def model_part(backbone: Backbone) -> dict[str, Any]:
    """Everything about a model and its input that features depend on, except blocks and size."""
    facts = backbone.facts
    return {
        "transform_version": TRANSFORM_VERSION,
        "sha256": facts.sha256,
        "weights": facts.weights,
        "residual": backbone.residual,
        "heads": facts.heads,
        "norm_eps": facts.norm_eps,
        "position_rule": facts.position_rule,
        "precision": backbone.precision,
        **backbone.identity(),
        **_unless_usual(facts.preprocessing),
    }


def _unless_usual(preprocessing: Preprocessing) -> dict[str, Any]:
    return {} if preprocessing == IMAGENET else {"preprocessing": asdict(preprocessing)}


def describe(backbone: Backbone, items: Sequence[Picture], spec: FeatureSpec) -> dict[str, Any]:
    """Everything a stored feature depends on, except its column. The key is the hash of it."""
    return {
        "store_version": STORE_VERSION,
        "checkpoint": backbone.facts.name,
        **model_part(backbone),
        "size": size_name(spec.size),
        "store_dtype": spec.store_dtype,
        "images": len(items),
        "files": fingerprint(items),
    }


def strides_of(backbone: Backbone, spec: FeatureSpec) -> dict[str, int]:
    return {
        f"{tensor}.{block}": backbone.stride(block)
        for block in spec.blocks
        for tensor in spec.tensors
    }


def key_of(about: Mapping[str, Any]) -> str:
    counted = {name: value for name, value in about.items() if name != "checkpoint"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:24]


class FeatureStore(Features):
    """Complete columns on disk; locked against eviction until closed."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        strides: Mapping[str, int],
        degenerate: dict[str, tuple[int, ...]],
        lock: FileLock,
    ) -> None:
        super().__init__(plan, strides, degenerate)
        self.folder = folder
        self._lock = lock
        self._open: dict[tuple[str, int], _ShardFile] = {}
        self._opening = threading.Lock()
        self._place: dict[int, tuple[int, int]] = {}  # image → shard, patches before it
        for shard, images in enumerate(plan.shards):
            start = 0
            for image in images:
                self._place[image] = (shard, start)
                start += plan.tokens(image)

    def read(self, image: int, column: str) -> np.ndarray:
        shard, start = self._place[image]
        with self._opening:  # no file is closed while another thread reads from it
            if (column, shard) not in self._open:
                while len(self._open) >= MOST_OPEN:
                    self._open.pop(next(iter(self._open))).close()
                self._open[column, shard] = _ShardFile(self.folder / column / shard_name(shard))
            each = (self.plan.patch // self.strides[column]) ** 2  # tokens of a patch
            return self._open[column, shard].rows(start * each, self.plan.tokens(image) * each)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._lock.release()


class _ShardFile:
    """Read, not memory-mapped: mapped pages would count as memory of this process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        length = int.from_bytes(self._file.read(8), "little")
        header = json.loads(self._file.read(length))["tokens"]
        self._dtype = np.dtype({"F16": "<f2", "F32": "<f4"}[header["dtype"]])
        self._channels = header["shape"][1]
        self._start = 8 + length + header["data_offsets"][0]

    def rows(self, start: int, count: int) -> np.ndarray:
        row = self._channels * self._dtype.itemsize
        values = np.empty((count, self._channels), self._dtype)
        self._file.seek(self._start + start * row)
        if self._file.readinto(values.data.cast("B")) != values.nbytes:
            raise ResourceError(
                f"{self._file.name} was truncated while in use; run the command again"
            )
        return values

    def close(self) -> None:
        self._file.close()


def missing_images(
    backbone: Backbone, items: Sequence[Picture], spec: FeatureSpec, cache: str | Path | None = None
) -> int:
    """Number of images without stored features. Read-only."""
    about = describe(backbone, items, spec)
    builder = StoreBuilder(cache_folder(cache) / "features", key_of(about), about, spec)
    if not builder.folder.is_dir():
        return len(items)
    plan = builder.plan(items, backbone, workers=2)
    lacking = {shard for shards in builder.incomplete(plan).values() for shard in shards}
    return sum(len(plan.shards[shard]) for shard in lacking)


def open_store(
    backbone: Backbone,
    items: Sequence[Picture],
    spec: FeatureSpec,
    *,
    cache: str | Path | None = None,
    limit_bytes: int = DEFAULT_LIMIT,
    batch_size: int | None = None,
    workers: int = 2,
    label: str = "features",
    shard_bytes: int = SHARD_BYTES,
    stalled_after: float = STALLED_AFTER,
) -> FeatureStore:
    """The features of these images: from the cache; missing ones are computed and stored."""
    root = cache_folder(cache) / "features"
    ensure_writable(root)
    about = describe(backbone, items, spec)
    builder = StoreBuilder(
        root, key_of(about), about, spec, shard_bytes=shard_bytes, stalled_after=stalled_after
    )
    use = FileLock(root / f"{builder.key}.use.lock")
    if not use.acquire(False, stalled_after, lambda: log.info("waiting for the cache lock")):
        raise ResourceError(f"{use.path} is locked by a process that shows no activity")
    try:
        plan = builder.plan(items, backbone, workers)
        if builder.is_complete(plan):
            computed = 0
            log.info("%s: %d images found in the cache (%s)", label, len(items), builder.folder)
        else:
            extractor = Extractor(backbone, spec, batch_size, workers)
            computed = builder.build(extractor, items, plan, limit_bytes, label)
        os.utime(builder.folder / "about.json")  # least recently used goes first
        strides = strides_of(backbone, spec)
        store = FeatureStore(builder.folder, plan, strides, builder.degenerate(), use)
        store.computed = computed
        store.warn_of_constant_features()
        return store
    except BaseException:
        use.release()
        raise
