"""Nearest neighbours and clusters as one call each from Python, with the same defaults."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from skipbench.datasets import Dataset
from skipbench.errors import UsageError
from skipbench.evaluations.cluster import run as clustering
from skipbench.evaluations.cluster.run import Cluster
from skipbench.evaluations.data import open_masks, open_splits
from skipbench.evaluations.knn import run as neighbouring
from skipbench.evaluations.knn.run import Knn
from skipbench.evaluations.knn.settings import (
    BANK_LIMIT,
    CLASSES,
    INDEXES,
    MEMORY,
    SAMPLE,
    SEEDS,
    TEMPERATURE,
    K,
    check_sample,
    parse_clusters,
    parse_how_many_seeds,
    parse_ks,
    parse_temperatures,
)
from skipbench.evaluations.probe.calls import (
    FeatureOptions,
    asked_of_features,
    call_again,
    call_of,
    check_choices,
    check_names,
    check_same,
    reading_of,
)
from skipbench.evaluations.probe.protocols import parse_seeds
from skipbench.pipeline import Inspection, inspect
from skipbench.records import Result


class KnnOptions(FeatureOptions, total=False):
    k: str | int | Sequence[int]
    temperature: str | float | Sequence[float]
    memory: int
    index: str
    bank_limit: int
    train_images: int | None
    subset_seed: int


class ClusterOptions(FeatureOptions, total=False):
    clusters: str | int | Sequence[str | int]
    sample: int
    redo: int
    split: str | None


USUAL = {
    "norm": True, "subset_seed": 0, "skip_bad": 0, "precision": "auto", "store_dtype": "fp16",
    "residual": "auto", "expected": {},
}  # fmt: skip
USUAL_KNN = {**USUAL, "memory": MEMORY, "index": "auto", "bank_limit": BANK_LIMIT}
USUAL_CLUSTER = {**USUAL, "sample": SAMPLE, "redo": 1}


def knn(
    ckpt: str | Path,
    dataset: str,
    *,
    layers: str | Sequence[str] = "last",
    seeds: Sequence[int] = (0,),
    **options: Unpack[KnnOptions],
) -> list[Result]:
    """`skipbench knn`: a record for each set of layers, seed, k and temperature.

    options: those of `skipbench knn --help` without the dashes (k, temperature, memory, …), and
    in_memory for --no-cache.
    """
    return open_knn(ckpt, dataset, layers=layers, seeds=seeds, **options).run()


def cluster(
    ckpt: str | Path,
    dataset: str,
    *,
    layers: str | Sequence[str] = "last",
    seeds: int | Sequence[int] = SEEDS,
    **options: Unpack[ClusterOptions],
) -> list[Result]:
    """`skipbench cluster`: a record for each set of layers, number of clusters and seed.

    seeds: how many, or which; options: those of `skipbench cluster --help` without the dashes
    (clusters, sample, …), and in_memory for --no-cache.
    """
    return open_cluster(ckpt, dataset, layers=layers, seeds=seeds, **options).run()


def open_knn(
    ckpt: str | Path,
    dataset: str,
    *,
    layers: str | Sequence[str] = "last",
    seeds: Sequence[int] = (0,),
    splits: tuple[Dataset, Dataset] | None = None,
    inspection: Inspection | None = None,
    **options: Unpack[KnnOptions],
) -> Knn:
    """All of `knn` but the work itself. splits: training and validation images, if they are open
    already; inspection: the checkpoint, if it is."""
    check_names(options, KnnOptions, "knn")
    index = options.get("index", "auto")
    check_choices(("index", index, INDEXES))
    _check_counts(options, "memory", "bank_limit")
    asked = neighbouring.Asked(
        ks=parse_ks(options.get("k", K)),
        temperatures=parse_temperatures(options.get("temperature", TEMPERATURE)),
        memory=options.get("memory", MEMORY),
        index=index,
        bank_limit=options.get("bank_limit", BANK_LIMIT),
        size=str(options.get("size") or "512"),
        seeds=parse_seeds(tuple(seeds)),
        call=_call(ckpt, dataset, options, {"k", "temperature"}, USUAL_KNN),
        **asked_of_features(layers, options),
    )
    train, val = splits or open_splits(
        dataset,
        train_images=options.get("train_images"),
        subset_seed=options.get("subset_seed", 0),
        **_of_data(options),
    )
    return Knn(inspection or inspect(ckpt, **reading_of(options)), train, val, asked)


def open_cluster(
    ckpt: str | Path,
    dataset: str,
    *,
    layers: str | Sequence[str] = "last",
    seeds: int | Sequence[int] = SEEDS,
    data: Dataset | None = None,
    inspection: Inspection | None = None,
    **options: Unpack[ClusterOptions],
) -> Cluster:
    """All of `cluster` but the work itself. data: the images, if they are open already;
    inspection: the checkpoint, if it is."""
    check_names(options, ClusterOptions, "cluster")
    _check_counts(options, "sample", "redo")
    asked = clustering.Asked(
        clusters=parse_clusters(options.get("clusters", CLASSES)),
        sample=options.get("sample", SAMPLE),
        redo=options.get("redo", 1),
        size=str(options.get("size") or "448"),
        seeds=parse_how_many_seeds(seeds),
        call=_call(ckpt, dataset, options, {"clusters"}, USUAL_CLUSTER),
        **asked_of_features(layers, options),
    )
    check_sample(asked.sample, asked.clusters)
    data = data or open_masks(dataset, split=options.get("split"), **_of_data(options))
    return Cluster(inspection or inspect(ckpt, **reading_of(options)), data, asked)


def _check_counts(options: Mapping[str, Any], *names: str) -> None:
    for name in names:
        value = options.get(name, 1)
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value!r}: give a whole number from 1")


def _of_data(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "root": options.get("data_root"),
        "limit": options.get("limit"),
        "classes": options.get("classes"),
        "skip_bad": options.get("skip_bad", 0),
    }


def _call(
    ckpt: str | Path,
    dataset: str,
    options: Mapping[str, Any],
    by_cell: set[str],
    usual: Mapping[str, Any],
) -> dict[str, Any]:
    """For the record. by_cell: options of which each record has its own value."""
    told = {name: value for name, value in options.items() if name not in by_cell}
    return call_of(ckpt, dataset, told, usual)


def knn_again(
    result: Result, *, ckpt: str | Path | None = None, seeds: Sequence[int], **places: Any
) -> Knn:
    """The evaluation of a record once more, with other seeds or elsewhere."""
    call = call_again(result, KnnOptions, ckpt, places, ("k", "temperature"))
    run = open_knn(seeds=seeds, **call)
    check_same(result, call["ckpt"], run.backbone, run.val_facts, run.train_facts)
    return run


def cluster_again(
    result: Result, *, ckpt: str | Path | None = None, seeds: Sequence[int], **places: Any
) -> Cluster:
    call = call_again(result, ClusterOptions, ckpt, places, ("clusters",))
    run = open_cluster(seeds=list(seeds), **call)
    check_same(result, call["ckpt"], run.backbone, run.facts)
    return run
