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

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from skipbench.backbones.vit import Backbone
from skipbench.engine.locks import FileLock
from skipbench.errors import ResourceError
from skipbench.features.build import STALLED_AFTER, STORE_VERSION, Builder, shard_name
from skipbench.features.cache import DEFAULT_LIMIT
from skipbench.features.plan import Plan
from skipbench.features.stream import Extractor
from skipbench.files import cache_folder, ensure_writable
from skipbench.images import TRANSFORM_VERSION, Picture, fingerprint, size_name
from skipbench.records import FeatureSpec

log = logging.getLogger("skipbench")

MOST_OPEN = 256  # shards mapped at once


def describe(backbone: Backbone, items: Sequence[Picture], spec: FeatureSpec) -> dict[str, Any]:
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
        "size": size_name(spec.size),
        "precision": backbone.precision,
        "store_dtype": spec.store_dtype,
        "images": len(items),
        "files": fingerprint(items),
    }


def key_of(about: Mapping[str, Any]) -> str:
    counted = {name: value for name, value in about.items() if name != "checkpoint"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:24]


class FeatureStore(Sequence[dict[str, torch.Tensor]]):
    """Complete columns, by image: store[3]["tokens_norm.11"] is (height, width, channels)."""

    def __init__(
        self, folder: Path, plan: Plan, degenerate: dict[str, tuple[int, ...]], lock: FileLock
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.columns = tuple(degenerate)
        self.degenerate = degenerate  # by column: images whose tokens are all alike
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
            while len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
            file = safe_open(self.folder / column / shard_name(shard), framework="pt")
            self._open[column, shard] = file.__enter__().get_slice("tokens")
        return self._open[column, shard]

    def close(self) -> None:
        self._open.clear()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_store(
    backbone: Backbone,
    items: Sequence[Picture],
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
    builder = Builder(root, key_of(about), about, spec)
    use = FileLock(root / f"{builder.key}.use.lock")
    if not use.acquire(False, STALLED_AFTER, lambda: log.info("waiting for the cache")):
        raise ResourceError(f"{use.path}: locked by a process that shows no sign of life")
    try:
        plan = builder.plan(items, backbone, workers)
        if builder.is_complete(plan):
            log.info("features: %d images found in the cache (%s)", len(items), builder.folder)
        else:
            builder.build(Extractor(backbone, spec, batch_size, workers), items, plan, limit_bytes)
        os.utime(builder.folder / "about.json")  # least recently used goes first
        store = FeatureStore(builder.folder, plan, builder.degenerate(), use)
        for column, images in store.degenerate.items():
            if images:
                log.warning(
                    "%s: %d of %d images have constant features", column, len(images), len(items)
                )
        return store
    except BaseException:
        use.release()
        raise
