"""Features of a list of images, by image and column; on disk, for many passes over them.

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
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F

from skipbench.backbones.base import Backbone
from skipbench.engine.locks import FileLock
from skipbench.errors import ResourceError
from skipbench.features.build import STALLED_AFTER, STORE_VERSION, StoreBuilder, shard_name
from skipbench.features.cache import DEFAULT_LIMIT
from skipbench.features.stream import SHARD_BYTES, Extractor, Plan
from skipbench.files import cache_folder, ensure_writable
from skipbench.images import TRANSFORM_VERSION, Picture, fingerprint, size_name
from skipbench.records import IMAGENET, FeatureSpec

log = logging.getLogger("skipbench")


def model_part(backbone: Backbone) -> dict[str, Any]:
    """Everything about a model and its input that features depend on, except blocks and size."""
    facts = backbone.facts
    part = {
        "transform_version": TRANSFORM_VERSION,
        "sha256": facts.sha256,
        "weights": facts.weights,
        "residual": backbone.residual,
        "heads": facts.heads,
        "norm_eps": facts.norm_eps,
        "position_rule": facts.position_rule,
        "precision": backbone.precision,
        **backbone.identity(),
    }
    if facts.preprocessing != IMAGENET:
        part["preprocessing"] = asdict(facts.preprocessing)
    return part


def describe(backbone: Backbone, items: Sequence[Picture], spec: FeatureSpec) -> dict[str, Any]:
    """Everything a stored feature depends on, except its column. The key is the hash of it."""
    pooled = {"pooled": True} if spec.pools else {}
    return {
        **pooled,
        "store_version": STORE_VERSION,
        "checkpoint": backbone.facts.name,
        **model_part(backbone),
        "size": size_name(spec.size),
        "store_dtype": spec.store_dtype,
        "images": len(items),
        "files": fingerprint(items),
    }


def key_of(about: Mapping[str, Any]) -> str:
    counted = {name: value for name, value in about.items() if name != "checkpoint"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:24]


class Features(Sequence[dict[str, torch.Tensor]], ABC):
    """By image and column: features[3]["tokens_norm.11"] is (height, width, channels)."""

    computed = 0  # images that were computed, not found in the store

    def __init__(
        self,
        plan: Plan,
        backbone: Backbone,
        spec: FeatureSpec,
        degenerate: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.plan, self.columns = plan, spec.columns
        self.strides = {  # by column: pixels per token
            column: backbone.stride(int(column.rpartition(".")[2])) for column in spec.columns
        }
        self.pooled = bool(spec.pools)  # a vector for each image, no tokens
        self.degenerate = degenerate  # by column: images with constant features

    @abstractmethod
    def read(self, image: int, column: str) -> np.ndarray:
        """(height × width, channels), float16 or float32."""

    def tokens(
        self, image: int, columns: Sequence[str], rows: np.ndarray | None = None
    ) -> np.ndarray:
        """(rows, channels): the columns concatenated; only some rows, where given.

        Coarser columns are resized bilinearly to the finest of them.
        """
        stride = self.stride(columns)
        parts = [self._on_grid(image, column, stride) for column in columns]
        return np.concatenate([p if rows is None else p[rows] for p in parts], axis=1)

    def vectors(self, columns: Sequence[str]) -> np.ndarray:
        """(images, channels) of pooled features, the columns concatenated."""
        return np.concatenate([self._vectors(column) for column in columns], axis=1)

    def _vectors(self, column: str) -> np.ndarray:
        return np.concatenate([self.read(image, column) for image in range(len(self))])

    def stride(self, columns: Sequence[str]) -> int:
        """Pixels per token of the finest of these columns."""
        return min(self.strides[column] for column in columns)

    def grid_hw(self, image: int, columns: Sequence[str]) -> tuple[int, int]:
        return self.plan.grid_hw(image, self.stride(columns))

    def token_count(self, image: int, columns: Sequence[str]) -> int:
        height, width = self.grid_hw(image, columns)
        return height * width

    def _on_grid(self, image: int, column: str, stride: int) -> np.ndarray:
        tokens = self.read(image, column)
        if self.strides[column] == stride:
            return tokens
        grid = torch.from_numpy(tokens).float().unflatten(0, self.grid_hw(image, [column]))
        wanted_hw = self.plan.grid_hw(image, stride)
        resized = F.interpolate(grid.permute(2, 0, 1)[None], wanted_hw, mode="bilinear")[0]
        return resized.flatten(1).T.numpy().astype(tokens.dtype)

    def warn_of_constant_features(self) -> None:
        for column, images in self.degenerate.items():
            if images:
                log.warning(
                    "%s: %d of %d images have constant features", column, len(images), len(self)
                )

    def __len__(self) -> int:
        return len(self.plan.sizes_hw)

    def __getitem__(self, image: int) -> dict[str, torch.Tensor]:  # type: ignore[override]
        if not -len(self) <= image < len(self):
            raise IndexError(image)
        image %= len(self)
        return {
            column: torch.from_numpy(self.read(image, column)).unflatten(
                0, self.grid_hw(image, [column])
            )
            for column in self.columns
        }

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FeatureStore(Features):
    """Complete columns on disk; locked against eviction until closed."""

    def __init__(self, builder: StoreBuilder, lock: FileLock) -> None:
        super().__init__(builder.plan, builder.backbone, builder.spec, builder.degenerate())
        self.folder = builder.folder
        self._lock = lock
        self._place: dict[int, tuple[int, int]] = {}  # image → shard, patches before it
        for shard, images in enumerate(self.plan.shards):
            start = 0
            for image in images:
                self._place[image] = (shard, start)
                start += 1 if self.pooled else self.plan.tokens(image)

    def read(self, image: int, column: str) -> np.ndarray:
        shard, start = self._place[image]
        if self.pooled:
            return _read_rows(self.folder / column / shard_name(shard), start, 1)
        each = (self.plan.patch // self.strides[column]) ** 2  # tokens of a patch
        path = self.folder / column / shard_name(shard)
        return _read_rows(path, start * each, self.plan.tokens(image) * each)

    def _vectors(self, column: str) -> np.ndarray:
        """Shard by shard: one file for many images."""
        found = None
        for shard, images in enumerate(self.plan.shards):
            rows = _read_rows(self.folder / column / shard_name(shard), 0, len(images))
            if found is None:
                found = np.empty((len(self), rows.shape[1]), rows.dtype)
            found[list(images)] = rows
        assert found is not None
        return found

    def close(self) -> None:
        self._lock.release()


def _read_rows(path: Path, start: int, count: int) -> np.ndarray:
    """Of a shard. Read, not memory-mapped: mapped pages would count as memory of this process."""
    try:
        with path.open("rb", buffering=0) as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))["tokens"]
            dtype = {"F16": "<f2", "F32": "<f4"}[header["dtype"]]
            values = np.empty((count, header["shape"][1]), dtype)
            file.seek(8 + length + header["data_offsets"][0] + start * values[:1].nbytes)
            if file.readinto(values.data.cast("B")) == values.nbytes:
                return values
    except FileNotFoundError:
        pass
    raise ResourceError(f"{path} was removed or truncated while in use; run the command again")


def missing_images(
    backbone: Backbone, items: Sequence[Picture], spec: FeatureSpec, cache: str | Path | None = None
) -> int:
    """Number of images without stored features. Read-only."""
    about = describe(backbone, items, spec)
    folder = cache_folder(cache) / "features" / key_of(about)
    if not folder.is_dir():
        return len(items)
    builder = StoreBuilder(folder, about, items, Extractor(backbone, spec))
    lacking = {shard for shards in builder.incomplete().values() for shard in shards}
    return sum(len(builder.plan.shards[shard]) for shard in lacking)


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
    key, extractor = key_of(about), Extractor(backbone, spec, batch_size, workers)
    builder = StoreBuilder(
        root / key, about, items, extractor, shard_bytes=shard_bytes, stalled_after=stalled_after
    )
    use = FileLock(root / f"{key}.use.lock")
    if not use.acquire(False, stalled_after, lambda: log.info("waiting for the cache lock")):
        raise ResourceError(
            f"another process holds {use.path}, but shows no activity.\n"
            "End it, or use another --cache."
        )
    try:
        if builder.is_complete():
            computed = 0
            log.info("%s: %d images found in the cache (%s)", label, len(items), builder.folder)
        else:
            computed = builder.build(limit_bytes, label)
        os.utime(builder.folder / "about.json")  # least recently used goes first
        store = FeatureStore(builder, use)
        store.computed = computed
        store.warn_of_constant_features()
        return store
    except BaseException:
        use.release()
        raise
