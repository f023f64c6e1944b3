"""Dense nearest neighbours compared with bare faiss, torch and scikit-learn.

    python benchmarks/knn.py [--tokens 100000,1000000] [--images 8] [--rounds 5] [--quick]
    python benchmarks/knn.py --ckpt F --dataset voc [--data-root D] [--train-images N]

Images of 1,024 tokens × 384 (512 × 512 at patch 16), masks of 512 × 512 and 375 × 500 alternately,
21 classes, k = 30. Every variant gets the same float16 tokens in memory and the same bank:

    ours, flat    `knn.method.score`: normalise, search the whole bank, vote, resize, score
    ours, ivf     the same with an IVF index; its construction is timed separately; recall at 30
    bare faiss    one call of IndexFlatIP.search on the same tokens, already normalised
    torch         matrix products with chunks of the bank in one buffer, topk of each chunk, then of
                  those; dense labels, softmax, interpolate, argmax, bincount. Uses the fastest of
                  several chunk sizes
    sklearn       NearestNeighbors, brute, euclidean on normalised tokens (its metric "cosine" took
                  2.4 times as long), then torch's vote; on few images, as it is the slowest

The variants take turns in one process, every other turn in reverse order. Ratios of seconds per
image are computed within a turn; reported is the median over all turns, with quartiles. The
predictions of torch and sklearn must agree with ours, flat, on all but 1 pixel in 1,000 (ties and
rounding); otherwise the script stops with an error. For ivf the difference is only reported.

Tokens are synthetic, unless a checkpoint is given: 300 clusters with power-law sizes, in 64 of the
384 dimensions; anisotropic noise that differs between clusters, and a little noise in all
dimensions; all around a mean far from zero. A patch has the class of its cluster; every sixth has a
share of a second class. An image consists of regions, each of one cluster, with ignored pixels
between them. Except for ivf, the time hardly depends on any of this.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from skipbench.engine.machine import wait_politely

wait_politely()  # before torch is loaded, as the command does

# ruff: noqa: E402
import numpy as np
import torch
import torch.nn.functional as F
from _shared import divide, quartiles, seconds
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors

from skipbench.engine import vectors
from skipbench.engine.machine import peak_bytes
from skipbench.evaluations import find_evaluation
from skipbench.evaluations.knn.method import QUERIES, Vote, normalised, score, segment, vote
from skipbench.evaluations.knn.run import PROBES
from skipbench.evaluations.knn.settings import KnnSettings
from skipbench.evaluations.segmentation.tokens import Grid
from skipbench.metrics.segmentation import IGNORED, class_counts
from skipbench.pipeline import open_run

faiss = vectors.load()  # after torch, as the command does
DEFAULTS = KnnSettings.defaults()
(K,), (TEMPERATURE,) = DEFAULTS["k"], DEFAULTS["temperature"]
WIDTH, SIDE, CLASSES = 384, 32, 21
SIZES = ((512, 512), (375, 500))  # of masks
CLUSTERS, DIMENSIONS, REGIONS = 300, 64, 12
CHUNKS = (8_192, 32_768, 65_536, 131_072)  # tokens of the bank, for torch
MAX_TIME = 1.1  # of ours, flat, relative to bare faiss
MAX_DIFFERENT = 1e-3  # share of pixels
VOTE = Vote(K, TEMPERATURE)
Scores = tuple[list[np.ndarray], np.ndarray]  # predictions, and (images, 3, classes)


# -- tokens


class World:
    """Random tokens and labels, as described above."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = rng = np.random.default_rng(seed)
        size = np.arange(1, CLUSTERS + 1) ** -0.8
        self.size = size / size.sum()
        turn = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0][:DIMENSIONS]
        self.turn = turn.astype(np.float32)
        self.mean = rng.normal(size=WIDTH).astype(np.float32)
        self.centres = 1.5 * rng.standard_normal((CLUSTERS, DIMENSIONS), np.float32)
        falling = 2.5 * np.arange(1, DIMENSIONS + 1) ** -0.5
        self.spread = rng.permuted(np.tile(falling, (CLUSTERS, 1)), axis=1).astype(np.float32)
        self.classes = rng.integers(CLASSES, size=CLUSTERS)

    def choose(self, count: int) -> np.ndarray:
        return self.rng.choice(CLUSTERS, count, p=self.size)

    def tokens(self, clusters: np.ndarray) -> np.ndarray:
        """(n, width) float16, as in a feature store."""
        inner = self.rng.standard_normal((len(clusters), DIMENSIONS), np.float32)
        tokens = (self.centres[clusters] + inner * self.spread[clusters]) @ self.turn + self.mean
        tokens += 0.2 * self.rng.standard_normal(tokens.shape, np.float32)
        return tokens.astype(np.float16)

    def labels(self, clusters: np.ndarray) -> csr_array:
        """(n, classes): shares; some patches have two classes."""
        rows = np.arange(len(clusters))
        share = np.where(rows % 6 == 0, self.rng.uniform(0, 0.5, len(rows)), 0)
        values = np.concatenate([1 - share, share]).astype(np.float32)
        second = self.rng.integers(CLASSES, size=len(rows))
        classes = np.concatenate([self.classes[clusters], second])
        labels = csr_array((values, (np.tile(rows, 2), classes)), (len(rows), CLASSES))
        labels.eliminate_zeros()
        return labels

    def image(self, size_hw: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and mask: regions around random points."""
        points, clusters = cKDTree(self.rng.random((REGIONS, 2))), self.choose(REGIONS)
        tokens = self.tokens(clusters[points.query(centres_of((SIDE, SIDE)))[1]])
        distance, region = points.query(centres_of(size_hw), k=2)
        mask = self.classes[clusters[region[:, 0]]]
        mask[distance[:, 1] - distance[:, 0] < 0.01] = IGNORED
        return tokens, mask.astype(np.uint8).reshape(size_hw)


def centres_of(size_hw: tuple[int, int]) -> np.ndarray:
    """(n, 2) from 0 to 1: centres of all pixels, or patches."""
    axes = [(np.arange(side) + 0.5) / side for side in size_hw]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)


@dataclass
class Images:
    """Input of `score`, in memory."""

    all_tokens: list[np.ndarray]
    masks: list[np.ndarray]
    grids: list[Grid]

    def __len__(self) -> int:
        return len(self.masks)

    def tokens(self, image: int) -> np.ndarray:
        return self.all_tokens[image]

    def mask(self, image: int) -> np.ndarray:
        return self.masks[image]

    def grid(self, image: int) -> Grid:
        return self.grids[image]


@dataclass
class Scene:
    images: Images
    flat: vectors.Flat  # its array is the bank of every variant
    labels: csr_array

    @property
    def bank(self) -> np.ndarray:
        return self.flat.bank

    def queries(self) -> np.ndarray:
        return np.concatenate([normalised(one) for one in self.images.all_tokens])


def synthetic_scene(count: int, images: int) -> Scene:
    world = World()
    tokens, masks = zip(*(world.image(SIZES[i % len(SIZES)]) for i in range(images)), strict=True)
    grids = [Grid((SIDE, SIDE), (SIDE, SIDE))] * images
    clusters = world.choose(count)

    def chunks() -> Iterator[np.ndarray]:
        for start in range(0, count, vectors.PIECE):
            yield normalised(world.tokens(clusters[start : start + vectors.PIECE]))

    flat = vectors.Flat(chunks, count, WIDTH)
    return Scene(Images(list(tokens), list(masks), grids), flat, world.labels(clusters))


def real_scene(count: int, images: int, options: argparse.Namespace) -> Scene:
    """Features of the last block, as in `skipbench knn`."""
    knn = find_evaluation("knn")
    settings = knn.settings.make({
        "ckpt": options.ckpt, "dataset": options.dataset, "data_root": options.data_root,
        "limit": options.limit, "train_images": options.train_images, "memory": count,
        "index": "flat", "bank_limit": 10**11,
    })  # fmt: skip
    run = open_run(knn, settings)
    with ExitStack() as stack:
        run.open_features(stack, run.cells, ())
        memory, split = run.build_memory(run.cells[0]), run.split(run.cells[0])
        numbers = range(min(images, len(split)))
        read = [[of(i) for i in numbers] for of in (split.tokens, split.mask, split.grid)]
    return Scene(Images(*read), memory.index, memory.bank.labels)


# -- the variants


def ours(scene: Scene, index: vectors.Flat | vectors.Lists) -> np.ndarray:
    return score(scene.images, range(len(scene.images)), index, scene.labels, [VOTE])[:, 0]


def build_ivf(scene: Scene) -> vectors.Lists:
    step, bank = vectors.PIECE, scene.bank
    probes = np.random.default_rng(0).permutation(scene.queries())[:PROBES]
    return vectors.Lists(
        lambda: (bank[start : start + step] for start in range(0, len(bank), step)),
        *bank.shape, probes=probes, k=K, usual_k=K,
    )  # fmt: skip


class Torch:
    """Brute force, on the first `images` images of the scene."""

    def __init__(self, scene: Scene, images: int) -> None:
        self.images = [scene.images.all_tokens[i] for i in range(images)]
        self.masks, self.grids = scene.images.masks[:images], scene.images.grids[:images]
        self.bank = torch.from_numpy(scene.bank)
        self.labels = torch.from_numpy(scene.labels.toarray())

    def tune(self) -> int:
        """The fastest chunk size in tokens, best of 3 on a part of the bank."""
        queries = F.normalize(torch.from_numpy(self.images[0]).float(), dim=1)
        bank, spent = self.bank[: 2 * max(CHUNKS)], {}
        most = max(map(len, self.images))
        for self.chunk in (chunk for chunk in CHUNKS if chunk <= 2 * len(bank)):
            self.buffer = torch.empty(most * min(self.chunk, len(bank)))
            spent[self.chunk] = min(seconds(self.search, queries, bank) for _ in range(3))
        self.chunk = min(spent, key=spent.__getitem__)
        self.buffer = torch.empty(most * min(self.chunk, len(self.bank)))
        return self.chunk

    def search(
        self, queries: torch.Tensor, bank: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        near, number = [], []
        for start in range(0, len(bank), self.chunk):
            chunk = bank[start : start + self.chunk]
            out = self.buffer[: len(queries) * len(chunk)].view(len(queries), len(chunk))
            best = torch.mm(queries, chunk.T, out=out).topk(min(K, len(chunk)), sorted=False)
            near.append(best.values)
            number.append(best.indices + start)
        best = torch.cat(near, 1).topk(K)
        return best.values, torch.cat(number, 1).gather(1, best.indices)

    def __call__(self) -> Scores:
        found = []
        for tokens, mask, grid in zip(self.images, self.masks, self.grids, strict=True):
            queries = F.normalize(torch.from_numpy(tokens).float(), dim=1)
            near, number = self.search(queries, self.bank)
            found.append(self.finish(near, number, mask, grid))
        return [one for one, _ in found], np.stack([counts for _, counts in found])

    def finish(
        self, near: torch.Tensor, number: torch.Tensor, mask: np.ndarray, grid: Grid
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prediction and counts of one image."""
        weight = (near / TEMPERATURE).softmax(1)
        shares = torch.bmm(weight[:, None], self.labels[number])[:, 0]
        maps = shares.T.reshape(1, -1, *grid.size_hw)
        large = F.interpolate(maps, size=mask.shape, mode="bilinear", align_corners=False)
        prediction, truth = large[0].argmax(0), torch.from_numpy(mask)
        counted, classes = truth != IGNORED, self.labels.shape[1]
        pairs = truth[counted].long() * classes + prediction[counted]
        matrix = torch.bincount(pairs, minlength=classes**2).view(classes, classes)
        counts = torch.stack([matrix.diag(), matrix.sum(0), matrix.sum(1)])
        return prediction.numpy(), counts.numpy()


class Sklearn(Torch):
    def __init__(self, scene: Scene, images: int) -> None:
        super().__init__(scene, images)
        self.index = NearestNeighbors(n_neighbors=K, algorithm="brute", metric="euclidean")
        self.index.fit(scene.bank)

    def __call__(self) -> Scores:
        """All images in one call."""
        tokens = torch.from_numpy(np.concatenate(self.images))
        far, number = self.index.kneighbors(F.normalize(tokens.float(), dim=1).numpy())
        near = torch.from_numpy((1 - far**2 / 2).astype(np.float32))
        lengths = [len(one) for one in self.images]
        parts = zip(near.split(lengths), torch.from_numpy(number).split(lengths), strict=True)
        images = zip(parts, self.masks, self.grids, strict=True)
        found = [self.finish(*part, mask, grid) for part, mask, grid in images]
        return [one for one, _ in found], np.stack([counts for _, counts in found])


# -- measuring


def steps(scene: Scene, index: vectors.Flat | vectors.Lists) -> tuple[Scores, dict[str, float]]:
    """`score` step by step, with the seconds per image of each step."""
    spent = dict.fromkeys(("normalise", "search", "vote", "class_map", "counts"), 0.0)

    def timed(step: str, work: Callable, *arguments: object) -> np.ndarray:
        start = time.perf_counter()
        found = work(*arguments)
        spent[step] += (time.perf_counter() - start) / len(scene.images)
        return found

    queries = timed("normalise", scene.queries)
    parts = range(0, len(queries), QUERIES)
    found = [timed("search", index.search, queries[i : i + QUERIES], K) for i in parts]
    near, number = (np.concatenate(side) for side in zip(*found, strict=True))
    predictions, counts, start = [], [], 0
    for tokens, mask, grid in zip(*vars(scene.images).values(), strict=True):
        part = slice(start, start := start + len(tokens))
        shares = timed("vote", vote, near[part], number[part], scene.labels, VOTE)
        maps = torch.from_numpy(shares.T[None]).unflatten(2, grid.size_hw)
        predictions.append(timed("class_map", segment, maps, grid, mask.shape)[0])
        counts.append(timed("counts", class_counts, predictions[-1], mask, scene.labels.shape[1]))
    return (predictions, np.stack(counts)), spent


def different(found: list[np.ndarray], exact: list[np.ndarray]) -> float:
    """Share of pixels, over the images of `found`."""
    pairs = list(zip(found, exact, strict=False))
    return sum(int((a != b).sum()) for a, b in pairs) / sum(a.size for a, _ in pairs)


def compare(scene: Scene, rounds: int, few: int) -> None:
    """few: images for scikit-learn."""
    count, few = len(scene.images), min(few, len(scene.images))
    tokens, width = scene.bank.shape
    print(f"\n{tokens:,} tokens of {width} in the bank, {count} images, {rounds} turns", flush=True)
    started = time.perf_counter()
    ivf = build_ivf(scene)
    built = time.perf_counter() - started
    bare = faiss.IndexFlatIP(width)
    bare.add(scene.bank)
    brute_force, sklearn = Torch(scene, count), Sklearn(scene, few)
    print(f"torch: chunks of {brute_force.tune():,} tokens")
    print(
        f"ivf: built in {built:.1f} s, searches {ivf.searched} of {ivf.lists} lists, "
        f"recall {ivf.recall(K):.1%}",
        flush=True,
    )
    shares = check(scene, ivf, brute_force, sklearn)
    queries = scene.queries()
    variants: dict[str, tuple[Callable[[], object], int]] = {
        "ours, flat": (partial(ours, scene, scene.flat), count),
        "bare faiss": (partial(bare.search, queries, K), count),
        "ours, ivf": (partial(ours, scene, ivf), count),
        "torch": (brute_force, count),
        "sklearn": (sklearn, few),
    }
    report(in_turns(variants, rounds), variants, shares)


def check(scene: Scene, ivf: vectors.Lists, brute_force: Torch, sklearn: Torch) -> dict[str, float]:
    """Share of pixels that differ from ours, flat. Warms up every variant."""
    (exact, counts), spent = steps(scene, scene.flat)
    if (ours(scene, scene.flat) != counts).any():
        sys.exit("ours, flat: `score` and its steps disagree")
    (approximate, _), spent_ivf = steps(scene, ivf)
    for name, parts in (("flat", spent), ("ivf", spent_ivf)):
        listed = ", ".join(f"{step} {1e3 * each:.1f}" for step, each in parts.items())
        print(f"steps of ours, {name}, milliseconds per image: {listed}", flush=True)
    shares = {"ours, ivf": different(approximate, exact)}
    for name, variant in (("torch", brute_force), ("sklearn", sklearn)):
        shares[name] = different(variant()[0], exact)
        if shares[name] > MAX_DIFFERENT:
            sys.exit(f"{name}: {shares[name]:.2%} of all pixels differ from ours, flat")
    return shares


def in_turns(
    variants: dict[str, tuple[Callable[[], object], int]], rounds: int
) -> dict[str, list[float]]:
    """Seconds per image."""
    spent: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds):
        for name in list(variants) if turn % 2 == 0 else list(variants)[::-1]:
            work, images = variants[name]
            spent[name].append(seconds(work) / images)
    return spent


def report(
    spent: dict[str, list[float]], variants: dict[str, tuple], shares: dict[str, float]
) -> None:
    print(
        f"\n{'':12}{'images':>7}{'images per second':>26}{'relative to ours, flat':>26}"
        f"{'pixels that differ':>20}"
    )
    for name, took in spent.items():
        rates, ratios = [1 / each for each in took], divide(took, spent["ours, flat"])
        share = f"{shares[name]:.4%}" if name in shares else "–"
        print(f"{name:12}{variants[name][1]:7}{spread(rates):>26}{spread(ratios):>26}{share:>20}")
    ratios = divide(spent["ours, flat"], spent["bare faiss"])
    holds = "holds" if statistics.median(ratios) <= MAX_TIME else "DOES NOT HOLD"
    print(f"ours, flat / bare faiss: {spread(ratios)}; at most {MAX_TIME}: {holds}")
    print(f"peak memory of all variants so far: {peak_bytes() / 1e9:.1f} GB", flush=True)


spread = partial(quartiles, method="inclusive")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tokens", default="100000,1000000", help="in the bank, separated by commas"
    )
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sklearn-images", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="50,000 tokens, 4 images, 2 turns")
    parser.add_argument("--ckpt", help="use real features of this ViT")
    parser.add_argument("--dataset", default="voc", help="with --ckpt")
    parser.add_argument("--data-root", help="with --ckpt")
    parser.add_argument("--train-images", type=int, help="with --ckpt: images of the bank")
    parser.add_argument("--limit", type=int, help="with --ckpt: images of both splits")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.images, options.rounds = "50000", 4, 2
    return options


def main() -> None:
    options = parse()
    for count in map(int, options.tokens.split(",")):
        if options.ckpt:
            scene = real_scene(count, options.images, options)
        else:
            scene = synthetic_scene(count, options.images)
        compare(scene, options.rounds, options.sklearn_images)
        del scene
        gc.collect()


if __name__ == "__main__":
    main()
