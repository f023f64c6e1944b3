"""faiss: nearest neighbours and k-means, on GPUs where available. Nothing else imports it.

Its two builds, faiss-cpu and faiss-gpu, install the same module and overwrite each other;
uninstalling one of them leaves a folder without a module. `load` recognises these states and says
how to repair each. All input is checked: faiss returns neighbours even for NaN.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

from skipbench.errors import NumbersError, UsageError

log = logging.getLogger("skipbench")

BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12", "faiss-gpu-cuvs", "faiss")

PIECE = 65_536  # rows
LISTS = 2  # times the square root of the bank's size
POINTS_A_LIST = 50  # training tokens per list
FEWEST_POINTS = 16_384  # training tokens: product quantisers need as many
TURNS = 10  # iterations of k-means, for lists
RECALL = 0.98  # as many lists are searched as this needs
MOST_ON_GPU = 2048  # lists that faiss can search on a GPU
LEAST_GAIN = 0.002  # in recall, from doubling the lists searched

Pieces = Callable[[], Iterable[np.ndarray]]  # iterates over the rows of a bank, in order
# (queries, k) each: similarities, descending, and row numbers; -inf and -1 beyond the bank's size.
Neighbours = tuple[np.ndarray, np.ndarray]


# -- the module


def builds() -> dict[str, str]:
    """Installed builds, working or not: {"faiss-cpu": "1.15.1"}."""
    found = {}
    for name in BUILDS:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def state() -> str:
    """For display: the build and its version, or what is wrong."""
    try:
        load()
    except UsageError as error:
        return ". ".join(line.rstrip(".") for line in str(error).splitlines())
    found = [f"{name} {version}" for name, version in builds().items()]
    return ", ".join(found) or "faiss, not installed by pip"


def load() -> Any:
    """The module; if it is missing or broken, an error that says how to repair it."""
    installed = builds()
    if len(installed) > 1:
        names = " ".join(installed)
        raise UsageError(
            f"faiss is broken: {' and '.join(installed)} are both installed and overwrite each "
            f"other.\nRepair it: pip uninstall -y {names} && pip install {_wanted(installed)}"
        )
    try:
        module = importlib.import_module("faiss")
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise _damaged(installed, str(error)) from None
        module = None
    except Exception as error:  # a missing library, an incompatible numpy
        raise _damaged(installed, f"{type(error).__name__}: {error}".splitlines()[0]) from None
    if hasattr(module, "IndexFlatIP"):
        return module
    sys.modules.pop("faiss", None)  # so that it is found in this process once repaired
    if module is not None and not hasattr(module, "__path__"):
        raise UsageError(f"{module.__file__} is imported instead of faiss: rename it")
    if module is not None:
        left = ", ".join(map(str, module.__path__))
        raise _damaged(installed, f"only its folder is left, without the module: {left}")
    if installed:
        (name,) = installed
        missing = f"{name} is installed according to pip, but the module is missing"
        raise _damaged(installed, missing)
    raise UsageError(
        "faiss is not installed; knn, cluster and classify need it.\n"
        f"Install it: pip install {_wanted(installed)}   (faiss-cpu or faiss-gpu, never both)"
    )


def _damaged(installed: dict[str, str], why: str) -> UsageError:
    return UsageError(
        f"faiss is broken: {why[:160]}\n"
        f"Repair it: pip install --force-reinstall --no-deps {_wanted(installed)}"
    )


def _wanted(installed: dict[str, str]) -> str:
    """The installed build; if there are two or none, the one for this machine."""
    if len(installed) == 1:
        return next(iter(installed))
    import torch

    for_gpus = next((name for name in installed if "gpu" in name), "faiss-gpu")
    return for_gpus if torch.cuda.is_available() else "faiss-cpu"


def gpus(device: Any) -> int:
    """Number of GPUs to search on, for a model on this device."""
    faiss = load()
    if not str(device).startswith("cuda"):
        return 0
    count = getattr(faiss, "get_num_gpus", int)()
    if not count:
        warn_of_cpu_build()
    return count


@cache
def warn_of_cpu_build() -> None:
    log.warning("this faiss has no GPU support; searching on the CPU (`skipbench manual faiss`)")


def checked(rows: np.ndarray) -> np.ndarray:
    """float32, C-contiguous and finite, as faiss wants it."""
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(rows, np.float32)
    if not np.isfinite(rows).all():
        raise NumbersError("NaN or Inf in the tokens")
    return rows


# -- nearest neighbours by inner product


class Flat:
    """Exact search of the whole bank. On the CPU in an array of our own: faiss would copy it."""

    def __init__(
        self,
        pieces: Pieces,
        count: int,
        width: int,
        dtype: str = "float32",
        on_gpus: int = 0,
        rows_at_once: int = PIECE,
    ) -> None:
        """rows_at_once: converted to float32 together."""
        self.faiss, self.rows_at_once = load(), rows_at_once
        self.bank = np.empty((0 if on_gpus else count, width), dtype)
        index = self.faiss.IndexFlatIP(width) if on_gpus else None
        start = 0
        for piece in pieces():
            piece = checked(piece)
            if index is None:
                self.bank[start : start + len(piece)] = piece
            else:
                index.add(piece)
            start += len(piece)
        assert start == count, f"{start} rows, expected {count}"
        self.index = None if index is None else _placed(index, half=dtype == "float16")

    def search(self, queries: np.ndarray, k: int) -> Neighbours:
        queries = checked(queries)
        if self.index is not None:
            return _or_none(*self.index.search(queries, k))
        step = len(self.bank) if self.bank.dtype == np.float32 else self.rows_at_once
        best = Best(queries, k)
        for start in range(0, len(self.bank), max(step, 1)):
            best.add(self.bank[start : start + step].astype(np.float32, copy=False))
        return best.near, best.number


class Best:
    """The nearest rows of a bank that arrives in pieces."""

    def __init__(self, queries: np.ndarray, k: int) -> None:
        self.faiss, self.queries, self.k, self.rows = load(), queries, k, 0
        self.near = np.empty((len(queries), 0), np.float32)
        self.number = np.empty((len(queries), 0), np.int64)

    def add(self, piece: np.ndarray) -> None:
        k, product = min(self.k, len(piece)), self.faiss.METRIC_INNER_PRODUCT
        near, number = self.faiss.knn(self.queries, piece, k, metric=product)
        self.near = np.concatenate([self.near, near], axis=1)
        self.number = np.concatenate([self.number, number + self.rows], axis=1)
        if self.rows:
            order = np.argsort(-self.near, axis=1, kind="stable")[:, : self.k]
            self.near = np.take_along_axis(self.near, order, 1)
            self.number = np.take_along_axis(self.number, order, 1)
        self.rows += len(piece)


class Lists:
    """An inverted file (IVF): lists of similar tokens, of which only those nearest to a query are
    searched.

    How many are searched is chosen with the exact neighbours of one half of the `probes`; `recall`
    is measured on the other half. It is always chosen for `usual_k` neighbours, so results do not
    depend on which other k are evaluated.
    """

    def __init__(
        self,
        pieces: Pieces,
        count: int,
        width: int,
        *,
        probes: np.ndarray,
        k: int,
        usual_k: int,
        quantised: bool = False,
        seed: int = 0,
        on_gpus: int = 0,
    ) -> None:
        self.faiss = load()
        if quantised and count < 256:
            raise UsageError(f"{count} tokens are too few to quantise: give a higher --bank-limit")
        self.lists = max(1, min(2 ** round(np.log2(LISTS * count**0.5)), count // 8))
        index = self._untrained(width, quantised, seed)
        most = max(POINTS_A_LIST * self.lists, FEWEST_POINTS)
        index.train(sample_rows(pieces, count, width, most, seed))
        self.probes = checked(probes)
        exact = {many: Best(self.probes, many) for many in {usual_k, max(k, usual_k)}}
        for piece in pieces():
            piece = checked(piece)
            index.add(piece)
            for best in exact.values():
                best.add(piece)
        self.exact = {many: best.number for many, best in exact.items()}
        self.on_gpus = on_gpus > 0 and not quantised  # faiss on GPUs has no quantiser this fine
        self.index = _placed(index, half=True) if self.on_gpus else index

        def recall_of(lists: int) -> float:
            self.set_searched(lists)
            return self._found_of(slice(0, None, 2), usual_k)

        self.set_searched(lists_to_search(self.lists, self.on_gpus, recall_of))

    def _untrained(self, width: int, quantised: bool, seed: int) -> Any:
        numbers = f"PQ{width // 2 if width % 2 == 0 else width}" if quantised else "SQfp16"
        inner = self.faiss.METRIC_INNER_PRODUCT
        index = self.faiss.index_factory(width, f"IVF{self.lists},{numbers}", inner)
        index.cp.niter, index.cp.seed, index.cp.min_points_per_centroid = TURNS, seed, 1
        if quantised:
            index.pq.cp.niter, index.pq.cp.min_points_per_centroid = TURNS, 1
            index.pq.cp.max_points_per_centroid = FEWEST_POINTS // 256
            index.do_polysemous_training = False  # for another kind of search; it takes minutes
        return index

    def recall(self, k: int) -> float:
        """Share of the exact k nearest that are found, for probes not used to choose the lists."""
        return self._found_of(slice(len(self.probes) > 1, None, 2), k)

    def _found_of(self, which: slice, k: int) -> float:
        exact = self.exact[min(many for many in self.exact if many >= k)][which, :k]
        _, found = self.search(self.probes[which], exact.shape[1])
        shares = [np.isin(true, mine).mean() for true, mine in zip(exact, found, strict=True)]
        return float(np.mean(shares))

    def set_searched(self, lists: int) -> None:
        """How many lists every later search reads."""
        self.searched = lists
        space = self.faiss.GpuParameterSpace() if self.on_gpus else self.faiss.ParameterSpace()
        space.set_index_parameter(self.index, "nprobe", lists)

    def search(self, queries: np.ndarray, k: int) -> Neighbours:
        return _or_none(*self.index.search(checked(queries), k))


Index = Flat | Lists


def lists_to_search(most: int, on_gpus: bool, recall_of: Callable[[int], float]) -> int:
    """Doubled until the recall suffices or stops growing: quantisation limits it, too."""
    most = min(most, MOST_ON_GPU) if on_gpus else most
    lists, before = min(8, most), 0.0
    while True:
        now = recall_of(lists)
        if now >= RECALL or lists >= most or (before and now < before + LEAST_GAIN):
            return lists
        lists, before = min(2 * lists, most), now


def _or_none(near: np.ndarray, number: np.ndarray) -> Neighbours:
    """-inf for neighbours that do not exist: faiss gives them the lowest float."""
    return np.where(number < 0, -np.inf, near).astype(np.float32), number


def sample_rows(pieces: Pieces, count: int, width: int, most: int, seed: int) -> np.ndarray:
    """A random sample, without the whole bank in memory; at most a gigabyte."""
    most = min(most, 10**9 // (4 * width))
    wanted = np.arange(count)
    if count > most:
        wanted = np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
    rows = np.empty((len(wanted), width), np.float32)
    start = 0
    for piece in pieces():
        first, last = np.searchsorted(wanted, (start, start + len(piece)))
        rows[first:last] = piece[wanted[first:last] - start]
        start += len(piece)
    return checked(rows)


def _placed(index: Any, half: bool) -> Any:
    """On all GPUs, each with a part of the bank."""
    faiss = load()
    options = faiss.GpuMultipleClonerOptions()
    options.shard, options.useFloat16 = True, half
    if hasattr(options, "use_cuvs"):
        options.use_cuvs = False  # it does not support float16 lists
    return faiss.index_cpu_to_all_gpus(index, co=options)


# -- k-means


def k_means(
    rows: np.ndarray, clusters: int, seed: int, turns: int, redo: int = 1, on_gpus: int = 0
) -> tuple[np.ndarray, float]:
    """(clusters, width) float32 centroids, and the mean squared distance to them. Initialised with
    random rows, as faiss does. redo: number of restarts; lowest inertia wins."""
    rows = checked(rows)
    if len(rows) < clusters:
        raise UsageError(
            f"{clusters:,} clusters of {len(rows):,} tokens: give fewer --clusters, or a larger "
            "--sample-tokens"
        )
    made = load().Kmeans(
        rows.shape[1], clusters, niter=turns, nredo=redo, seed=seed, gpu=on_gpus or False,
        min_points_per_centroid=1, max_points_per_centroid=-(-len(rows) // clusters),
    )  # fmt: skip
    made.train(rows)
    parts = (rows[start : start + PIECE] for start in range(0, len(rows), PIECE))
    inertia = sum(float(made.assign(part)[0].sum(dtype=np.float64)) for part in parts)
    return np.asarray(made.centroids, np.float32), inertia / len(rows)
